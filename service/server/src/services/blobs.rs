//! GetBlob's stream: a blob's bytes in pieces.

use futures::Stream;
use seance_core::ids::{BlobId, SessionId};
use seance_proto::v1alpha1 as proto;
use tonic::Status;

use super::{Api, OrStatus};
use crate::convert::requests::Invalid;
use crate::request::Caller;

/// Bytes of one message.
const PIECE_BYTES: usize = 1024 * 1024;

/// The pieces from `offset` on. There is always one, which has the size and the media type.
pub(super) async fn messages(
    api: Api,
    session: SessionId,
    blob: BlobId,
    offset: u64,
    caller: Caller,
) -> Result<impl Stream<Item = Result<proto::GetBlobResponse, Status>>, Status> {
    let info = api.sessions.blob_info(&caller.tenant, session, blob).await.or_status(&caller)?;
    if offset > info.bytes {
        let message = format!("it is {offset}, past the blob's {} bytes", info.bytes);
        return Err(Invalid::field("offset", message)).or_status(&caller);
    }
    let first = proto::GetBlobResponse {
        total_bytes: info.bytes,
        media_type: info.media_type,
        ..proto::GetBlobResponse::default()
    };
    let total = info.bytes;
    let state = Some((api, caller, offset, first));
    Ok(futures::stream::unfold(state, move |state| async move {
        let (api, caller, offset, form) = state?;
        let read = tokio::select! {
            biased;
            read = api.sessions.blob(session, blob, offset, PIECE_BYTES) => read.or_status(&caller),
            () = api.stopping.cancelled() => Err(api.stopped(&caller)),
        };
        let data = match read {
            Ok(data) => data,
            Err(status) => return Some((Err(status), None)),
        };
        let next = offset + data.len() as u64;
        let is_last = next >= total || data.is_empty();
        let rest = (!is_last).then(|| (api, caller, next, proto::GetBlobResponse::default()));
        Some((Ok(proto::GetBlobResponse { data, ..form }), rest))
    }))
}
