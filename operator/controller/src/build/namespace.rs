//! What the namespace of a pool needs beside pods: network policies, the link's CA, the runners'
//! service account.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use seance_operator_api::{LINK_CA_CONFIG_MAP, LINK_CA_KEY, OPERATOR, RUNNER_SERVICE_ACCOUNT, labels};

use super::link::Link;

/// The policy that shuts sandboxes off.
pub const DENY: &str = "seance-sandboxes-deny";
/// The policy that lets them reach the link.
pub const LINK: &str = "seance-sandboxes-link";

/// The policies of a namespace: nothing in, nothing out but to the link, and no resolver. They hold
/// for sandboxes alone, so that a pool in a namespace with other things in it cuts nobody else off.
pub fn policies(namespace: &str, link: &Link) -> [NetworkPolicy; 2] {
    let types = || vec!["Ingress".to_owned(), "Egress".to_owned()];
    let policy = |name: &str, spec: NetworkPolicySpec| NetworkPolicy {
        metadata: metadata(namespace, name),
        spec: Some(NetworkPolicySpec { pod_selector: Some(sandboxes()), ..spec }),
    };
    let deny = NetworkPolicySpec {
        egress: Some(Vec::new()),
        ingress: Some(Vec::new()),
        policy_types: Some(types()),
        ..NetworkPolicySpec::default()
    };
    let out = NetworkPolicySpec {
        egress: Some(link.egress()),
        policy_types: Some(vec!["Egress".to_owned()]),
        ..NetworkPolicySpec::default()
    };
    [policy(DENY, deny), policy(LINK, out)]
}

/// Every pod of a Sandbox. What is in a pod can't change its labels.
fn sandboxes() -> LabelSelector {
    let has_label = LabelSelectorRequirement {
        key: labels::SANDBOX.to_owned(),
        operator: "Exists".to_owned(),
        values: None,
    };
    LabelSelector { match_expressions: Some(vec![has_label]), match_labels: None }
}

/// The link's CA, for the pods of a namespace.
pub fn link_ca(namespace: &str, pem: &str) -> ConfigMap {
    ConfigMap {
        metadata: metadata(namespace, LINK_CA_CONFIG_MAP),
        data: Some(BTreeMap::from([(LINK_CA_KEY.to_owned(), pem.to_owned())])),
        ..ConfigMap::default()
    }
}

/// The service account of runners: a name for their tokens, with no rights.
pub fn service_account(namespace: &str) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(namespace, RUNNER_SERVICE_ACCOUNT),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

fn metadata(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some(BTreeMap::from([(labels::MANAGED_BY.to_owned(), OPERATOR.to_owned())])),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Sandbox 39: the policies deny all and open the link alone.
    #[test]
    fn policies_close_everything_but_the_link() {
        let link = Link::at("192.0.2.1:7443".parse().expect("an address"));
        let [deny, out] = policies("rooms", &link).map(|policy| serde_json::to_value(policy).expect("plain"));
        let selector = json!({ "matchExpressions": [{ "key": labels::SANDBOX, "operator": "Exists" }] });
        for policy in [&deny, &out] {
            assert_eq!(policy["spec"]["podSelector"], selector);
            assert_eq!(policy["metadata"]["namespace"], "rooms");
        }
        assert_eq!(deny["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!((&deny["spec"]["egress"], &deny["spec"]["ingress"]), (&json!([]), &json!([])));
        let egress = json!([{
            "to": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }],
            "ports": [{ "port": 7443, "protocol": "TCP" }],
        }]);
        assert_eq!((&out["spec"]["egress"], &out["spec"]["ingress"]), (&egress, &Value::Null));
    }

    #[test]
    fn the_runners_account_mounts_no_token() {
        assert_eq!(service_account("rooms").automount_service_account_token, Some(false));
    }
}
