//! The figures, each with how it is measured.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use seance_broker::providers::{Content, LocalAttachment, LocalCall, ToolHandler, ToolResult};
use seance_core::ids::SessionId;
use seance_sandbox::local::{SandboxState, SandboxStatus};
use tokio::task::JoinSet;

use super::caller::{Calls, intervals, loop_of, tick};
use super::floors::Floors;
use super::interpreted;
use super::process;
use super::report::{Effort, Figure, Group, millis};
use super::world::{MAX_SANDBOXES, WARM, World};

/// All figures, in the order they are measured.
pub const FIGURES: &[Group<World, Floors>] = &[
    Group { names: &["commit"], measure: |w, f, e| Box::pin(commit(w, f, e)) },
    Group { names: &["warm_open", "open_to_first_output"], measure: |w, f, e| Box::pin(open(w, f, e)) },
    Group {
        names: &["next_program", "next_program_after_pause"],
        measure: |w, f, e| Box::pin(next_program(w, f, e)),
    },
    Group {
        names: &["next_program_python", "next_program_ruby"],
        measure: |w, f, e| Box::pin(interpreted::next_program(w, f, e)),
    },
    Group {
        names: &["tool_call", "tool_call_committed", "tool_call_grpc"],
        measure: |w, f, e| Box::pin(tool_call(w, f, e)),
    },
    Group {
        names: &[
            "tool_calls_per_second",
            "tool_calls_per_second_1",
            "tool_calls_per_second_8",
            "tool_calls_per_second_64",
            "tool_calls_per_service_core",
        ],
        measure: |w, f, e| Box::pin(calls_per_second(w, f, e)),
    },
    Group { names: &["output_throughput", "output_memory"], measure: |w, f, e| Box::pin(output(w, f, e)) },
    Group { names: &["resident_runner"], measure: |w, f, e| Box::pin(resident_runner(w, f, e)) },
    Group {
        names: &["resident_service_idle_session"],
        measure: |w, f, e| Box::pin(resident_session(w, f, e)),
    },
];

/// A tool in this process that answers at once and remembers when it was called.
#[derive(Default)]
struct Clock {
    called: Calls,
}

#[async_trait]
impl ToolHandler for Clock {
    async fn call(&self, _call: LocalCall) -> ToolResult {
        self.called.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        Content::Value("1".to_owned()).into()
    }
}

fn attach(world: &World, session: &str, clock: &Arc<Clock>) -> Result<LocalAttachment> {
    let session: SessionId = session.parse()?;
    let handler: Arc<dyn ToolHandler> = clock.clone();
    Ok(world.service.sessions().providers().attach_local(session, &[], handler)?)
}

async fn commit(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let store = world.service.sessions().store();
    let mut samples = Vec::new();
    for n in 0..effort.samples(500) {
        let catalog = format!("{{\"tools\":[],\"n\":{n}}}");
        let digest = seance_core::ids::CatalogDigest::of(catalog.as_bytes());
        let tenant = seance_core::ids::TenantId::default_tenant();
        let began = Instant::now();
        store.put_catalog(&tenant, &digest, catalog.into(), None).await?;
        samples.push(millis(began.elapsed()));
    }
    let floor_p50 = Some(floors.commit);
    Ok(vec![Figure { name: "commit", unit: "ms", samples, floor_p50, floor: "bare commit" }])
}

/// Opens come at this pace, and so many before the pool is let fill up again (DESIGN section 11: 50/s
/// while a pool of 60 lasts).
const OPEN_INTERVAL: Duration = Duration::from_millis(20);
const OPENS_OF_A_POOL: usize = 50;

async fn open(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let (mut opens, mut firsts) = (Vec::new(), Vec::new());
    let n = effort.samples(200);
    while opens.len() < n {
        until_warm(world).await;
        let mut sessions = Vec::new();
        let mut due = tokio::time::interval(OPEN_INTERVAL);
        for _ in 0..OPENS_OF_A_POOL.min(n - opens.len()) {
            due.tick().await;
            let began = Instant::now();
            let session = world.caller.open(&[]).await?;
            opens.push(millis(began.elapsed()));
            firsts.push(world.caller.first_output(&session, began).await?);
            sessions.push(session);
        }
        for session in sessions {
            world.caller.close(&session).await?;
        }
    }
    Ok(vec![
        Figure {
            name: "warm_open",
            unit: "ms",
            samples: opens,
            floor_p50: Some(floors.process),
            floor: "bare process start",
        },
        Figure {
            name: "open_to_first_output",
            unit: "ms",
            samples: firsts,
            floor_p50: Some(floors.process + floors.context),
            floor: "bare process start and QuickJS context",
        },
    ])
}

