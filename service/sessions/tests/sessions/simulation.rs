//! Random clients and random faults over several sessions; what must hold whatever happens.
//!
//! The seed decides all: the clients, the programs, the faults, the ids; the clock is the runtime's,
//! stopped. A failure prints the seed and the command that replays it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use seance_broker::providers::{Attach, Content, ToProvider};
use seance_core::event::{Event, EventKind};
use seance_core::ids::{CallId, EventSeq, ProgramNumber, SessionId};
use seance_core::program::CallState;
use seance_core::reasons;
use seance_core::sandbox::ClaimError;
use seance_core::session::SessionState;
use seance_sessions::{ObserveOptions, Observed, Status, StopRequest};

use crate::support::backend::Plan;
use crate::support::runner::Greeting;
use crate::support::tools::Tools;
use crate::support::{World, key, ms};

/// How many seeds one run of the tests tries: always the same ones, so that a failure is one
/// everywhere.
const N_SEEDS: u64 = 60;
const N_SESSIONS: usize = 3;
const N_CLIENTS: u64 = 6;
const N_STEPS: usize = 14;

#[test]
fn sessions_keep_their_word_whatever_happens() {
    let seeds: Vec<u64> = match std::env::var("SEANCE_SIM_SEED") {
        Ok(seed) => vec![seed.parse().expect("SEANCE_SIM_SEED is a number")],
        Err(_) => (1..=N_SEEDS).collect(),
    };
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("seed {seed} failed; replay it with");
            eprintln!(
                "    SEANCE_SIM_SEED={seed} cargo test -p seance-sessions --test sessions sessions_keep"
            );
            std::panic::resume_unwind(panic);
        }
    }
}

/// The same seed gives the same logs: what a failure prints can be replayed.
#[test]
fn a_seed_decides_everything() {
    for seed in [3, 20, 41] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// One simulation; gives the logs that it left.
fn run(seed: u64) -> Vec<Vec<Event>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // The clock is stopped: where everything waits for something that never comes, it jumps here.
    let bounded = async {
        let within = Duration::from_secs(24 * 3600);
        tokio::time::timeout(within, simulate(seed)).await.expect("it ends within a day")
    };
    runtime.expect("a runtime").block_on(bounded)
}

/// What clients were told, by session.
#[derive(Default)]
struct Told {
    /// Programs that were acknowledged, by their number, and the key they were made with.
    accepted: Vec<(SessionId, ProgramNumber, Option<String>)>,
    /// Output by cursor: each client's own thread through a program.
    output: Vec<(SessionId, ProgramNumber, EventSeq, Vec<u8>)>,
    /// Final states.
    ended: Vec<(SessionId, ProgramNumber, Status)>,
    closed: HashSet<SessionId>,
    unproven: HashSet<SessionId>,
    /// Calls whose answer was told as recorded.
    answered: Vec<CallId>,
    /// Calls that providers and tools were given.
    given: Vec<(CallId, bool)>,
}

struct Sim {
    world: World,
    sessions: Vec<SessionId>,
    told: Mutex<Told>,
    at_work: Mutex<HashMap<SessionId, usize>>,
}

async fn simulate(seed: u64) -> Vec<Vec<Event>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let world = World::with(seed, |config| {
        config.claim_wait = ms(2_000);
        config.max_running = 2;
    })
    .await;
    let mut sessions = Vec::new();
    for _ in 0..N_SESSIONS {
        let idle = ms(*[300, 60_000].choose(&mut rng).unwrap());
        let ttl = ms(*[20_000, 3_600_000].choose(&mut rng).unwrap());
        let session = world.open_with(|open| {
            open.idle_timeout = Some(idle);
            open.session_ttl = Some(ttl);
            open.limits.insert("wall_ms".into(), 8_000);
            open.limits.insert("cleanup_ms".into(), 500);
            open.limits.insert("provider_grace_ms".into(), 700);
            open.limits.insert("max_concurrency".into(), 2);
        });
        sessions.push(session.await);
    }
    let faults = *[0, 0, 5, 25].choose(&mut rng).unwrap();
    world.store.set_random(rng.random(), faults);
    for _ in 0..rng.random_range(0..8) {
        world.backend.plan(plan(&mut rng));
    }
    let sim = Arc::new(Sim { world, sessions, told: Mutex::default(), at_work: Mutex::default() });
    let clients = (0..N_CLIENTS).map(|n| client(sim.clone(), StdRng::seed_from_u64(seed ^ (n << 32) ^ 77)));
    futures::future::join_all(clients).await;
    sim.settle().await;
    sim.check().await
}

