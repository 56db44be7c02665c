//! The committer of a session: writes steps to the store in order, and then does what waits for
//! the commit.
//!
//! Steps that queue up while a commit is at work are put into one transaction. Where the store is
//! full or away the committer tries again until it is back; new requests are refused meanwhile, and
//! nothing that was acknowledged is lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use seance_broker::providers::{Dispatch, SessionCalls};
use seance_core::ids::CallId;
use seance_core::link::{Addressed, ToRunner};
use seance_core::machine::CancelReason;
use seance_core::sandbox::LinkSender;
use seance_core::session::SessionRecord;
use seance_core::store::{self, Append, SessionStore};
use tokio::sync::{Notify, mpsc};

use crate::error::Error;
use crate::shared::Shared;

/// Events in one transaction of one session.
const GROUP_EVENTS_MAX: usize = 512;
/// Waits between tries when the store fails.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Something that waits for a commit.
pub(crate) enum Effect {
    Send {
        to: Arc<dyn LinkSender>,
        frame: Addressed,
    },
    Dispatch(Dispatch),
    Cancel {
        id: CallId,
        reason: CancelReason,
    },
    Recorded(CallId),
    /// An answer to a caller; told whether the commit went through.
    Reply(Box<dyn FnOnce(Result<(), Error>) + Send>),
}

/// A step on its way to the store.
pub(crate) struct Batch {
    pub(crate) append: Append,
    pub(crate) effects: Vec<Effect>,
}

/// What the task sees of its committer.
#[derive(Clone)]
pub(crate) struct Gauge {
    inner: Arc<GaugeInner>,
}

struct GaugeInner {
    queued: AtomicUsize,
    drained: Notify,
    in_trouble: AtomicBool,
    lost: AtomicBool,
}

impl Gauge {
    /// How many steps wait.
    pub(crate) fn queued(&self) -> usize {
        self.inner.queued.load(Ordering::Acquire)
    }

    /// Waits until steps were committed. Cancel-safe.
    pub(crate) async fn drained(&self) {
        self.inner.drained.notified().await;
    }

    /// Whether the last try failed.
    pub(crate) fn in_trouble(&self) -> bool {
        self.inner.in_trouble.load(Ordering::Acquire)
    }

    /// Whether another owner has the session: nothing more is written.
    pub(crate) fn is_lost(&self) -> bool {
        self.inner.lost.load(Ordering::Acquire)
    }
}

/// The task's way to its committer. The queue is as long as the task lets it get: it reads no
/// frames of the runner while it is long, and commands are bounded by their callers.
pub(crate) struct Committer {
    batches: mpsc::UnboundedSender<Batch>,
    pub(crate) gauge: Gauge,
}

impl Committer {
    /// A committer, and the future that does its work until the task lets go of it.
    pub(crate) fn new(
        store: Arc<dyn SessionStore>,
        shared: Arc<Shared>,
        calls: Arc<SessionCalls>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let gauge = Gauge {
            inner: Arc::new(GaugeInner {
                queued: AtomicUsize::new(0),
                drained: Notify::new(),
                in_trouble: AtomicBool::new(false),
                lost: AtomicBool::new(false),
            }),
        };
        let work = Work { store, shared, calls, gauge: gauge.clone() };
        (Self { batches: sender, gauge }, work.run(receiver))
    }

    /// Hands a step over.
    pub(crate) fn commit(&self, batch: Batch) {
        self.gauge.inner.queued.fetch_add(1, Ordering::AcqRel);
        if let Err(returned) = self.batches.send(batch) {
            refuse(returned.0.effects);
        }
    }
}

struct Work {
    store: Arc<dyn SessionStore>,
    shared: Arc<Shared>,
    calls: Arc<SessionCalls>,
    gauge: Gauge,
}

impl Work {
    async fn run(self, mut batches: mpsc::UnboundedReceiver<Batch>) {
        let mut waiting: VecDeque<Batch> = VecDeque::new();
        loop {
            if waiting.is_empty() {
                match batches.recv().await {
                    Some(batch) => waiting.push_back(batch),
                    None => return,
                }
            }
            while let Ok(batch) = batches.try_recv() {
                waiting.push_back(batch);
            }
            let (group, n_batches) = take_group(&mut waiting);
            self.write(group).await;
            self.gauge.inner.queued.fetch_sub(n_batches, Ordering::AcqRel);
            self.gauge.inner.drained.notify_one();
        }
    }