/// Waits until the pool is full, so that opens are measured and not the refill behind them.
pub async fn until_warm(world: &World) {
    let is_warm = |sandbox: &&SandboxStatus| sandbox.state == SandboxState::Warm;
    let n_warm = || world.backend.sandboxes().iter().filter(is_warm).count();
    let deadline = Instant::now() + Duration::from_secs(60);
    while n_warm() < WARM && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Between programs that don't come at once: a model takes longer than that to write one. The next host is
/// ready by then, and processors have gone to sleep.
const PAUSE: Duration = Duration::from_millis(10);

async fn next_program(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let session = world.caller.open(&[]).await?;
    let floor_p50 = Some(floors.context + 2.0 * floors.commit + floors.grpc);
    let floor = "QuickJS context, two commits, a gRPC round trip";
    let mut figures = Vec::new();
    for (name, pause) in [("next_program", Duration::ZERO), ("next_program_after_pause", PAUSE)] {
        let samples = world.caller.programs(&session, effort.samples(500), pause).await?;
        figures.push(Figure { name, unit: "ms", samples, floor_p50, floor });
    }
    world.caller.close(&session).await?;
    Ok(figures)
}

async fn tool_call(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, read_only, floor_p50, floor) in [
        ("tool_call", true, floors.grpc, "gRPC round trip"),
        ("tool_call_committed", false, floors.grpc + 2.0 * floors.commit, "gRPC round trip and two commits"),
    ] {
        let session = world.caller.open(&[tick(read_only)]).await?;
        let clock = Arc::new(Clock::default());
        let attachment = attach(world, &session, &clock)?;
        world.caller.run(&session, &loop_of(effort.samples(5_000)), |_| {}).await?;
        drop(attachment);
        world.caller.close(&session).await?;
        figures.push(Figure {
            name,
            unit: "ms",
            samples: intervals(&clock.called),
            floor_p50: Some(floor_p50),
            floor,
        });
    }
    figures.push(tool_call_grpc(world, floors, effort).await?);
    Ok(figures)
}

/// The same over a provider's stream.
async fn tool_call_grpc(world: &World, floors: &Floors, effort: Effort) -> Result<Figure> {
    let session = world.caller.open(&[tick(true)]).await?;
    let samples = world.caller.served_calls(&session, effort.samples(2_000)).await?;
    world.caller.close(&session).await?;
    let floor_p50 = Some(2.0 * floors.grpc);
    Ok(Figure { name: "tool_call_grpc", unit: "ms", samples, floor_p50, floor: "two gRPC round trips" })
}

async fn calls_per_second(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let names = ["tool_calls_per_second_1", "tool_calls_per_second_8", "tool_calls_per_second_64"];
    let floor_p50 = Some(1000.0 / floors.grpc);
    let floor = "gRPC round trips one after another";
    let mut figures = Vec::new();
    let (mut best, mut best_of_core) = (0.0_f64, 0.0_f64);
    for (name, n_sessions) in names.into_iter().zip([1, 8, 64]) {
        let (rate, of_core) = rate(world, n_sessions, effort.samples(40_000) / n_sessions).await?;
        best = best.max(rate);
        best_of_core = best_of_core.max(of_core);
        figures.push(Figure { name, unit: "1/s", samples: vec![rate], floor_p50, floor });
    }
    figures.insert(
        0,
        Figure { name: "tool_calls_per_second", unit: "1/s", samples: vec![best], floor_p50, floor },
    );
    // Runners and hosts have processors of their own in a cluster.
    figures.push(Figure {
        name: "tool_calls_per_service_core",
        unit: "1/s",
        samples: vec![best_of_core],
        floor_p50: None,
        floor: "",
    });
    Ok(figures)
}

/// Calls in a second, and calls in a second of the service's processor time.
async fn rate(world: &World, n_sessions: usize, n_calls: usize) -> Result<(f64, f64)> {
    let mut sessions = Vec::new();
    for _ in 0..n_sessions {
        let session = world.caller.open(&[tick(true)]).await?;
        let clock = Arc::new(Clock::default());
        let attachment = attach(world, &session, &clock)?;
        sessions.push((session, attachment));
    }
    // Eight at a time keeps the tool busy as a program with Promise.all would.
    let source = format!(
        "for (let n = 0; n < {n_calls}; n += 8) await Promise.all(Array.from({{length: 8}}, () => tools.tick({{}})));"
    );
    let (began, used_before) = (Instant::now(), process::processor_time()?);
    let runs = sessions.iter().map(|(session, _)| world.caller.run(session, &source, |_| {}));
    let ended: Result<Vec<()>> = futures::future::join_all(runs).await.into_iter().collect();
    ended?;
    let (elapsed, used) = (began.elapsed(), process::processor_time()? - used_before);
    for (session, _) in &sessions {
        world.caller.close(session).await?;
    }
    let n = (n_calls.div_ceil(8) * 8 * n_sessions) as f64;
    Ok((n / elapsed.as_secs_f64(), n / used.as_secs_f64()))
}

