//! Hostile runners on the network: what they say of themselves, what they send, and how many they are
//! (link, hundred hostile runners; sandbox cases 19, 41).

mod cluster;
mod testee;

use std::time::{Duration, Instant};

use cluster::client::{Client, Credential, hello};
use cluster::{World, sandbox_id, uid};
use seance_core::ids::{Epoch, SessionId};
use seance_core::link::{Addressed, FromRunner, ToRunner};
use seance_core::sandbox::{ClaimError, ClaimRequest, Claimed, EndReason, LinkEvent, SandboxBackend};
use seance_core::time::Timestamp;
use seance_operator_api::sandbox::{condition_type, reason};
use seance_proto::link::v1alpha1::{
    Assigned, Chunk, Goodbye, Hello, Output, Resume, attach_request::Frame, attach_response,
};
use seance_sandbox::local::Confinement;
use testee::DEADLINE;
use tokio::io::AsyncReadExt;
use tonic::Code;

async fn attempt(source: &str, _wire: &mut testee::runner::Wire) -> String {
    unreachable!("no sandbox of this machine runs {source}")
}

pub async fn service(_: Confinement, name: &str) {
    unreachable!("no test here starts {name}")
}

fn request(wait: Duration) -> ClaimRequest {
    ClaimRequest { wait, ..testee::request() }
}

fn session(n: u8) -> SessionId {
    SessionId::mint(Timestamp(i64::from(n)), [n; 10])
}

/// A world with one pool and the Sandboxes of so many pods.
async fn world(n_pods: u32) -> World {
    let world = World::new().await;
    world.add_pool("small", |_| {}).await;
    for n in 1..=n_pods {
        world.objects.add_sandbox(&format!("sandbox-{n}"), "small", &uid(n));
    }
    world
}

async fn dial(world: &World, credential: Credential) -> Result<Client, Code> {
    let dialled = Client::dial(&world.files, world.link(), credential, hello()).await;
    dialled.map_err(|status| status.code())
}

async fn refused(world: &World, credential: Credential, hello: Hello) -> Code {
    match Client::dial(&world.files, world.link(), credential, hello).await {
        Ok(_) => panic!("it was let in"),
        Err(status) => status.code(),
    }
}

async fn assign(claimed: &Claimed, session: SessionId) {
    let assign = ToRunner::Assign { session, engine: "javascript".to_owned(), deadline: None };
    claimed.sender.send(Addressed { epoch: Epoch(1), frame: assign }).await.expect("the link is there");
}

/// A pod's runner, dialled in and with this session.
async fn busy(world: &World, pod: u32, session: SessionId) -> (Client, Claimed) {
    let client = dial(world, Credential::of_pod(pod)).await.unwrap();
    client.report_closed().await;
    let claimed = world.backend.claim(request(DEADLINE)).await.expect("it is warm");
    assign(&claimed, session).await;
    (client, claimed)
}

async fn end_of(claimed: &mut Claimed) -> EndReason {
    let end = async {
        loop {
            if let LinkEvent::Ended(end) = claimed.receiver.recv().await {
                return end.reason;
            }
        }
    };
    tokio::time::timeout(DEADLINE, end).await.expect("it ends in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_who_does_not_show_who_it_is() {
    let world = world(1).await;
    assert_eq!(refused(&world, Credential::None, hello()).await, Code::Unauthenticated);
    assert_eq!(refused(&world, Credential::Token("x".to_owned()), hello()).await, Code::Unauthenticated);
    assert_eq!(refused(&world, Credential::Ticket("x".to_owned()), hello()).await, Code::Unauthenticated);
    let old = Hello { version_min: 9, version_max: 9, ..hello() };
    assert_eq!(refused(&world, Credential::of_pod(1), old).await, Code::FailedPrecondition);
}

/// First contact is accepted once, whoever has the token.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_one_first_contact() {
    let world = world(1).await;
    let client = dial(&world, Credential::of_pod(1)).await.unwrap();
    assert_eq!(refused(&world, Credential::of_pod(1), hello()).await, Code::PermissionDenied);
    drop(client);
    assert_eq!(refused(&world, Credential::of_pod(1), hello()).await, Code::PermissionDenied);
}

