//! `SandboxPool`: what pods of a pool are like, how many are kept warm, and how they are.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{self, Condition, Time};
use crate::quantity::Quantity;

/// A pool of sandboxes that are alike.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "seance.dev",
    version = "v1alpha1",
    kind = "SandboxPool",
    plural = "sandboxpools",
    shortname = "sbp",
    category = "seance",
    namespaced,
    status = "SandboxPoolStatus",
    derive = "PartialEq",
    doc = "A pool of sandboxes that are alike: what their pods are, and how many wait for sessions.",
    validation = Rule::new("size(self.metadata.name) <= 50").message("a pool's name has at most 50 characters"),
    printcolumn = r#"{"name":"Engines","type":"string","jsonPath":".spec.engines"}"#,
    printcolumn = r#"{"name":"Wanted","type":"integer","jsonPath":".status.desired","description":"Warm sandboxes that there should be."}"#,
    printcolumn = r#"{"name":"Warm","type":"integer","jsonPath":".status.warm"}"#,
    printcolumn = r#"{"name":"Starting","type":"integer","jsonPath":".status.starting"}"#,
    printcolumn = r#"{"name":"Assigned","type":"integer","jsonPath":".status.assigned"}"#,
    printcolumn = r#"{"name":"Retiring","type":"integer","jsonPath":".status.retiring","priority":1}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Isolation","type":"string","jsonPath":".status.conditions[?(@.type==\"IsolationProven\")].status"}"#,
    printcolumn = r#"{"name":"Image","type":"string","jsonPath":".spec.template.image","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxPoolSpec {
    /// What pods are like. A change replaces warm pods a few at a time and leaves assigned ones alone.
    pub template: PodTemplate,
    /// The engine that the pool's sandboxes run, by the name that callers use: `javascript`, to which
    /// `typescript` belongs, or another alone. It can't be changed: callers choose pools by it; make
    /// another pool.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 63)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = Rule::new("self == oldSelf").message("a pool's engines can't be changed; make another pool"),
        validation = Rule::new("size(self) == 1 || self.all(e, e in ['javascript', 'typescript'])")
            .message("a pool has one engine: javascript, with typescript, or another alone; make a pool for each")
    )]
    pub engines: Vec<String>,
    /// The tenants that may use the pool; none named is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub tenants: Vec<String>,
    /// How many sandboxes wait for sessions.
    pub warm: Warm,
    /// How fast the pool fills.
    #[serde(default)]
    pub refill: Refill,
    /// How old, in seconds, a sandbox without a session may become before another takes its place.
    #[serde(default = "default_max_warm_age")]
    #[schemars(range(min = 60, max = 31_536_000))]
    pub max_warm_age_seconds: i64,
    /// Whether a sandbox is made for a session when none is warm, or the session waits for one.
    #[serde(default)]
    pub cold_start: ColdStart,
    /// The checks of isolation that may fail in this pool. One named here is told as `Accepted` and
    /// stops no session: name it only where you know why it fails and that it does no harm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub accepted_checks: Vec<CheckName>,
}

fn default_max_warm_age() -> i64 {
    86_400
}

/// The part of a pod that a pool may set. The rest is fixed: every pod passes Pod Security
/// `restricted`, whatever is written here.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// The image with the runner and the engines' interpreters.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("self.trim() == self && self != ''").message("an image is needed, without blanks around it"))]
    pub image: String,
    /// When the image is pulled.
    #[serde(default)]
    pub image_pull_policy: ImagePullPolicy,
    /// Names of Secrets of the namespace with the registry's credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub image_pull_secrets: Vec<String>,
    /// What a pod may use.
    pub resources: Resources,
    /// The size of the programs' working folder. It is memory, and counts within the memory limit.
    #[serde(default = "default_tmp_size")]
    pub tmp_size: Quantity,
    /// The RuntimeClass of pods, such as one of gVisor or Kata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// Labels of the nodes that pods may run on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// The PriorityClass of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Whether pods have a user namespace of their own, for clusters that can do it.
    #[serde(default)]
    pub user_namespaces: bool,
}

fn default_tmp_size() -> Quantity {
    Quantity::new("64Mi")
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// Before every start.
    Always,
    /// When the node doesn't have it.
    #[default]
    IfNotPresent,
    /// Never: the node has it, or the pod doesn't start.
    Never,
}

