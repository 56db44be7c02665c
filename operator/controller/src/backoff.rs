//! How long to wait with an object that failed: twice as long each time, with jitter, forgotten on
//! success. An object that fails holds nobody else up.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy)]
struct Failures {
    n_failures: u32,
    until: Instant,
}

/// The failures of objects, by UID.
#[derive(Debug, Default)]
pub struct Backoff {
    objects: Mutex<HashMap<String, Failures>>,
}

impl Backoff {
    /// The object failed once more: how long to leave it alone. `jitter` is from 0 to 1.
    pub fn failed(&self, uid: &str, now: Instant, jitter: f64) -> Duration {
        let mut objects = self.objects();
        let failures = objects.entry(uid.to_owned()).or_insert(Failures { n_failures: 0, until: now });
        let pause = FIRST.saturating_mul(2u32.saturating_pow(failures.n_failures.min(16))).min(LONGEST);
        let pause = pause.mul_f64(0.75 + 0.25 * jitter.clamp(0.0, 1.0));
        *failures = Failures { n_failures: failures.n_failures.saturating_add(1), until: now + pause };
        pause
    }

    /// How long the object is still to be left alone.
    pub fn pause(&self, uid: &str, now: Instant) -> Option<Duration> {
        let until = self.objects().get(uid)?.until;
        until.checked_duration_since(now).filter(|pause| !pause.is_zero())
    }

    /// The object succeeded, or is gone.
    pub fn forget(&self, uid: &str) {
        self.objects().remove(uid);
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<String, Failures>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_are_forgotten() {
        let (backoff, now) = (Backoff::default(), Instant::now());
        let seconds: Vec<u64> = (0..11).map(|_| backoff.failed("a", now, 1.0).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(backoff.pause("a", now), Some(LONGEST));
        assert_eq!(backoff.pause("a", now + LONGEST), None);
        assert_eq!(backoff.pause("b", now), None);
        backoff.forget("a");
        assert_eq!(backoff.failed("a", now, 0.0), Duration::from_millis(750));
    }
}