fn plan(rng: &mut StdRng) -> Plan {
    let error = match rng.random_range(0..6) {
        0 => Some(ClaimError::StartFailed { message: "bad luck".to_owned() }),
        _ => None,
    };
    Plan {
        delay: ms(*[0, 1, 50, 900, 5_000].choose(rng).unwrap()),
        error,
        greeting: *[Greeting::Takes, Greeting::Takes, Greeting::Silent, Greeting::Dies].choose(rng).unwrap(),
        end: Some(ms(*[0, 1, 100, 2_000].choose(rng).unwrap())),
        ..Plan::default()
    }
}

fn program(rng: &mut StdRng) -> String {
    let mut orders = Vec::new();
    let mut n_calls = 0;
    for _ in 0..rng.random_range(1..9) {
        orders.push(match rng.random_range(0..20) {
            0..=4 => format!("text {}", rng.random_range(0..1_000)),
            5 => format!("out {}", rng.random_range(0..1_000)),
            6 => format!("flood {} x", rng.random_range(1..300)),
            7..=9 => format!("sleep {}", [1, 10, 300, 2_000].choose(rng).unwrap()),
            10..=12 => {
                n_calls += 1;
                let tool = ["echo", "look", "pay", "sleep", "nothing"].choose(rng).unwrap();
                let verb = ["call", "send"].choose(rng).unwrap();
                format!("{verb} {tool} {{\"ms\":{}}}", rng.random_range(0..3_000))
            }
            13 if n_calls > 0 => format!("abort {}", rng.random_range(1..=n_calls)),
            14 if n_calls > 0 => format!("try {}", rng.random_range(1..=n_calls)),
            15 => "late z".to_owned(),
            16 if rng.random_range(0..4) == 0 => "deaf".to_owned(),
            _ => "text .".to_owned(),
        });
    }
    orders.push(match rng.random_range(0..16) {
        0 => "throw x".to_owned(),
        1 => "die SIGKILL".to_owned(),
        2 => "cut link".to_owned(),
        3 => "cut memory".to_owned(),
        4 => "leave 1".to_owned(),
        5 => "hang".to_owned(),
        n => format!("return {n}"),
    });
    orders.join("; ")
}

async fn client(sim: Arc<Sim>, mut rng: StdRng) {
    for _ in 0..N_STEPS {
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..700_000))).await;
        let session = *sim.sessions.choose(&mut rng).unwrap();
        match rng.random_range(0..40) {
            0..=13 => sim.execute(session, &mut rng).await,
            14..=21 => sim.wait(session, &mut rng).await,
            22..=24 => sim.stop(session, &mut rng).await,
            25 => sim.close(session).await,
            26..=29 => sim.serve(session, &mut rng).await,
            30..=33 => sim.tools(session, &mut rng).await,
            34..=36 => sim.follow(session, &mut rng).await,
            37 => sim.kill(&mut rng),
            _ => sim.read(session, &mut rng).await,
        }
    }
}

