//! The pod of a Sandbox. It passes Pod Security `restricted` whatever the pool says, has no resolver,
//! no API token and no service links, and finds the link by an address in its environment.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, Container, EmptyDirVolumeSource, EnvVar, KeyToPath,
    LocalObjectReference, Pod, PodDNSConfig, PodSecurityContext, PodSpec, ProjectedVolumeSource,
    ResourceRequirements, SeccompProfile, SecurityContext, ServiceAccountTokenProjection, Toleration, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as KubeQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use seance_operator_api::pool::{Canary, CheckName, PodTemplate, TaintEffect, TolerationOperator};
use seance_operator_api::{
    LINK_AUDIENCE, LINK_CA_CONFIG_MAP, LINK_CA_KEY, LINK_DIRECTORY, LINK_SERVER_NAME, OPERATOR, Quantity,
    RUNNER_SERVICE_ACCOUNT, Sandbox, SandboxPool, env, labels,
};
use sha2::{Digest, Sha256};

use super::link::Link;

/// The container's name.
pub const CONTAINER: &str = "runner";
/// Nobody on the node, and the same in every pod.
const USER: i64 = 65_532;
/// How long a pod goes on once it is told to end from outside: a program near its end still reaches it,
/// for the runner hears only the service. Callers are told soon (sandbox 2).
const GRACE_SECONDS: i64 = 2;
/// How long a token is good; the kubelet renews it after four fifths.
const TOKEN_SECONDS: i64 = 3600;
/// The runner's own few files.
const RUN_SIZE: &str = "1Mi";

/// What a pool's template asks for and can't be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A quantity that can't be read, or is zero or beyond all bounds.
    #[error("{field}: {value:?} is no quantity above zero")]
    Quantity {
        /// Where in the template.
        field: &'static str,
        /// What is there.
        value: String,
    },
    /// More is asked for than may be used.
    #[error("{field}: the request is over the limit")]
    RequestOverLimit {
        /// Where in the template.
        field: &'static str,
    },
    /// The working folder is memory.
    #[error("tmpSize: the working folder counts as memory and has to be under the memory limit")]
    TmpOverMemory,
}

/// What pods of a pool are made from, beside the pool itself.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The link.
    pub link: &'a Link,
    /// The forbidden ways out that runners try.
    pub canaries: &'a [Canary],
}

/// The name of a Sandbox's pod. It comes from the UID, so that a Sandbox made anew under an old name
/// has another pod.
pub fn name(sandbox_uid: &str) -> String {
    format!("seance-{sandbox_uid}")
}

