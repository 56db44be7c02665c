//! Whether what is in the cluster is what we want: so that nothing is written that is there.

use serde::Serialize;
use serde_json::Value;

/// Whether `there` has everything that `wanted` says. What the API server adds by itself is no
/// difference; an entry more in a list is one.
pub fn has_all<T: Serialize>(there: &T, wanted: &T) -> bool {
    let value = |object: &T| serde_json::to_value(object).expect("Kubernetes objects are plain data");
    is_in(&value(wanted), Some(&value(there)))
}

fn is_in(wanted: &Value, there: Option<&Value>) -> bool {
    match (wanted, there) {
        // The API server leaves empty lists and objects out.
        (Value::Array(wanted), None | Some(Value::Null)) => wanted.is_empty(),
        (Value::Object(wanted), None | Some(Value::Null)) => wanted.is_empty(),
        (Value::Array(wanted), Some(Value::Array(there))) => {
            wanted.len() == there.len()
                && wanted.iter().zip(there).all(|(wanted, there)| is_in(wanted, Some(there)))
        }
        (Value::Object(wanted), Some(Value::Object(there))) => {
            wanted.iter().all(|(key, wanted)| is_in(wanted, there.get(key)))
        }
        (wanted, there) => Some(wanted) == there,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn additions_of_the_api_server_are_no_difference_and_wider_rules_are() {
        let wanted =
            json!({ "labels": { "a": "b" }, "ingress": [], "egress": [{ "ports": [{ "port": 1 }] }] });
        let cases = [
            (
                json!({
                    "labels": { "a": "b", "c": "d" }, "uid": "u",
                    "egress": [{ "ports": [{ "port": 1, "protocol": "TCP" }] }],
                }),
                true,
            ),
            (
                json!({ "labels": { "a": "b" }, "ingress": [{}], "egress": [{ "ports": [{ "port": 1 }] }] }),
                false,
            ),
            (json!({ "labels": { "a": "b" }, "egress": [{ "ports": [{ "port": 1 }] }, {}] }), false),
            (json!({ "labels": { "a": "x" }, "egress": [{ "ports": [{ "port": 1 }] }] }), false),
            (json!({ "egress": [{ "ports": [{ "port": 1 }] }] }), false),
        ];
        for (there, same) in cases {
            assert_eq!(has_all(&there, &wanted), same, "{there}");
        }
    }
}
