//! The line for a sandbox as callers see it: gRPC in front, the Kubernetes backend with its TLS link
//! behind, and a pool that is empty (sandbox 7, 22).

#[path = "../../sandbox/tests/cluster/mod.rs"]
mod cluster;
mod support;

use std::sync::Arc;

use cluster::client::{Client, Credential, hello};
use cluster::{Files, Objects};
use proto::execute_response::Message;
use seance_core::sandbox::SandboxBackend as _;
use seance_operator_api::sandbox::{condition_type, reason as reasons};
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::{self as proto};
use seance_sandbox::kubernetes::KubernetesBackend;
use seance_server::Service;
use seance_server::auth::mint_token;
use seance_server::config::Settings;
use support::{connect, reason, script, settings};
use testee::DEADLINE;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_types::StatusExt as _;

/// What the cluster of the sandboxes' own tests asks of its test.
mod testee {
    pub const DEADLINE: std::time::Duration = std::time::Duration::from_secs(20);
    pub const REAL_RUNNER: &str = "real-runner";

    pub async fn eventually(condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("the condition holds in time");
    }
}

/// A service whose sandboxes are pods, and callers of two tenants.
struct World {
    objects: Arc<Objects>,
    files: Files,
    backend: Arc<KubernetesBackend>,
    sessions: SessionsClient<Channel>,
    tokens: [String; 2],
    runners: JoinSet<()>,
    n_pods: u32,
    _service: Service,
}

impl World {
    async fn new(claim_wait_seconds: u64) -> Self {
        let (objects, files) = (Objects::new(), Files::new());
        let backend = Arc::new(cluster::start(&objects, files.config()).await);
        objects.add_pool("small", |_| {});
        testee::eventually(|| !backend.engines().is_empty()).await;
        let minted = ["a", "b"].map(|tenant| mint_token(&tenant.parse().unwrap(), "").unwrap());
        let tokens_file = files.path("tokens.toml");
        let entries = minted.each_ref().map(|token| token.file_entry.as_str()).concat();
        std::fs::write(&tokens_file, entries).unwrap();
        let claim_wait_seconds = Some(claim_wait_seconds);
        let settings = Settings { tokens_file: Some(tokens_file), claim_wait_seconds, ..settings() };
        let service = Service::start(&settings.parse().unwrap(), backend.clone()).await.unwrap();
        let sessions = SessionsClient::new(connect(&service).await);
        let tokens = minted.map(|token| token.token);
        let runners = JoinSet::new();
        Self { objects, files, backend, sessions, tokens, runners, n_pods: 0, _service: service }
    }

    /// A request of one of the two.
    fn of<T>(&self, tenant: usize, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let bearer = format!("Bearer {}", self.tokens[tenant]).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        request
    }

    /// A pod whose runner is there, and which serves whoever is next.
    async fn add_pod(&mut self) {
        self.n_pods += 1;
        let n = self.n_pods;
        self.objects.add_sandbox(&format!("sandbox-{n}"), "small", &cluster::uid(n));
        let link = self.backend.link_addr();
        let dialled = Client::dial(&self.files, link, Credential::of_pod(n), hello()).await;
        self.runners.spawn(dialled.expect("its pod is known").serve());
    }

    /// A session whose sandbox is gone again: its next program has to get in line.
    async fn session_without_sandbox(&mut self, tenant: usize) -> String {
        self.add_pod().await;
        let request = proto::OpenRequest { engine: "javascript".to_owned(), ..Default::default() };
        let request = self.of(tenant, request);
        let opened = self.sessions.open(request).await.unwrap().into_inner().session.unwrap();
        let session_id = opened.session_id;
        let name = format!("sandbox-{}", self.n_pods);
        self.objects.until(&name, condition_type::ASSIGNED, "True", reasons::assigned::SESSION).await;
        self.objects.finish(&name, reasons::finished::DRAINED, "its node was drained");
        let released = reasons::released::SESSION_ENDED;
        self.objects.until(&name, condition_type::RELEASED, "True", released).await;
        session_id
    }

    async fn execute(&mut self, tenant: usize, session_id: &str, window_seconds: i64) -> Watched {
        let window = Some(prost_types::Duration { seconds: window_seconds, nanos: 0 });
        let observe = Some(proto::ObserveOptions { window, ..Default::default() });
        let request = proto::ExecuteRequest { observe, ..script(session_id, &["return 42"]) };
        let request = self.of(tenant, request);
        Watched(self.sessions.execute(request).await.unwrap().into_inner())
    }
}

/// A program that is watched.
struct Watched(Streaming<proto::ExecuteResponse>);

impl Watched {
    async fn next(&mut self) -> Message {
        let message = tokio::time::timeout(DEADLINE, self.0.message()).await.expect("in time");
        message.unwrap().expect("the stream goes on").message.unwrap()
    }

