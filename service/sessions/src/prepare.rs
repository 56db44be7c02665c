//! Catalogs made ready: checked, compiled, and named for the guest language.

use std::sync::Arc;

use bytes::Bytes;
use seance_broker::catalog::{Catalogs, CompiledCatalog};
use seance_core::catalog::{self, Catalog};
use seance_core::ids::{CatalogDigest, TenantId};
use seance_core::link::GuestTool;
use seance_core::reasons;
use seance_core::store::{DoneRequest, SessionStore};
use seance_engines::Engine;

use crate::error::Error;
use crate::guest_tools::GuestTools;
use crate::requests::CatalogSource;

/// A catalog that programs can use.
pub(crate) struct Prepared {
    pub(crate) digest: CatalogDigest,
    pub(crate) compiled: Arc<CompiledCatalog>,
    pub(crate) tools: Arc<[GuestTool]>,
}

/// Finds and keeps catalogs.
pub(crate) struct Preparer {
    pub(crate) store: Arc<dyn SessionStore>,
    pub(crate) catalogs: Catalogs,
    pub(crate) guest_tools: GuestTools,
}

impl Preparer {
    /// Makes a catalog ready, keeping an inline one under its digest first.
    pub(crate) async fn prepare(
        &self,
        tenant: &TenantId,
        engine: &str,
        source: &CatalogSource,
    ) -> Result<Arc<Prepared>, Error> {
        match source {
            CatalogSource::Inline(catalog) => {
                let catalog = Arc::new(catalog.clone());
                let prepared = self.check(engine, &catalog).await?;
                let json = Bytes::from(catalog.to_json());
                self.store.put_catalog(tenant, &prepared.digest, json, None).await?;
                Ok(prepared)
            }
            CatalogSource::Digest(digest) => {
                let catalog = Arc::new(self.find(tenant, digest).await?);
                self.check(engine, &catalog).await
            }
        }
    }

    /// Keeps a catalog whose schemas are right.
    pub(crate) async fn put(
        &self,
        tenant: &TenantId,
        catalog: &Catalog,
        done: Option<DoneRequest>,
    ) -> Result<CatalogDigest, Error> {
        let digest = catalog.digest();
        self.compile(&digest, &Arc::new(catalog.clone())).await?;
        self.store.put_catalog(tenant, &digest, catalog.to_json().into(), done).await?;
        Ok(digest)
    }

    /// A kept catalog.
    pub(crate) async fn find(&self, tenant: &TenantId, digest: &CatalogDigest) -> Result<Catalog, Error> {
        let missing = || {
            let message = format!("there is no catalog {digest}; put it first");
            Error::invalid(reasons::CATALOG_NOT_FOUND, "catalog", message)
        };
        let json = self.store.catalog(tenant, digest).await?.ok_or_else(missing)?;
        Catalog::from_json(&json).map_err(|source| {
            let source = Box::new(source);
            Error::Store(seance_core::store::Error::Failed { doing: "reading a catalog", source })
        })
    }

    async fn check(&self, engine: &str, catalog: &Arc<Catalog>) -> Result<Arc<Prepared>, Error> {
        let engine = seance_engines::by_name(engine).ok_or_else(|| {
            Error::invalid(reasons::ENGINE_NOT_FOUND, "engine", format!("there is no engine {engine:?}"))
        })?;
        let digest = catalog.digest();
        let kept = self.guest_tools.get(engine.name, &digest);
        if kept.is_none() {
            engine.names(catalog).map_err(seance_engines::Error::from).map_err(refused)?;
        }
        let compiled = self.compile(&digest, catalog).await?;
        let tools = match kept {
            Some(tools) => tools,
            None => self.named(engine, &digest, catalog).await?,
        };
        Ok(Arc::new(Prepared { digest, compiled, tools }))
    }

    /// The tools as programs of an engine see them. A catalog of thousands takes milliseconds.
    async fn named(
        &self,
        engine: &'static Engine,
        digest: &CatalogDigest,
        catalog: &Arc<Catalog>,
    ) -> Result<Arc<[GuestTool]>, Error> {
        let catalog = catalog.clone();
        let naming = tokio::task::spawn_blocking(move || engine.guest_tools(&catalog));
        let tools = match naming.await {
            Ok(tools) => Arc::from(tools.map_err(refused)?),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is going down, and this future with it.
                Err(_) => std::future::pending().await,
            },
        };
        self.guest_tools.keep(engine.name, digest, &tools);
        Ok(tools)
    }

    async fn compile(
        &self,
        digest: &CatalogDigest,
        catalog: &Arc<Catalog>,
    ) -> Result<Arc<CompiledCatalog>, Error> {
        self.catalogs
            .get_or_compile(digest, catalog.clone())
            .await
            .map_err(|error| Error::invalid(reasons::INVALID_CATALOG, "catalog", error.to_string()))
    }
}

/// A catalog that a language can't have.
fn refused(error: seance_engines::Error) -> Error {
    let reason = match error {
        seance_engines::Error::Name(_) => reasons::CATALOG_NAME_CLASH,
        seance_engines::Error::Schema { .. } => reasons::INVALID_CATALOG,
        seance_engines::Error::UnknownOption { .. } => reasons::UNSUPPORTED,
    };
    Error::invalid(reason, "catalog", error.to_string())
}

/// A catalog that breaks its own rules.
impl From<catalog::Error> for Error {
    fn from(error: catalog::Error) -> Self {
        let reason = match error {
            catalog::Error::TooManyTools { .. } | catalog::Error::TooLarge { .. } => {
                reasons::CATALOG_TOO_LARGE
            }
            catalog::Error::BadName { .. } => reasons::INVALID_CATALOG,
            catalog::Error::DuplicateName { .. } => reasons::CATALOG_NAME_CLASH,
        };
        Error::invalid(reason, "catalog", error.to_string())
    }
}
