//! What was written and isn't seen yet. A cache lags behind; what was decided must not be decided
//! twice because of that.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After this long, what isn't seen never will be: it was deleted before the watch told of it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);

/// What one pool has written.
#[derive(Debug, Default)]
struct Written {
    made: HashMap<String, Instant>,
    asked: HashMap<String, Instant>,
}

/// What all pools have written, by the pool's UID.
#[derive(Debug, Default)]
pub struct Expectations {
    pools: Mutex<HashMap<String, Written>>,
}

/// What a pool has to add to what it sees.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Unseen {
    /// How many sandboxes were made that aren't seen.
    pub made: usize,
    /// UIDs of those that were asked to go, which isn't seen.
    pub asked: HashSet<String>,
}

impl Expectations {
    /// A sandbox was made.
    pub fn made(&self, pool: &str, sandbox: String, now: Instant) {
        self.with(pool, |written| written.made.insert(sandbox, now));
    }

    /// A sandbox was asked to go.
    pub fn asked(&self, pool: &str, sandbox: String, now: Instant) {
        self.with(pool, |written| written.asked.insert(sandbox, now));
    }

    /// What isn't seen, where `seen` are the UIDs of the pool's sandboxes and `going` those of them
    /// that are seen to be asked. What is seen is forgotten here.
    pub fn unseen(
        &self,
        pool: &str,
        seen: &HashSet<String>,
        going: &HashSet<String>,
        now: Instant,
    ) -> Unseen {
        self.with(pool, |written| {
            let is_fresh = |at: &Instant| now.saturating_duration_since(*at) < FORGOTTEN_AFTER;
            written.made.retain(|sandbox, at| !seen.contains(sandbox) && is_fresh(at));
            written
                .asked
                .retain(|sandbox, at| seen.contains(sandbox) && !going.contains(sandbox) && is_fresh(at));
            Unseen { made: written.made.len(), asked: written.asked.keys().cloned().collect() }
        })
    }

    /// The pool is gone.
    pub fn forget(&self, pool: &str) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).remove(pool);
    }

    fn with<T>(&self, pool: &str, change: impl FnOnce(&mut Written) -> T) -> T {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        change(pools.entry(pool.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(uids: &[&str]) -> HashSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn what_is_written_counts_until_it_is_seen() {
        let (expectations, now) = (Expectations::default(), Instant::now());
        expectations.made("p", "a".to_owned(), now);
        expectations.made("p", "b".to_owned(), now);
        expectations.asked("p", "c".to_owned(), now);
        let unseen = |seen: &[&str], going: &[&str], after: Duration| {
            expectations.unseen("p", &set(seen), &set(going), now + after)
        };
        let soon = Duration::from_secs(1);
        assert_eq!(unseen(&["c"], &[], soon), Unseen { made: 2, asked: set(&["c"]) });
        assert_eq!(unseen(&["a", "c"], &[], soon), Unseen { made: 1, asked: set(&["c"]) });
        assert_eq!(unseen(&["a", "c"], &["c"], soon), Unseen { made: 1, asked: set(&[]) });
        assert_eq!(unseen(&[], &[], FORGOTTEN_AFTER), Unseen::default());
        assert_eq!(expectations.unseen("other", &set(&[]), &set(&[]), now), Unseen::default());
    }
}
