//! Who a runner is at its first contact: its token says, and the API server says whether to believe
//! it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::Client;
use kube::api::{Api, PostParams};
use seance_core::ids::SandboxId;
use seance_operator_api::{LINK_AUDIENCE, RUNNER_SERVICE_ACCOUNT};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Reviews at one time; more wait.
const REVIEWS_MAX: usize = 16;
/// How long a review may take, the wait for its turn included.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a token that was refused is refused again without asking.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Refused tokens that are remembered; over it, all are forgotten.
const REFUSED_MAX: usize = 4096;
/// Reviews at one time for one address; more wait.
const ADDRESS_REVIEWS_MAX: usize = 4;
/// Refused tokens of one address, one after the other, until no more of it are reviewed at once. Where pods
/// are seen under their node's address it is the node's, so it is let in again soon.
const ADDRESS_REFUSED_MAX: u32 = 32;
/// How often an address over that has one more reviewed, and one refusal is forgotten.
const ADDRESS_FORGIVEN_EVERY: Duration = Duration::from_secs(2);
/// Addresses that are remembered for refused tokens, or have one under review.
const ADDRESSES_MAX: usize = 4096;
/// Where TokenReview has the pod that a token is bound to.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// A pod, as whoever vouches for it names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its UID, as the sandbox's id.
    pub id: SandboxId,
    /// Its name. For logs.
    pub name: String,
}

/// Why a token was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// It is good for nothing here.
    #[error("the token is refused: {0}")]
    Refused(String),
    /// Nobody can tell now.
    #[error("the token can't be reviewed now: {0}")]
    Unavailable(String),
}

/// Tells whose a token is.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// The pod that a token is bound to. The token is for the link, and of a runner in the sandboxes'
    /// namespace.
    ///
    /// Cancel-safe.
    async fn review(&self, token: &str) -> Result<Pod, ReviewError>;
}

/// The sandbox of a pod: their ids are the same.
pub(super) fn sandbox_id(pod_uid: &str) -> Option<SandboxId> {
    format!("sbx_{}", pod_uid.replace('-', "")).parse().ok()
}

/// Asks the API server.
pub struct TokenReviews {
    api: Api<TokenReview>,
    user: String,
}

impl TokenReviews {
    /// For runners of a namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        let user = format!("system:serviceaccount:{namespace}:{RUNNER_SERVICE_ACCOUNT}");
        Self { api: Api::all(client), user }
    }
}

#[async_trait]
impl Authenticator for TokenReviews {
    async fn review(&self, token: &str) -> Result<Pod, ReviewError> {
        let spec = TokenReviewSpec {
            audiences: Some(vec![LINK_AUDIENCE.to_owned()]),
            token: Some(token.to_owned()),
        };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviewed = self.api.create(&PostParams::default(), &review).await;
        let reviewed = reviewed.map_err(|error| ReviewError::Unavailable(error.to_string()))?;
        pod(&reviewed.status.unwrap_or_default(), &self.user)
    }
}

fn pod(status: &TokenReviewStatus, wanted_user: &str) -> Result<Pod, ReviewError> {
    let refused = |what: &str| Err(ReviewError::Refused(what.to_owned()));
    if status.authenticated != Some(true) {
        return refused(status.error.as_deref().unwrap_or("it is not valid"));
    }
    if !status.audiences.iter().flatten().any(|audience| audience == LINK_AUDIENCE) {
        return refused("it is not for the link");
    }
    let Some(user) = &status.user else { return refused("it names nobody") };
    if user.username.as_deref() != Some(wanted_user) {
        return refused("it is not a runner's");
    }
    let extra = |key: &str| {
        let [value] = user.extra.as_ref()?.get(key)?.as_slice() else { return None };
        Some(value.as_str())
    };
    match (extra(POD_UID).and_then(sandbox_id), extra(POD_NAME)) {
        (Some(id), Some(name)) => Ok(Pod { id, name: name.to_owned() }),
        _ => refused("it is not bound to a pod"),
    }
}

