//! An API server in memory: it keeps objects by path, merges patches, checks UIDs, and remembers what
//! it was asked.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// The server. Clones are the same server.
#[derive(Clone, Default)]
pub struct Server {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    asked: Vec<String>,
    refusals: Vec<Refusal>,
    next: u64,
}

struct Refusal {
    method: Method,
    path: &'static str,
    code: u16,
    message: &'static str,
}

impl Server {
    /// A client of it.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "rooms")
    }

    /// Puts an object in, as if somebody else had made it.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        let metadata = object["metadata"].as_object_mut().expect("objects have metadata");
        metadata.entry("uid").or_insert(json!(format!("uid-{number}")));
        metadata.insert("resourceVersion".to_owned(), json!(number.to_string()));
        metadata.entry("creationTimestamp").or_insert(json!(now()));
        state.objects.insert(path.to_owned(), object);
    }

    /// Changes an object, as if somebody else had.
    pub fn change(&self, path: &str, patch: &Value) {
        merge(self.state().objects.get_mut(path).expect("there is such an object"), patch);
    }

    /// Takes an object away, as if somebody else had.
    pub fn remove(&self, path: &str) {
        self.state().objects.remove(path).expect("there is such an object");
    }

    /// The objects of a kind, by the last but one part of their path.
    pub fn objects(&self, resource: &str) -> Vec<Value> {
        let is_of = |path: &str| path.rsplit('/').nth(1) == Some(resource);
        self.state()
            .objects
            .iter()
            .filter(|(path, _)| is_of(path))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Refuses from now on what is asked of paths that contain this.
    pub fn refuse(&self, method: Method, path: &'static str, code: u16, message: &'static str) {
        self.state().refusals.push(Refusal { method, path, code, message });
    }

    /// Refuses nothing more.
    pub fn refuse_nothing(&self) {
        self.state().refusals.clear();
    }

    /// What was asked since the last call: the method, the resource, and `status` for the subresource.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state().asked)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.expect("a body in memory");
        let sent = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let (code, answer) = self.state().answer(&parts.method, parts.uri.path(), sent);
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = StatusCode::from_u16(code).expect("a status");
        response
    }
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, sent: Value) -> (u16, Value) {
        let (path, is_status) = path.strip_suffix("/status").map_or((path, false), |path| (path, true));
        self.asked.push(describe(method, path, is_status));
        let refusal = self.refusals.iter().find(|is| is.method == *method && path.contains(is.path));
        if let Some(refusal) = refusal {
            return refused(refusal.code, refusal.message);
        }
        match *method {
            Method::GET => {
                self.objects.get(path).cloned().map_or_else(|| refused(404, ""), |object| (200, object))
            }
            Method::POST => self.make(path, sent),
            Method::PATCH => self.patch(path, sent),
            Method::DELETE => self.delete(path, &sent),
            _ => refused(405, ""),
        }
    }

    fn make(&mut self, folder: &str, mut object: Value) -> (u16, Value) {
        let name = object["metadata"]["name"].as_str().expect("it has a name").to_owned();
        let path = format!("{folder}/{name}");
        if self.objects.contains_key(&path) {
            return refused(409, "AlreadyExists");
        }
        self.next += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.next));
        object["metadata"]["resourceVersion"] = json!(self.next.to_string());
        object["metadata"]["creationTimestamp"] = json!(now());
        self.objects.insert(path, object.clone());
        (201, object)
    }

    fn patch(&mut self, path: &str, sent: Value) -> (u16, Value) {
        self.next += 1;
        let next = self.next;
        let fresh = json!({ "metadata": { "uid": format!("uid-{next}") } });
        let object = match self.objects.get_mut(path) {
            Some(object) => object,
            // Applying makes what isn't there.
            None if sent["metadata"]["uid"].is_null() => self.objects.entry(path.to_owned()).or_insert(fresh),
            None => return refused(404, ""),
        };
        let uid = &sent["metadata"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return refused(409, "Conflict");
        }
        merge(object, &sent);
        object["metadata"]["resourceVersion"] = json!(next.to_string());
        (200, object.clone())
    }

    fn delete(&mut self, path: &str, sent: &Value) -> (u16, Value) {
        let Some(object) = self.objects.get(path) else { return refused(404, "") };
        for part in ["uid", "resourceVersion"] {
            let wanted = &sent["preconditions"][part];
            if !wanted.is_null() && *wanted != object["metadata"][part] {
                return refused(409, "Conflict");
            }
        }
        self.objects.remove(path);
        (200, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
    }
}

fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().to_string()
}

fn describe(method: &Method, path: &str, is_status: bool) -> String {
    // A collection is where things are made; everything else has a name.
    let mut parts = path.rsplit('/');
    let resource = if *method == Method::POST { parts.next() } else { parts.nth(1) };
    let part = if is_status { "/status" } else { "" };
    format!("{} {}{part}", method.as_str().to_lowercase(), resource.unwrap_or_default())
}

fn refused(code: u16, message: &str) -> (u16, Value) {
    let reason = match (code, message) {
        (404, _) => "NotFound",
        (409, reason) => reason,
        (403, _) => "Forbidden",
        _ => "",
    };
    let answer = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (code, answer)
}

/// A merge patch; conditions are merged by type, as server-side apply does.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        match (key.as_str(), value, into[key.as_str()].as_array_mut()) {
            ("conditions", Value::Array(news), Some(there)) => {
                for new in news {
                    there.retain(|old| old["type"] != new["type"]);
                    there.push(new.clone());
                }
            }
            _ => merge(&mut into[key.as_str()], value),
        }
    }
}