/// The ticket that the runner has now is good, one that it had before is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_of_before_is_refused() {
    let world = world(1).await;
    let mut tickets = Vec::new();
    let mut client = dial(&world, Credential::of_pod(1)).await.unwrap();
    for _ in 0..3 {
        client.report_closed().await;
        world.objects.until("sandbox-1", condition_type::READY, "True", reason::ready::SERVING).await;
        tickets.push(client.ticket.clone());
        client = dial(&world, Credential::Ticket(client.ticket.clone())).await.expect("the newest is good");
    }
    client.report_closed().await;
    // What comes behind it has been read, so it has been heard.
    let mut claimed = world.backend.claim(request(DEADLINE)).await.expect("it is warm");
    assign(&claimed, session(1)).await;
    client.send(Frame::Assigned(Assigned { session_id: session(1).to_string() })).await;
    assert!(matches!(claimed.receiver.recv().await, LinkEvent::Frame(_)));
    for ticket in tickets {
        assert_eq!(refused(&world, Credential::Ticket(ticket), hello()).await, Code::Unauthenticated);
    }
    let other = if client.ticket.starts_with('A') { 'B' } else { 'A' };
    let forged = format!("{other}{}", &client.ticket[1..]);
    assert_eq!(refused(&world, Credential::Ticket(forged), hello()).await, Code::Unauthenticated);
    let resume = Resume { session_id: session(1).to_string(), first_unacknowledged: 1, ..Resume::default() };
    let again = Hello { resume: Some(resume), ..hello() };
    let ticket = Credential::Ticket(client.ticket);
    let again = Client::dial(&world.files, world.link(), ticket, again).await;
    assert!(again.is_ok(), "the newest is good");
}

/// A runner takes one session. One that pretends to be free again is never given to another, whatever
/// it says.
#[tokio::test(flavor = "multi_thread")]
async fn a_used_pod_is_never_given_to_a_second_session() {
    let world = world(1).await;
    let client = dial(&world, Credential::of_pod(1)).await.unwrap();
    client.report_closed().await;
    let claimed = world.backend.claim(request(DEADLINE)).await.expect("it is warm");
    assert_eq!(Some(claimed.id), sandbox_id(&uid(1)));
    assign(&claimed, session(1)).await;
    for resume in [
        None,
        Some(Resume { first_unacknowledged: 1, session_id: session(2).to_string(), ..Resume::default() }),
        Some(Resume { first_unacknowledged: 77, session_id: session(1).to_string(), ..Resume::default() }),
    ] {
        let lie = Hello { resume, ..hello() };
        let ticket = Credential::Ticket(client.ticket.clone());
        assert_eq!(refused(&world, ticket, lie).await, Code::FailedPrecondition);
    }
    client.report_closed().await;
    let second = world.backend.claim(request(Duration::from_millis(200))).await;
    assert!(matches!(second, Err(ClaimError::Queued { position: 1, .. })), "{second:?}");
    drop(claimed);
    world.objects.until("sandbox-1", condition_type::RELEASED, "True", reason::released::SESSION_ENDED).await;
    let ticket = Credential::Ticket(client.ticket.clone());
    assert_eq!(refused(&world, ticket, hello()).await, Code::PermissionDenied);
}

/// A runner without a session has nothing to tell one.
#[tokio::test(flavor = "multi_thread")]
async fn a_warm_runner_that_sends_a_sessions_frames_is_never_used() {
    let world = world(1).await;
    let mut client = dial(&world, Credential::of_pod(1)).await.unwrap();
    client.report_closed().await;
    world.objects.until("sandbox-1", condition_type::READY, "True", reason::ready::SERVING).await;
    client.send(Frame::Assigned(Assigned { session_id: session(1).to_string() })).await;
    world.objects.until("sandbox-1", condition_type::RELEASED, "True", reason::released::MISBEHAVED).await;
    client.ended().await;
}

