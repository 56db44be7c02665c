//! The Kubernetes backend with real TLS sockets and runners as processes; only the API server isn't
//! one.

mod cluster;
mod testee;
mod waiting;

use std::time::Duration;

use cluster::proxy::Proxy;
use cluster::{Runner, World, sandbox_id, start, uid};
use seance_core::ids::{Epoch, ProgramNumber, SessionId, TenantId};
use seance_core::link::{Addressed, FromRunner, HostEnded, Numbered, ToRunner};
use seance_core::sandbox::{
    ClaimError, ClaimRequest, Claimed, EndReason, LinkEvent, SandboxBackend, TakeBack,
};
use seance_core::time::Timestamp;
use seance_operator_api::sandbox::{Desired, condition_type, reason};
use seance_sandbox::local::Confinement;
use testee::DEADLINE;

async fn attempt(source: &str, _wire: &mut testee::runner::Wire) -> String {
    unreachable!("the real runner runs here, not {source}")
}

pub async fn service(_: Confinement, name: &str) {
    unreachable!("no test here starts {name}")
}

fn request() -> ClaimRequest {
    ClaimRequest { wait: Duration::from_secs(15), ..testee::request() }
}

fn session() -> SessionId {
    SessionId::mint(Timestamp(1), [1; 10])
}

/// A session as it uses its runner: it acknowledges what it has taken.
struct Guest {
    claimed: Claimed,
    epoch: Epoch,
    last_number: u64,
}

impl Guest {
    async fn claim(backend: &dyn SandboxBackend) -> Self {
        let claimed = backend.claim(request()).await.expect("a runner is warm in time");
        let mut guest = Self { claimed, epoch: Epoch(1), last_number: 0 };
        let assign = ToRunner::Assign { session: session(), engine: "javascript".to_owned(), deadline: None };
        guest.send(assign).await;
        assert_eq!(guest.next().await.frame, FromRunner::Assigned { session: session() });
        guest
    }

    async fn send(&self, frame: ToRunner) {
        let sent = self.claimed.sender.send(Addressed { epoch: self.epoch, frame });
        tokio::time::timeout(DEADLINE, sent).await.expect("in time").expect("the link is there");
    }

    async fn event(&mut self) -> LinkEvent {
        let event = tokio::time::timeout(DEADLINE, self.claimed.receiver.recv()).await;
        event.expect("something comes in time")
    }

    /// The next frame; numbers rise by one, over all connections.
    async fn next(&mut self) -> Numbered {
        match self.event().await {
            LinkEvent::Frame(numbered) => {
                if numbered.number > 0 {
                    assert_eq!(numbered.number, self.last_number + 1);
                    self.last_number = numbered.number;
                }
                numbered
            }
            LinkEvent::Ended(end) => panic!("the sandbox ended: {end:?}"),
        }
    }

    async fn acknowledge(&self) {
        self.send(ToRunner::Ack { number: self.last_number }).await;
    }

    async fn execute(&self, program: u64, source: &str) {
        self.send(testee::program("javascript", ProgramNumber(program), source)).await;
    }

    async fn answer(&self, program: ProgramNumber, call: u64, value: &str) {
        self.send(ToRunner::CallResult { program, call, result: Ok(value.to_owned()) }).await;
    }

    /// Lets go of the link, as a session does, and ends the sandbox.
    async fn end(self) {
        let Claimed { handle, sender, receiver, .. } = self.claimed;
        drop((sender, receiver));
        handle.end(EndReason::Released, DEADLINE).await.expect("the runner says goodbye");
    }

