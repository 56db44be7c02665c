//! What the Kubernetes backend counts: requests to the API server, and how long isolation takes to be
//! proven. Labels come from small sets: never a name or an id.

use http::{Request, Response, StatusCode};
use kube::client::Body;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};
use seance_operator_api::requests;
use tower::util::{MapRequestLayer, MapResponseLayer};

/// Upper bounds of the time buckets, in seconds: a policy holds at once, or some seconds later.
const SECONDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

/// The backend's metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: IntCounterVec,
    conflicts: IntCounter,
    pub(super) isolation: Histogram,
}

impl Metrics {
    /// Metrics at zero. Nobody sees them until they are registered.
    pub fn new() -> Self {
        let requests = Opts::new(
            "seance_sandbox_api_requests_total",
            "Requests to the API server for sandboxes, by verb and resource.",
        );
        let conflicts = "seance_sandbox_api_conflicts_total";
        let isolation = HistogramOpts::new(
            "seance_sandbox_isolation_seconds",
            "From a new runner's link until its isolation is proven, in seconds.",
        );
        Self {
            requests: IntCounterVec::new(requests, &["verb", "resource"]).expect("names are constants"),
            conflicts: IntCounter::new(
                conflicts,
                "Requests for sandboxes that the API server answered with 409.",
            )
            .expect("names are constants"),
            isolation: Histogram::with_opts(isolation.buckets(SECONDS.to_vec()))
                .expect("names and buckets are constants"),
        }
    }

    /// Shows them where the others are.
    ///
    /// # Errors
    /// When they are there already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.requests.clone()))?;
        registry.register(Box::new(self.conflicts.clone()))?;
        registry.register(Box::new(self.isolation.clone()))
    }

    /// Counts requests before they are sent; watches count when they begin.
    pub(super) fn requests_layer(
        &self,
    ) -> MapRequestLayer<impl FnMut(Request<Body>) -> Request<Body> + Clone + use<>> {
        let requests = self.requests.clone();
        MapRequestLayer::new(move |request: Request<Body>| {
            let verb = requests::verb(request.method().as_str());
            let resource = requests::resource(request.uri().path());
            requests.with_label_values(&[verb, resource]).inc();
            request
        })
    }

    /// Counts what was answered with a conflict.
    pub(super) fn conflicts_layer<B>(
        &self,
    ) -> MapResponseLayer<impl FnMut(Response<B>) -> Response<B> + Clone + use<B>> {
        let conflicts = self.conflicts.clone();
        MapResponseLayer::new(move |response: Response<B>| {
            if response.status() == StatusCode::CONFLICT {
                conflicts.inc();
            }
            response
        })
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
