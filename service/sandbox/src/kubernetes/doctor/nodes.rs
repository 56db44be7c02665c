//! Whether the kubelets limit the processes of a pod, where the caller may ask them.

use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use kube::{Client, ResourceExt};
use serde_json::Value;

use super::{Finding, LookError, some, within};

const CHECK: &str = "pod-pids-limit";
const REMEDY: &str = "set podPidsLimit to 1024 or less in the kubelet's configuration, or accept pids-limit in each pool \
                      and know that one program can use up the processes of its node";
/// Nodes that are asked.
const NODES_MAX: usize = 20;
/// A limit over this counts as none.
const LIMIT_MAX: i64 = 1024;

pub(super) async fn look(client: &Client) -> Vec<Finding> {
    let nodes = match within(Api::<Node>::all(client.clone()).list(&some())).await {
        Ok(nodes) => nodes.items,
        Err(error) => return vec![not_seen("", &error)],
    };
    let mut findings = Vec::new();
    for node in nodes.iter().take(NODES_MAX) {
        let name = node.name_any();
        let request = http::Request::get(format!("/api/v1/nodes/{name}/proxy/configz")).body(Vec::new());
        let request = request.expect("a node's name is part of a path");
        let found = within(client.request::<Value>(request)).await;
        let refused = matches!(&found, Err(error) if error.code() == Some(403));
        findings.push(found.map_or_else(|error| not_seen(&name, &error), |config| of_config(&name, &config)));
        if refused {
            // Nor will the others say it.
            break;
        }
    }
    findings
}

fn not_seen(node: &str, error: &LookError) -> Finding {
    let message = format!("can't be seen: {error}; a pool's check pids-limit shows it too");
    Finding::unknown(CHECK, node, message, "ask for get on nodes/proxy, or see the pool's check pids-limit")
}

fn of_config(node: &str, config: &Value) -> Finding {
    match config["kubeletconfig"]["podPidsLimit"].as_i64() {
        Some(limit @ 1..=LIMIT_MAX) => Finding::good(CHECK, node, format!("{limit} processes a pod")),
        Some(limit) if limit > LIMIT_MAX => {
            let message = format!("{limit} processes a pod, which is more than {LIMIT_MAX}");
            Finding::lacking(CHECK, node, message, REMEDY)
        }
        Some(_) | None => Finding::lacking(CHECK, node, "a pod may have any number of processes", REMEDY),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn only_a_small_and_finite_limit_is_one() {
        for (limit, outcome) in [
            (serde_json::json!(1024), Outcome::Good),
            (serde_json::json!(4096), Outcome::Lacking),
            (serde_json::json!(-1), Outcome::Lacking),
            (Value::Null, Outcome::Lacking),
        ] {
            let config = serde_json::json!({ "kubeletconfig": { "podPidsLimit": limit } });
            assert_eq!(of_config("n", &config).outcome, outcome, "{config}");
        }
    }
}