impl ImagePullPolicy {
    /// The name in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            ImagePullPolicy::Always => "Always",
            ImagePullPolicy::IfNotPresent => "IfNotPresent",
            ImagePullPolicy::Never => "Never",
        }
    }
}

/// What a pod may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What a pod can't exceed. All three are needed: hostile programs use what there is.
    pub limits: Limits,
    /// What a node must have free; where nothing is said, the limit.
    #[serde(default)]
    pub requests: Requests,
}

/// The limits of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Processors.
    pub cpu: Quantity,
    /// Memory, working folder included. Over it, the pod ends as `OutOfMemory`.
    pub memory: Quantity,
    /// Disk of the node: logs and the container's own layer. Over it, the pod ends as `Evicted`.
    pub ephemeral_storage: Quantity,
}

/// What a node must have free for a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// Processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// Disk of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<Quantity>,
}

/// A taint that pods tolerate, as in a pod's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// The taint's key; none, with the operator `Exists`, is every taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How the key is compared.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// The taint's value, for `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The taint's effect; none is every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long a pod stays, for `NoExecute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration compares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// Key and value are the taint's.
    #[default]
    Equal,
    /// The key is the taint's.
    Exists,
}

/// What a taint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// No new pods.
    NoSchedule,
    /// New pods elsewhere if possible.
    PreferNoSchedule,
    /// No pods.
    NoExecute,
}

/// How many sandboxes wait for sessions: `percentOfAssigned` of those that have one, rounded up, and
/// never outside `min` to `max`.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.min <= self.max").message("warm.min is over warm.max"))]
pub struct Warm {
    /// At least so many.
    #[schemars(range(min = 0, max = 10_000))]
    pub min: i32,
    /// At most so many.
    #[schemars(range(min = 0, max = 10_000))]
    pub max: i32,
    /// How the number follows demand.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub percent_of_assigned: i32,
}

/// How fast a pool fills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Refill {
    /// At most so many sandboxes start at one time; so many may be there beyond what is wanted while
    /// old ones are replaced.
    #[serde(default = "default_max_starting")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_starting: i32,
}

fn default_max_starting() -> i32 {
    4
}

impl Default for Refill {
    fn default() -> Self {
        Self { max_starting: default_max_starting() }
    }
}

/// What happens when a session is opened and no sandbox is warm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ColdStart {
    /// A sandbox is made for it.
    #[default]
    Allowed,
    /// It waits until one is warm.
    Never,
}

/// A check of a pod's isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CheckName {
    /// The cluster's resolver can't be reached.
    Resolver,
    /// The API server can't be reached.
    ApiServer,
    /// The cloud's metadata address can't be reached.
    Metadata,
    /// Another pod can't be reached.
    Neighbour,
    /// The service's ports other than the link can't be reached.
    ServicePorts,
    /// The number of processes in the pod is limited.
    PidsLimit,
}

impl CheckName {
    /// All, in order.
    pub const ALL: [CheckName; 6] = [
        CheckName::Resolver,
        CheckName::ApiServer,
        CheckName::Metadata,
        CheckName::Neighbour,
        CheckName::ServicePorts,
        CheckName::PidsLimit,
    ];

    /// The name as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            CheckName::Resolver => "resolver",
            CheckName::ApiServer => "api-server",
            CheckName::Metadata => "metadata",
            CheckName::Neighbour => "neighbour",
            CheckName::ServicePorts => "service-ports",
            CheckName::PidsLimit => "pids-limit",
        }
    }
}

/// A forbidden way out that the runner tries: something listens there, and it must not be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Canary {
    /// The check that it belongs to.
    pub name: CheckName,
    /// `<IP>:<port>`, TCP.
    pub address: String,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CheckResult {
    /// The way is closed.
    Passed,
    /// The way is open: no session is served.
    Failed,
    /// It failed, and the pool accepts that.
    Accepted,
    /// It isn't known: nobody has tried, or the target proves nothing.
    Unknown,
}

/// What is known of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// The check.
    pub name: CheckName,
    /// How it went, last.
    pub result: CheckResult,
    /// For people: what was tried and what came of it.
    #[schemars(length(max = 4096))]
    pub message: String,
    /// Since when the result is this one. It isn't moved by a repetition.
    pub last_transition_time: Time,
}

