//! The limits of sessions and programs: one table, by name.
//!
//! A name that is not in the table is refused, never ignored; so is a value outside its range
//! (C6). Every description says what happens at the bound.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Milliseconds,
    /// Things.
    Count,
}

impl Unit {
    /// The unit's name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Milliseconds => "milliseconds",
            Unit::Count => "count",
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The name.
    pub name: &'static str,
    /// What it bounds and what happens there.
    pub description: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// The value when none is given.
    pub default: u64,
    /// The lowest value.
    pub min: u64,
    /// The highest value.
    pub max: u64,
}

/// What can be wrong with given limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No limit has this name.
    #[error("unknown limit {name:?}; Server.GetInfo lists the limits")]
    Unknown { name: String },
    /// The value is out of range.
    #[error("limit {name} is {value}; it can be {min} to {max}")]
    OutOfRange { name: &'static str, value: u64, min: u64, max: u64 },
    /// A program asked for more than its session has.
    #[error("limit {name} is {value} for this program, over the session's {session}")]
    OverSession { name: &'static str, value: u64, session: u64 },
}

macro_rules! limits {
    ($($name:ident: $unit:ident, $default:expr, $min:expr, $max:expr, $description:literal;)*) => {
        /// The limits in force. Every field is in the unit its name ends in, or a count.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Limits {
            $(#[doc = $description] pub $name: u64,)*
        }

        /// All limits, in the order that people see.
        pub const TABLE: &[Limit] = &[$(Limit {
            name: stringify!($name), description: $description, unit: Unit::$unit,
            default: $default, min: $min, max: $max,
        },)*];

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Limits {
            fn slot(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }

            /// The limits by name.
            pub fn to_map(&self) -> BTreeMap<&'static str, u64> {
                BTreeMap::from([$((stringify!($name), self.$name),)*])
            }
        }
    };
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

limits! {
    source_bytes: Bytes, MIB, 1, 2 * MIB,
        "A program's source. Over it Execute is refused (SOURCE_TOO_LARGE).";
    inputs_bytes: Bytes, 256 * KIB, 0, MIB,
        "A program's inputs. Over it Execute is refused (INPUTS_TOO_LARGE).";
    memory_bytes: Bytes, 128 * MIB, 8 * MIB, 4096 * MIB,
        "The memory of a program. Over it the program ends with memory_limit.";
    cpu_ms: Milliseconds, 30_000, 1, 3_600_000,
        "Processor time of a program. Over it the program ends with cpu_limit.";
    turn_ms: Milliseconds, 10_000, 1, 600_000,
        "The longest uninterrupted turn of a program. Over it the program ends with turn_limit.";
    wall_ms: Milliseconds, 3_600_000, 1, 86_400_000,
        "Time from Execute on, not reset by Wait. Over it the program ends with wall_limit.";
    cleanup_ms: Milliseconds, 5_000, 1, 60_000,
        "Time to end a program or a sandbox. Over it the end counts as unproven (CLEANUP_UNPROVEN).";
    output_bytes: Bytes, 64 * MIB, 1, 1024 * MIB,
        "All output of a program. Over it the program ends with output_limit.";
    value_bytes: Bytes, 32 * MIB, 1, 32 * MIB,
        "A program's whole value as JSON. Over it the program ends with value_limit.";
    value_view_bytes: Bytes, 64 * KIB, 64, MIB,
        "The value inside a Program. Over it the value is cut and the whole is a blob.";
    error_bytes: Bytes, 16 * KIB, 256, 256 * KIB,
        "An error's message and backtrace. Over it the middle is cut.";
    kept_bytes: Bytes, MIB, 0, 4 * MIB,
        "What programs keep through store, keys and values. Over it store.set fails with store_limit.";
    max_calls: Count, 1_000, 0, 100_000,
        "Tool calls of a program, failed ones included. Over it a call fails with call_limit.";
    max_concurrency: Count, 8, 1, 64,
        "Tool calls at work at one time. More wait in order.";
    pending_calls: Count, 1_024, 1, 4_096,
        "Tool calls unanswered at one time. Over it the program ends with call_limit.";
    argument_bytes: Bytes, 8 * MIB, 2, 32 * MIB,
        "A call's arguments as JSON. Over it the call fails with invalid_arguments.";
    result_bytes: Bytes, 32 * MIB, 2, 32 * MIB,
        "A call's result. Over it the call fails with result_too_large.";
    call_timeout_ms: Milliseconds, 300_000, 1, 86_400_000,
        "Time a provider has for a call. Over it the call fails with call_timeout.";
    provider_grace_ms: Milliseconds, 30_000, 0, 600_000,
        "Time a call waits for a provider, and a lost provider has to attach again. Over it the call fails with no_provider, or its outcome is unknown.";
    artifact_bytes: Bytes, 32 * MIB, 1, 32 * MIB,
        "One artifact. Over it the call that leaves it fails with artifact_limit.";
    artifacts_bytes: Bytes, 64 * MIB, 1, 64 * MIB,
        "All artifacts of a program. Over it the call that leaves one fails with artifact_limit.";
    max_artifacts: Count, 100, 0, 1_000,
        "Artifacts of a program. Over it the call that leaves one fails with artifact_limit.";
    processes: Count, 64, 1, 1_024,
        "Processes and threads of a program. Over it the program ends with process_limit.";
}

impl Limits {
    /// The defaults with `given` put over them.
    pub fn from_map<'a>(given: impl IntoIterator<Item = (&'a str, u64)>) -> Result<Self, Error> {
        let mut limits = Self::default();
        for (name, value) in given {
            *limits.checked_slot(name, value)? = value;
        }
        Ok(limits)
    }

    /// These limits with `given` put over them; a program's can only be lower.
    pub fn lowered<'a>(&self, given: impl IntoIterator<Item = (&'a str, u64)>) -> Result<Self, Error> {
        let mut limits = self.clone();
        for (name, value) in given {
            let slot = limits.checked_slot(name, value)?;
            if value > *slot {
                let name = row(name).expect("checked_slot found it").name;
                return Err(Error::OverSession { name, value, session: *slot });
            }
            *slot = value;
        }
        Ok(limits)
    }

    /// The wall limit.
    pub fn wall(&self) -> Duration {
        Duration::from_millis(self.wall_ms)
    }

    /// The time to end a program or a sandbox.
    pub fn cleanup(&self) -> Duration {
        Duration::from_millis(self.cleanup_ms)
    }

    fn checked_slot(&mut self, name: &str, value: u64) -> Result<&mut u64, Error> {
        let limit = row(name).ok_or_else(|| Error::Unknown { name: name.chars().take(64).collect() })?;
        if !(limit.min..=limit.max).contains(&value) {
            return Err(Error::OutOfRange { name: limit.name, value, min: limit.min, max: limit.max });
        }
        Ok(self.slot(name).expect("every row has a field"))
    }
}

