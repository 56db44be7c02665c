//! How the service finds its sandboxes in a cluster: the `[kubernetes]` part of its configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use seance_operator_api::pool::CheckName;
use serde::Deserialize;

/// The Kubernetes backend's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The namespace of the sandboxes.
    pub namespace: String,
    /// The pool that is tried first; without one, pools are tried from the smallest memory limit on.
    #[serde(default)]
    pub default_pool: Option<String>,
    /// Where runners dial in.
    pub link_listen: SocketAddr,
    /// The link's certificate chain (PEM), read again when it changes.
    pub link_cert: PathBuf,
    /// The link's private key (PEM), read again when it changes.
    pub link_key: PathBuf,
    /// The keys that tickets are sealed with: one a line, 32 bytes as base64, two at most. The first
    /// seals, all open. All replicas have the same. Read again when it changes.
    pub ticket_keys: PathBuf,
    /// A port that listens and that no sandbox may reach: the target of the check `service-ports`.
    #[serde(default)]
    pub canary_listen: Option<SocketAddr>,
    /// Checks of isolation that a sandbox must have been put to before it serves, beside those that its
    /// runner was told to make.
    #[serde(default = "required_checks")]
    pub required_checks: Vec<CheckName>,
    /// How many callers may wait for a sandbox.
    #[serde(default = "claim_queue_max")]
    pub claim_queue_max: usize,
    /// How many callers of one tenant may wait for a sandbox.
    #[serde(default = "claim_queue_tenant_max")]
    pub claim_queue_tenant_max: usize,
    /// How many sandboxes of a pool may be on their way because callers wait.
    #[serde(default = "cold_starts_max")]
    pub cold_starts_max: usize,
    /// The longest life of a session's sandbox, in seconds, where the session names none.
    #[serde(default = "session_seconds_max")]
    pub session_seconds_max: u64,
    /// How many runners may be connected.
    #[serde(default = "connections_max")]
    pub connections_max: usize,
    /// How many connections one address may have that didn't show yet who they are. Where pods are seen
    /// under their node's address, this is for a node.
    #[serde(default = "strangers_per_address_max")]
    pub strangers_per_address_max: usize,
    /// Bytes of unfinished frames from all runners together.
    #[serde(default = "buffer_bytes_max")]
    pub buffer_bytes_max: u64,
    /// Bytes that may wait to be sent to all runners together, and as many that are kept to be sent again.
    #[serde(default = "send_bytes_max")]
    pub send_bytes_max: u64,
}

fn required_checks() -> Vec<CheckName> {
    vec![CheckName::ApiServer, CheckName::PidsLimit]
}

fn claim_queue_max() -> usize {
    1000
}

fn claim_queue_tenant_max() -> usize {
    200
}

fn cold_starts_max() -> usize {
    16
}

fn session_seconds_max() -> u64 {
    7 * 86_400
}

fn connections_max() -> usize {
    4096
}

fn strangers_per_address_max() -> usize {
    32
}

fn buffer_bytes_max() -> u64 {
    512 << 20
}

fn send_bytes_max() -> u64 {
    256 << 20
}

impl Config {
    /// A configuration with the defaults for everything that has one.
    pub fn new(
        namespace: impl Into<String>,
        link_listen: SocketAddr,
        [link_cert, link_key, ticket_keys]: [PathBuf; 3],
    ) -> Self {
        Self {
            namespace: namespace.into(),
            default_pool: None,
            link_listen,
            link_cert,
            link_key,
            ticket_keys,
            canary_listen: None,
            required_checks: required_checks(),
            claim_queue_max: claim_queue_max(),
            claim_queue_tenant_max: claim_queue_tenant_max(),
            cold_starts_max: cold_starts_max(),
            session_seconds_max: session_seconds_max(),
            connections_max: connections_max(),
            strangers_per_address_max: strangers_per_address_max(),
            buffer_bytes_max: buffer_bytes_max(),
            send_bytes_max: send_bytes_max(),
        }
    }
}
