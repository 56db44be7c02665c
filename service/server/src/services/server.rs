//! The service `Server`.

use seance_proto::v1alpha1 as proto;
use seance_proto::v1alpha1::server_server;
use tonic::{Request, Response, Status};

use super::Api;
use crate::convert::records;
use crate::request::Caller;

#[tonic::async_trait]
impl server_server::Server for Api {
    async fn get_info(
        &self,
        request: Request<proto::GetInfoRequest>,
    ) -> Result<Response<proto::GetInfoResponse>, Status> {
        let backend = self.sessions.backend();
        Ok(Response::new(proto::GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            features: Vec::new(),
            limits: records::limits(),
            backend: backend.name().to_owned(),
            confinement_parts: backend.confinement(),
            tenant: Caller::of(&request).tenant.to_string(),
        }))
    }
}
