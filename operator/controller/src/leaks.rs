//! What is there and shouldn't be: the operator's part of `seance_leaked_sandboxes`.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use seance_operator_api::Sandbox;
use seance_operator_api::conditions::is_true;
use seance_operator_api::sandbox::condition_type;

use crate::context::owner_uid;

/// Pods whose Sandbox is gone, second pods of one, and Sandboxes that were finished and released and
/// are still there. What is being deleted isn't counted, nor is a pod that only looks like ours.
pub fn count(sandboxes: &[Arc<Sandbox>], pods: &[Arc<Pod>]) -> usize {
    let there: HashSet<String> = sandboxes.iter().filter_map(|sandbox| sandbox.uid()).collect();
    let mut taken = HashSet::new();
    let mut is_stray = |uid: &String| !(there.contains(uid) && taken.insert(uid.clone()));
    let living_pods = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let is_over = |sandbox: &&Arc<Sandbox>| {
        let conditions = sandbox.conditions();
        let all = [condition_type::FINISHED, condition_type::RELEASED];
        sandbox.metadata.deletion_timestamp.is_none() && all.iter().all(|type_| is_true(conditions, type_))
    };
    let n_strays = living_pods.filter_map(|pod| owner_uid(pod)).filter(|uid| is_stray(uid)).count();
    n_strays + sandboxes.iter().filter(is_over).count()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sandbox(uid: &str, conditions: &[&str]) -> Arc<Sandbox> {
        let condition = |type_: &&str| {
            let at = "2026-01-01T00:00:00Z";
            json!({ "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": at })
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let sandbox = json!({
            "apiVersion": "seance.dev/v1alpha1", "kind": "Sandbox", "metadata": { "name": uid, "uid": uid },
            "spec": { "pool": "p" }, "status": { "conditions": conditions },
        });
        Arc::new(serde_json::from_value(sandbox).expect("a sandbox"))
    }

    fn pod(owner: Option<&str>, is_deleted: bool) -> Arc<Pod> {
        let owner = owner.map(|uid| {
            let version = "seance.dev/v1alpha1";
            json!({ "apiVersion": version, "kind": "Sandbox", "name": "", "uid": uid, "controller": true })
        });
        let deleted = is_deleted.then_some("2026-01-01T00:00:00Z");
        let owners: Vec<Value> = owner.into_iter().collect();
        let pod = json!({ "metadata": { "deletionTimestamp": deleted, "ownerReferences": owners } });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn strays_doubles_and_leftovers_are_counted() {
        let there = [sandbox("a", &[]), sandbox("b", &["Finished"])];
        assert_eq!(count(&there, &[pod(Some("a"), false), pod(Some("b"), false)]), 0);
        assert_eq!(count(&there, &[pod(Some("a"), false), pod(Some("a"), false)]), 1, "a second pod");
        assert_eq!(count(&there, &[pod(Some("gone"), false), pod(None, false)]), 1, "another's isn't ours");
        assert_eq!(count(&there, &[pod(Some("gone"), true)]), 0, "Kubernetes is at it");
        assert_eq!(count(&[sandbox("a", &["Finished", "Released"])], &[]), 1, "nobody needs it any more");
    }
}
