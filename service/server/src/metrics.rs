//! What the edge counts: requests by method and code, how long they take, connections.
//!
//! Labels come from small enums, never from what a caller sends. Sessions, programs, calls and
//! sandboxes are counted by the components that own them, in the same registry.

use std::sync::Arc;
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};
use seance_core::sandbox::SandboxBackend;
use tonic::Code;

/// Upper bounds of the time buckets, in seconds: from a request that only reads memory to a window.
const SECONDS: &[f64] = &[0.000_25, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

macro_rules! methods {
    ($($variant:ident = $path:literal as $name:literal;)*) => {
        /// A method of the API as a label.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Method {
            $(#[doc = $path] $variant,)*
            /// Standard health checks.
            Health,
            /// Server reflection.
            Reflection,
            /// A path that is no method of ours.
            Unknown,
        }

        impl Method {
            /// The method of a request's path.
            pub fn of_path(path: &str) -> Self {
                match path {
                    $(concat!("/seance.v1alpha1.", $path) => Method::$variant,)*
                    _ if path.starts_with("/grpc.health.v1.") => Method::Health,
                    _ if path.starts_with("/grpc.reflection.") => Method::Reflection,
                    _ => Method::Unknown,
                }
            }

            /// The label.
            pub fn name(self) -> &'static str {
                match self {
                    $(Method::$variant => $name,)*
                    Method::Health => "health",
                    Method::Reflection => "reflection",
                    Method::Unknown => "unknown",
                }
            }

            #[cfg(test)]
            const OURS: &[Method] = &[$(Method::$variant,)*];
        }
    };
}

methods! {
    SessionsOpen = "Sessions/Open" as "Sessions.Open";
    SessionsExecute = "Sessions/Execute" as "Sessions.Execute";
    SessionsWait = "Sessions/Wait" as "Sessions.Wait";
    SessionsStop = "Sessions/Stop" as "Sessions.Stop";
    SessionsClose = "Sessions/Close" as "Sessions.Close";
    SessionsGet = "Sessions/Get" as "Sessions.Get";
    SessionsList = "Sessions/List" as "Sessions.List";
    SessionsGetProgram = "Sessions/GetProgram" as "Sessions.GetProgram";
    SessionsFollow = "Sessions/Follow" as "Sessions.Follow";
    SessionsGetBlob = "Sessions/GetBlob" as "Sessions.GetBlob";
    EnginesList = "Engines/List" as "Engines.List";
    EnginesDescribe = "Engines/Describe" as "Engines.Describe";
    ToolsPutCatalog = "Tools/PutCatalog" as "Tools.PutCatalog";
    ToolsServe = "Tools/Serve" as "Tools.Serve";
    ToolsAnswer = "Tools/Answer" as "Tools.Answer";
    ServerGetInfo = "Server/GetInfo" as "Server.GetInfo";
}

/// A code's label.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The edge's counters.
#[derive(Clone)]
pub struct Metrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    running: IntGauge,
    /// Connections that are open.
    pub connections: IntGauge,
}

impl Metrics {
    /// Registers the edge's counters. Fails when they are there already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new("seance_requests_total", "Requests that ended, by method and code."),
            &["method", "code"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "seance_request_seconds",
                "Time to the end of the response, streams included.",
            )
            .buckets(SECONDS.to_vec()),
            &["method"],
        )?;
        let running = IntGauge::new("seance_requests_running", "Requests whose response has not ended.")?;
        let connections = IntGauge::new("seance_connections", "Connections of clients.")?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(running.clone()))?;
        registry.register(Box::new(connections.clone()))?;
        Ok(Self { requests, seconds, running, connections })
    }

    /// Counts a request as running until the returned value is ended or dropped.
    pub fn begin(&self, method: Method) -> Running {
        self.running.inc();
        Running { metrics: self.clone(), method, began: Instant::now(), code: Code::Cancelled }
    }
}

/// A request that has not ended. Dropped without [`Running::end`] it counts as cancelled.
pub struct Running {
    metrics: Metrics,
    method: Method,
    began: Instant,
    code: Code,
}

impl Running {
    /// The request ended with a code.
    pub fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.metrics.running.dec();
        self.metrics.requests.with_label_values(&[self.method.name(), code_name(self.code)]).inc();
        self.metrics
            .seconds
            .with_label_values(&[self.method.name()])
            .observe(self.began.elapsed().as_secs_f64());
    }
}

/// Sandboxes that nobody holds, counted when they are asked for. Reads 0 in a service that works.
pub struct LeakedSandboxes {
    backend: Arc<dyn SandboxBackend>,
    gauge: IntGauge,
}

impl LeakedSandboxes {
    /// Counts those of a backend.
    pub fn new(backend: Arc<dyn SandboxBackend>) -> Result<Self, prometheus::Error> {
        let gauge =
            IntGauge::new("seance_leaked_sandboxes", "Sandboxes that no session holds and no pool keeps.")?;
        Ok(Self { backend, gauge })
    }
}

impl Collector for LeakedSandboxes {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(i64::try_from(self.backend.n_leaked()).unwrap_or(i64::MAX));
        self.gauge.collect()
    }
}

/// Everything in the registry in Prometheus' text form.
pub fn render(registry: &Registry) -> Result<Vec<u8>, prometheus::Error> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn every_method_of_the_api_has_its_label() {
        let set =
            prost_types::FileDescriptorSet::decode(seance_proto::v1alpha1::FILE_DESCRIPTOR_SET).unwrap();
        let ours = set.file.iter().filter(|file| file.package() == "seance.v1alpha1");
        let mut n_methods = 0;
        for service in ours.flat_map(|file| &file.service) {
            for method in &service.method {
                let path = format!("/seance.v1alpha1.{}/{}", service.name(), method.name());
                let label = format!("{}.{}", service.name(), method.name());
                assert_eq!(Method::of_path(&path).name(), label);
                n_methods += 1;
            }
        }
        assert_eq!(n_methods, Method::OURS.len());
        assert_eq!(Method::of_path("/x\"{}/y"), Method::Unknown);
    }

    #[test]
    fn a_dropped_request_counts_as_cancelled() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.begin(Method::SessionsOpen).end(Code::Ok);
        drop(metrics.begin(Method::SessionsWait));
        let text = String::from_utf8(render(&registry).unwrap()).unwrap();
        assert!(text.contains(r#"seance_requests_total{code="OK",method="Sessions.Open"} 1"#), "{text}");
        assert!(
            text.contains(r#"seance_requests_total{code="CANCELLED",method="Sessions.Wait"} 1"#),
            "{text}"
        );
        assert!(text.contains("seance_requests_running 0"), "{text}");
    }
}