async fn output(world: &World, _floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let bytes = effort.samples(200) as u64 * 1024 * 1024 / 10;
    let session = world.caller.open_with(HashMap::from([("output_bytes".to_owned(), 1 << 30)]), None).await?;
    let piece = 64 * 1024;
    let source =
        format!("const s = 'x'.repeat({piece}); for (let n = 0; n < {}; n++) text(s);", bytes / piece);
    let before = process::resident_bytes(std::process::id())?;
    let mut peak = before;
    let mut seen = 0_u64;
    let began = Instant::now();
    world
        .caller
        .run(&session, &source, |data| {
            seen += data.len() as u64;
            peak = peak.max(process::resident_bytes(std::process::id()).unwrap_or(0));
        })
        .await?;
    let elapsed = began.elapsed();
    world.caller.close(&session).await?;
    // A newline stands between the pieces.
    ensure!(seen == bytes / piece * (piece + 1) - 1, "output was {seen} bytes, not what was written");
    let rate = seen as f64 / elapsed.as_secs_f64();
    let floor = append_rate(world, bytes).await?;
    Ok(vec![
        Figure {
            name: "output_throughput",
            unit: "bytes/s",
            samples: vec![rate],
            floor_p50: Some(floor),
            floor: "the store's own append rate",
        },
        Figure {
            name: "output_memory",
            unit: "bytes",
            samples: vec![peak.saturating_sub(before) as f64],
            floor_p50: None,
            floor: "",
        },
    ])
}

/// How fast the store alone takes the same bytes, in bytes a second.
async fn append_rate(world: &World, bytes: u64) -> Result<f64> {
    use seance_core::event::{Event, EventKind, OutputSource};
    use seance_core::ids::ProgramNumber;
    use seance_core::store::Append;
    let tenant = seance_core::ids::TenantId::default_tenant();
    let sessions = world.service.sessions();
    let record = stored_session(world, &tenant).await?;
    let data = bytes::Bytes::from(vec![b'x'; 64 * 1024]);
    let began = Instant::now();
    let mut seq = record.last_seq;
    let mut left = bytes;
    while left > 0 {
        let mut events = Vec::new();
        for _ in 0..16 {
            seq = seq.next();
            let kind = EventKind::Output { source: OutputSource::Text, data: data.clone(), separated: true };
            events.push(Event { seq, at: record.created_at, program: Some(ProgramNumber(1)), kind });
        }
        let append = Append { events, ..Append::empty(tenant.clone(), record.id, record.epoch) };
        sessions.store().append(append).await?;
        left = left.saturating_sub(16 * 64 * 1024);
    }
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}

/// A session of the store alone, that no task runs.
async fn stored_session(
    world: &World,
    tenant: &seance_core::ids::TenantId,
) -> Result<seance_core::session::SessionRecord> {
    use seance_core::store::Append;
    let open = world.caller.open(&[]).await?;
    let template = world.service.sessions().get(tenant, open.parse()?).await?;
    world.caller.close(&open).await?;
    let id = SessionId::mint(
        template.created_at,
        *uuid::Uuid::new_v4().as_bytes().first_chunk().expect("16 bytes"),
    );
    let record = seance_core::session::SessionRecord {
        id,
        sandbox: None,
        last_seq: seance_core::ids::EventSeq(0),
        ..template
    };
    let first = Append::empty(tenant.clone(), id, record.epoch);
    world.service.sessions().store().create(record.clone(), first).await?;
    Ok(record)
}

async fn resident_runner(world: &World, _floors: &Floors, _effort: Effort) -> Result<Vec<Figure>> {
    let mut samples = Vec::new();
    for sandbox in world.backend.sandboxes().iter().filter(|sandbox| sandbox.state == SandboxState::Warm) {
        let mut bytes = 0;
        for pid in process::descendants(sandbox.keeper_pid) {
            bytes += process::proportional_bytes(pid)?;
        }
        samples.push(bytes as f64);
    }
    let floor = "a runner and its host, proportional";
    Ok(vec![Figure { name: "resident_runner", unit: "bytes", samples, floor_p50: None, floor }])
}

async fn resident_session(world: &World, _floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let n = effort.samples(MAX_SANDBOXES * 5);
    let idle = Some(Duration::from_millis(1));
    // The first ones pay for what all share.
    let mut sessions = Vec::new();
    let mut before = 0;
    for index in 0..n + n / 10 {
        if index == n / 10 {
            until_idle(world).await;
            before = process::resident_bytes(std::process::id())?;
        }
        sessions.push(world.caller.open_with(HashMap::new(), idle).await?);
    }
    until_idle(world).await;
    let after = process::resident_bytes(std::process::id())?;
    let mut closing = JoinSet::new();
    for session in sessions {
        let caller = world.caller.clone();
        closing.spawn(async move { caller.close(&session).await });
    }
    while let Some(closed) = closing.join_next().await {
        closed??;
    }
    let samples = vec![after.saturating_sub(before) as f64 / n as f64];
    Ok(vec![Figure {
        name: "resident_service_idle_session",
        unit: "bytes",
        samples,
        floor_p50: None,
        floor: "",
    }])
}

/// Waits until no session has a sandbox.
async fn until_idle(world: &World) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while world.backend.sandboxes().iter().any(|sandbox| sandbox.state == SandboxState::Claimed)
        && Instant::now() < deadline
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