    /// Answers every call with its arguments, acknowledges now and then, and gives output and end.
    async fn finish(&mut self) -> (Vec<u8>, HostEnded) {
        let mut output = Vec::new();
        loop {
            let frame = self.next().await.frame;
            if self.last_number.is_multiple_of(7) {
                self.acknowledge().await;
            }
            match frame {
                FromRunner::Output { data, .. } => output.extend_from_slice(&data),
                FromRunner::ToolCall { program, call, arguments, .. } => {
                    self.answer(program, call, &arguments).await;
                }
                FromRunner::ProgramEnded(ended) => {
                    self.acknowledge().await;
                    return (output, *ended);
                }
                FromRunner::ProgramStarted { .. } => {}
                other => panic!("unexpected frame: {other:?}"),
            }
        }
    }

    async fn value(&mut self, program: u64, source: &str) -> String {
        self.execute(program, source).await;
        let (_, ended) = self.finish().await;
        let report = ended.report.clone().unwrap_or_else(|| panic!("{ended:?}"));
        report.value.unwrap_or_else(|| panic!("{:?}", report.error))
    }
}

/// One pool, one pod, and the session that has it.
async fn claimed() -> (World, Runner, Guest) {
    let world = World::new().await;
    world.add_pool("small", |_| {}).await;
    let runner = world.pod(1, "small", world.link());
    let guest = Guest::claim(&world.backend).await;
    (world, runner, guest)
}

/// One pool, one pod, one program, one tool call; then the end, proven by the runner's goodbye.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_dials_in_serves_one_session_and_says_goodbye() {
    let (world, mut runner, mut guest) = claimed().await;
    assert_eq!(Some(guest.claimed.id), sandbox_id(&uid(1)));
    assert_eq!(guest.value(1, "return 1 + 1").await, "2");
    assert_eq!(guest.value(2, "return await tools.call('echo', {a: [1]})").await, r#"{"a":[1]}"#);
    world.objects.until("sandbox-1", condition_type::READY, "True", reason::ready::SERVING).await;
    world.objects.until("sandbox-1", condition_type::ASSIGNED, "True", reason::assigned::SESSION).await;
    let given = world.objects.get("sandbox-1").unwrap().spec.session.unwrap();
    assert_eq!((given.id, given.tenant.as_str()), (session().to_string(), "default"));
    guest.end().await;
    assert!(runner.ended().await.success());
    world.objects.until("sandbox-1", condition_type::RELEASED, "True", reason::released::SESSION_ENDED).await;
    assert_eq!(world.backend.n_leaked(), 0);
}

/// Bytes are written while the link is cut again and again: none is lost and none comes twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_goes_on_while_the_link_is_cut_and_no_byte_is_lost_or_doubled() {
    let world = World::new().await;
    world.add_pool("small", |_| {}).await;
    let proxy = Proxy::to(world.link()).await;
    let _runner = world.pod(1, "small", proxy.address);
    let mut guest = Guest::claim(&world.backend).await;
    let source = "for (let i = 0; i < 40; i++) {
        const answer = await tools.call('echo', {i, pad: 'x'.repeat(i * 1000)});
        if (answer.i !== i) throw new Error('another answer');
        text('line ' + i + ' ' + 'y'.repeat(10000));
    }
    return 'done'";
    guest.execute(1, source).await;
    let mut output = Vec::new();
    let mut n_calls = 0;
    let ended = loop {
        match guest.next().await.frame {
            FromRunner::Output { data, .. } => output.extend_from_slice(&data),
            FromRunner::ToolCall { call, arguments, .. } => {
                n_calls += 1;
                assert_eq!(call, n_calls, "no call comes twice");
                // Sometimes the answer finds no link, and sometimes its link breaks under it.
                match call % 4 {
                    1 => proxy.cut(Some(world.link())),
                    2 => guest.acknowledge().await,
                    _ => {}
                }
                guest.answer(ProgramNumber(1), call, &arguments).await;
                if call % 4 == 3 {
                    proxy.cut(Some(world.link()));
                }
            }
            FromRunner::ProgramEnded(ended) => break *ended,
            FromRunner::ProgramStarted { .. } => {}
            other => panic!("unexpected frame: {other:?}"),
        }
    };
    assert_eq!(
        ended.report.clone().and_then(|report| report.value).as_deref(),
        Some("\"done\""),
        "{ended:?}"
    );
    let lines: Vec<String> = (0..40).map(|i| format!("line {i} {}", "y".repeat(10000))).collect();
    let joined = String::from_utf8(output).unwrap();
    assert_eq!(joined.replace('\n', ""), lines.concat());
    guest.acknowledge().await;
    assert_eq!(guest.value(2, "return 2").await, "2");
}

