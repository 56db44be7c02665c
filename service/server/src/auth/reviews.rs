//! Callers of a Kubernetes cluster: their service account's token says who they are, and the API server
//! says whether to believe it.
//!
//! A token that can't be one of a known account, for our audience and still good, is refused without
//! asking. What the API server said is remembered for a short time, so that a busy caller costs it
//! little and a deleted account is out soon.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use seance_core::ids::TenantId;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Denied;

/// Reviews at one time; more wait.
const REVIEWS_MAX: usize = 16;
/// How long a review may take, the wait for its turn included.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an accepted token is accepted again without asking.
const ACCEPTED_FOR: Duration = Duration::from_secs(60);
/// How long a refused token is refused again without asking.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Tokens that are remembered; over it, all are forgotten.
const REMEMBERED_MAX: usize = 8_192;
/// The longest token that is looked at, in bytes.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// A service account, by its namespace and name.
pub type Account = (String, String);

/// Says whose a token is.
#[async_trait]
pub trait Reviewer: Send + Sync {
    /// The user that a token of `audience` belongs to; none when it is not good. An error when nobody
    /// can tell now.
    ///
    /// Cancel-safe.
    async fn user(&self, token: &str, audience: &str) -> Result<Option<String>, String>;
}

/// Asks the API server of a cluster.
pub struct ApiServer(Api<TokenReview>);

impl ApiServer {
    /// With the rights of this client: it has to be allowed to create token reviews.
    pub fn new(client: Client) -> Self {
        Self(Api::all(client))
    }
}

#[async_trait]
impl Reviewer for ApiServer {
    async fn user(&self, token: &str, audience: &str) -> Result<Option<String>, String> {
        let spec =
            TokenReviewSpec { audiences: Some(vec![audience.to_owned()]), token: Some(token.to_owned()) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviewed = self.0.create(&PostParams::default(), &review).await.map_err(|e| e.to_string())?;
        let status = reviewed.status.unwrap_or_default();
        let is_ours = status.audiences.iter().flatten().any(|given| given == audience);
        if status.authenticated != Some(true) || !is_ours {
            return Ok(None);
        }
        Ok(status.user.and_then(|user| user.username))
    }
}

/// The callers of a cluster and their tenants.
pub struct Reviews {
    reviewer: Arc<dyn Reviewer>,
    audience: String,
    tenants: BTreeMap<Account, TenantId>,
    turns: Semaphore,
    known: Mutex<HashMap<[u8; 32], Known>>,
}

struct Known {
    until: Instant,
    tenant: Option<TenantId>,
}

/// What a token says of itself. Only used to refuse it.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
    aud: Audience,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    fn has(&self, wanted: &str) -> bool {
        match self {
            Audience::One(one) => one == wanted,
            Audience::Several(several) => several.iter().any(|one| one == wanted),
        }
    }
}

impl Reviews {
    /// Callers with a token for `audience` of one of these accounts.
    pub fn new(reviewer: Arc<dyn Reviewer>, audience: String, tenants: BTreeMap<Account, TenantId>) -> Self {
        Self { reviewer, audience, tenants, turns: Semaphore::new(REVIEWS_MAX), known: Mutex::default() }
    }

    /// The tenant of a token.
    ///
    /// Cancel-safe.
    pub async fn tenant(&self, token: &str) -> Result<TenantId, Denied> {
        let account = self.claimed(token).ok_or(Denied::Refused)?;
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.remembered(&digest) {
            return known.ok_or(Denied::Refused);
        }
        let review = async {
            let _turn = self.turns.acquire().await.map_err(|error| error.to_string())?;
            self.reviewer.user(token, &self.audience).await
        };
        let user = match tokio::time::timeout(REVIEW_TIMEOUT, review).await {
            Ok(Ok(user)) => user,
            Ok(Err(error)) => return Err(unavailable(&error)),
            Err(_) => return Err(unavailable("no answer in time")),
        };
        let (namespace, name) = &account;
        let wanted = format!("system:serviceaccount:{namespace}:{name}");
        let tenant = user.filter(|user| *user == wanted).and_then(|_| self.tenants.get(&account)).cloned();
        self.remember(digest, tenant.clone());
        tenant.ok_or(Denied::Refused)
    }

