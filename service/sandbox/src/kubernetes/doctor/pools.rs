//! What the installed pools say of themselves: whether they are filled, and whether their isolation is
//! proven, check by check. This is also all that can be known of whether policies are enforced.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, ResourceExt};
use seance_operator_api::pool::{Check, CheckResult, condition_type, reason};
use seance_operator_api::{SandboxPool, condition};

use super::{Finding, some, within};

const POOL: &str = "pool";
const ISOLATION: &str = "isolation";
const NAMESPACE: &str = "pod-security";
const RUNTIME: &str = "runtime-class";
/// What Kubernetes holds the pods of a namespace to.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

pub(super) async fn look(client: &Client, namespace: Option<&str>) -> Vec<Finding> {
    let resource = ApiResource::erase::<SandboxPool>(&());
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let objects = match within(api.list(&some())).await {
        Ok(objects) => objects.items,
        Err(error) if error.code() == Some(404) => Vec::new(),
        Err(error) => {
            let remedy =
                "name the sandboxes' namespace with --namespace, or ask for the right to list sandboxpools";
            return vec![Finding::unknown(POOL, "", format!("pools can't be seen: {error}"), remedy)];
        }
    };
    if objects.is_empty() {
        let message = "there is no pool, and only a pool's own checks show whether policies are enforced";
        let remedy = "install charts/seance with a pool, wait until it is Ready, and look again";
        return vec![Finding::unknown(ISOLATION, "", message, remedy)];
    }
    let mut findings = Vec::new();
    let (mut namespaces, mut classes) = (BTreeSet::new(), BTreeSet::new());
    for object in objects {
        let name = object.name_any();
        let namespace = object.namespace().unwrap_or_default();
        namespaces.insert(namespace.clone());
        match object.try_parse::<SandboxPool>() {
            Ok(pool) => {
                classes.extend(pool.spec.template.runtime_class_name.clone());
                findings.extend(of_pool(&format!("{namespace}/{name}"), &pool));
            }
            Err(error) => {
                let remedy = "use the seance of the version that is installed";
                findings.push(Finding::unknown(POOL, name, format!("it can't be read: {error}"), remedy));
            }
        }
    }
    for name in namespaces {
        findings.push(of_namespace(client, &name).await);
    }
    for name in classes {
        findings.push(runtime_class(client, &name).await);
    }
    findings
}

fn of_pool(subject: &str, pool: &SandboxPool) -> Vec<Finding> {
    let status = pool.status.clone().unwrap_or_default();
    let ready = match condition(&status.conditions, condition_type::READY) {
        Some(ready) if ready.status == "True" => {
            let (warm, assigned) = (status.warm, status.assigned);
            Finding::good(POOL, subject, format!("{warm} sandboxes are warm, {assigned} have a session"))
        }
        Some(ready) if ready.reason == reason::FILLING => {
            Finding::unknown(POOL, subject, "sandboxes are on their way", "look again in a minute")
        }
        Some(ready) => {
            let message = format!("{}: {}", ready.reason, ready.message);
            Finding::lacking(POOL, subject, message, remedy(&ready.reason))
        }
        None => {
            let remedy = "see whether seance-operator runs and watches this namespace";
            Finding::lacking(POOL, subject, "the operator has said nothing of it", remedy)
        }
    };
    let mut findings = vec![ready, isolation(subject, pool)];
    findings.extend(status.checks.iter().map(|check| of_check(subject, check)));
    findings
}

