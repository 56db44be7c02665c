//! Compiled catalogs by digest.
//!
//! A catalog is compiled once however many sessions ask for it at the same time, and never on a
//! runtime's own thread. What was used longest ago goes first.

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use seance_core::catalog::Catalog;
use seance_core::ids::CatalogDigest;
use tokio::sync::{OnceCell, Semaphore};

use super::{CatalogError, CompiledCatalog};

/// The most catalogs in the cache.
pub const CACHED_CATALOGS_MAX: usize = 256;
/// The most bytes of their texts. Compiled forms come on top for tools that were called.
pub const CACHED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How many catalogs are compiled at one time; more wait in line.
const COMPILING_MAX: usize = 2;

type Cell = Arc<OnceCell<Arc<CompiledCatalog>>>;

/// A bounded cache of compiled catalogs. Cheap to clone. A catalog that is in use outlives its place
/// in the cache.
#[derive(Clone)]
pub struct Catalogs {
    /// The one used last stands last.
    cells: Arc<Mutex<IndexMap<CatalogDigest, Cell>>>,
    compiling: Arc<Semaphore>,
}

impl Default for Catalogs {
    fn default() -> Self {
        Self { cells: Arc::default(), compiling: Arc::new(Semaphore::new(COMPILING_MAX)) }
    }
}

impl Catalogs {
    /// The compiled catalog, when it is in the cache.
    pub fn get(&self, digest: &CatalogDigest) -> Option<Arc<CompiledCatalog>> {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = cells.get(digest)?.get()?.clone();
        touch(&mut cells, digest);
        Some(compiled)
    }

    /// The compiled catalog of this digest, which the caller vouches for.
    ///
    /// # Errors
    ///
    /// As [`CompiledCatalog::compile`]. A failure is not kept.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves the compiling to whoever else waits for it.
    pub async fn get_or_compile(
        &self,
        digest: &CatalogDigest,
        catalog: Arc<Catalog>,
    ) -> Result<Arc<CompiledCatalog>, CatalogError> {
        let cell = self.cell(digest);
        let compiled = cell.get_or_try_init(|| self.compile(catalog)).await;
        match &compiled {
            Ok(_) => self.trim(),
            Err(_) => self.forget(digest, &cell),
        }
        compiled.cloned()
    }

    async fn compile(&self, catalog: Arc<Catalog>) -> Result<Arc<CompiledCatalog>, CatalogError> {
        let _turn = self.compiling.acquire().await.expect("it is never closed");
        let compiling = tokio::task::spawn_blocking(move || CompiledCatalog::compile(&catalog));
        match compiling.await {
            Ok(compiled) => compiled.map(Arc::new),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is going down, and this future with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn cell(&self, digest: &CatalogDigest) -> Cell {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = cells.entry(digest.clone()).or_default().clone();
        touch(&mut cells, digest);
        cell
    }

    fn forget(&self, digest: &CatalogDigest, failed: &Cell) {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        if cells.get(digest).is_some_and(|cell| Arc::ptr_eq(cell, failed) && !cell.initialized()) {
            cells.shift_remove(digest);
        }
    }

    fn trim(&self) {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes_of = |cell: &Cell| cell.get().map_or(0, |compiled| compiled.bytes);
        let mut bytes: usize = cells.values().map(bytes_of).sum();
        while cells.len() > 1 && (cells.len() > CACHED_CATALOGS_MAX || bytes > CACHED_BYTES_MAX) {
            let (_, oldest) = cells.shift_remove_index(0).expect("it has more than one");
            bytes -= bytes_of(&oldest);
        }
    }
}

fn touch(cells: &mut IndexMap<CatalogDigest, Cell>, digest: &CatalogDigest) {
    if let Some(index) = cells.get_index_of(digest) {
        cells.move_index(index, cells.len() - 1);
    }
}
