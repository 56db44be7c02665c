use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// An API server that has one Lease and keeps its version, as the real one does.
#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Value>>>,
}

impl Server {
    fn election(&self, identity: &str) -> Election {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, std::convert::Infallible>(server.answer(request).await) }
        });
        let client = Client::new(service, "default");
        Election::new(Api::namespaced(client, "default"), "operator".to_owned(), identity.to_owned())
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.expect("a body in memory");
        let sent: Option<Value> = serde_json::from_slice(&body).ok();
        let mut lease = self.lease.lock().expect("nobody panics with it");
        let (code, answer) = match (&parts.method, sent, lease.as_ref()) {
            (&Method::GET, _, Some(there)) => (200, there.clone()),
            (&Method::GET, _, None) => (404, refusal(404, "NotFound")),
            (&Method::POST, Some(_), Some(_)) => (409, refusal(409, "AlreadyExists")),
            (&Method::PUT, Some(sent), Some(there)) if version(&sent) != version(there) => {
                (409, refusal(409, "Conflict"))
            }
            (_, Some(mut sent), there) => {
                let next = there.map_or(0, version) + 1;
                sent["metadata"]["resourceVersion"] = json!(next.to_string());
                *lease = Some(sent.clone());
                (200, sent)
            }
            (_, None, _) => (400, refusal(400, "BadRequest")),
        };
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = StatusCode::from_u16(code).expect("a status");
        response
    }

    fn holder(&self) -> Value {
        let lease = self.lease.lock().expect("nobody panics with it");
        lease.as_ref().map_or(Value::Null, |lease| lease["spec"]["holderIdentity"].clone())
    }
}

fn version(lease: &Value) -> u64 {
    let version = lease["metadata"]["resourceVersion"].as_str();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn refusal(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": "" })
}

#[tokio::test(start_paused = true)]
async fn one_of_two_holds_the_lease_and_the_other_follows_at_once_when_it_is_released() {
    let server = Server::default();
    let (mut first, mut second) = (server.election("a"), server.election("b"));
    first.acquire().await;
    assert_eq!(second.look().await, Ok(Look::Others));
    assert_eq!(first.look().await, Ok(Look::Ours), "it renews");
    first.release().await;
    assert_eq!(server.holder(), Value::Null);
    assert_eq!(second.look().await, Ok(Look::Ours));
    assert!(matches!(first.keep().await, Lost::Taken(_)));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_silent_is_followed_after_its_time() {
    let server = Server::default();
    let (mut first, mut second) = (server.election("a"), server.election("b"));
    first.acquire().await;
    let began = Instant::now();
    second.acquire().await;
    assert!(began.elapsed() > DURATION, "{:?}", began.elapsed());
    assert_eq!(server.holder(), json!("b"));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_can_not_renew_stops_before_another_may_begin() {
    let service = tower::service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(std::io::Error::other("no route"))
    });
    let leases = Api::namespaced(Client::new(service, "default"), "default");
    let mut election = Election::new(leases, "operator".to_owned(), "a".to_owned());
    let began = Instant::now();
    assert!(matches!(election.keep().await, Lost::NotRenewed(_)));
    assert!(began.elapsed() < DURATION, "{:?}", began.elapsed());
}
