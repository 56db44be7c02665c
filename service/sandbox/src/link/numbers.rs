//! The numbers of a runner's frames. They rise by one within a connection; a connection after the
//! first begins again behind what is committed, so that what was delivered before comes twice and is
//! dropped once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Breach;

/// The highest number that was handed to the session, over all connections of a link.
#[derive(Debug, Clone, Default)]
pub(super) struct Delivered(Arc<AtomicU64>);

impl Delivered {
    /// Numbers up to this one were delivered.
    pub(super) fn up_to(number: u64) -> Self {
        Self(Arc::new(AtomicU64::new(number)))
    }
}

/// What to do with a numbered frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is new.
    Take,
    /// It was delivered over an earlier connection.
    Drop,
}

/// The numbers of one connection.
#[derive(Debug)]
pub(super) struct Numbers {
    last: u64,
    delivered: Delivered,
}

impl Numbers {
    /// A connection on which the runner was told to go on behind `acknowledged`.
    pub(super) fn new(acknowledged: u64, delivered: Delivered) -> Self {
        Self { last: acknowledged, delivered }
    }

    /// Checks the number of a frame that must have one.
    pub(super) fn check(&mut self, number: u64) -> Result<Turn, Breach> {
        let expected = self.last + 1;
        if number != expected {
            return Err(Breach::Misnumbered { number, expected });
        }
        self.last = number;
        // The one connection that is read from is the only one that raises it.
        let is_new = self.delivered.0.fetch_max(number, Ordering::Relaxed) < number;
        Ok(if is_new { Turn::Take } else { Turn::Drop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_by_one() {
        let mut numbers = Numbers::new(0, Delivered::default());
        assert_eq!(numbers.check(1), Ok(Turn::Take));
        assert_eq!(numbers.check(2), Ok(Turn::Take));
        for wrong in [0, 1, 2, 4, u64::MAX] {
            assert_eq!(numbers.check(wrong), Err(Breach::Misnumbered { number: wrong, expected: 3 }));
        }
        assert_eq!(numbers.check(3), Ok(Turn::Take));
    }

    /// Committed up to 2 and delivered up to 4: 3 and 4 come again and are dropped.
    #[test]
    fn what_was_delivered_before_is_dropped_on_a_later_connection() {
        let delivered = Delivered::up_to(4);
        let mut numbers = Numbers::new(2, delivered.clone());
        assert_eq!(numbers.check(3), Ok(Turn::Drop));
        assert_eq!(numbers.check(4), Ok(Turn::Drop));
        assert_eq!(numbers.check(5), Ok(Turn::Take));
        assert_eq!(delivered.0.load(Ordering::Relaxed), 5);
    }
}