impl Sim {
    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap()
    }

    /// A12: counts controls that hold a session; there is never more than one.
    fn begins(&self, session: SessionId) -> Holding<'_> {
        let mut at_work = self.at_work.lock().unwrap();
        let n = at_work.entry(session).or_default();
        *n += 1;
        assert_eq!(*n, 1, "two controls of {session} were at work at a time (A12)");
        Holding { sim: self, session }
    }

    async fn execute(&self, session: SessionId, rng: &mut StdRng) {
        let world = &self.world;
        let source = program(rng);
        let name = rng.random_bool(0.5).then(|| format!("key {}", rng.random_range(0..12)));
        let digest = format!("{session} {}", rng.random_range(0..8) / 7);
        let idempotency = name.as_ref().and_then(|name| key(name, &digest));
        let options = ObserveOptions {
            window: ms(*[0, 100, 5_000].choose(rng).unwrap()),
            return_on_pending_call: rng.random_bool(0.3),
            ..ObserveOptions::default()
        };
        let executing = world.execute_with(session, &source, idempotency, options);
        // A caller may vanish before it has an answer.
        let patience = ms(*[0, 2, 60_000, 60_000].choose(rng).unwrap());
        match tokio::time::timeout(patience, executing).await {
            Err(_) => {}
            Ok(Err(error)) => expected(&error),
            Ok(Ok(observer)) => {
                let _holding = self.begins(session);
                self.told().accepted.push((session, observer.program(), name));
                self.observe(session, observer, rng).await;
            }
        }
    }

    async fn observe(&self, session: SessionId, mut observer: seance_sessions::Observer, rng: &mut StdRng) {
        let program = observer.program();
        let leaves_after = rng.random_bool(0.3).then(|| rng.random_range(0..4));
        let mut pieces: Vec<(EventSeq, Vec<u8>)> = Vec::new();
        let mut n = 0;
        loop {
            if leaves_after == Some(n) {
                break;
            }
            n += 1;
            match observer.next().await.expect("it ends with an observation or an error") {
                Ok(Observed::Output { seq, data, .. }) => pieces.push((seq, data.to_vec())),
                Ok(Observed::Heartbeat { .. }) => {}
                Ok(Observed::Done(observation)) => {
                    assert_eq!(observation.program.number, program);
                    if observation.status != Status::StillWorking {
                        self.told().ended.push((session, program, observation.status));
                    }
                    if let Some(call) = observation.pending_calls.first().filter(|_| rng.random_bool(0.5)) {
                        drop(observer);
                        self.answer(session, call.id).await;
                    }
                    break;
                }
                Err(error) => {
                    expected(&error);
                    break;
                }
            }
        }
        let mut told = self.told();
        told.output.extend(pieces.into_iter().map(|(seq, data)| (session, program, seq, data)));
    }

    async fn answer(&self, session: SessionId, call: CallId) {
        let result = Content::Value("\"posted\"".to_owned()).into();
        match self.world.sessions.answer(&self.world.tenant, session, call, result, None).await {
            Ok(()) => self.told().answered.push(call),
            Err(error) => expected(&error),
        }
    }

    async fn wait(&self, session: SessionId, rng: &mut StdRng) {
        let world = &self.world;
        let program = rng.random_bool(0.3).then(|| ProgramNumber(rng.random_range(1..6)));
        let options = ObserveOptions {
            window: ms(*[0, 50, 2_000].choose(rng).unwrap()),
            return_on_pending_call: rng.random_bool(0.3),
            ..ObserveOptions::default()
        };
        match world.sessions.wait(&world.tenant, session, program, None, options).await {
            Err(error) => expected(&error),
            Ok(observer) => {
                let is_open = world.sessions.get(&world.tenant, session).await.is_ok_and(|record| {
                    // Whoever reads a session that is over holds nothing.
                    record.state != SessionState::Closed
                });
                let _holding = is_open.then(|| self.begins(session));
                let began = tokio::time::Instant::now();
                self.observe(session, observer, rng).await;
                assert!(began.elapsed() < ms(15_000), "a window took {:?} (A23)", began.elapsed());
            }
        }
    }

    async fn stop(&self, session: SessionId, rng: &mut StdRng) {
        let program = rng.random_bool(0.3).then(|| ProgramNumber(rng.random_range(1..6)));
        let request = StopRequest { program, ..StopRequest::default() };
        match self.world.stop_with(session, request).await {
            Ok(stopped) if stopped.status != Status::StillWorking => {
                self.told().ended.push((session, stopped.program.number, stopped.status));
            }
            Ok(_) => {}
            Err(error) => expected(&error),
        }
    }

    async fn close(&self, session: SessionId) {
        match self.world.close(session).await {
            Ok(record) => {
                assert_eq!(record.state, SessionState::Closed, "a close that was told is one");
                self.told().closed.insert(session);
            }
            Err(error) => {
                expected(&error);
                if error.reason() == reasons::CLEANUP_UNPROVEN {
                    self.told().unproven.insert(session);
                }
            }
        }
    }

    /// A provider on a stream, which may vanish with calls.
    async fn serve(&self, session: SessionId, rng: &mut StdRng) {
        let Ok(mut attachment) = self.world.sessions.providers().attach(session, Attach::default()) else {
            return;
        };
        let until = tokio::time::Instant::now() + ms(rng.random_range(0..4_000));
        while let Ok(Ok(message)) = tokio::time::timeout_at(until, attachment.next()).await {
            let ToProvider::Call(call) = message else { continue };
            self.told().given.push((call.id, call.repeated));
            if rng.random_bool(0.2) {
                return;
            }
            if rng.random_bool(0.8) {
                attachment.results().result(call.id, Content::Value("1".to_owned()).into());
            }
        }
    }

    /// Tools in this process.
    async fn tools(&self, session: SessionId, rng: &mut StdRng) {
        let tools = Tools::shared();
        let Ok(attached) = self.world.sessions.providers().attach_local(session, &[], tools.clone()) else {
            return;
        };
        tokio::time::sleep(ms(rng.random_range(0..4_000))).await;
        drop(attached);
        self.told().given.extend(tools.seen());
    }

    async fn follow(&self, session: SessionId, rng: &mut StdRng) {
        let from = EventSeq(rng.random_range(1..30));
        let until_now = rng.random_bool(0.5);
        let following = self.world.sessions.follow(&self.world.tenant, session, from, until_now).await;
        let mut follower = match following {
            Ok(follower) => follower,
            Err(error) => return expected(&error),
        };
        let mut next = from;
        let until = tokio::time::Instant::now() + ms(rng.random_range(0..3_000));
        while let Ok(Ok(Some(event))) = tokio::time::timeout_at(until, follower.next()).await {
            assert_eq!(event.seq, next, "a follower missed an event");
            next = event.seq.next();
        }
    }

    fn kill(&self, rng: &mut StdRng) {
        let sandboxes = self.world.backend.sandboxes();
        if let Some(sandbox) = sandboxes.choose(rng) {
            self.world.backend.kill(sandbox.id);
        }
    }

    async fn read(&self, session: SessionId, rng: &mut StdRng) {
        let number = ProgramNumber(rng.random_range(1..6));
        if let Err(error) = self.world.sessions.program(&self.world.tenant, session, number).await {
            expected(&error);
        }
    }

    /// Ends what is still at work, with a store that is well again, and the service.
    async fn settle(&self) {
        self.world.store.heal();
        tokio::time::sleep(ms(30_000)).await;
        let unproven = self.told().unproven.clone();
        for session in unproven {
            let closed = self.world.close(session).await.expect("its sandbox has ended since");
            assert_eq!(closed.state, SessionState::Closed);
        }
        let began = tokio::time::Instant::now();
        self.world.sessions.shutdown(ms(60_000)).await;
        assert!(began.elapsed() < ms(30_000), "a task did not end");
    }

    async fn check(&self) -> Vec<Vec<Event>> {
        let told = std::mem::take(&mut *self.told());
        let mut given: BTreeMap<CallId, usize> = BTreeMap::new();
        for (call, repeated) in &told.given {
            let n = given.entry(*call).or_default();
            *n += 1;
            assert!(*n == 1 || *repeated, "call {call} was given twice");
        }
        let mut logs = Vec::new();
        for session in &self.sessions {
            let log = self.world.log(*session).await;
            check_log(&log, &told.given);
            self.check_session(*session, &log, &told).await;
            logs.push(log);
        }
        let mut ids = HashSet::new();
        for sandbox in self.world.backend.sandboxes() {
            assert!(sandbox.sessions().len() <= 1, "sandbox {} served two sessions", sandbox.id);
            assert!(ids.insert(sandbox.id));
        }
        let mut used = HashSet::new();
        for event in logs.iter().flatten() {
            if let EventKind::SandboxAssigned { sandbox } = event.kind {
                assert!(used.insert(sandbox), "sandbox {sandbox} was assigned twice");
            }
        }
        logs
    }

    async fn check_session(&self, session: SessionId, log: &[Event], told: &Told) {
        let record = self.world.record(session).await;
        if told.closed.contains(&session) {
            assert_eq!(record.state, SessionState::Closed);
        }
        if record.state == SessionState::Closed {
            for sandbox in self.world.backend.sandboxes() {
                let ours = sandbox.sessions() == [session];
                assert!(!ours || sandbox.is_proven(), "closed without a proof of {}", sandbox.id);
            }
        }
        let mut by_key: HashMap<&str, ProgramNumber> = HashMap::new();
        for (_, number, name) in told.accepted.iter().filter(|(of, ..)| *of == session) {
            assert!(number.0 <= record.last_program, "program {number} was acknowledged and is lost");
            if let Some(name) = name {
                let first = *by_key.entry(name).or_insert(*number);
                assert_eq!(first, *number, "key {name:?} made two programs");
            }
        }
        for (_, program, seq, data) in told.output.iter().filter(|(of, ..)| *of == session) {
            let event = &log[usize::try_from(seq.0 - 1).unwrap()];
            assert_eq!(event.program, Some(*program));
            let EventKind::Output { data: logged, separated, .. } = &event.kind else {
                panic!("{seq} is no output")
            };
            let whole = [if *separated { &b"\n"[..] } else { b"" }, logged].concat();
            assert_eq!(&whole, data, "output {seq} was not as it is in the log");
        }
        for (_, number, status) in told.ended.iter().filter(|(of, ..)| *of == session) {
            let program = self.world.store.inner();
            let program = seance_core::store::SessionStore::program(&*program, session, *number).await;
            let state = program.unwrap().expect("it was told").state;
            assert_eq!(format!("{state:?}"), format!("{status:?}"), "an end changed after it was told");
        }
        for call in told.answered.iter().filter(|call| call.session == session) {
            let recorded = log.iter().any(|event| {
                matches!(&event.kind, EventKind::CallEnded { record, .. }
                    if record.id == *call && record.state == CallState::Finished)
            });
            assert!(recorded, "the answer of {call} was told as recorded");
        }
    }
}