/// A way that opens while a session has the sandbox ends it, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_opens_ends_the_session_s_sandbox() {
    let world = world(1).await;
    let (client, mut claimed) = busy(&world, 1, session(1)).await;
    client.report_open().await;
    assert_eq!(end_of(&mut claimed).await, EndReason::IsolationNotProven);
    drop(client);
}

/// Policies take a moment to hold for a new pod: what its runner finds open until then says nothing of
/// the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_runner_whose_ways_are_open_yet_puts_nobody_in_doubt() {
    let world = world(2).await;
    let first = dial(&world, Credential::of_pod(1)).await.unwrap();
    first.report_closed().await;
    world.objects.until("sandbox-1", condition_type::READY, "True", reason::ready::SERVING).await;
    let second = dial(&world, Credential::of_pod(2)).await.unwrap();
    second.report_open().await;
    let unproven = reason::ready::ISOLATION_NOT_PROVEN;
    world.objects.until("sandbox-2", condition_type::READY, "False", unproven).await;
    let claimed = world.backend.claim(request(Duration::ZERO)).await.expect("it is warm all the time");
    assert_eq!(Some(claimed.id), sandbox_id(&uid(1)));
}

/// Sandbox 41: what one runner finds open puts all of its pool in doubt. Each serves again when it has
/// tried anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_one_runner_finds_open_puts_its_pool_in_doubt() {
    let world = world(2).await;
    let first = dial(&world, Credential::of_pod(1)).await.unwrap();
    let second = dial(&world, Credential::of_pod(2)).await.unwrap();
    for (runner, sandbox) in [(&first, "sandbox-1"), (&second, "sandbox-2")] {
        runner.report_closed().await;
        world.objects.until(sandbox, condition_type::READY, "True", reason::ready::SERVING).await;
    }
    first.report_open().await;
    let unproven = reason::ready::ISOLATION_NOT_PROVEN;
    world.objects.until("sandbox-1", condition_type::READY, "False", unproven).await;
    let refused = world.backend.claim(request(Duration::from_millis(200))).await;
    assert!(
        matches!(&refused, Err(ClaimError::Blocked { reason, .. }) if reason.name() == "ISOLATION_NOT_PROVEN"),
        "{refused:?}"
    );
    // A runner tries again every few seconds; this one is faster.
    let mut rounds = tokio::time::interval(Duration::from_millis(100));
    let tries = async {
        loop {
            rounds.tick().await;
            second.report_closed().await;
        }
    };
    let claimed = tokio::select! {
        claimed = world.backend.claim(request(DEADLINE)) => claimed.expect("it has tried anew"),
        () = tries => unreachable!("it tries for ever"),
    };
    assert_eq!(Some(claimed.id), sandbox_id(&uid(2)));
}

/// Connections that say nothing take up no more than an address may, and let go in time.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_few_and_short() {
    let world = World::with(|config| config.strangers_per_address_max = 4).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(tokio::net::TcpStream::connect(world.link()).await.unwrap());
    }
    let began = Instant::now();
    let mut closed_at_once = 0;
    for stream in &mut silent {
        let read = tokio::time::timeout(DEADLINE, stream.read(&mut [0; 1])).await;
        assert!(matches!(read, Ok(Ok(0) | Err(_))), "it is closed: {read:?}");
        closed_at_once += usize::from(began.elapsed() < Duration::from_secs(1));
    }
    // Those that were let in were read first, and took until the handshake had to be over.
    assert!(closed_at_once < 8);
    world.add_pool("small", |_| {}).await;
    world.objects.add_sandbox("sandbox-1", "small", &uid(1));
    dial(&world, Credential::of_pod(1)).await.expect("there is room again");
}