    /// The known account that a token says it is of.
    fn claimed(&self, token: &str) -> Option<Account> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let mut parts = token.split('.');
        let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        if claims.exp <= now.as_secs() || !claims.aud.has(&self.audience) {
            return None;
        }
        let (namespace, name) = claims.sub.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        let account = (namespace.to_owned(), name.to_owned());
        self.tenants.contains_key(&account).then_some(account)
    }

    fn remembered(&self, digest: &[u8; 32]) -> Option<Option<TenantId>> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(digest)?;
        if known.until > Instant::now() {
            return Some(known.tenant.clone());
        }
        all.remove(digest);
        None
    }

    fn remember(&self, digest: [u8; 32], tenant: Option<TenantId>) {
        let time = if tenant.is_some() { ACCEPTED_FOR } else { REFUSED_FOR };
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED_MAX {
            all.clear();
        }
        all.insert(digest, Known { until: Instant::now() + time, tenant });
    }
}

fn unavailable(error: &str) -> Denied {
    tracing::warn!(error, "a caller's token can't be reviewed");
    Denied::Unavailable
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// An API server that takes what is signed "good".
    #[derive(Default)]
    struct Server {
        n_asked: AtomicUsize,
        is_away: std::sync::atomic::AtomicBool,
    }

    #[async_trait]
    impl Reviewer for Server {
        async fn user(&self, token: &str, _audience: &str) -> Result<Option<String>, String> {
            self.n_asked.fetch_add(1, Ordering::Relaxed);
            if self.is_away.load(Ordering::Relaxed) {
                return Err("connection refused".to_owned());
            }
            let is_good = token.ends_with(".good");
            Ok(is_good.then(|| "system:serviceaccount:agents:crawler".to_owned()))
        }
    }

    fn token(claims: &str, signature: &str) -> String {
        format!("{}.{}.{signature}", URL_SAFE_NO_PAD.encode("{}"), URL_SAFE_NO_PAD.encode(claims))
    }

    fn claims(sub: &str, aud: &str, exp: u64) -> String {
        format!(r#"{{"sub":"system:serviceaccount:{sub}","aud":["{aud}"],"exp":{exp}}}"#)
    }

    fn reviews() -> (Arc<Server>, Reviews) {
        let server = Arc::new(Server::default());
        let account = ("agents".to_owned(), "crawler".to_owned());
        let tenants = BTreeMap::from([(account, "team-1".parse().unwrap())]);
        (server.clone(), Reviews::new(server, "seance".to_owned(), tenants))
    }

    #[tokio::test(start_paused = true)]
    async fn a_good_token_is_asked_after_once_in_a_while() {
        let (server, reviews) = reviews();
        let good = token(&claims("agents:crawler", "seance", 9_999_999_999), "good");
        for _ in 0..3 {
            assert_eq!(reviews.tenant(&good).await.unwrap().as_str(), "team-1");
        }
        assert_eq!(server.n_asked.load(Ordering::Relaxed), 1);
        tokio::time::advance(ACCEPTED_FOR).await;
        reviews.tenant(&good).await.unwrap();
        assert_eq!(server.n_asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_can_not_be_right_costs_the_api_server_nothing() {
        let (server, reviews) = reviews();
        let late = 9_999_999_999;
        for wrong in [
            String::new(),
            "a.b.c".to_owned(),
            token(&claims("agents:other", "seance", late), "good"),
            token(&claims("other:crawler", "seance", late), "good"),
            token(&claims("agents:crawler", "kubernetes", late), "good"),
            token(&claims("agents:crawler", "seance", 1), "good"),
            token(&"x".repeat(TOKEN_BYTES_MAX), "good"),
        ] {
            assert!(matches!(reviews.tenant(&wrong).await, Err(Denied::Refused)), "{wrong}");
        }
        assert_eq!(server.n_asked.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_forged_token_is_refused_and_remembered() {
        let (server, reviews) = reviews();
        let forged = token(&claims("agents:crawler", "seance", 9_999_999_999), "bad");
        for _ in 0..3 {
            assert!(matches!(reviews.tenant(&forged).await, Err(Denied::Refused)));
        }
        assert_eq!(server.n_asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_api_server_is_away_known_callers_go_on_and_others_are_told() {
        let (server, reviews) = reviews();
        let good = token(&claims("agents:crawler", "seance", 9_999_999_999), "good");
        reviews.tenant(&good).await.unwrap();
        server.is_away.store(true, Ordering::Relaxed);
        reviews.tenant(&good).await.unwrap();
        let other = token(&claims("agents:crawler", "seance", 9_999_999_998), "good");
        assert!(matches!(reviews.tenant(&other).await, Err(Denied::Unavailable)));
    }
}
