//! The configuration of a service: settings as people write them, and what they mean.
//!
//! Settings come from a TOML file and from flags, which have the same names. Everything is parsed,
//! every error is reported, and the service fails once.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use seance_core::ids::TenantId;
use serde::Deserialize;

use crate::auth::reviews::Account;

/// Where the service listens when nothing is said.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:7443";
/// Where metrics and probes are when nothing is said.
pub const ADMIN_LISTEN_DEFAULT: &str = "127.0.0.1:7444";

/// Settings as they are written. What is left out has its default.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The address of the API, such as `127.0.0.1:7443`.
    pub listen: Option<String>,
    /// The loopback address of `/metrics`, `/healthz` and `/ready`; `off` for none.
    pub admin_listen: Option<String>,
    /// Where sessions are kept; `memory` keeps them in memory only.
    pub data_dir: Option<PathBuf>,
    /// The file of hashed bearer tokens.
    pub tokens_file: Option<PathBuf>,
    /// The certificate chain of the API, PEM.
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate, PEM.
    pub tls_key: Option<PathBuf>,
    /// Sandboxes that are kept warm.
    pub warm: Option<usize>,
    /// Sandboxes at one time.
    pub max_sandboxes: Option<usize>,
    /// Seconds that a session waits for a sandbox while all are taken.
    pub claim_wait_seconds: Option<u64>,
    /// Runs programs without confinement.
    pub unconfined: Option<bool>,
    /// Open sessions of one tenant.
    pub max_sessions: Option<usize>,
    /// Programs of one tenant that are queued or run.
    pub max_running: Option<usize>,
    /// Days that closed sessions are kept.
    pub retention_days: Option<u64>,
    /// Bytes of closed sessions that are kept.
    pub retention_bytes: Option<u64>,
    /// Leaves sources out of the log.
    pub redact_source: Option<bool>,
    /// How log lines look: `text` or `json`.
    pub log_format: Option<String>,
    /// What is logged, in the form of `RUST_LOG`.
    pub log_filter: Option<String>,
    /// Where spans go: an OTLP gRPC endpoint such as `http://127.0.0.1:4317`.
    pub otlp_endpoint: Option<String>,
    /// Sandboxes are pods of a cluster, instead of local processes. Its settings are the backend's.
    pub kubernetes: Option<toml::Table>,
    /// Callers may use tokens of a cluster's service accounts.
    pub kubernetes_callers: Option<KubernetesCallers>,
}

/// The service accounts that may call, as they are written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesCallers {
    /// The audience that their tokens are for.
    #[serde(default = "audience_default")]
    pub audience: String,
    /// The accounts.
    #[serde(default)]
    pub account: Vec<KubernetesAccount>,
}

/// One service account that may call.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The tenant it calls for.
    pub tenant: String,
}

fn audience_default() -> String {
    "seance".to_owned()
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A certificate chain and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, PEM.
    pub cert: PathBuf,
    /// The key, PEM.
    pub key: PathBuf,
}

/// Where the API is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The address; none when the service is only called from its own process.
    pub listen: Option<SocketAddr>,
    /// The file of hashed bearer tokens. This or `callers` is set for every address that is not
    /// loopback.
    pub tokens_file: Option<PathBuf>,
    /// The service accounts of a cluster that may call.
    pub callers: Option<Callers>,
    /// TLS. Set for every address that is not loopback.
    pub tls: Option<TlsFiles>,
}

/// Service accounts and their tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callers {
    /// The audience that their tokens are for.
    pub audience: String,
    /// The tenant of each account, by namespace and name.
    pub tenants: BTreeMap<Account, TenantId>,
}

/// How programs are confined and how many sandboxes there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandboxes {
    /// Sandboxes that are kept warm.
    pub warm: usize,
    /// Sandboxes at one time.
    pub max: usize,
    /// How long a session waits for a sandbox while all are taken.
    pub claim_wait: Duration,
    /// Programs run without confinement.
    pub unconfined: bool,
}

