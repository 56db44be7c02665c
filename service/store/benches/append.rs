//! What an append costs: alone, beside others that share its commit, and in events of output.
//!
//! `cargo bench -p seance-store`. The processor time of an event is told by `examples/append_rate`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use seance_core::event::{Event, EventKind, OutputSource};
use seance_core::ids::EventSeq;
use seance_core::store::{Append, SessionStore};
use seance_store::{SqliteConfig, SqliteStore};
use support::{AT, record, sandbox_id, session_id};

/// A session and the number of its last event.
struct Log {
    number: u8,
    last: AtomicU64,
}

impl Log {
    async fn create(store: &SqliteStore, number: u8) -> Self {
        let record = record(number);
        let first = Append::empty(record.tenant.clone(), session_id(number), record.epoch);
        store.create(record, first).await.expect("the store is new");
        Self { number, last: AtomicU64::new(0) }
    }

    async fn append(&self, store: &SqliteStore, n_events: u64, output: &Bytes) {
        let record = record(self.number);
        let last = self.last.fetch_add(n_events, Ordering::Relaxed);
        let event = |seq| {
            let kind =
                EventKind::Output { source: OutputSource::Stdout, data: output.clone(), separated: false };
            Event { seq: EventSeq(seq), at: AT, program: None, kind }
        };
        let events = (last + 1..=last + n_events).map(event).collect();
        let acknowledges = Some((sandbox_id(self.number), last + n_events));
        let append = Append {
            events,
            acknowledges,
            ..Append::empty(record.tenant, session_id(self.number), record.epoch)
        };
        store.append(append).await.expect("the disk has room");
    }
}

fn appends(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("the system has threads");
    let dir = tempfile::tempdir().expect("the system has a temporary directory");
    let config = SqliteConfig::new(dir.path().join("seance.db"));
    let store = runtime.block_on(SqliteStore::open(config)).expect("the directory is new");
    let logs: Vec<Log> = (0..64).map(|n| runtime.block_on(Log::create(&store, n))).collect();
    let (small, large) = (Bytes::from(vec![b'x'; 100]), Bytes::from(vec![b'x'; 64 * 1024]));

    let mut group = c.benchmark_group("append");
    group.throughput(Throughput::Elements(1));
    group.bench_function("one event, alone", |b| {
        b.iter(|| runtime.block_on(logs[0].append(&store, 1, &small)));
    });
    group.throughput(Throughput::Elements(64));
    group.bench_function("one event of each of 64 sessions", |b| {
        let all = || futures::future::join_all(logs.iter().map(|log| log.append(&store, 1, &small)));
        b.iter(|| runtime.block_on(all()));
    });
    group.bench_function("64 events of one session", |b| {
        b.iter(|| runtime.block_on(logs[0].append(&store, 64, &small)));
    });
    group.throughput(Throughput::Bytes(8 * large.len() as u64));
    group.bench_function("8 events of 64 KiB of output", |b| {
        b.iter(|| runtime.block_on(logs[0].append(&store, 8, &large)));
    });
    group.finish();
    runtime.block_on(store.close());
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = appends
}
criterion_main!(benches);
