//! The numbers of a runner's frames: they rise by one, and what is committed may come again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Breach;

/// The highest number the session acknowledged, shared by the two directions of a link.
#[derive(Debug, Clone, Default)]
pub(super) struct Acknowledged(Arc<AtomicU64>);

impl Acknowledged {
    /// Everything up to `number` is committed.
    pub(super) fn raise(&self, number: u64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What to do with a numbered frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is the next one.
    Take,
    /// It was committed before.
    Drop,
}

/// The numbers of one connection.
#[derive(Debug)]
pub(super) struct Numbers {
    last: u64,
    acknowledged: Acknowledged,
}

impl Numbers {
    pub(super) fn new(acknowledged: Acknowledged) -> Self {
        Self { last: acknowledged.get(), acknowledged }
    }

    /// Checks the number of a frame that must have one.
    pub(super) fn check(&mut self, number: u64) -> Result<Turn, Breach> {
        let expected = self.last + 1;
        if number == expected {
            self.last = number;
            return Ok(Turn::Take);
        }
        if number != 0 && number <= self.acknowledged.get() {
            return Ok(Turn::Drop);
        }
        Err(Breach::Misnumbered { number, expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_by_one_and_committed_ones_may_repeat() {
        let acknowledged = Acknowledged::default();
        let mut numbers = Numbers::new(acknowledged.clone());
        assert_eq!(numbers.check(1), Ok(Turn::Take));
        assert_eq!(numbers.check(2), Ok(Turn::Take));
        assert_eq!(numbers.check(2), Err(Breach::Misnumbered { number: 2, expected: 3 }));
        acknowledged.raise(2);
        assert_eq!(numbers.check(1), Ok(Turn::Drop));
        assert_eq!(numbers.check(2), Ok(Turn::Drop));
        for wrong in [0, 4, u64::MAX] {
            assert!(numbers.check(wrong).is_err(), "{wrong}");
        }
        assert_eq!(numbers.check(3), Ok(Turn::Take));
    }

    #[test]
    fn a_new_connection_starts_after_what_is_committed() {
        let acknowledged = Acknowledged::default();
        acknowledged.raise(7);
        let mut numbers = Numbers::new(acknowledged);
        assert_eq!(numbers.check(7), Ok(Turn::Drop));
        assert_eq!(numbers.check(8), Ok(Turn::Take));
    }
}