/// A ticket is good for as long as its pod can be there: however long a session may last, it doesn't lose
/// its sandbox because a link held long and broke late.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_lasts_as_long_as_its_pod_can() {
    const DAY: u64 = 86_400;
    let world = World::with(|config| config.session_seconds_max = 400 * DAY).await;
    world.add_pool("small", |pool| pool["spec"]["maxWarmAgeSeconds"] = (90 * DAY).into()).await;
    world.objects.add_sandbox("sandbox-1", "small", &uid(1));
    let client = dial(&world, Credential::of_pod(1)).await.unwrap();
    let keys = std::fs::read_to_string(world.files.path("tickets")).unwrap();
    let tickets = seance_sandbox::kubernetes::Tickets::new(&keys).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let opened = tickets.open(&client.ticket, now + 490 * DAY).expect("the longest session is over by then");
    assert!(tickets.open(&client.ticket, now + 492 * DAY).is_err(), "and no longer");
    // Each connect begins a new one.
    let again = dial(&world, Credential::Ticket(client.ticket.clone())).await.unwrap();
    let renewed = tickets.open(&again.ticket, now).unwrap();
    assert!(renewed.expires >= opened.expires && renewed.generation > opened.generation);
}

/// A hundred runners that read nothing of what their sessions send: it is held back within the service's
/// budget, and an honest session is answered meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_runners_that_read_nothing_leave_memory_flat_and_others_alone() {
    const N: u32 = 100;
    const BUDGET: u64 = 32 << 20;
    let world = World::with(|config| config.send_bytes_max = BUDGET).await;
    world.add_pool("small", |_| {}).await;
    for n in 1..=N + 1 {
        world.objects.add_sandbox(&format!("sandbox-{n}"), "small", &uid(n));
    }
    let (mut honest, claimed) = busy(&world, N + 1, session(1)).await;
    let mut hostile = Vec::new();
    for n in 1..=N {
        hostile.push(busy(&world, n, session(2)).await);
    }
    let before = resident_kib();
    let mut attacks = tokio::task::JoinSet::new();
    // What all of them are sent is one text, so that only what the link makes of it counts.
    let text: String = "x".repeat(1 << 20);
    for (client, claimed) in hostile {
        let text = text.clone();
        attacks.spawn(async move {
            let program = seance_core::ids::ProgramNumber(1);
            let results = (1..=64).map(|call| {
                let result = Ok(text.clone());
                ToRunner::CallResult { program, call, result }
            });
            for frame in std::iter::once(testee::program("javascript", program, "")).chain(results) {
                // It waits for good once the budget is used up.
                let sent = claimed.sender.send(Addressed { epoch: Epoch(1), frame }).await;
                sent.expect("the link is there");
            }
            drop(client);
        });
    }
    while !matches!(honest.next().await, Some(attach_response::Frame::Assign(_))) {}
    let mut slowest = Duration::ZERO;
    for number in 1..=50 {
        let began = Instant::now();
        let ack = ToRunner::Ack { number };
        claimed.sender.send(Addressed { epoch: Epoch(1), frame: ack }).await.expect("the link is there");
        while !matches!(honest.next().await, Some(attach_response::Frame::Ack(_))) {}
        slowest = slowest.max(began.elapsed());
    }
    let grown = resident_kib().saturating_sub(before);
    // A text for each that waits to send and its own copy of it; the streams' windows; the budget.
    let bound = 2 * u64::from(N) * 1024 + u64::from(N) * 512 + 3 * (BUDGET >> 10);
    assert!(grown < bound, "memory grew by {grown} KiB, more than {bound}");
    assert!(slowest < Duration::from_secs(2), "the honest session waited for {slowest:?}");
    attacks.shutdown().await;
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A hundred hostile runners, each in its own way, and one honest session beside them: memory stays
/// flat and the honest one is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_hostile_runners_leave_memory_flat_and_others_alone() {
    const N: u32 = 100;
    let world = world(N + 1).await;
    let (mut honest, mut claimed) = busy(&world, N + 1, session(1)).await;
    let mut hostile = Vec::new();
    for n in 1..=N {
        let (client, claimed) = busy(&world, n, session(2)).await;
        hostile.push((n, client, claimed));
    }
    let before = resident_kib();
    let mut attacks = tokio::task::JoinSet::new();
    for (n, mut client, mut claimed) in hostile {
        // Its session reads, as a session does that isn't held up by its store.
        attacks.spawn(async move { while let LinkEvent::Frame(_) = claimed.receiver.recv().await {} });
        attacks.spawn(async move {
            match n % 4 {
                0 => {
                    for id in 0..16 {
                        let (total_bytes, data) = (64 << 20, vec![0; 200 * 1024].into());
                        client.send(Frame::Chunk(Chunk { id, total_bytes, data })).await;
                    }
                }
                1 => {
                    for _ in 0..200 {
                        let data = vec![b'x'; 100 * 1024].into();
                        client.numbered(Frame::Output(Output { program: 1, source: 1, data })).await;
                    }
                }
                2 => {
                    for _ in 0..2000 {
                        client.report_closed().await;
                    }
                }
                _ => client.raw(7, Frame::Goodbye(Goodbye {})).await,
            }
            // And then it reads nothing, and stays.
            drop(tokio::time::timeout(DEADLINE, client.frames.closed()).await);
        });
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let began = Instant::now();
        let data = vec![b'h'; 1000].into();
        honest.numbered(Frame::Output(Output { program: 1, source: 1, data })).await;
        loop {
            let event = tokio::time::timeout(DEADLINE, claimed.receiver.recv()).await.expect("in time");
            match event {
                LinkEvent::Frame(numbered) if matches!(numbered.frame, FromRunner::Output { .. }) => break,
                LinkEvent::Frame(_) => {}
                LinkEvent::Ended(end) => panic!("the honest one was ended: {end:?}"),
            }
        }
        let ack = ToRunner::Ack { number: honest.number };
        claimed.sender.send(Addressed { epoch: Epoch(1), frame: ack }).await.expect("the link is there");
        while !matches!(honest.next().await, Some(attach_response::Frame::Ack(_))) {}
        slowest = slowest.max(began.elapsed());
    }
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 300 * 1024, "memory grew by {grown} KiB");
    assert!(slowest < Duration::from_secs(2), "the honest session waited for {slowest:?}");
    attacks.shutdown().await;
}