    /// Waits until it is told that it has this place in line.
    async fn until_told(&mut self, position: u32) {
        loop {
            match self.next().await {
                Message::Heartbeat(heartbeat) if heartbeat.queue_position == position => return,
                Message::Heartbeat(_) | Message::Accepted(_) => {}
                other => panic!("it is in line still: {other:?}"),
            }
        }
    }

    async fn end(&mut self) -> proto::Observation {
        loop {
            match self.next().await {
                Message::Observation(observation) => return observation,
                Message::Heartbeat(_) | Message::Accepted(_) => {}
                Message::Output(output) => panic!("its program writes nothing: {output:?}"),
            }
        }
    }
}

fn fact(status: &Status, name: &str) -> Option<String> {
    status.get_error_details().error_info()?.metadata.get(name).cloned()
}

/// Sandbox 7: fair between tenants, told while it waits and as it moves, and 0 where there is no line.
#[tokio::test(flavor = "multi_thread")]
async fn queued_programs_are_told_their_place_in_line_as_it_moves() {
    let mut world = World::new(60).await;
    let first = world.session_without_sandbox(0).await;
    let second = world.session_without_sandbox(0).await;
    let theirs = world.session_without_sandbox(1).await;
    let mut first = world.execute(0, &first, 60).await;
    first.until_told(1).await;
    let mut second = world.execute(0, &second, 60).await;
    second.until_told(2).await;
    // The other tenant came last, and isn't behind all that the first one has.
    let session_id = theirs.clone();
    let mut other = world.execute(1, &session_id, 2).await;
    other.until_told(2).await;
    second.until_told(3).await;
    let queued = other.end().await;
    assert_eq!(queued.status(), proto::ObservationStatus::StillWorking);
    assert_eq!(queued.program.unwrap().state(), proto::ProgramState::Queued);
    assert_eq!(queued.queue_position, 2);
    world.add_pod().await;
    let done = first.end().await;
    assert_eq!((done.status(), done.queue_position), (proto::ObservationStatus::Completed, 0));
    second.until_told(2).await;
    let wait = proto::WaitRequest { session_id: theirs, ..Default::default() };
    let wait = world.of(1, wait);
    let mut waiting = world.sessions.wait(wait).await.unwrap().into_inner();
    let told = tokio::time::timeout(DEADLINE, waiting.message()).await.expect("in time");
    let told = told.unwrap().unwrap().message.unwrap();
    assert_eq!(told, proto::wait_response::Message::Heartbeat(proto::Heartbeat { queue_position: 1 }));
    world.add_pod().await;
    world.add_pod().await;
    assert_eq!(second.end().await.status(), proto::ObservationStatus::Completed);
}

/// Sandbox 7: an open has no stream to be told on. When its time is over its error says where it stood.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_that_waited_in_vain_is_told_where_it_stood() {
    let world = World::new(2).await;
    let open = || {
        let (mut sessions, engine) = (world.sessions.clone(), "javascript".to_owned());
        let request = world.of(0, proto::OpenRequest { engine, ..Default::default() });
        async move { sessions.open(request).await.expect_err("there is no sandbox") }
    };
    let refused = tokio::join!(open(), open());
    for status in [refused.0, refused.1] {
        assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "SANDBOX_EXHAUSTED"));
        // The first one's end may have been before the other's.
        let place = fact(&status, "queue_position");
        assert!(matches!(place.as_deref(), Some("1" | "2")), "{place:?}");
    }
}

/// Sandbox 5, 22: what can't come is told by name and long before the caller's time is over.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_is_told_at_once_what_can_not_come() {
    let started = condition_type::STARTED;
    for (why, message, code, told) in [
        (reasons::started::INVALID_TEMPLATE, "no memory", Code::FailedPrecondition, "NO_POOL"),
        (reasons::started::IMAGE_PULL_FAILED, "InvalidImageName: x", Code::Unavailable, "IMAGE_PULL_FAILED"),
        (reasons::started::QUOTA_EXCEEDED, "pods=3", Code::ResourceExhausted, "QUOTA_EXCEEDED"),
    ] {
        let world = World::new(600).await;
        world.objects.add_pool("small", |pool| pool["spec"]["coldStart"] = "Allowed".into());
        let (mut sessions, engine) = (world.sessions.clone(), "javascript".to_owned());
        let request = world.of(0, proto::OpenRequest { engine, ..Default::default() });
        let operator = async {
            world.objects.until_that(|objects| !objects.names().is_empty()).await;
            let name = world.objects.names().remove(0);
            world.objects.say(&name, started, "False", why, message);
        };
        let both = async { tokio::join!(sessions.open(request), operator) };
        let (opened, ()) = tokio::time::timeout(DEADLINE, both).await.expect("long before its time is over");
        let refused = opened.expect_err("nothing can come");
        assert_eq!((refused.code(), reason(&refused).as_str()), (code, told));
        assert!(refused.message().contains(message), "{refused:?}");
    }
}
