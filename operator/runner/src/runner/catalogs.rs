//! Catalogs that the service has sent, by digest; the one used longest ago goes first.

use std::collections::VecDeque;

use seance_proto::host::v1alpha1::ToolName;
use seance_proto::link::v1alpha1::Catalog;

const CATALOGS_MAX: usize = 32;

/// Catalogs by digest.
#[derive(Default)]
pub struct Catalogs(VecDeque<Catalog>);

impl Catalogs {
    /// Keeps a catalog.
    pub fn insert(&mut self, catalog: Catalog) {
        self.0.retain(|kept| kept.digest != catalog.digest);
        if self.0.len() >= CATALOGS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(catalog);
    }

    /// The tools of a digest. The empty digest is no tools.
    pub fn tools(&mut self, digest: &str) -> Option<Vec<ToolName>> {
        if digest.is_empty() {
            return Some(Vec::new());
        }
        let at = self.0.iter().position(|kept| kept.digest == digest)?;
        let catalog = self.0.remove(at)?;
        let tools = catalog.tools.clone();
        self.0.push_back(catalog);
        Some(tools)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalog_used_longest_ago_goes_first() {
        let mut catalogs = Catalogs::default();
        let catalog = |n: usize| Catalog { digest: n.to_string(), tools: vec![ToolName::default(); n] };
        for n in 1..=CATALOGS_MAX {
            catalogs.insert(catalog(n));
        }
        assert_eq!(catalogs.tools("1").map(|tools| tools.len()), Some(1));
        catalogs.insert(catalog(99));
        assert!(catalogs.tools("2").is_none());
        assert!(catalogs.tools("1").is_some() && catalogs.tools("99").is_some());
        assert_eq!(catalogs.tools(""), Some(vec![]));
    }
}
