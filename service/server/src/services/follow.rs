//! Follow's stream: a session's events as they are recorded.

use futures::Stream;
use seance_core::event::EventKind;
use seance_core::ids::SessionId;
use seance_core::program::Payload;
use seance_proto::v1alpha1 as proto;
use seance_sessions::Follower;
use tonic::Status;

use super::{Api, HEARTBEAT, OrStatus};
use crate::convert::{records, shape};
use crate::request::Caller;

/// The events, and heartbeats in silence.
pub(super) fn messages(
    api: Api,
    follower: Follower,
    session: SessionId,
    caller: Caller,
) -> impl Stream<Item = Result<proto::FollowResponse, Status>> {
    use proto::follow_response::Message;
    let state = Some((api, follower, caller));
    futures::stream::unfold(state, move |state| async move {
        let (api, mut follower, caller) = state?;
        match message(&api, &mut follower, session, &caller).await {
            Ok(Some(mut message)) => {
                if let Message::Event(event) = &mut message {
                    shape::event(event);
                }
                let response = proto::FollowResponse { message: Some(message) };
                Some((Ok(response), Some((api, follower, caller))))
            }
            Ok(None) => None,
            Err(status) => Some((Err(status), None)),
        }
    })
}

async fn message(
    api: &Api,
    follower: &mut Follower,
    session: SessionId,
    caller: &Caller,
) -> Result<Option<proto::follow_response::Message>, Status> {
    use proto::follow_response::Message;
    let event = tokio::select! {
        biased;
        event = follower.next() => event.or_status(caller)?,
        () = api.stopping.cancelled() => return Err(api.stopped(caller)),
        () = tokio::time::sleep(HEARTBEAT) => return Ok(Some(Message::Heartbeat(proto::Heartbeat::default()))),
    };
    let Some(event) = event else { return Ok(None) };
    let source = match &event.kind {
        EventKind::ProgramAccepted { source: Payload::Blob { id, bytes }, .. } => {
            let n_max = usize::try_from(*bytes).unwrap_or(usize::MAX);
            let source = api.sessions.blob(session, *id, 0, n_max).await.or_status(caller)?;
            Some(String::from_utf8_lossy(&source).into_owned())
        }
        _ => None,
    };
    Ok(Some(Message::Event(records::event(&event, session, source))))
}