    async fn write(&self, mut group: Batch) {
        if self.gauge.is_lost() {
            return refuse(group.effects);
        }
        let mut wait = RETRY_FIRST;
        while let Err(error) = self.store.append(group.append.clone()).await {
            let lasting = matches!(error, store::Error::Full { .. } | store::Error::Failed { .. });
            tracing::error!(session = %self.shared.id, error = &error as &dyn std::error::Error, lasting, "commit failed");
            if !lasting {
                self.gauge.inner.lost.store(true, Ordering::Release);
                return refuse(group.effects);
            }
            self.gauge.inner.in_trouble.store(true, Ordering::Release);
            answer_in_trouble(&mut group.effects, &error);
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
        self.gauge.inner.in_trouble.store(false, Ordering::Release);
        let record = group.append.record.map(|record| Arc::<SessionRecord>::from(*record));
        self.shared.committed(group.append.events, record);
        for effect in group.effects {
            self.carry_out(effect).await;
        }
    }

    async fn carry_out(&self, effect: Effect) {
        match effect {
            // A link that is gone says so to the task itself.
            Effect::Send { to, frame } => {
                let _ = to.send(frame).await;
            }
            Effect::Dispatch(dispatch) => dispatch_call(&self.calls, dispatch),
            Effect::Cancel { id, reason } => {
                self.calls.cancel(id, broker_reason(reason));
            }
            Effect::Recorded(id) => self.calls.recorded(id),
            Effect::Reply(reply) => reply(Ok(())),
        }
    }
}

/// Hands a call to the broker. A call it can't take is answered by the session's end, which is the
/// only case there is: numbers never repeat, and the machine bounds how many are at work.
pub(crate) fn dispatch_call(calls: &SessionCalls, dispatch: Dispatch) {
    let id = dispatch.id;
    if let Err(error) = calls.dispatch(dispatch) {
        tracing::error!(call = %id, %error, "the broker did not take a call");
    }
}

/// The broker's word for a reason of the machine.
pub(crate) fn broker_reason(reason: CancelReason) -> seance_broker::providers::CancelReason {
    match reason {
        CancelReason::Stopped => seance_broker::providers::CancelReason::Stopped,
        CancelReason::Aborted => seance_broker::providers::CancelReason::Aborted,
        CancelReason::SessionClosed => seance_broker::providers::CancelReason::SessionClosed,
    }
}

fn refuse(effects: Vec<Effect>) {
    for effect in effects {
        if let Effect::Reply(reply) = effect {
            reply(Err(Error::Stopping));
        }
    }
}

/// Callers are told at once; what they asked for is still going to be done, which their
/// idempotency key lets them find out.
fn answer_in_trouble(effects: &mut Vec<Effect>, error: &store::Error) {
    let full = match error {
        store::Error::Full { message } => Some(message.clone()),
        _ => None,
    };
    let told = |error: &Option<String>| match error {
        Some(message) => Error::Store(store::Error::Full { message: message.clone() }),
        None => Error::Store(store::Error::Failed { doing: "committing", source: "see the log".into() }),
    };
    let (replies, others): (Vec<_>, Vec<_>) =
        std::mem::take(effects).into_iter().partition(|effect| matches!(effect, Effect::Reply(_)));
    *effects = others;
    for reply in replies {
        if let Effect::Reply(reply) = reply {
            reply(Err(told(&full)));
        }
    }
}

fn take_group(waiting: &mut VecDeque<Batch>) -> (Batch, usize) {
    let mut group = waiting.pop_front().expect("the caller has one");
    let mut n_batches = 1;
    while let Some(next) = waiting.front() {
        if !fits(&group.append, &next.append) {
            break;
        }
        let next = waiting.pop_front().expect("it was looked at");
        n_batches += 1;
        merge(&mut group, next);
    }
    (group, n_batches)
}

fn fits(group: &Append, next: &Append) -> bool {
    let one_sandbox = group.uses_sandbox.is_none() && next.uses_sandbox.is_none();
    let one_request = group.done.is_none() || next.done.is_none();
    let one_runner = match (&group.acknowledges, &next.acknowledges) {
        (Some((a, _)), Some((b, _))) => a == b,
        _ => true,
    };
    one_sandbox && one_request && one_runner && group.events.len() + next.events.len() <= GROUP_EVENTS_MAX
}

fn merge(group: &mut Batch, next: Batch) {
    let append = &mut group.append;
    append.events.extend(next.append.events);
    append.blobs.extend(next.append.blobs);
    append.programs.retain(|old| !next.append.programs.iter().any(|new| new.number == old.number));
    append.programs.extend(next.append.programs);
    append.record = next.append.record.or(append.record.take());
    append.acknowledges = next.append.acknowledges.or(append.acknowledges.take());
    append.done = next.append.done.or(append.done.take());
    if next.effects.iter().any(is_ack) {
        group.effects.retain(|effect| !is_ack(effect));
    }
    group.effects.extend(next.effects);
}

fn is_ack(effect: &Effect) -> bool {
    matches!(effect, Effect::Send { frame: Addressed { frame: ToRunner::Ack { .. }, .. }, .. })
}
