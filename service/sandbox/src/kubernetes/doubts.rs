//! Pools in doubt: a runner without a session found a way open that must be closed. What the others of
//! its pool said was found before that; each of them serves again once it has tried anew.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long a runner's tries take before it reports them, at most.
const ROUND: Duration = Duration::from_secs(2);

/// Since when pools are in doubt.
#[derive(Debug, Default)]
pub(super) struct Doubts(HashMap<String, Instant>);

impl Doubts {
    /// A way was found open from a pool, now.
    pub(super) fn begin(&mut self, pool: &str, now: Instant) {
        self.0.insert(pool.to_owned(), now);
    }

    /// Forgets a pool.
    pub(super) fn forget(&mut self, pool: &str) {
        self.0.remove(pool);
    }

    /// Whether what was reported at this moment may have been tried before the doubt began.
    pub(super) fn cover(&self, pool: &str, reported: Instant) -> bool {
        self.0.get(pool).is_some_and(|since| reported < *since + ROUND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sandbox 41.
    #[test]
    fn a_report_whose_tries_began_before_the_doubt_ends_none() {
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        assert!(!doubts.cover("js", now));
        doubts.begin("js", now);
        assert!(doubts.cover("js", now + ROUND / 2));
        assert!(!doubts.cover("other", now));
        assert!(!doubts.cover("js", now + ROUND));
        doubts.forget("js");
        assert!(!doubts.cover("js", now));
    }
}
