//! How fast the store is here: a single durable append beside the bare commit, and events per
//! second with many sessions at once.
//!
//! `cargo run --release -p seance-store --example append_rate [DIR]`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use seance_core::event::{Event, EventKind, OutputSource};
use seance_core::ids::{CallId, Epoch, EventSeq, ProgramNumber, SessionId, TenantId};
use seance_core::limits::Limits;
use seance_core::program::{CallRecord, CallState, Payload};
use seance_core::session::{SessionRecord, SessionState};
use seance_core::store::{Append, SessionStore};
use seance_core::time::Timestamp;
use seance_store::{SqliteConfig, SqliteStore, measure_bare_commit};

type Error = Box<dyn std::error::Error + Send + Sync>;

const SINGLE_APPENDS: usize = 3_000;
const RUN: Duration = Duration::from_secs(3);
/// What `/proc/self/stat` counts processor time in, in microseconds.
const TICK_US: u64 = 10_000;
const OUTPUT_BYTES: usize = 64 * 1024;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let base = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let home = base.join(format!("append-rate-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let measured = measure(home.clone()).await;
    std::fs::remove_dir_all(&home)?;
    measured
}

async fn measure(home: PathBuf) -> Result<(), Error> {
    print_times("bare commit", measure_bare_commit(&home, SINGLE_APPENDS).await?);
    let store = Arc::new(SqliteStore::open(SqliteConfig::new(home.join("seance.db"))).await?);
    let mut random = 0_u32;
    let mut sessions = Vec::new();
    for _ in 0..512 {
        random += 1;
        sessions.push(open(&store, random).await?);
    }
    print_times("single append", single(&store, sessions[0]).await?);
    for (n_sessions, n_each) in [(1, 8), (8, 1), (64, 1), (512, 1), (64, 8), (512, 8)] {
        let (start, cpu_us) = (Instant::now(), cpu_us()?);
        let n_events = together(&store, &sessions[..n_sessions], n_each).await?;
        let rate = n_events as f64 / start.elapsed().as_secs_f64();
        let cpu_us = (self::cpu_us()? - cpu_us) as f64 / n_events as f64;
        println!(
            "{n_sessions:4} sessions, {n_each} events an append: {rate:8.0} events/s, {cpu_us:5.1} us of processor an event"
        );
    }
    output(&store, sessions[1]).await?;
    reads(&store, sessions[0]).await?;
    store.close().await;
    Ok(())
}

/// One caller that waits for each append.
async fn single(store: &SqliteStore, session: SessionId) -> Result<Vec<Duration>, Error> {
    let mut times = Vec::new();
    for _ in 0..SINGLE_APPENDS {
        let append = calls(session, EventSeq(times.len() as u64 + 2), 1);
        let start = Instant::now();
        store.append(append).await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// Sessions that append at the same time, each waiting for its own. Gives the number of events.
async fn together(store: &Arc<SqliteStore>, sessions: &[SessionId], n_each: usize) -> Result<u64, Error> {
    let end = Instant::now() + RUN;
    let mut tasks = tokio::task::JoinSet::new();
    for &session in sessions {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let tenant = TenantId::default_tenant();
            let record = store.session(&tenant, session).await?.ok_or("no session")?;
            let mut last = record.last_seq;
            while Instant::now() < end {
                store.append(calls(session, last.next(), n_each)).await?;
                last.0 += n_each as u64;
            }
            Ok::<_, Error>(last.0 - record.last_seq.0)
        });
    }
    let mut n_events = 0;
    while let Some(done) = tasks.join_next().await {
        n_events += done??;
    }
    Ok(n_events)
}

/// Processor time of the process so far, in microseconds.
fn cpu_us() -> Result<u64, Error> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().ok_or("no end of the name")?.split_whitespace();
    let ticks: Vec<u64> = fields.skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<u64>() * TICK_US)
}

