//! The service `Tools`.

use std::time::Duration;

use seance_proto::v1alpha1 as proto;
use seance_proto::v1alpha1::tools_server;
use tonic::{Request, Response, Status, Streaming};

use super::{Api, MessageStream, OrStatus, provide};
use crate::convert::requests::{self, Invalid};
use crate::request::Caller;

/// How long a provider may take to say what it serves.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

#[tonic::async_trait]
impl tools_server::Tools for Api {
    type ServeStream = MessageStream<proto::ServeResponse>;

    async fn put_catalog(
        &self,
        request: Request<proto::PutCatalogRequest>,
    ) -> Result<Response<proto::PutCatalogResponse>, Status> {
        let caller = Caller::of(&request);
        let (catalog, idempotency) = requests::put_catalog(request.into_inner()).or_status(&caller)?;
        let kept = self.sessions.put_catalog(&caller.tenant, &catalog, idempotency.as_ref()).await;
        let digest = kept.or_status(&caller)?.to_string();
        Ok(Response::new(proto::PutCatalogResponse { digest }))
    }

    async fn serve(
        &self,
        request: Request<Streaming<proto::ServeRequest>>,
    ) -> Result<Response<Self::ServeStream>, Status> {
        let caller = Caller::of(&request);
        let mut inbound = request.into_inner();
        let first = tokio::time::timeout(ATTACH_TIMEOUT, inbound.message()).await;
        let attach = match first {
            Ok(Ok(Some(proto::ServeRequest {
                message: Some(proto::serve_request::Message::Attach(attach)),
            }))) => attach,
            Ok(Err(status)) => return Err(status),
            Ok(Ok(_)) => {
                return Err(Invalid::field("attach", "the first message is no attach")).or_status(&caller);
            }
            Err(_) => {
                let message = format!("no attach came within {} s", ATTACH_TIMEOUT.as_secs());
                return Err(Invalid::field("attach", message)).or_status(&caller);
            }
        };
        let (session, attach) = requests::attach(attach).or_status(&caller)?;
        self.sessions.check_session(&caller.tenant, session).await.or_status(&caller)?;
        let attachment = self.sessions.providers().attach(session, attach);
        let attachment =
            attachment.map_err(|error| provide::Refused { session, error }).or_status(&caller)?;
        Ok(Response::new(Box::pin(provide::messages(self.clone(), attachment, inbound, session, caller))))
    }

    async fn answer(
        &self,
        request: Request<proto::AnswerRequest>,
    ) -> Result<Response<proto::AnswerResponse>, Status> {
        let caller = Caller::of(&request);
        let requests::Answer { session, call, result, idempotency } =
            requests::answer(request.into_inner()).or_status(&caller)?;
        let sessions = &self.sessions;
        let answered = sessions.answer(&caller.tenant, session, call, result, idempotency.as_ref()).await;
        answered.or_status(&caller)?;
        Ok(Response::new(proto::AnswerResponse {}))
    }
}