/// What one tenant may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantLimits {
    /// Open sessions.
    pub max_sessions: usize,
    /// Programs that are queued or run.
    pub max_running: usize,
}

/// What is kept of closed sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// How long.
    pub closed_for: Duration,
    /// How much, in bytes; the oldest go first.
    pub closed_bytes_max: u64,
}

/// Logs and spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// How log lines look.
    pub log_format: LogFormat,
    /// What is logged, in the form of `RUST_LOG`.
    pub log_filter: String,
    /// Where spans go; none for nowhere.
    pub otlp_endpoint: Option<String>,
}

/// What the service runs with.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// Where the API is.
    pub edge: Edge,
    /// The loopback address of metrics and probes; none for none.
    pub admin_listen: Option<SocketAddr>,
    /// Where sessions are kept; none for in memory only.
    pub data_dir: Option<PathBuf>,
    /// Local sandboxes.
    pub sandboxes: Sandboxes,
    /// The settings of sandboxes that are pods; none for local ones.
    pub kubernetes: Option<toml::Table>,
    /// What one tenant may have.
    pub tenant_limits: TenantLimits,
    /// What is kept of closed sessions.
    pub keep: Keep,
    /// Sources are left out of the log.
    pub redact_source: bool,
    /// Logs and spans.
    pub telemetry: TelemetryConfig,
}

/// Everything that is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors(pub Vec<String>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is wrong:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl std::error::Error for Errors {}

macro_rules! first_set {
    ($first:ident, $second:ident: $($field:ident),*) => {
        Settings { $($field: $first.$field.or($second.$field),)* }
    };
}

impl Settings {
    /// Reads settings from TOML. An unknown name is an error that names it.
    pub fn from_toml(text: &str) -> Result<Self, Errors> {
        toml::from_str(text).map_err(|error| Errors(vec![error.to_string().trim_end().to_owned()]))
    }

    /// These settings, and where they say nothing, those.
    pub fn over(self, below: Settings) -> Settings {
        first_set!(self, below: listen, admin_listen, data_dir, tokens_file, tls_cert, tls_key, warm,
            max_sandboxes, claim_wait_seconds, unconfined, max_sessions, max_running, retention_days, retention_bytes,
            redact_source, log_format, log_filter, otlp_endpoint, kubernetes, kubernetes_callers)
    }

