//! Any interleaving of appends of several sessions, at the same time and one after the other,
//! leaves what a plain model of the rules says: every store, every answer.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use proptest::prelude::*;
use seance_core::event::{Event, EventKind};
use seance_core::ids::{Epoch, EventSeq, TenantId};
use seance_core::session::{SessionRecord, SessionState};
use seance_core::store::{Append, DoneRequest, Error, Retention, SessionStore};
use seance_core::time::Timestamp;
use seance_store::{MemoryStore, SqliteConfig, SqliteStore};
use support::{AT, record, sandbox_id, session_id};

/// One append, right or wrong.
#[derive(Debug, Clone)]
struct Step {
    session: u8,
    /// Events from the last one on, moved by this.
    off: i8,
    n_events: u8,
    stale: bool,
    sandbox: Option<u8>,
    key: Option<u8>,
    closes: bool,
}

/// What happens at one moment.
#[derive(Debug, Clone)]
enum Moment {
    Together(Vec<Step>),
    TakeOver(u8),
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let off = prop_oneof![9 => Just(0_i8), 1 => -1..=1_i8];
    let some = |of: u8| prop::option::weighted(0.2, 0..of);
    (0..4_u8, off, 0..4_u8, prop::bool::weighted(0.1), some(6), some(6), prop::bool::weighted(0.1)).prop_map(
        |(session, off, n_events, stale, sandbox, key, closes)| Step {
            session,
            off,
            n_events,
            stale,
            sandbox,
            key,
            closes,
        },
    )
}

fn moment() -> impl Strategy<Value = Moment> {
    prop_oneof![
        8 => prop::collection::vec(step(), 1..8).prop_map(Moment::Together),
        1 => (0..4_u8).prop_map(Moment::TakeOver),
        1 => Just(Moment::Sweep),
    ]
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Session {
    last: u64,
    epoch: u64,
    closed: bool,
    gone: bool,
}

/// The rules as plainly as they can be said. Answers are names of refusals; empty when taken.
#[derive(Debug, Default)]
struct Model {
    sessions: BTreeMap<u8, Session>,
    used: BTreeSet<u8>,
    keys: BTreeSet<u8>,
}

impl Model {
    fn append(&mut self, step: &Step, append: &Append) -> &'static str {
        let Some(session) = self.sessions.get_mut(&step.session).filter(|session| !session.gone) else {
            return "no session";
        };
        if append.epoch != Epoch(session.epoch) {
            return "stale epoch";
        }
        let follow = (session.last + 1..).zip(&append.events).all(|(seq, event)| event.seq.0 == seq);
        if !follow {
            return "out of order";
        }
        if step.sandbox.is_some_and(|sandbox| self.used.contains(&sandbox)) {
            return "sandbox used";
        }
        if step.key.is_some_and(|key| self.keys.contains(&key)) {
            return "key taken";
        }
        session.last += append.events.len() as u64;
        session.closed |= step.closes;
        self.used.extend(step.sandbox);
        self.keys.extend(step.key);
        ""
    }

    /// The append that a step is when the steps before it are done.
    fn build(&self, step: &Step) -> Append {
        let session = self.sessions.get(&step.session).cloned().unwrap_or_default();
        let from = (session.last + 1).saturating_add_signed(step.off.into());
        let event = |seq| Event { seq: EventSeq(seq), at: AT, program: None, kind: EventKind::SessionClosed };
        let epoch = Epoch(session.epoch + u64::from(step.stale));
        let closed = SessionRecord { state: SessionState::Closed, epoch, ..record(step.session) };
        Append {
            events: (from..from + u64::from(step.n_events)).map(event).collect(),
            record: step.closes.then(|| Box::new(closed)),
            uses_sandbox: step.sandbox.map(sandbox_id),
            done: step.key.map(request),
            ..Append::empty(TenantId::default_tenant(), session_id(step.session), epoch)
        }
    }
}