fn row(name: &str) -> Option<&'static Limit> {
    TABLE.iter().find(|limit| limit.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C6, A25, case 48: unknown names, zero where it means nothing and values out of range.
    #[test]
    fn limits_are_refused_by_name() {
        assert!(matches!(Limits::from_map([("speed", 1)]), Err(Error::Unknown { name }) if name == "speed"));
        for name in ["wall_ms", "max_concurrency", "turn_ms", "cleanup_ms"] {
            let error = Limits::from_map([(name, 0)]).unwrap_err();
            assert!(matches!(error, Error::OutOfRange { value: 0, .. }), "{name}");
        }
        let limits = Limits::from_map([("max_calls", 5), ("max_concurrency", 2)]).unwrap();
        assert_eq!((limits.max_calls, limits.max_concurrency, limits.wall_ms), (5, 2, 3_600_000));
    }

    #[test]
    fn a_program_can_only_lower_its_sessions_limits() {
        let session = Limits::from_map([("max_calls", 5)]).unwrap();
        assert_eq!(session.lowered([("max_calls", 4)]).unwrap().max_calls, 4);
        let error = session.lowered([("max_calls", 6)]).unwrap_err();
        assert_eq!(error, Error::OverSession { name: "max_calls", value: 6, session: 5 });
    }

    #[test]
    fn every_default_is_in_its_range_and_every_row_has_a_field() {
        let limits = Limits::from_map(TABLE.iter().map(|limit| (limit.name, limit.default))).unwrap();
        assert_eq!(limits, Limits::default());
        assert_eq!(limits.to_map().len(), TABLE.len());
    }
}