/// Checks as a map by name.
pub(crate) fn checks_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let items = Check::json_schema(generator);
    schemars::json_schema!({
        "type": "array",
        "description": "The checks of isolation, one by one.",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": items,
    })
}

/// How a pool is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxPoolStatus {
    /// The generation of the spec that this tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Warm sandboxes that there should be.
    pub desired: i32,
    /// Sandboxes that are on their way to be warm.
    pub starting: i32,
    /// Sandboxes that wait for a session, ready to serve one at once.
    pub warm: i32,
    /// Sandboxes that have a session.
    pub assigned: i32,
    /// Sandboxes without a session that are on their way out.
    pub retiring: i32,
    /// `Ready`, `Progressing`, `IsolationProven`; see [`reason`].
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
    /// The checks of isolation, over all sandboxes of the pool that live: one that fails anywhere fails.
    #[schemars(schema_with = "checks_schema")]
    pub checks: Vec<Check>,
}

impl SandboxPool {
    /// Whether the operator has acted on it as it is.
    pub fn is_acted_on(&self) -> bool {
        self.status.as_ref().and_then(|status| status.observed_generation) == self.metadata.generation
    }

    /// What is so of it; nothing before anybody has told.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }
}

/// The types of a pool's conditions. The operator writes all of them.
pub mod condition_type {
    /// As many sandboxes are warm as there should be.
    pub const READY: &str = "Ready";
    /// Sandboxes are made or replaced.
    pub const PROGRESSING: &str = "Progressing";
    /// No check of isolation fails that the pool doesn't accept, and some sandbox passed them.
    pub const ISOLATION_PROVEN: &str = "IsolationProven";
}

/// The reasons in a pool's conditions. They are never renamed.
pub mod reason {
    /// `Ready` is true: as many are warm as there should be.
    pub const WARM: &str = "Warm";
    /// `Ready` is false: sandboxes are on their way.
    pub const FILLING: &str = "Filling";
    /// `Ready` is false: a check of isolation fails, and what fails serves nobody.
    pub const ISOLATION_NOT_PROVEN: &str = "IsolationNotProven";
    /// `Ready` is false: nodes can't get the image.
    pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
    /// `Ready` is false: no node takes the pods.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// `Ready` is false: a quota of the namespace is used up.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// `Ready` is false: the API server refuses the pods.
    pub const CREATE_FAILED: &str = "CreateFailed";
    /// `Ready` is false: pods end before they serve; new ones are made ever more slowly.
    pub const ENDING_EARLY: &str = "EndingEarly";
    /// `Ready` is false: the template asks for something that can't be.
    pub const INVALID_TEMPLATE: &str = "InvalidTemplate";
    /// `Ready` is false: the operator doesn't know the address of the link or its CA.
    pub const LINK_UNKNOWN: &str = "LinkUnknown";
    /// `Ready` is false: the namespace's network policies, service account or CA can't be written.
    pub const NAMESPACE_NOT_PREPARED: &str = "NamespaceNotPrepared";
    /// `Progressing` is true: sandboxes are missing and being made.
    pub const REFILLING: &str = "Refilling";
    /// `Progressing` is true: old ones give way to new ones.
    pub const REPLACING: &str = "Replacing";
    /// `Progressing` is true: there are too many, and some go.
    pub const SHRINKING: &str = "Shrinking";
    /// `Progressing` is false: nothing is to be done.
    pub const SETTLED: &str = "Settled";
    /// `Progressing` is false: something stands in the way; `Ready` says what.
    pub const BLOCKED: &str = "Blocked";
    /// `IsolationProven` is true.
    pub const CHECKS_PASSED: &str = "ChecksPassed";
    /// `IsolationProven` is true, and some check failed that the pool accepts.
    pub const CHECKS_ACCEPTED: &str = "ChecksAccepted";
    /// `IsolationProven` is false: a check fails.
    pub const CHECK_FAILED: &str = "CheckFailed";
    /// `IsolationProven` is unknown: no sandbox has reported yet, or a check proves nothing.
    pub const NOT_CHECKED: &str = "NotChecked";
}