/// Runners that make the service write all the time keep nobody's close waiting.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_written_before_what_nobody_waits_for() {
    const OTHERS: u32 = 20;
    const WRITES_MAX: usize = 8;
    let world = world(OTHERS + 1).await;
    let (_client, claimed) = busy(&world, 1, session(1)).await;
    world.objects.until("sandbox-1", condition_type::ASSIGNED, "True", reason::assigned::SESSION).await;
    let mut others = Vec::new();
    for pod in 2..=OTHERS + 1 {
        let other = dial(&world, Credential::of_pod(pod)).await.unwrap();
        other.report_closed().await;
        world
            .objects
            .until(&format!("sandbox-{pod}"), condition_type::READY, "True", reason::ready::SERVING)
            .await;
        others.push(other);
    }
    world.objects.hold(true);
    let n_before = world.objects.asked().len();
    for other in &others {
        other.report_open().await;
    }
    // As many as are written at one time have come, and all others wait.
    world.objects.until_that(|objects| objects.asked().len() == n_before + WRITES_MAX).await;
    let n_held = world.objects.asked().len();
    let mut ending = claimed.handle.end(EndReason::Released, DEADLINE);
    assert!(futures::poll!(&mut ending).is_pending(), "nothing has proven it");
    world.objects.hold(false);
    // Those that are written at one time come in any order.
    world.objects.until_that(|objects| objects.asked().len() >= n_held + WRITES_MAX).await;
    let next = &world.objects.asked()[n_held..n_held + WRITES_MAX];
    assert!(next.iter().any(|name| name == "sandbox-1"), "{next:?}");
}