/// What holds in every log.
fn check_log(log: &[Event], given: &[(CallId, bool)]) {
    let mut open: HashMap<ProgramNumber, HashSet<CallId>> = HashMap::new();
    let mut dispatched: HashSet<CallId> = HashSet::new();
    let mut active: Option<ProgramNumber> = None;
    for (event, n) in log.iter().zip(1..) {
        assert_eq!(event.seq, EventSeq(n), "a gap in the log");
        match &event.kind {
            EventKind::ProgramAccepted { .. } => {
                assert_eq!(active, None, "two programs were active at a time (A9)");
                active = event.program;
            }
            EventKind::ProgramEnded(record) => {
                assert_eq!(active.take(), Some(record.number), "a program ended that was not active");
                assert!(record.state.is_final());
                let left = open.remove(&record.number).unwrap_or_default();
                assert!(left.is_empty(), "{left:?} are at work after their program (case 12)");
                assert!(record.calls.iter().all(|call| call.state.is_final()));
            }
            EventKind::CallMade(record) if !record.state.is_final() => {
                assert_eq!(event.program, active);
                open.entry(record.id.program).or_default().insert(record.id);
                if record.state == CallState::Dispatched {
                    dispatched.insert(record.id);
                }
            }
            EventKind::CallDispatched { call } => {
                let program = event.program.expect("calls are of programs");
                let id = open[&program].iter().find(|id| id.number == *call).expect("it was made");
                assert!(dispatched.insert(*id), "{id} was dispatched twice");
            }
            EventKind::CallEnded { record, .. } => {
                assert!(record.state.is_final());
                let of_program = open.entry(record.id.program).or_default();
                assert!(of_program.remove(&record.id), "{} ended twice", record.id);
            }
            EventKind::Output { .. } => assert_eq!(event.program, active, "output of no active program"),
            _ => {}
        }
    }
    // Only what has no effect may be ahead of the log, and that is in it soon after.
    let session = log.iter().find_map(|event| match &event.kind {
        EventKind::CallMade(record) => Some(record.id.session),
        _ => None,
    });
    for (call, _) in given.iter().filter(|(call, _)| Some(call.session) == session) {
        assert!(dispatched.contains(call), "{call} was given and is not in the log as dispatched");
    }
}