/// The service ends and another start takes the session's runner back, its program still running.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_goes_on_while_the_service_restarts() {
    let world = World::new().await;
    world.add_pool("small", |_| {}).await;
    let proxy = Proxy::to(world.link()).await;
    let _runner = world.pod(1, "small", proxy.address);
    let mut guest = Guest::claim(&world.backend).await;
    guest.execute(1, "text('before'); const a = await tools.call('echo', 1); text('after'); return a").await;
    let call = loop {
        if let FromRunner::ToolCall { call, .. } = guest.next().await.frame {
            break call;
        }
    };
    // Everything up to the call is committed but the last frame.
    let acknowledged = guest.last_number - 1;
    guest.send(ToRunner::Ack { number: acknowledged }).await;
    world.objects.until("sandbox-1", condition_type::ASSIGNED, "True", reason::assigned::SESSION).await;
    guest.claimed.handle.leave();
    drop(guest);
    proxy.cut(None);
    let World { objects, files, backend } = world;
    drop(backend);
    let backend = start(&objects, files.config()).await;
    proxy.cut(Some(backend.link_addr()));
    let take_back = TakeBack {
        sandbox: sandbox_id(&uid(1)).unwrap(),
        session: session(),
        tenant: TenantId::default_tenant(),
        engine: "javascript".to_owned(),
        epoch: Epoch(2),
        acknowledged,
    };
    let (claimed, resumed) = backend.take_back(take_back).await.expect("the runner comes back");
    assert_eq!((resumed.program, resumed.last_program), (Some(ProgramNumber(1)), 1));
    assert_eq!(resumed.applied_calls, Vec::<u64>::new());
    let mut guest = Guest { claimed, epoch: Epoch(2), last_number: acknowledged };
    let again = guest.next().await.frame;
    assert!(matches!(again, FromRunner::ToolCall { call: again, .. } if again == call), "{again:?}");
    guest.answer(ProgramNumber(1), call, "1").await;
    let (output, ended) = guest.finish().await;
    assert_eq!(String::from_utf8(output).unwrap().trim(), "after");
    assert_eq!(ended.report.and_then(|report| report.value).as_deref(), Some("1"));
    guest.end().await;
}

/// How a pod ended reaches the session as a typed reason, with what the operator says of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_pod_reaches_its_session() {
    let (world, mut runner, mut guest) = claimed().await;
    runner.child.kill().unwrap();
    runner.ended().await;
    let message = "the limit of 512Mi was reached";
    world.objects.finish("sandbox-1", reason::finished::OUT_OF_MEMORY, message);
    let LinkEvent::Ended(end) = guest.event().await else { panic!("a frame came") };
    assert_eq!(end.reason, EndReason::OutOfMemory);
    assert!(end.detail.starts_with(message), "{end:?}");
    guest.claimed.handle.end(EndReason::OutOfMemory, DEADLINE).await.expect("the pod is terminal");
}

/// Sandbox 2: a pod that is being drained goes on until its runner is killed. What the node needs after that
/// isn't waited for: who waits is told the reason when the link breaks.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_pod_that_was_told_to_end_is_told_when_its_link_breaks() {
    let (world, mut runner, mut guest) = claimed().await;
    let why = "Eviction API: evicting";
    world.objects.say("sandbox-1", condition_type::ENDING, "True", reason::finished::DRAINED, why);
    assert_eq!(guest.value(1, "return 7").await, "7");
    runner.child.kill().unwrap();
    runner.ended().await;
    let LinkEvent::Ended(end) = guest.event().await else { panic!("a frame came") };
    assert_eq!((end.reason, end.detail.as_str()), (EndReason::Drained, why));
}

