//! What the service and the operator have counted, read from their metrics through the API server.

use anyhow::{Context as _, Result};

use super::objects;
use super::place::{Metered, Place};

/// Requests to the API server, and those it answered with a conflict.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// The service's requests for sandboxes.
    pub service: f64,
    /// The operator's, but those that renew its lease.
    pub operator: f64,
    /// Conflicts of both.
    pub conflicts: f64,
}

impl Counts {
    /// Reads them, summed over the pods.
    pub async fn read(place: &Place) -> Result<Self> {
        let mut counts = Self::default();
        for pod in &place.service {
            let text = metrics(place, pod).await?;
            counts.service += sum(&text, "seance_sandbox_api_requests_total", |_| true)?;
            counts.conflicts += sum(&text, "seance_sandbox_api_conflicts_total", |_| true)?;
        }
        for pod in &place.operator {
            let text = metrics(place, pod).await?;
            let is_work = |labels: &str| !labels.contains("resource=\"leases\"");
            counts.operator += sum(&text, "seance_operator_api_requests_total", is_work)?;
            counts.conflicts += sum(&text, "seance_operator_api_conflicts_total", |_| true)?;
        }
        Ok(counts)
    }

    /// What was counted between an earlier reading and this one, for each of `n_opens`.
    pub fn since(self, earlier: Self, n_opens: usize) -> Self {
        let n = n_opens as f64;
        Self {
            service: (self.service - earlier.service) / n,
            operator: (self.operator - earlier.operator) / n,
            conflicts: (self.conflicts - earlier.conflicts) / n,
        }
    }
}

/// Isolation that was proven: how often, and the seconds that it took together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Proven {
    /// How often.
    pub n: f64,
    /// How long, in seconds.
    pub seconds: f64,
}

impl Proven {
    /// Reads it, summed over the service's pods.
    pub async fn read(place: &Place) -> Result<Self> {
        let mut proven = Self::default();
        for pod in &place.service {
            let text = metrics(place, pod).await?;
            proven.n += sum(&text, "seance_sandbox_isolation_seconds_count", |_| true)?;
            proven.seconds += sum(&text, "seance_sandbox_isolation_seconds_sum", |_| true)?;
        }
        Ok(proven)
    }
}

async fn metrics(place: &Place, pod: &Metered) -> Result<String> {
    let Metered { namespace, pod, port } = pod;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics");
    objects::get(&place.client, &path, &format!("the metrics of pod {pod} in {namespace}")).await
}

/// The sum of a metric over those of its labels that are `wanted`, from the text that Prometheus reads.
fn sum(text: &str, name: &str, wanted: impl Fn(&str) -> bool) -> Result<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.as_bytes().first()? {
            b'{' => rest.rsplit_once(' ')?,
            b' ' => ("", rest.trim()),
            _ => return None,
        };
        let value = value.parse::<f64>().ok()?;
        Some(if wanted(labels) { value } else { 0.0 })
    });
    let found = values.reduce(|sum, value| sum + value);
    // A counter with labels shows only what was counted once.
    let is_there =
        text.contains(&format!("# TYPE {}", name.trim_end_matches("_sum").trim_end_matches("_count")));
    found.or(is_there.then_some(0.0)).with_context(|| {
        format!(
            "there is no metric {name}: the service or the operator is of another version than this seance"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_the_labels_that_are_wanted() {
        let text = "# TYPE a counter\na{resource=\"pods\"} 1\na{resource=\"leases\"} 5\na{resource=\"nodes\"} 2\nab 9\n\
                    # TYPE h histogram\nh_bucket{le=\"1\"} 3\nh_sum 0.5\nh_count 3\n# TYPE none counter\n";
        assert_eq!(sum(text, "a", |_| true).unwrap(), 8.0);
        assert_eq!(sum(text, "a", |labels| !labels.contains("leases")).unwrap(), 3.0);
        assert_eq!(sum(text, "h_sum", |_| true).unwrap(), 0.5);
        assert_eq!(sum(text, "h_count", |_| true).unwrap(), 3.0);
        assert_eq!(sum(text, "none", |_| true).unwrap(), 0.0);
        assert!(sum(text, "gone", |_| true).unwrap_err().to_string().contains("another version"));
    }

    #[test]
    fn counts_are_for_each_open() {
        let before = Counts { service: 10.0, operator: 100.0, conflicts: 0.0 };
        let after = Counts { service: 30.0, operator: 180.0, conflicts: 1.0 };
        let each = Counts { service: 2.0, operator: 8.0, conflicts: 0.1 };
        assert_eq!(after.since(before, 10), each);
    }
}
