//! `Sandbox`: one pod, and where the operator and the service tell each other about it.

use kube::{CustomResource, KubeSchema, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{self, Condition, Time};
use crate::labels;
use crate::pool::Check;

/// One pod that serves at most one session in its life.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "seance.dev",
    version = "v1alpha1",
    kind = "Sandbox",
    plural = "sandboxes",
    shortname = "sbx",
    category = "seance",
    namespaced,
    status = "SandboxStatus",
    derive = "PartialEq",
    doc = "One pod that serves at most one session in its life. Made and ended by Seance itself.",
    validation = Rule::new("size(self.metadata.name) <= 63").message("a sandbox's name has at most 63 characters"),
    printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.pool"}"#,
    printcolumn = r#"{"name":"Desired","type":"string","jsonPath":".spec.desired"}"#,
    printcolumn = r#"{"name":"Started","type":"string","jsonPath":".status.conditions[?(@.type==\"Started\")].reason"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Tenant","type":"string","jsonPath":".spec.session.tenant"}"#,
    printcolumn = r#"{"name":"Session","type":"string","jsonPath":".spec.session.id"}"#,
    printcolumn = r#"{"name":"Finished","type":"string","jsonPath":".status.conditions[?(@.type==\"Finished\")].reason"}"#,
    printcolumn = r#"{"name":"Pod","type":"string","jsonPath":".status.podName","priority":1}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.nodeName","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[x_kube(
    validation = Rule::new("self.pool == oldSelf.pool").message("a sandbox stays in its pool"),
    validation = Rule::new("oldSelf.desired != 'Retiring' || self.desired == 'Retiring'").message("a retiring sandbox doesn't come back"),
    validation = Rule::new("!has(oldSelf.session) || (has(self.session) && self.session == oldSelf.session)").message("a sandbox serves one session in its life: the session can't be changed or taken away")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// The pool, in the same namespace.
    #[schemars(length(min = 1, max = 50))]
    pub pool: String,
    /// Whether it may be given to a session. The operator asks with `Retiring`; the answer is the
    /// condition `Released`.
    #[serde(default)]
    pub desired: Desired,
    /// The session that it was given to. Set once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
}

/// Whether a sandbox may be given to a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Desired {
    /// It may.
    #[default]
    Serve,
    /// It should end: at once, or, if it has a session, with that. Never taken back.
    Retiring,
}

/// The session of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRef {
    /// The session's id.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"))]
    pub id: String,
    /// Whom the session belongs to.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub tenant: String,
    /// When the pod must have ended. The service ends it before; Kubernetes does then.
    pub deadline: Time,
}

/// How a sandbox is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxStatus {
    /// The pod's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// The pod's UID: what TokenReview tells of a runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The node that the pod is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// `Started`, `Ending`, `Finished` by the operator; `Ready`, `Assigned`, `Released` by the service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
    /// The checks of isolation, by the service, as its runner reported them and the service judged them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::pool::checks_schema")]
    pub checks: Vec<Check>,
}

impl Sandbox {
    /// Whether it was made because a caller waits.
    pub fn is_cold(&self) -> bool {
        self.labels().get(labels::ORIGIN).is_some_and(|origin| origin == labels::ORIGIN_COLD)
    }

    /// What is so of it; nothing before anybody has told.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }
}

/// The types of a sandbox's conditions.
pub mod condition_type {
    /// By the operator: the pod's container runs, or ran.
    pub const STARTED: &str = "Started";
    /// By the service: the runner is linked and warm, and its isolation is proven.
    pub const READY: &str = "Ready";
    /// By the service: a session has it.
    pub const ASSIGNED: &str = "Assigned";
    /// By the service: it will never again be given to a session, and its pod may go.
    pub const RELEASED: &str = "Released";
    /// By the operator: somebody else told its pod to end, which takes the pod's grace time and what the node
    /// needs. The reasons are those of `Finished`. Final.
    pub const ENDING: &str = "Ending";
    /// By the operator: its pod is terminal or gone. Final.
    pub const FINISHED: &str = "Finished";
}