/// Bounds what reviews cost: so many at one time, over all and by address; a refused token isn't reviewed
/// again and again, nor one refusable token after the other from one address.
pub(super) struct Reviews {
    authenticator: Arc<dyn Authenticator>,
    turns: Semaphore,
    refused_for: Duration,
    refused: Mutex<HashMap<[u8; 32], (Instant, String)>>,
    addresses: Mutex<HashMap<IpAddr, Address>>,
}

/// What an address has asked for.
struct Address {
    turns: Arc<Semaphore>,
    n_refused: u32,
    /// Up to when refusals are forgotten.
    counted_at: Instant,
}

impl Address {
    fn new(now: Instant) -> Self {
        Self { turns: Arc::new(Semaphore::new(ADDRESS_REVIEWS_MAX)), n_refused: 0, counted_at: now }
    }

    fn forget(&mut self, now: Instant) {
        let n_forgiven = (now - self.counted_at).as_secs() / ADDRESS_FORGIVEN_EVERY.as_secs();
        let n_forgiven = u32::try_from(n_forgiven).unwrap_or(u32::MAX);
        self.n_refused = self.n_refused.saturating_sub(n_forgiven);
        self.counted_at += ADDRESS_FORGIVEN_EVERY * n_forgiven;
    }

    fn is_idle(&self) -> bool {
        self.n_refused == 0 && Arc::strong_count(&self.turns) == 1
    }
}

impl Reviews {
    pub(super) fn new(authenticator: Arc<dyn Authenticator>) -> Self {
        let turns = Semaphore::new(REVIEWS_MAX);
        let (refused, addresses) = (Mutex::default(), Mutex::default());
        Self { authenticator, turns, refused_for: REFUSED_FOR, refused, addresses }
    }

