//! The custom resources of Seance (`seance.dev/v1alpha1`), and what the operator and the service
//! agree on through them.
//!
//! # Who writes what
//!
//! Pools are written by people (or by the chart). A [`Sandbox`] stands for one pod, and it is where
//! operator and service meet; each field has one writer, and each writer its field manager
//! ([`OPERATOR`], [`SERVICE`]), so that server-side apply keeps them apart:
//!
//! | field | writer |
//! |---|---|
//! | the object itself | the operator for warm ones, the service for cold starts; the operator deletes it |
//! | `spec.pool` | whoever creates it; immutable |
//! | `spec.desired` | the operator, and only to `Retiring` |
//! | `spec.session` | the service, once |
//! | `status.podName`, `podUid`, `nodeName`, conditions `Started`, `Ending` and `Finished` | the operator |
//! | `status.checks`, conditions `Ready`, `Assigned` and `Released` | the service |
//!
//! # The life of a sandbox
//!
//! 1. A Sandbox appears. The operator makes its pod, owned by the Sandbox, and tells `Started`.
//! 2. The runner dials the service. TokenReview names the pod by UID; the service finds the Sandbox
//!    by `status.podUid`. When the runner is warm and its isolation is proven, `Ready` is true.
//! 3. A claim is the service's own decision and commit. `spec.session` and `Assigned` are patched
//!    afterwards, from the store, until they are seen. On `spec.session` the operator sets the pod's
//!    deadline and labels it with tenant and session.
//! 4. The operator never ends a pod whose container ever ran. It asks: `spec.desired` becomes
//!    `Retiring`. The service takes the runner off its list and writes `Released`, or, when the
//!    sandbox is assigned, goes on and writes `Released` when the session lets go of it. `Released`
//!    says that the service will never assign this pod again. It is also written unasked, when a
//!    session has ended.
//! 5. On `Released` the operator deletes the pod, and writes `Finished` with the reason when the pod
//!    is terminal or gone. A pod that ended by itself gets `Finished` at once; one that somebody else told to
//!    end gets `Ending` before.
//! 6. A Sandbox that is finished and released is deleted by the operator; one that is finished and
//!    not released is kept for some minutes, so that the service can read how it ended.
//!
//! A Sandbox whose container never ran may go without being asked for.

pub mod conditions;
pub mod crds;
pub mod labels;
pub mod pauses;
pub mod pool;
pub mod quantity;
pub mod requests;
pub mod sandbox;

pub use conditions::{condition, is_true};
pub use pool::{SandboxPool, SandboxPoolSpec, SandboxPoolStatus};
pub use quantity::Quantity;
pub use sandbox::{Sandbox, SandboxSpec, SandboxStatus};

/// The field manager of the operator.
pub const OPERATOR: &str = "seance-operator";
/// The field manager of the service.
pub const SERVICE: &str = "seance-service";

/// The audience of the token that a runner shows at the link.
pub const LINK_AUDIENCE: &str = "seance-link";
/// The name in the link's server certificate.
pub const LINK_SERVER_NAME: &str = "seance-link";
/// The ConfigMap with the link's CA, in the namespace of the sandboxes, under [`LINK_CA_KEY`].
pub const LINK_CA_CONFIG_MAP: &str = "seance-link-ca";
/// The key of the link's CA (PEM, one or more certificates) in its ConfigMap.
pub const LINK_CA_KEY: &str = "ca.crt";
/// The service account of runners. It has no rights, and no token of it is mounted but the link's.
pub const RUNNER_SERVICE_ACCOUNT: &str = "seance-runner";
/// The port of the service's Service that runners dial.
pub const LINK_PORT: &str = "link";
/// A port of the service's Service that listens and that no sandbox may reach: the target of the
/// check `service-ports`.
pub const CANARY_PORT: &str = "canary";
/// Where a runner finds its token and the link's CA.
pub const LINK_DIRECTORY: &str = "/var/run/seance";

/// What a pod's environment tells its runner.
pub mod env {
    /// `https://<address>:<port>` of the link; the address is an IP.
    pub const LINK_ADDRESS: &str = "SEANCE_LINK_ADDRESS";
    /// The name that the link's certificate must have.
    pub const LINK_SERVER_NAME: &str = "SEANCE_LINK_SERVER_NAME";
    /// The file with the token; the kubelet renews it.
    pub const LINK_TOKEN_FILE: &str = "SEANCE_LINK_TOKEN_FILE";
    /// The file with the CA of the link.
    pub const LINK_CA_FILE: &str = "SEANCE_LINK_CA_FILE";
    /// The engine that the runner offers; a sandbox has one.
    pub const ENGINE: &str = "SEANCE_ENGINE";
    /// The name of the Sandbox. For logs: the service believes the token alone.
    pub const SANDBOX: &str = "SEANCE_SANDBOX";
    /// The name of the pool. For logs.
    pub const POOL: &str = "SEANCE_POOL";
    /// `true` when the pool accepts that there is no limit on processes.
    pub const ACCEPT_NO_PIDS_LIMIT: &str = "SEANCE_ACCEPT_NO_PIDS_LIMIT";
    /// JSON: a list of [`Canary`](crate::pool::Canary), the forbidden ways out that the runner tries.
    pub const ISOLATION_CHECKS: &str = "SEANCE_ISOLATION_CHECKS";
}