fn answer<T>(result: &Result<T, Error>) -> &'static str {
    match result {
        Ok(_) => "",
        Err(Error::NoSession { .. }) => "no session",
        Err(Error::StaleEpoch { .. }) => "stale epoch",
        Err(Error::OutOfOrder { .. }) => "out of order",
        Err(Error::SandboxUsed { .. }) => "sandbox used",
        Err(Error::KeyTaken { .. }) => "key taken",
        Err(Error::Full { .. }) => "full",
        Err(Error::Failed { .. }) => "failed",
    }
}

async fn run(store: &dyn SessionStore, moments: &[Moment]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    for session in 0..3 {
        store
            .create(record(session), Append::empty(TenantId::default_tenant(), session_id(session), Epoch(1)))
            .await
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        model.sessions.insert(session, Session { epoch: 1, ..Session::default() });
    }
    for moment in moments {
        play(store, &mut model, moment).await?;
    }
    for (number, session) in &model.sessions {
        check(store, *number, session).await?;
    }
    Ok(())
}

async fn play(store: &dyn SessionStore, model: &mut Model, moment: &Moment) -> Result<(), TestCaseError> {
    match moment {
        Moment::Together(steps) => {
            let (mut expected, mut appends) = (Vec::new(), Vec::new());
            for step in steps {
                let append = model.build(step);
                expected.push(model.append(step, &append));
                appends.push(store.append(append));
            }
            let results = join_all(appends).await;
            prop_assert_eq!(results.iter().map(answer).collect::<Vec<_>>(), expected);
        }
        Moment::TakeOver(number) => {
            let result = store.take_over(session_id(*number), AT).await;
            let Some(session) = model.sessions.get_mut(number).filter(|session| !session.gone) else {
                prop_assert_eq!(answer(&result), "no session");
                return Ok(());
            };
            session.epoch += 1;
            session.last += 1;
            let taken = result.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!((taken.epoch, taken.last_seq), (Epoch(session.epoch), EventSeq(session.last)));
        }
        Moment::Sweep => {
            let retention = Retention {
                closed_before: Timestamp(i64::MAX),
                done_before: Timestamp(i64::MIN),
                closed_bytes_max: u64::MAX,
            };
            let n_deleted = store.sweep(retention).await.map_err(|e| TestCaseError::fail(e.to_string()))?;
            let mut n_expected = 0;
            for session in model.sessions.values_mut().filter(|session| session.closed && !session.gone) {
                session.gone = true;
                n_expected += 1;
            }
            prop_assert_eq!(n_deleted, n_expected);
        }
    }
    Ok(())
}

async fn check(store: &dyn SessionStore, number: u8, session: &Session) -> Result<(), TestCaseError> {
    let id = session_id(number);
    let found = store.session(&TenantId::default_tenant(), id).await;
    let found = found.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let events = store.events(id, EventSeq::FIRST, usize::MAX, usize::MAX).await;
    let Some(found) = found else {
        prop_assert!(session.gone);
        prop_assert_eq!(answer(&events), "no session");
        return Ok(());
    };
    prop_assert_eq!(found.last_seq, EventSeq(session.last));
    prop_assert_eq!(found.epoch, Epoch(session.epoch));
    prop_assert_eq!(found.state == SessionState::Closed, session.closed);
    let events = events.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let seqs: Vec<_> = events.iter().map(|event| event.seq.0).collect();
    prop_assert_eq!(seqs, (1..=session.last).collect::<Vec<_>>());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn sqlite_does_what_the_model_says(moments in prop::collection::vec(moment(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let dir = tempfile::tempdir()?;
            let config = SqliteConfig::new(dir.path().join("seance.db"));
            let store = SqliteStore::open(config).await.map_err(|e| TestCaseError::fail(e.to_string()))?;
            run(&store, &moments).await?;
            store.close().await;
            Ok::<_, TestCaseError>(())
        })?;
    }

    #[test]
    fn memory_does_what_the_model_says(moments in prop::collection::vec(moment(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(run(&MemoryStore::new(), &moments))?;
    }
}

fn request(key: u8) -> DoneRequest {
    DoneRequest {
        method: "Execute".to_owned(),
        key: key.to_string(),
        request_digest: String::new(),
        outcome: String::new(),
        at: AT,
    }
}
