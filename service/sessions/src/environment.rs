//! The clock and the randomness of sessions, so that a simulation can bring its own.

use seance_core::time::Timestamp;

/// Where sessions get the time and fresh ids from.
///
/// The clock has to pass with the runtime's: what is due at a point in time is slept for.
pub trait Environment: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;

    /// Random bytes for an id; never the same twice.
    fn random(&self) -> [u8; 10];
}

/// The wall clock, and randomness that no one can guess.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn now(&self) -> Timestamp {
        Timestamp::from_system(std::time::SystemTime::now())
    }

    fn random(&self) -> [u8; 10] {
        rand::random()
    }
}
