//! The service `Engines`.

use prost::Message as _;
use seance_broker::catalog::CompiledCatalog;
use seance_core::catalog::Catalog;
use seance_core::reasons;
use seance_proto::PUBLIC_MESSAGE_BYTES_MAX;
use seance_proto::v1alpha1 as proto;
use seance_proto::v1alpha1::engines_server;
use tonic::{Request, Response, Status};

use super::{Api, OrStatus};
use crate::convert::requests;
use crate::request::Caller;
use crate::status::{Plain, Refusal};

impl Refusal for seance_engines::Error {
    fn reason(&self) -> &'static str {
        match self {
            seance_engines::Error::Name(_) => reasons::CATALOG_NAME_CLASH,
            seance_engines::Error::Schema { .. } => reasons::INVALID_CATALOG,
            seance_engines::Error::UnknownOption { .. } => reasons::UNSUPPORTED,
        }
    }

    fn field(&self) -> Option<&str> {
        Some(match self {
            seance_engines::Error::Name(_) | seance_engines::Error::Schema { .. } => "catalog",
            seance_engines::Error::UnknownOption { .. } => "engine_options",
        })
    }
}

/// Why a catalog can't be described: what Open and Execute would refuse too, in their words.
#[derive(Debug, thiserror::Error)]
enum Undescribed {
    #[error(transparent)]
    Engine(#[from] seance_engines::Error),
    #[error(transparent)]
    Schema(#[from] seance_broker::catalog::CatalogError),
}

impl Refusal for Undescribed {
    fn reason(&self) -> &'static str {
        match self {
            Undescribed::Engine(error) => error.reason(),
            Undescribed::Schema(_) => reasons::INVALID_CATALOG,
        }
    }

    fn field(&self) -> Option<&str> {
        match self {
            Undescribed::Engine(error) => error.field(),
            Undescribed::Schema(_) => Some("catalog"),
        }
    }
}

#[tonic::async_trait]
impl engines_server::Engines for Api {
    async fn list(
        &self,
        _: Request<proto::ListEnginesRequest>,
    ) -> Result<Response<proto::ListEnginesResponse>, Status> {
        let engines = seance_engines::ALL.iter().map(|engine| {
            let version = self.sessions.engine_version(engine.name);
            proto::Engine {
                name: engine.name.to_owned(),
                available: version.is_ok(),
                version: version.clone().unwrap_or_default(),
                unavailable_reason: version.err().unwrap_or_default(),
                languages: engine.languages.iter().map(|&language| language.to_owned()).collect(),
                options: engine.options.iter().map(|option| option.name.to_owned()).collect(),
            }
        });
        Ok(Response::new(proto::ListEnginesResponse { engines: engines.collect() }))
    }

    async fn describe(
        &self,
        request: Request<proto::DescribeRequest>,
    ) -> Result<Response<proto::DescribeResponse>, Status> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let engine = seance_engines::by_name(&request.engine).ok_or_else(|| {
            let name: String = request.engine.chars().take(64).collect();
            Plain::new(
                reasons::ENGINE_NOT_FOUND,
                format!("there is no engine {name:?}; Engines.List tells which there are"),
            )
        });
        let engine = engine.or_status(&caller)?;
        let catalog = match requests::catalog_source(request.catalog).or_status(&caller)? {
            Some(source) => self.sessions.catalog(&caller.tenant, &source).await.or_status(&caller)?,
            None => Catalog::new(Vec::new()).expect("no tools are within every bound"),
        };
        // A catalog of thousands of schemas takes milliseconds to describe.
        let options = request.engine_options;
        let describing = tokio::task::spawn_blocking(move || -> Result<_, Undescribed> {
            let described = engine.describe(&catalog, &options)?;
            CompiledCatalog::compile(&catalog)?;
            Ok(described)
        });
        let described = describing
            .await
            .map_err(|_| Plain::new(reasons::INTERNAL, "describing an engine failed"))
            .or_status(&caller)?
            .or_status(&caller)?;
        let alias = |alias: seance_engines::Alias| proto::ToolAlias { name: alias.name, alias: alias.alias };
        let response = proto::DescribeResponse {
            instructions: described.instructions,
            declarations: described.declarations,
            aliases: described.aliases.into_iter().map(alias).collect(),
        };
        if response.encoded_len() > PUBLIC_MESSAGE_BYTES_MAX {
            let message = "the description of the catalog is over 3 MiB; offer fewer tools";
            return Err(Plain::new(reasons::CATALOG_TOO_LARGE, message)).or_status(&caller);
        }
        Ok(Response::new(response))
    }
}