/// The pod of a Sandbox.
pub fn pod(sandbox: &Sandbox, pool: &SandboxPool, around: Surroundings<'_>) -> Result<Pod, TemplateError> {
    let uid = sandbox.uid().unwrap_or_default();
    let labels = BTreeMap::from([
        (labels::MANAGED_BY.to_owned(), OPERATOR.to_owned()),
        (labels::POOL.to_owned(), sandbox.spec.pool.clone()),
        (labels::SANDBOX.to_owned(), sandbox.name_any()),
        (labels::TEMPLATE.to_owned(), template_hash(pool, around)?),
    ]);
    let owner = OwnerReference {
        api_version: Sandbox::api_version(&()).into_owned(),
        kind: Sandbox::kind(&()).into_owned(),
        name: sandbox.name_any(),
        uid: uid.clone(),
        controller: Some(true),
        // It would need the right to set finalizers on Sandboxes, where that is enforced.
        block_owner_deletion: None,
    };
    Ok(Pod {
        metadata: ObjectMeta {
            name: Some(name(&uid)),
            namespace: sandbox.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(spec(pool, around, &sandbox.name_any())?),
        status: None,
    })
}

/// What tells pods of one version of a pool from those of another: everything but whose they are.
pub fn template_hash(pool: &SandboxPool, around: Surroundings<'_>) -> Result<String, TemplateError> {
    let spec = spec(pool, around, "")?;
    let text = serde_json::to_vec(&spec).expect("a pod's spec is plain data with text keys");
    let digest = Sha256::digest(&text);
    Ok(digest[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

fn spec(pool: &SandboxPool, around: Surroundings<'_>, sandbox: &str) -> Result<PodSpec, TemplateError> {
    let template = &pool.spec.template;
    let secrets = template.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    Ok(PodSpec {
        automount_service_account_token: Some(false),
        containers: vec![container(pool, around, sandbox)?],
        dns_config: Some(PodDNSConfig {
            // Nothing listens there, so nothing resolves, and nothing of the node's is taken over.
            nameservers: Some(vec!["127.0.0.1".to_owned()]),
            ..PodDNSConfig::default()
        }),
        dns_policy: Some("None".to_owned()),
        enable_service_links: Some(false),
        host_users: template.user_namespaces.then_some(false),
        image_pull_secrets: some(secrets.collect::<Vec<_>>(), Vec::is_empty),
        node_selector: some(template.node_selector.clone(), BTreeMap::is_empty),
        priority_class_name: template.priority_class_name.clone(),
        restart_policy: Some("Never".to_owned()),
        runtime_class_name: template.runtime_class_name.clone(),
        security_context: Some(PodSecurityContext {
            fs_group: Some(USER),
            run_as_group: Some(USER),
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        service_account_name: Some(RUNNER_SERVICE_ACCOUNT.to_owned()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        tolerations: some(template.tolerations.iter().map(toleration).collect(), Vec::is_empty),
        volumes: Some(volumes(template)),
        ..PodSpec::default()
    })
}

fn some<T>(value: T, is_empty: impl FnOnce(&T) -> bool) -> Option<T> {
    if is_empty(&value) { None } else { Some(value) }
}

fn container(
    pool: &SandboxPool,
    around: Surroundings<'_>,
    sandbox: &str,
) -> Result<Container, TemplateError> {
    let template = &pool.spec.template;
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    Ok(Container {
        name: CONTAINER.to_owned(),
        image: Some(template.image.clone()),
        image_pull_policy: Some(template.image_pull_policy.as_str().to_owned()),
        command: Some(vec!["/usr/bin/seance-runner".to_owned(), "pod".to_owned()]),
        env: Some(environment(pool, around, sandbox)),
        resources: Some(resources(template)?),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            mount("tmp", "/tmp", false),
            mount("run", "/run", false),
            mount("link", LINK_DIRECTORY, true),
        ]),
        ..Container::default()
    })
}

/// The engine of a pool, which is one. TypeScript belongs to JavaScript's.
fn engine(pool: &SandboxPool) -> &str {
    let name = pool.spec.engines.first().map(String::as_str).unwrap_or_default();
    if name == "typescript" { "javascript" } else { name }
}

fn environment(pool: &SandboxPool, around: Surroundings<'_>, sandbox: &str) -> Vec<EnvVar> {
    let variable =
        |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() };
    let own = around.link.canary();
    let canaries: Vec<&Canary> = around.canaries.iter().chain(own.as_ref()).collect();
    let canaries = serde_json::to_string(&canaries).expect("canaries are plain data");
    let mut environment = vec![
        variable(env::LINK_ADDRESS, format!("https://{}", around.link.address)),
        variable(env::LINK_SERVER_NAME, LINK_SERVER_NAME.to_owned()),
        variable(env::LINK_TOKEN_FILE, format!("{LINK_DIRECTORY}/token")),
        variable(env::LINK_CA_FILE, format!("{LINK_DIRECTORY}/{LINK_CA_KEY}")),
        variable(env::ENGINE, engine(pool).to_owned()),
        variable(env::SANDBOX, sandbox.to_owned()),
        variable(env::POOL, pool.name_any()),
        variable(env::ISOLATION_CHECKS, canaries),
    ];
    if pool.spec.accepted_checks.contains(&CheckName::PidsLimit) {
        environment.push(variable(env::ACCEPT_NO_PIDS_LIMIT, "true".to_owned()));
    }
    environment
}

fn resources(template: &PodTemplate) -> Result<ResourceRequirements, TemplateError> {
    let (limits, requests) = (&template.resources.limits, &template.resources.requests);
    let pairs = [
        ("cpu", "resources.cpu", &limits.cpu, &requests.cpu),
        ("memory", "resources.memory", &limits.memory, &requests.memory),
        (
            "ephemeral-storage",
            "resources.ephemeralStorage",
            &limits.ephemeral_storage,
            &requests.ephemeral_storage,
        ),
    ];
    let (mut limited, mut requested) = (BTreeMap::new(), BTreeMap::new());
    for (name, field, limit, request) in pairs {
        let most = above_zero(field, limit)?;
        let request = request.as_ref().unwrap_or(limit);
        if request.thousandths().is_none_or(|least| least > most) {
            return Err(TemplateError::RequestOverLimit { field });
        }
        limited.insert(name.to_owned(), KubeQuantity(limit.to_string()));
        requested.insert(name.to_owned(), KubeQuantity(request.to_string()));
    }
    if above_zero("tmpSize", &template.tmp_size)? >= above_zero("resources.memory", &limits.memory)? {
        return Err(TemplateError::TmpOverMemory);
    }
    Ok(ResourceRequirements { claims: None, limits: Some(limited), requests: Some(requested) })
}

fn above_zero(field: &'static str, quantity: &Quantity) -> Result<u64, TemplateError> {
    let wrong = || TemplateError::Quantity { field, value: quantity.to_string() };
    quantity.thousandths().filter(|thousandths| *thousandths > 0).ok_or_else(wrong)
}

fn volumes(template: &PodTemplate) -> Vec<Volume> {
    let memory = |name: &str, size: &str| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(KubeQuantity(size.to_owned())),
        }),
        ..Volume::default()
    };
    let token = ServiceAccountTokenProjection {
        audience: Some(LINK_AUDIENCE.to_owned()),
        expiration_seconds: Some(TOKEN_SECONDS),
        path: "token".to_owned(),
    };
    let ca = ConfigMapProjection {
        name: LINK_CA_CONFIG_MAP.to_owned(),
        items: Some(vec![KeyToPath {
            key: LINK_CA_KEY.to_owned(),
            mode: None,
            path: LINK_CA_KEY.to_owned(),
        }]),
        optional: None,
    };
    let sources = vec![
        VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
        VolumeProjection { config_map: Some(ca), ..VolumeProjection::default() },
    ];
    let link = Volume {
        name: "link".to_owned(),
        projected: Some(ProjectedVolumeSource { default_mode: Some(0o440), sources: Some(sources) }),
        ..Volume::default()
    };
    vec![memory("tmp", template.tmp_size.as_str()), memory("run", RUN_SIZE), link]
}

fn toleration(toleration: &seance_operator_api::pool::Toleration) -> Toleration {
    let operator = match toleration.operator {
        TolerationOperator::Equal => "Equal",
        TolerationOperator::Exists => "Exists",
    };
    let effect = |effect| match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    };
    Toleration {
        effect: toleration.effect.map(|is| effect(is).to_owned()),
        key: toleration.key.clone(),
        operator: Some(operator.to_owned()),
        toleration_seconds: toleration.toleration_seconds,
        value: toleration.value.clone(),
    }
}

#[cfg(test)]
mod tests;