fn isolation(subject: &str, pool: &SandboxPool) -> Finding {
    let conditions = pool.conditions();
    let not_checked = "wait until a runner of the pool is linked; then see which check proves nothing";
    match condition(conditions, condition_type::ISOLATION_PROVEN) {
        Some(proven) if proven.status == "True" && proven.reason == reason::CHECKS_ACCEPTED => {
            let message = format!("proven but for what the pool accepts: {}", proven.message);
            Finding::good(ISOLATION, subject, message)
        }
        Some(proven) if proven.status == "True" => {
            Finding::good(ISOLATION, subject, "proven: the cluster enforces its policies")
        }
        Some(proven) if proven.status == "False" => {
            let message = format!("{}: {}", proven.reason, proven.message);
            Finding::lacking(ISOLATION, subject, message, remedy(reason::ISOLATION_NOT_PROVEN))
        }
        Some(proven) => {
            let message = format!("{}: {}", proven.reason, proven.message);
            Finding::unknown(ISOLATION, subject, message, not_checked)
        }
        None => Finding::unknown(ISOLATION, subject, "nothing is said of it", not_checked),
    }
}

fn of_check(pool: &str, check: &Check) -> Finding {
    const CHECK: &str = "isolation-check";
    let subject = format!("{pool} {}", check.name.as_str());
    let message = check.message.clone();
    match check.result {
        CheckResult::Passed => Finding::good(CHECK, subject, message),
        CheckResult::Accepted => {
            Finding::good(CHECK, subject, format!("fails, and the pool accepts it: {message}"))
        }
        CheckResult::Failed => {
            let remedy = "close that way: see the network's enforcement and other policies in the namespace";
            Finding::lacking(CHECK, subject, message, remedy)
        }
        CheckResult::Unknown => {
            let remedy = "give a target that listens (isolation.*), or accept the check by name in the pool";
            Finding::unknown(CHECK, subject, message, remedy)
        }
    }
}

/// What to do about a reason of a pool's `Ready`.
fn remedy(why: &str) -> &'static str {
    match why {
        reason::ISOLATION_NOT_PROVEN => {
            "use a network that enforces NetworkPolicy, egress too, and take away other policies that \
             select the sandboxes; see the checks"
        }
        reason::IMAGE_PULL_FAILED => "correct runner.image or its pull secret; the message is the node's",
        reason::UNSCHEDULABLE => "add nodes, lower the pool's requests, or correct its node selector",
        reason::QUOTA_EXCEEDED => "raise the namespace's ResourceQuota, or lower the pool's warm size",
        reason::CREATE_FAILED => "see the message: an admission policy or a limit range refuses the pods",
        reason::ENDING_EARLY => "see the log of a pod that ended; the message has its end",
        reason::INVALID_TEMPLATE => "correct the pool's template as the message says",
        reason::LINK_UNKNOWN => "see whether the service's Service and the link's CA are there",
        reason::NAMESPACE_NOT_PREPARED => "give the operator its rights in the sandboxes' namespace",
        _ => "see the pool's conditions",
    }
}

async fn of_namespace(client: &Client, name: &str) -> Finding {
    let remedy = format!("kubectl label namespace {name} {ENFORCE}=restricted");
    match within(Api::<Namespace>::all(client.clone()).get(name)).await {
        Ok(namespace) => match namespace.labels().get(ENFORCE).map(String::as_str) {
            Some("restricted") => Finding::good(NAMESPACE, name, "restricted is enforced"),
            Some(other) => Finding::lacking(NAMESPACE, name, format!("{other} is enforced"), remedy),
            None => Finding::lacking(NAMESPACE, name, "nothing is enforced", remedy),
        },
        Err(error) => Finding::unknown(NAMESPACE, name, format!("can't be seen: {error}"), remedy),
    }
}

async fn runtime_class(client: &Client, name: &str) -> Finding {
    let remedy = "install the runtime and its RuntimeClass, or take runtimeClassName out of the pool";
    match within(Api::<RuntimeClass>::all(client.clone()).get_opt(name)).await {
        Ok(Some(_)) => Finding::good(RUNTIME, name, "it is there"),
        Ok(None) => Finding::lacking(RUNTIME, name, "a pool names it, and it isn't there", remedy),
        Err(error) => Finding::unknown(RUNTIME, name, format!("can't be seen: {error}"), remedy),
    }
}