    /// What the settings mean, or everything that is wrong with them.
    pub fn parse(self) -> Result<ServerConfig, Errors> {
        let mut errors = Vec::new();
        let listen = address(self.listen.as_deref().unwrap_or(LISTEN_DEFAULT), "listen", &mut errors);
        let admin = self.admin_listen.as_deref().unwrap_or(ADMIN_LISTEN_DEFAULT);
        let admin_listen = if admin == "off" { None } else { address(admin, "admin_listen", &mut errors) };
        // In a cluster, probes and Prometheus come over the pod's address.
        let is_local = self.kubernetes.is_none();
        if let Some(admin) = admin_listen.filter(|admin| is_local && !admin.ip().is_loopback()) {
            errors.push(format!("admin_listen is {admin}: metrics and probes have no authentication and take a loopback address only"));
        }
        let callers = self.kubernetes_callers.and_then(|written| callers(written, &mut errors));
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key }),
            (None, None) => None,
            (Some(_), None) => {
                errors.push("tls_cert is set without tls_key".to_owned());
                None
            }
            (None, Some(_)) => {
                errors.push("tls_key is set without tls_cert".to_owned());
                None
            }
        };
        let edge = Edge { listen, tokens_file: self.tokens_file, callers, tls };
        errors.extend(edge.what_a_public_address_lacks());
        let data_dir = match self.data_dir {
            Some(path) if path.as_os_str() == "memory" => None,
            Some(path) if path.as_os_str().is_empty() => {
                errors.push("data_dir is empty".to_owned());
                None
            }
            Some(path) => Some(path),
            None => Some(data_dir_default()),
        };
        let log_format = match self.log_format.as_deref() {
            None | Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(other) => {
                errors.push(format!("log_format is {other:?}; it can be \"text\" or \"json\""));
                LogFormat::Text
            }
        };
        let log_filter = self.log_filter.unwrap_or_else(|| "info".to_owned());
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&log_filter) {
            errors.push(format!("log_filter is {log_filter:?}: {error}"));
        }
        let otlp_endpoint = self.otlp_endpoint.filter(|endpoint| !endpoint.is_empty());
        if let Some(endpoint) = &otlp_endpoint {
            let uri = endpoint.parse::<http::Uri>().ok();
            if !uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some()) {
                errors.push(format!("otlp_endpoint is {endpoint:?}; it is an http:// URL with a host, such as http://127.0.0.1:4317"));
            }
        }
        let max = in_range(self.max_sandboxes, 32, 1..=4_096, "max_sandboxes", &mut errors);
        let warm = in_range(self.warm, 2.min(max), 0..=max, "warm", &mut errors);
        let claim_wait = in_range(self.claim_wait_seconds, 30, 0..=600, "claim_wait_seconds", &mut errors);
        let claim_wait = Duration::from_secs(claim_wait);
        let max_sessions = in_range(self.max_sessions, 1_000, 1..=1_000_000, "max_sessions", &mut errors);
        let max_running = in_range(self.max_running, 1_000, 1..=1_000_000, "max_running", &mut errors);
        let days = in_range(self.retention_days, 30, 0..=36_500, "retention_days", &mut errors);
        let bytes_min = 1024 * 1024;
        let closed_bytes_max = in_range(
            self.retention_bytes,
            10 * 1024 * bytes_min,
            bytes_min..=u64::MAX >> 1,
            "retention_bytes",
            &mut errors,
        );
        if !errors.is_empty() {
            return Err(Errors(errors));
        }
        Ok(ServerConfig {
            edge,
            admin_listen,
            data_dir,
            sandboxes: Sandboxes { warm, max, claim_wait, unconfined: self.unconfined.unwrap_or(false) },
            kubernetes: self.kubernetes,
            tenant_limits: TenantLimits { max_sessions, max_running },
            keep: Keep { closed_for: Duration::from_secs(days * 24 * 60 * 60), closed_bytes_max },
            redact_source: self.redact_source.unwrap_or(false),
            telemetry: TelemetryConfig { log_format, log_filter, otlp_endpoint },
        })
    }
}

impl Edge {
    /// Where the API is only called from its own process.
    pub fn in_process() -> Self {
        Self { listen: None, tokens_file: None, callers: None, tls: None }
    }

    /// What has to be set before others than this machine's own may connect.
    pub fn what_a_public_address_lacks(&self) -> Vec<String> {
        let Some(listen) = self.listen.filter(|listen| !listen.ip().is_loopback()) else { return Vec::new() };
        let mut lacks = Vec::new();
        if self.tokens_file.is_none() && self.callers.is_none() {
            lacks.push(format!("listen is {listen}, which others can reach: set tokens_file (`seance token` makes one), or listen on 127.0.0.1"));
        }
        if self.tls.is_none() {
            lacks.push(format!(
                "listen is {listen}, which others can reach: set tls_cert and tls_key, or listen on 127.0.0.1"
            ));
        }
        lacks
    }
}

fn callers(written: KubernetesCallers, errors: &mut Vec<String>) -> Option<Callers> {
    let KubernetesCallers { audience, account } = written;
    let mut tenants = BTreeMap::new();
    for KubernetesAccount { namespace, name, tenant } in account {
        match tenant.parse() {
            Ok(tenant) => drop(tenants.insert((namespace, name), tenant)),
            Err(error) => errors.push(format!(
                "kubernetes_callers: the tenant of account {name:?} in {namespace:?} is {tenant:?}: {error}"
            )),
        }
    }
    if audience.is_empty() {
        errors.push("kubernetes_callers: audience is empty".to_owned());
        return None;
    }
    Some(Callers { audience, tenants })
}

fn address(text: &str, name: &str, errors: &mut Vec<String>) -> Option<SocketAddr> {
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            errors.push(format!(
                "{name} is {text:?}; it is an IP address and a port, such as {LISTEN_DEFAULT} or [::1]:7443"
            ));
            None
        }
    }
}

