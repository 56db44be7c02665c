//! The service `Sessions`.

use seance_core::ids::EventSeq;
use seance_proto::v1alpha1 as proto;
use seance_proto::v1alpha1::sessions_server;
use seance_sessions::StopReason;
use tonic::{Request, Response, Status};

use super::{Api, MessageStream, OrStatus, blobs, follow, observe};
use crate::convert::{records, requests, shape};
use crate::request::Caller;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl sessions_server::Sessions for Api {
    type ExecuteStream = MessageStream<proto::ExecuteResponse>;
    type WaitStream = MessageStream<proto::WaitResponse>;
    type FollowStream = MessageStream<proto::FollowResponse>;
    type GetBlobStream = MessageStream<proto::GetBlobResponse>;

    async fn open(&self, request: Request<proto::OpenRequest>) -> Answer<proto::OpenResponse> {
        let caller = Caller::of(&request);
        let open = requests::open(request.into_inner()).or_status(&caller)?;
        let record = self.sessions.open(&caller.tenant, open).await.or_status(&caller)?;
        Ok(Response::new(proto::OpenResponse { session: Some(records::session(&record)) }))
    }

    async fn execute(&self, request: Request<proto::ExecuteRequest>) -> Answer<Self::ExecuteStream> {
        let caller = Caller::of(&request);
        let execute = requests::execute(request.into_inner(), &caller).or_status(&caller)?;
        let stream_output = execute.observe.stream_output;
        let watched = self.begin(execute, &caller).await?;
        let messages = observe::execute_messages(self.clone(), watched, stream_output, caller);
        Ok(Response::new(Box::pin(messages)))
    }

    async fn wait(&self, request: Request<proto::WaitRequest>) -> Answer<Self::WaitStream> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let session = requests::session_id(&request.session_id).or_status(&caller)?;
        let observe = requests::observe(request.observe, &caller).or_status(&caller)?;
        let program = requests::program_number(request.program_number);
        let cursor = requests::cursor(request.cursor);
        let observer = self
            .sessions
            .wait(&caller.tenant, session, program, cursor.as_deref(), observe.options)
            .await
            .or_status(&caller)?;
        let watched = observe::Watched::detaching(observer);
        let messages = observe::wait_messages(self.clone(), watched, observe.stream_output, caller);
        Ok(Response::new(Box::pin(messages)))
    }

    async fn stop(&self, request: Request<proto::StopRequest>) -> Answer<proto::StopResponse> {
        let caller = Caller::of(&request);
        let (session, stop) = requests::stop(request.into_inner()).or_status(&caller)?;
        let stopped = self.sessions.stop(&caller.tenant, session, stop, StopReason::Asked).await;
        let observation = observe::observation(stopped.or_status(&caller)?);
        Ok(Response::new(proto::StopResponse { observation: Some(observation) }))
    }

    async fn close(&self, request: Request<proto::CloseRequest>) -> Answer<proto::CloseResponse> {
        let caller = Caller::of(&request);
        let (session, idempotency) = requests::close(request.into_inner()).or_status(&caller)?;
        let closed = self.sessions.close(&caller.tenant, session, idempotency.as_ref()).await;
        let session = records::session(&closed.or_status(&caller)?);
        Ok(Response::new(proto::CloseResponse { session: Some(session) }))
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Answer<proto::GetResponse> {
        let caller = Caller::of(&request);
        let session = requests::session_id(&request.into_inner().session_id).or_status(&caller)?;
        let record = self.sessions.get(&caller.tenant, session).await.or_status(&caller)?;
        Ok(Response::new(proto::GetResponse { session: Some(records::session(&record)) }))
    }

    async fn list(&self, request: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        let caller = Caller::of(&request);
        let (page_size, filter) = requests::list(request.into_inner()).or_status(&caller)?;
        let found = self.sessions.list(&caller.tenant, filter).await.or_status(&caller)?;
        let mut sessions: Vec<_> = found.iter().take(page_size).map(records::session).collect();
        let is_cut = shape::sessions(&mut sessions) || found.len() > page_size;
        let last = sessions.last().filter(|_| is_cut);
        let next_page_token = last.map(|session| session.session_id.clone()).unwrap_or_default();
        Ok(Response::new(proto::ListResponse { sessions, next_page_token }))
    }

    async fn get_program(
        &self,
        request: Request<proto::GetProgramRequest>,
    ) -> Answer<proto::GetProgramResponse> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let session = requests::session_id(&request.session_id).or_status(&caller)?;
        let number = requests::named_program(request.program_number).or_status(&caller)?;
        let record = self.sessions.program(&caller.tenant, session, number).await.or_status(&caller)?;
        let mut program = records::program(&record);
        shape::program(&mut program);
        Ok(Response::new(proto::GetProgramResponse { program: Some(program) }))
    }

    async fn follow(&self, request: Request<proto::FollowRequest>) -> Answer<Self::FollowStream> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let session = requests::session_id(&request.session_id).or_status(&caller)?;
        let from = EventSeq(request.from_sequence.max(1));
        let follower = self.sessions.follow(&caller.tenant, session, from, request.until_now).await;
        let messages = follow::messages(self.clone(), follower.or_status(&caller)?, session, caller);
        Ok(Response::new(Box::pin(messages)))
    }

    async fn get_blob(&self, request: Request<proto::GetBlobRequest>) -> Answer<Self::GetBlobStream> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let session = requests::session_id(&request.session_id).or_status(&caller)?;
        let blob = requests::blob_id(&request.blob_id).or_status(&caller)?;
        let messages = blobs::messages(self.clone(), session, blob, request.offset, caller).await?;
        Ok(Response::new(Box::pin(messages)))
    }
}