/// A pod that has to go is asked for, and given up at once when nobody has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_retiring_sandbox_is_released_when_no_session_has_it() {
    let world = World::new().await;
    world.add_pool("small", |_| {}).await;
    let mut warm = world.pod(1, "small", world.link());
    world.objects.until("sandbox-1", condition_type::READY, "True", reason::ready::SERVING).await;
    world.objects.change("sandbox-1", |sandbox| sandbox.spec.desired = Desired::Retiring);
    world.objects.until("sandbox-1", condition_type::RELEASED, "True", reason::released::RETIRED).await;
    assert!(warm.ended().await.success());
    world.objects.add_sandbox("sandbox-2", "small", &uid(2));
    world.objects.change("sandbox-2", |sandbox| sandbox.spec.desired = Desired::Retiring);
    world
        .objects
        .until("sandbox-2", condition_type::RELEASED, "True", reason::released::NEVER_CONNECTED)
        .await;
    let mut late = Runner::start(&world.files, &uid(2), world.link(), "");
    assert!(!late.ended().await.success(), "it comes too late");
    let busy = world.pod(3, "small", world.link());
    let guest = Guest::claim(&world.backend).await;
    world.objects.change("sandbox-3", |sandbox| sandbox.spec.desired = Desired::Retiring);
    world.objects.until("sandbox-3", condition_type::ASSIGNED, "True", reason::assigned::SESSION).await;
    guest.end().await;
    world.objects.until("sandbox-3", condition_type::RELEASED, "True", reason::released::SESSION_ENDED).await;
    drop(busy);
}

/// The API server is away: what is warm is given, programs run, and it is written when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_open_and_go_on_while_the_api_server_is_away() {
    let world = World::new().await;
    world.add_pool("small", |_| {}).await;
    let _runner = world.pod(1, "small", world.link());
    world.objects.until("sandbox-1", condition_type::READY, "True", reason::ready::SERVING).await;
    world.objects.set_away(true);
    let mut guest = Guest::claim(&world.backend).await;
    assert_eq!(guest.value(1, "return 7").await, "7");
    assert!(world.objects.get("sandbox-1").unwrap().spec.session.is_none());
    world.objects.set_away(false);
    world.objects.until("sandbox-1", condition_type::ASSIGNED, "True", reason::assigned::SESSION).await;
    assert!(world.objects.get("sandbox-1").unwrap().spec.session.is_some());
}

/// Something listens where the runner must not get: the pod never serves while it does get there.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_with_an_open_way_out_never_serves() {
    let world = World::new().await;
    world
        .objects
        .add_pool("small", |pool| pool["spec"]["acceptedChecks"] = serde_json::json!(["pids-limit"]));
    let open = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = open.local_addr().unwrap();
    world.objects.add_sandbox("sandbox-1", "small", &uid(1));
    let checks = format!(r#"[{{"name":"api-server","address":"{target}"}}]"#);
    let _runner = Runner::start(&world.files, &uid(1), world.link(), &checks);
    let unproven = reason::ready::ISOLATION_NOT_PROVEN;
    world.objects.until("sandbox-1", condition_type::READY, "False", unproven).await;
    let claim = world.backend.claim(ClaimRequest { wait: Duration::from_secs(1), ..request() });
    let refused = claim.await;
    assert!(
        matches!(&refused, Err(ClaimError::Blocked { reason, message })
            if reason.name() == "ISOLATION_NOT_PROVEN" && message.contains(&target.to_string())),
        "{refused:?}"
    );
    // The pool accepts it by its name, and the same pod serves.
    let accepted = serde_json::json!(["pids-limit", "api-server"]);
    world.objects.add_pool("small", |pool| pool["spec"]["acceptedChecks"] = accepted);
    world.objects.until("sandbox-1", condition_type::READY, "True", reason::ready::SERVING).await;
}