fn in_range<N: Copy + PartialOrd + fmt::Display>(
    given: Option<N>,
    default: N,
    range: std::ops::RangeInclusive<N>,
    name: &str,
    errors: &mut Vec<String>,
) -> N {
    let value = given.unwrap_or(default);
    if !range.contains(&value) {
        errors.push(format!("{name} is {value}; it can be {} to {}", range.start(), range.end()));
    }
    value
}

fn data_dir_default() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .unwrap_or_else(|| PathBuf::from("/var/lib"))
        .join("seance")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServerConfig, Errors> {
        Settings::from_toml(text)?.parse()
    }

    #[test]
    fn nothing_said_means_loopback() {
        let config = parse("").unwrap();
        assert_eq!(config.edge.listen, Some(LISTEN_DEFAULT.parse().unwrap()));
        assert!(config.admin_listen.unwrap().ip().is_loopback());
        assert!(!config.sandboxes.unconfined && config.data_dir.is_some());
    }

    #[test]
    fn every_error_is_reported_at_once() {
        let text = "listen = 'x'\nadmin_listen = '0.0.0.0:1'\ntls_cert = 'a'\nlog_format = 'xml'\nmax_sandboxes = 0\notlp_endpoint = 'host'";
        let Errors(errors) = parse(text).unwrap_err();
        assert_eq!(errors.len(), 6, "{errors:?}");
        for name in ["listen", "admin_listen", "tls_key", "log_format", "max_sandboxes", "otlp_endpoint"] {
            assert!(errors.iter().any(|error| error.contains(name)), "{name}");
        }
        assert!(parse("speed = 1").unwrap_err().to_string().contains("speed"));
    }

    #[test]
    fn a_public_address_needs_tokens_and_tls() {
        for listen in ["0.0.0.0:7443", "[::]:7443", "192.0.2.1:7443", "[::ffff:127.0.0.1]:7443"] {
            let public = format!("listen = '{listen}'\n");
            let Errors(errors) = parse(&public).unwrap_err();
            assert!(errors[0].contains("tokens_file") && errors[1].contains("tls_cert"), "{errors:?}");
            assert!(parse(&format!("{public}tokens_file = 't'")).is_err());
            assert!(parse(&format!("{public}tls_cert = 'c'\ntls_key = 'k'")).is_err());
            parse(&format!("{public}tokens_file = 't'\ntls_cert = 'c'\ntls_key = 'k'")).unwrap();
        }
    }

    #[test]
    fn a_cluster_has_its_own_callers_and_probes_from_outside() {
        let account =
            "[[kubernetes_callers.account]]\nnamespace = 'agents'\nname = 'crawler'\ntenant = 'team-1'\n";
        let public =
            "listen = '0.0.0.0:7443'\nadmin_listen = '0.0.0.0:7444'\ntls_cert = 'c'\ntls_key = 'k'\n";
        let config = parse(&format!("{public}[kubernetes]\nnamespace = 'x'\n{account}")).unwrap();
        let callers = config.edge.callers.unwrap();
        assert_eq!((callers.audience.as_str(), callers.tenants.len()), ("seance", 1));
        assert!(parse(&format!("{public}{account}")).unwrap_err().to_string().contains("admin_listen"));
        let wrong = account.replace("team-1", "Team 1");
        assert!(parse(&wrong).unwrap_err().to_string().contains("crawler"));
    }

    #[test]
    fn flags_go_over_the_file() {
        let flags = Settings { warm: Some(5), ..Settings::default() };
        let file = "warm = 1\nmax_sandboxes = 6\nclaim_wait_seconds = 5\ndata_dir = 'memory'";
        let config = flags.over(Settings::from_toml(file).unwrap()).parse().unwrap();
        assert_eq!(config.sandboxes.claim_wait, Duration::from_secs(5));
        assert_eq!((config.sandboxes.warm, config.sandboxes.max, config.data_dir), (5, 6, None));
    }
}
