//! What can be counted of the operator, as Prometheus metrics.

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// The operator's metrics. Labels come from small sets: never a name or an id.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    /// Requests to the API server, by `verb` and `resource`. Those of the lease are apart by resource.
    pub requests: IntCounterVec,
    /// Requests that the API server answered with 409.
    pub conflicts: IntCounter,
    /// Passes over an object, by `kind` and `result`.
    pub reconciles: IntCounterVec,
    /// How long a pass over a Sandbox takes.
    pub sandbox_seconds: Histogram,
    /// What was done to sandboxes and pods, by `action`.
    pub actions: IntCounterVec,
    /// Objects that can't be decoded, by `kind`: each event counts.
    pub undecodable: IntCounterVec,
    /// Whether this replica is the one that works.
    pub leader: IntGauge,
    /// What is there and shouldn't be, by `side`.
    pub leaked: IntGaugeVec,
}

impl Metrics {
    /// Metrics at zero, registered.
    pub fn new() -> Self {
        let registry = Registry::new();
        let vector = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels).expect("names are constants");
            registry.register(Box::new(counters.clone())).expect("each is registered once");
            counters
        };
        let requests = vector(
            "seance_operator_api_requests_total",
            "Requests to the API server, by verb and resource.",
            &["verb", "resource"],
        );
        let conflicts = IntCounter::new(
            "seance_operator_api_conflicts_total",
            "Requests that the API server answered with 409.",
        );
        let conflicts = conflicts.expect("names are constants");
        let reconciles = vector(
            "seance_operator_reconciles_total",
            "Passes over an object, by kind and result.",
            &["kind", "result"],
        );
        let actions = vector(
            "seance_operator_actions_total",
            "What was done to sandboxes and pods, by action.",
            &["action"],
        );
        let undecodable = vector(
            "seance_operator_undecodable_objects_total",
            "Objects that can't be decoded, by kind.",
            &["kind"],
        );
        let buckets = HistogramOpts::new(
            "seance_operator_sandbox_reconcile_seconds",
            "How long a pass over a Sandbox takes.",
        );
        let sandbox_seconds = Histogram::with_opts(buckets).expect("names are constants");
        let leader = IntGauge::new("seance_operator_leader", "Whether this replica is the one that works.")
            .expect("names are constants");
        let leaked = Opts::new("seance_leaked_sandboxes", "Sandboxes and pods that should be gone, by side.");
        let leaked = IntGaugeVec::new(leaked, &["side"]).expect("names are constants");
        for collector in [
            Box::new(sandbox_seconds.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(conflicts.clone()),
            Box::new(leader.clone()),
            Box::new(leaked.clone()),
        ] {
            registry.register(collector).expect("each is registered once");
        }
        Self {
            registry,
            requests,
            conflicts,
            reconciles,
            sandbox_seconds,
            actions,
            undecodable,
            leader,
            leaked,
        }
    }

    /// All of them in Prometheus' text form.
    pub fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
