//! The tools of catalogs as programs see them, kept while they are used: what a program reads of a large
//! catalog takes milliseconds to write, and most programs have the catalog of the one before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use seance_core::ids::CatalogDigest;
use seance_core::link::GuestTool;

/// The most catalogs that are kept.
const CATALOGS_MAX: usize = 64;
/// The most bytes that are kept in all; the one used last is kept in any case.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// A bounded cache by engine and catalog.
#[derive(Default)]
pub(crate) struct GuestTools {
    /// The one used last stands last.
    kept: Mutex<VecDeque<Kept>>,
}

struct Kept {
    engine: &'static str,
    digest: CatalogDigest,
    tools: Arc<[GuestTool]>,
    n_bytes: usize,
}

impl GuestTools {
    /// The tools of a catalog in an engine's language, when they are kept.
    pub(crate) fn get(&self, engine: &'static str, digest: &CatalogDigest) -> Option<Arc<[GuestTool]>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let n = kept.iter().position(|one| one.engine == engine && one.digest == *digest)?;
        let one = kept.remove(n).expect("it was found there");
        let tools = one.tools.clone();
        kept.push_back(one);
        Some(tools)
    }

    /// Keeps them, and forgets what was not used for longest where that is too much.
    pub(crate) fn keep(&self, engine: &'static str, digest: &CatalogDigest, tools: &Arc<[GuestTool]>) {
        let weight = |tool: &GuestTool| tool.name.len() + tool.alias.len() + tool.description.len();
        let n_bytes = tools.iter().map(weight).sum();
        let one = Kept { engine, digest: digest.clone(), tools: tools.clone(), n_bytes };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|other| other.engine != engine || other.digest != *digest);
        kept.push_back(one);
        let is_over = |kept: &VecDeque<Kept>| {
            kept.len() > CATALOGS_MAX || kept.iter().map(|one| one.n_bytes).sum::<usize>() > BYTES_MAX
        };
        while kept.len() > 1 && is_over(&kept) {
            kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(n_bytes: usize) -> Arc<[GuestTool]> {
        let tool = GuestTool { name: String::new(), alias: String::new(), description: "d".repeat(n_bytes) };
        Arc::new([tool])
    }

    fn digest(n: usize) -> CatalogDigest {
        let tool = |name: String| seance_core::catalog::Tool {
            name,
            description: String::new(),
            input_schema: None,
            output_schema: None,
            read_only: false,
            replay_safe: false,
            timeout: None,
        };
        seance_core::catalog::Catalog::new(vec![tool(format!("t{n}"))]).unwrap().digest()
    }

    #[test]
    fn what_was_used_last_is_kept() {
        let cache = GuestTools::default();
        for n in 0..=CATALOGS_MAX {
            cache.keep("javascript", &digest(n), &tools(1));
            assert!(cache.get("javascript", &digest(0)).is_some(), "{n}");
        }
        assert!(cache.get("javascript", &digest(1)).is_none());
        assert!(cache.get("python", &digest(0)).is_none());
    }

    #[test]
    fn large_catalogs_leave_room_for_one_at_least() {
        let cache = GuestTools::default();
        for n in 0..3 {
            cache.keep("ruby", &digest(n), &tools(BYTES_MAX));
        }
        assert!(cache.get("ruby", &digest(1)).is_none() && cache.get("ruby", &digest(2)).is_some());
    }
}