struct Holding<'a> {
    sim: &'a Sim,
    session: SessionId,
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        if let Some(n) = self.sim.at_work.lock().unwrap().get_mut(&self.session) {
            *n -= 1;
        }
    }
}

/// An error that a client may be told in a world like this; anything else is a bug of ours.
fn expected(error: &seance_sessions::Error) {
    const MAY_BE: &[&str] = &[
        reasons::CONTROL_ACTIVE,
        reasons::PROGRAM_ACTIVE,
        reasons::NO_ACTIVE_PROGRAM,
        reasons::PROGRAM_NOT_FOUND,
        reasons::SESSION_CLOSED,
        reasons::SESSION_EXPIRED,
        reasons::IDEMPOTENCY_KEY_REUSED,
        reasons::TOO_MANY_SESSIONS,
        reasons::STORE_FULL,
        reasons::STORE_UNAVAILABLE,
        reasons::CLEANUP_UNPROVEN,
        reasons::CALL_NOT_PENDING,
        reasons::NO_SANDBOX,
        reasons::HOST_LOST,
        "LINK_LOST",
        "OUT_OF_MEMORY",
        "RUNNER_EXITED",
        "UNRESPONSIVE",
    ];
    assert!(MAY_BE.contains(&error.reason()), "{}: {error}", error.reason());
}