/// Output in large events.
async fn output(store: &SqliteStore, session: SessionId) -> Result<(), Error> {
    let tenant = TenantId::default_tenant();
    let record = store.session(&tenant, session).await?.ok_or("no session")?;
    let data = Bytes::from(vec![b'x'; OUTPUT_BYTES]);
    let n_events = 1_000_u64;
    let start = Instant::now();
    for n in (0..n_events).step_by(8) {
        let event = |i| {
            let kind =
                EventKind::Output { source: OutputSource::Stdout, data: data.clone(), separated: false };
            event(EventSeq(record.last_seq.0 + 1 + n + i), kind)
        };
        let mut append = Append::empty(tenant.clone(), session, Epoch(1));
        append.events = (0..8).map(event).collect();
        store.append(append).await?;
    }
    let rate = n_events as f64 * OUTPUT_BYTES as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("output in 64 KiB events, 8 an append: {rate:.0} MB/s");
    Ok(())
}

async fn reads(store: &SqliteStore, session: SessionId) -> Result<(), Error> {
    let start = Instant::now();
    let (mut from, mut n_events) = (EventSeq::FIRST, 0);
    loop {
        let events = store.events(session, from, 1_000, 1 << 20).await?;
        let Some(last) = events.last() else { break };
        from = last.seq.next();
        n_events += events.len();
    }
    let rate = n_events as f64 / start.elapsed().as_secs_f64();
    println!("read by 1000: {rate:.0} events/s");
    Ok(())
}

async fn open(store: &SqliteStore, n: u32) -> Result<SessionId, Error> {
    let mut random = [0; 10];
    random[..4].copy_from_slice(&n.to_be_bytes());
    let (at, tenant) = (Timestamp(1_700_000_000_000_000), TenantId::default_tenant());
    let id = SessionId::mint(at, random);
    let record = SessionRecord {
        tenant: tenant.clone(),
        id,
        state: SessionState::Open,
        reason: String::new(),
        engine: "javascript".to_owned(),
        min_version: String::new(),
        engine_options: Vec::new(),
        limits: Limits::default(),
        labels: BTreeMap::new(),
        catalog: None,
        idle_timeout: Duration::from_secs(60),
        created_at: at,
        expires_at: at,
        active_program: None,
        last_program: 0,
        sandbox: None,
        last_seq: EventSeq(1),
        kept: BTreeMap::new(),
        observed: None,
        epoch: Epoch(1),
    };
    let mut first = Append::empty(tenant, id, Epoch(1));
    first.events = vec![event(EventSeq::FIRST, EventKind::SessionOpened { engine: "javascript".to_owned() })];
    store.create(record, first).await?;
    Ok(id)
}

/// Events as a program with tool calls makes them.
fn calls(session: SessionId, from: EventSeq, n: usize) -> Append {
    let mut append = Append::empty(TenantId::default_tenant(), session, Epoch(1));
    append.events = (from.0..from.0 + n as u64)
        .map(|seq| {
            event(
                EventSeq(seq),
                EventKind::CallMade(CallRecord {
                    id: CallId { session, program: ProgramNumber(1), number: seq },
                    tool: "search.find".to_owned(),
                    state: CallState::Dispatched,
                    arguments: Payload::Inline(r#"{"query":"rust","limit":10}"#.to_owned()),
                    error: None,
                    read_only: true,
                    created_at: Timestamp(1_700_000_000_000_000),
                    dispatched_at: Some(Timestamp(1_700_000_000_000_000)),
                    ended_at: None,
                }),
            )
        })
        .collect();
    append
}

fn event(seq: EventSeq, kind: EventKind) -> Event {
    Event { seq, at: Timestamp(1_700_000_000_000_000), program: Some(ProgramNumber(1)), kind }
}

fn print_times(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!("{name}: p50 {:?}, p90 {:?}, p99 {:?}", at(0.5), at(0.9), at(0.99));
}
