//! Which replica works: the one that holds a Lease. It saves double work and is no lock: whatever two
//! replicas do at the same moment is safe by itself, because pods are named after their Sandbox.
//!
//! A lease is taken over when it hasn't been renewed for its duration by our own clock, counted from
//! when we saw it change. Clocks of other machines are not compared.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use seance_operator_api::OPERATOR;
use tokio::time::{Instant, sleep, timeout};

/// For how long a holder is believed without a sign of it.
const DURATION: Duration = Duration::from_secs(15);
/// How often a holder renews, and others look.
const PERIOD: Duration = Duration::from_secs(3);
/// A holder that couldn't renew for so long stops: well before another takes over.
const RENEW_WITHIN: Duration = Duration::from_secs(10);
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// The lease is no longer ours.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Another replica has it.
    #[error("the lease {0} was taken by another replica")]
    Taken(String),
    /// It could not be renewed in time.
    #[error("the lease {0} could not be renewed within {seconds} s", seconds = RENEW_WITHIN.as_secs())]
    NotRenewed(String),
}

/// A lease that we want or hold.
pub struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// What was seen last, and since when by our clock.
    seen: Option<(LeaseSpec, Instant)>,
}

/// What one look at the lease came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Ours,
    Others,
}

impl Election {
    /// A lease of this name, wanted by this replica.
    pub fn new(leases: Api<Lease>, name: String, identity: String) -> Self {
        Self { leases, name, identity, seen: None }
    }

    /// Returns when the lease is ours. Cancel-safe: what was taken and not used runs out.
    pub async fn acquire(&mut self) {
        loop {
            match self.look().await {
                Ok(Look::Ours) => return,
                Ok(Look::Others) => {}
                Err(error) => {
                    tracing::warn!(lease = %self.name, %error, "can't get the lease; it is tried again")
                }
            }
            sleep(PERIOD).await;
        }
    }

    /// Renews the lease until it is lost.
    pub async fn keep(&mut self) -> Lost {
        let mut renewed = Instant::now();
        loop {
            sleep(PERIOD).await;
            match self.look().await {
                Ok(Look::Ours) => renewed = Instant::now(),
                Ok(Look::Others) => return Lost::Taken(self.name.clone()),
                Err(error) => tracing::warn!(lease = %self.name, %error, "can't renew the lease"),
            }
            if renewed.elapsed() > RENEW_WITHIN {
                return Lost::NotRenewed(self.name.clone());
            }
        }
    }

    /// Lets go, so that another replica needn't wait. Gives up quietly: the lease runs out.
    pub async fn release(&mut self) {
        let released = timeout(REQUEST_TIMEOUT, async {
            let lease = self.leases.get_opt(&self.name).await?;
            let Some(mut lease) = lease.filter(|lease| holder(lease) == Some(self.identity.as_str())) else {
                return Ok(());
            };
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = None;
            self.leases.replace(&self.name, &parameters(), &lease).await.map(drop)
        });
        if let Ok(Err(error)) = released.await {
            tracing::warn!(lease = %self.name, %error, "can't release the lease; it runs out by itself");
        }
    }

    /// Takes or renews the lease where that may be done. The version that was read makes sure that
    /// one of two who take it at the same moment is refused.
    async fn look(&mut self) -> Result<Look, String> {
        let look = timeout(REQUEST_TIMEOUT, self.try_take()).await;
        match look {
            Ok(Ok(look)) => Ok(look),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(Look::Others),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())),
        }
    }

    async fn try_take(&mut self) -> kube::Result<Look> {
        let Some(lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.taken(&LeaseSpec::default())) };
            self.leases.create(&parameters(), &lease).await?;
            return Ok(Look::Ours);
        };
        let standing = lease.spec.clone().unwrap_or_default();
        if !self.may_take(&standing, Instant::now()) {
            return Ok(Look::Others);
        }
        let ours = Lease { spec: Some(self.taken(&standing)), ..lease };
        self.leases.replace(&self.name, &parameters(), &ours).await?;
        Ok(Look::Ours)
    }

    /// Whether the lease is ours, nobody's, or hasn't been renewed for its duration.
    fn may_take(&mut self, standing: &LeaseSpec, now: Instant) -> bool {
        let since = match &self.seen {
            Some((seen, since)) if seen == standing => *since,
            _ => now,
        };
        self.seen = Some((standing.clone(), since));
        match standing.holder_identity.as_deref() {
            None | Some("") => true,
            Some(holder) if holder == self.identity => true,
            Some(_) => {
                let seconds = standing.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
                let duration = seconds.map_or(DURATION, Duration::from_secs);
                now.saturating_duration_since(since) > duration
            }
        }
    }

    fn taken(&self, standing: &LeaseSpec) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let is_ours = standing.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = standing.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if is_ours { standing.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if is_ours { transitions } else { transitions.saturating_add(1) }),
            ..standing.clone()
        }
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

fn parameters() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(OPERATOR.to_owned()) }
}

#[cfg(test)]
mod tests;