    /// The pod of a token that was shown from an address.
    pub(super) async fn review(&self, address: IpAddr, token: &str) -> Result<Pod, ReviewError> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        if let Some(why) = self.refused_before(&digest) {
            return Err(ReviewError::Refused(why));
        }
        let turns = self.turns_of(address, Instant::now())?;
        let review = async {
            let _own = turns.acquire().await.expect("the semaphore is never closed");
            let _turn = self.turns.acquire().await.expect("the semaphore is never closed");
            self.authenticator.review(token).await
        };
        let reviewed = tokio::time::timeout(REVIEW_TIMEOUT, review).await;
        let reviewed =
            reviewed.unwrap_or_else(|_| Err(ReviewError::Unavailable("it took too long".to_owned())));
        if let Err(ReviewError::Refused(why)) = &reviewed {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            if refused.len() >= REFUSED_MAX {
                refused.clear();
            }
            refused.insert(digest, (Instant::now() + self.refused_for, why.clone()));
            drop(refused);
            let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(address) = addresses.get_mut(&address) {
                address.n_refused = (address.n_refused + 1).min(ADDRESS_REFUSED_MAX);
            }
        }
        reviewed
    }

    /// The turns of an address, or that it has had too many refused.
    fn turns_of(&self, address: IpAddr, now: Instant) -> Result<Arc<Semaphore>, ReviewError> {
        let unavailable = |why: &str| Err(ReviewError::Unavailable(why.to_owned()));
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&address) {
            addresses.retain(|_, known| {
                known.forget(now);
                !known.is_idle()
            });
            if addresses.len() >= ADDRESSES_MAX {
                return unavailable("too many addresses have tokens refused");
            }
        }
        let known = addresses.entry(address).or_insert_with(|| Address::new(now));
        known.forget(now);
        if known.n_refused >= ADDRESS_REFUSED_MAX {
            return unavailable("too many tokens from its address were refused");
        }
        Ok(Arc::clone(&known.turns))
    }

    fn refused_before(&self, digest: &[u8; 32]) -> Option<String> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match refused.get(digest) {
            Some((until, why)) if *until > Instant::now() => Some(why.clone()),
            Some(_) => {
                refused.remove(digest);
                None
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};

    use super::*;

    const USER: &str = "system:serviceaccount:boxes:seance-runner";
    const UID: &str = "0198c0de-1111-4222-8333-444455556666";

    fn status(change: impl FnOnce(&mut Value)) -> Result<Pod, ReviewError> {
        let mut status = json!({
            "authenticated": true,
            "audiences": ["seance-link"],
            "user": { "username": USER, "extra": { POD_UID: [UID], POD_NAME: ["p"] } },
        });
        change(&mut status);
        pod(&serde_json::from_value(status).expect("a status"), USER)
    }

    #[test]
    fn only_a_runners_token_for_the_link_and_of_a_pod_is_accepted() {
        let good = status(|_| ()).unwrap();
        assert_eq!((good.id, good.name.as_str()), (sandbox_id(UID).unwrap(), "p"));
        let bad: [fn(&mut Value); 6] = [
            |status| status["authenticated"] = json!(false),
            |status| status["audiences"] = json!(["https://kubernetes.default.svc"]),
            |status| status["audiences"] = json!(null),
            |status| status["user"]["username"] = json!("system:serviceaccount:other:seance-runner"),
            |status| status["user"]["extra"] = json!({ POD_NAME: ["p"] }),
            |status| status["user"]["extra"][POD_UID] = json!(["x"]),
        ];
        for (n, bad) in bad.into_iter().enumerate() {
            assert!(matches!(status(bad), Err(ReviewError::Refused(_))), "{n}");
        }
    }

    #[derive(Default)]
    struct Counting(AtomicUsize);

    #[async_trait]
    impl Authenticator for Counting {
        async fn review(&self, token: &str) -> Result<Pod, ReviewError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match token {
                "away" => Err(ReviewError::Unavailable(String::new())),
                _ => Err(ReviewError::Refused(String::new())),
            }
        }
    }

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    #[tokio::test]
    async fn a_refused_token_is_not_reviewed_again_at_once() {
        let counting = Arc::new(Counting::default());
        let mut reviews = Reviews::new(counting.clone());
        for (token, n) in [("bad", 1), ("bad", 1), ("away", 2), ("away", 3)] {
            assert!(reviews.review(ADDRESS, token).await.is_err());
            assert_eq!(counting.0.load(Ordering::Relaxed), n, "{token}");
        }
        // What was refused long enough ago is reviewed again.
        reviews.refused_for = Duration::ZERO;
        for n in [4, 5] {
            assert!(reviews.review(ADDRESS, "other").await.is_err());
            assert_eq!(counting.0.load(Ordering::Relaxed), n);
        }
    }

    /// Ever new tokens of one address stop being reviewed, those of another go on, and so does the first
    /// after a while.
    #[tokio::test(start_paused = true)]
    async fn an_address_with_many_refused_tokens_waits() {
        let counting = Arc::new(Counting::default());
        let reviews = Reviews::new(counting.clone());
        for n in 0..100 {
            let refused = reviews.review(ADDRESS, &format!("bad{n}")).await;
            let is_unavailable = matches!(refused, Err(ReviewError::Unavailable(_)));
            assert_eq!(is_unavailable, n >= ADDRESS_REFUSED_MAX, "{n}: {refused:?}");
        }
        assert_eq!(counting.0.load(Ordering::Relaxed), ADDRESS_REFUSED_MAX as usize);
        assert!(matches!(reviews.review([10, 0, 0, 2].into(), "bad").await, Err(ReviewError::Refused(_))));
        tokio::time::advance(ADDRESS_FORGIVEN_EVERY).await;
        assert!(matches!(reviews.review(ADDRESS, "late").await, Err(ReviewError::Refused(_))));
        assert!(matches!(reviews.review(ADDRESS, "later").await, Err(ReviewError::Unavailable(_))));
    }
}