/// The reasons in a sandbox's conditions. They are never renamed.
pub mod reason {
    /// Reasons of `Started`.
    pub mod started {
        /// True: the container runs, or ran.
        pub const RUNNING: &str = "Running";
        /// False: on its way, with nothing known to be wrong.
        pub const PENDING: &str = "Pending";
        /// False: the node can't get the image.
        pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
        /// False: no node takes the pod.
        pub const UNSCHEDULABLE: &str = "Unschedulable";
        /// False: a quota of the namespace is used up; tried again, ever more slowly.
        pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
        /// False: the API server refuses the pod, or another's pod has its name.
        pub const CREATE_FAILED: &str = "CreateFailed";
        /// False: the node can't make or start the container.
        pub const CONTAINER_FAILED: &str = "ContainerFailed";
        /// False: there is no pool of this name.
        pub const POOL_NOT_FOUND: &str = "PoolNotFound";
        /// False: the pool's template asks for something that can't be.
        pub const INVALID_TEMPLATE: &str = "InvalidTemplate";
        /// False: the operator doesn't know the address of the link.
        pub const LINK_UNKNOWN: &str = "LinkUnknown";
    }

    /// Reasons of `Ready`.
    pub mod ready {
        /// True.
        pub const SERVING: &str = "Serving";
        /// False: the runner hasn't linked or reported yet, or isn't warm yet.
        pub const LINKING: &str = "Linking";
        /// False: a check of isolation fails; it is in quarantine until that is over.
        pub const ISOLATION_NOT_PROVEN: &str = "IsolationNotProven";
        /// False: the runner was linked and is gone.
        pub const LINK_LOST: &str = "LinkLost";
    }

    /// Reasons of `Assigned`.
    pub mod assigned {
        /// True: a session has it.
        pub const SESSION: &str = "Session";
        /// False: the session let go of it.
        pub const SESSION_ENDED: &str = "SessionEnded";
    }

    /// Reasons of `Released`, which is never false again once it is true.
    pub mod released {
        /// True: asked to retire, and no session had it.
        pub const RETIRED: &str = "Retired";
        /// True: its session ended, or let go of it.
        pub const SESSION_ENDED: &str = "SessionEnded";
        /// True: asked to retire, and its runner had never linked.
        pub const NEVER_CONNECTED: &str = "NeverConnected";
        /// True: its runner can't be trusted to serve.
        pub const MISBEHAVED: &str = "Misbehaved";
    }

    /// Reasons of `Finished`, and of `Ending`, always true.
    pub mod finished {
        /// The runner ended by itself, without an error, or was ended after `Released`.
        pub const COMPLETED: &str = "Completed";
        /// Its container never ran, and it was no longer wanted.
        pub const NEVER_STARTED: &str = "NeverStarted";
        /// The pod used more memory than its limit; the message has the limit.
        pub const OUT_OF_MEMORY: &str = "OutOfMemory";
        /// The node was short of something, or the pod used more disk than its limit.
        pub const EVICTED: &str = "Evicted";
        /// The node was drained.
        pub const DRAINED: &str = "Drained";
        /// A pod of higher priority needed the place.
        pub const PREEMPTED: &str = "Preempted";
        /// The node went away or no longer answers.
        pub const NODE_LOST: &str = "NodeLost";
        /// The session's deadline came.
        pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
        /// A signal ended the runner; the message names it.
        pub const RUNNER_KILLED: &str = "RunnerKilled";
        /// The runner ended with an error; the message has the exit code.
        pub const RUNNER_FAILED: &str = "RunnerFailed";
        /// The node refused the pod, or could not start its container.
        pub const REJECTED: &str = "Rejected";
        /// Somebody else deleted the pod.
        pub const DELETED: &str = "Deleted";
    }
}
