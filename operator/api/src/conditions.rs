//! Conditions, and the schema that lets two writers share one list of them.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{Schema, SchemaGenerator, json_schema};

/// The condition of this type.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of this type is there and `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// What a writer has to say in a condition, before it is known whether that is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The condition's type.
    pub type_: &'static str,
    /// `None` is `Unknown`.
    pub is: Option<bool>,
    /// One of the documented reasons of the type.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Verdict {
    /// The condition to write: the one that stands when it says the same, and one with a new
    /// `lastTransitionTime` only when the status changes. So nothing is written twice.
    pub fn over(self, standing: &[Condition], generation: Option<i64>, now: Time) -> Condition {
        let status = match self.is {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let since = condition(standing, self.type_)
            .filter(|standing| standing.status == status)
            .map_or(now, |standing| standing.last_transition_time.clone());
        Condition {
            last_transition_time: since,
            message: self.message,
            observed_generation: generation,
            reason: self.reason.to_owned(),
            status: status.to_owned(),
            type_: self.type_.to_owned(),
        }
    }
}

/// Conditions as a map by type, so that server-side apply merges those of several writers.
pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "description": "What is so, one entry a type.",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": { "type": "string", "maxLength": 316 },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024 },
                "message": { "type": "string", "maxLength": 32768 },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "observedGeneration": { "type": "integer", "format": "int64" },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(second).expect("in range"))
    }

    fn ready(is: bool, message: &str) -> Verdict {
        Verdict { type_: "Ready", is: Some(is), reason: "Because", message: message.to_owned() }
    }

    #[test]
    fn the_time_moves_only_with_the_status() {
        let first = ready(false, "a").over(&[], Some(1), at(1));
        let same = ready(false, "b").over(std::slice::from_ref(&first), Some(2), at(2));
        assert_eq!((same.last_transition_time, same.message.as_str()), (at(1), "b"));
        let other = ready(true, "b").over(&[first], Some(2), at(2));
        assert_eq!(other.last_transition_time, at(2));
    }
}
