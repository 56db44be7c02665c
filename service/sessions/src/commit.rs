//! The committer of a session: writes steps to the store in order, and then does what waits for
//! the commit.
//!
//! Steps that queue up while a commit is at work are put into one transaction. Where the store is
//! full or away the committer tries again until it is back; new requests are refused meanwhile, and
//! nothing that was acknowledged is lost.

mod queue;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use seance_broker::providers::{Dispatch, SessionCalls};
use seance_core::event::EventKind;
use seance_core::ids::CallId;
use seance_core::link::{Addressed, ToRunner};
use seance_core::machine::CancelReason;
use seance_core::sandbox::LinkSender;
use seance_core::session::SessionRecord;
use seance_core::store::{self, Append, SessionStore};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::once::OnceGuard;
use crate::shared::Shared;
use queue::{GATHERED_MAX, Receiver, Sender, queue};

/// Events in one transaction of one session.
const GROUP_EVENTS_MAX: usize = 512;
/// How long a step that nobody waits for is kept, so that it shares the commit of the next.
const PATIENCE: Duration = Duration::from_millis(5);
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
    /// Keeps an idempotency key from being used until it is in the store.
    Hold(OnceGuard),
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
    trouble: Mutex<Option<Trouble>>,
    lost: CancellationToken,
}

/// Why a commit is tried again. Nothing was acknowledged.
#[derive(Debug, Clone, Default)]
pub(crate) enum Trouble {
    /// The store is full.
    Full(String),
    /// The store can't be reached, or failed.
    #[default]
    Failed,
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        Error::Store(match trouble {
            Trouble::Full(message) => store::Error::Full { message },
            Trouble::Failed => store::Error::Failed {
                doing: "committing",
                source: "it is tried again, and the log says why".into(),
            },
        })
    }
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

    /// Why the last try failed, if it did.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<Trouble>) {
        *self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Whether another owner has the session: nothing more is written.
    pub(crate) fn is_lost(&self) -> bool {
        self.inner.lost.is_cancelled()
    }

    /// Waits until another owner has the session. Cancel-safe.
    pub(crate) async fn lost(&self) {
        self.inner.lost.cancelled().await;
    }
}

/// The task's way to its committer. The queue is as long as the task lets it get: it reads no
/// frames of the runner while it is long, and commands are bounded by their callers.
pub(crate) struct Committer {
    batches: Sender,
    pub(crate) gauge: Gauge,
}

impl Committer {
    /// A committer, and the future that does its work until the task lets go of it.
    pub(crate) fn new(
        store: Arc<dyn SessionStore>,
        shared: Arc<Shared>,
        calls: Arc<SessionCalls>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = queue();
        let gauge = Gauge {
            inner: Arc::new(GaugeInner {
                queued: AtomicUsize::new(0),
                drained: Notify::new(),
                trouble: Mutex::default(),
                lost: CancellationToken::new(),
            }),
        };
        let work = Work { store, shared, calls, gauge: gauge.clone() };
        (Self { batches: sender, gauge }, work.run(receiver))
    }

    /// Hands a step over.
    pub(crate) fn commit(&self, batch: Batch) {
        self.gauge.inner.queued.fetch_add(1, Ordering::AcqRel);
        if let Err(returned) = self.batches.send(batch) {
            refuse(returned.effects);
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
    async fn run(self, batches: Receiver) {
        let mut waiting: VecDeque<Batch> = VecDeque::new();
        while fill(&mut waiting, &batches).await {
            let (group, n_batches) = take_group(&mut waiting);
            self.write(group, &mut waiting, &batches).await;
            self.gauge.inner.queued.fetch_sub(n_batches, Ordering::AcqRel);
            self.gauge.inner.drained.notify_one();
        }
    }

    async fn write(&self, mut group: Batch, waiting: &mut VecDeque<Batch>, batches: &Receiver) {
        if self.gauge.is_lost() {
            return refuse(group.effects);
        }
        let mut wait = RETRY_FIRST;
        let mut may_be_written = false;
        while let Err(error) = self.append(&group.append).await {
            if may_be_written && is_of_itself(&error, &group.append) {
                break;
            }
            let Some(trouble) = trouble_of(&error) else {
                tracing::error!(session = %self.shared.id, error = &error as &dyn std::error::Error, "session lost");
                self.gauge.inner.lost.cancel();
                return refuse(group.effects);
            };
            tracing::error!(session = %self.shared.id, error = &error as &dyn std::error::Error, "commit failed");
            may_be_written |= matches!(error, store::Error::Failed { .. });
            self.gauge.set_trouble(Some(trouble.clone()));
            answer_in_trouble(&mut group.effects, &trouble);
            for batch in &mut *waiting {
                answer_in_trouble(&mut batch.effects, &trouble);
            }
            self.sleep_in_trouble(wait, &trouble, waiting, batches).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
        let record = group.append.record.map(|record| Arc::<SessionRecord>::from(*record));
        self.shared.committed(group.append.events, record);
        self.gauge.set_trouble(None);
        for effect in group.effects {
            self.carry_out(effect).await;
        }
    }

    async fn append(&self, append: &Append) -> Result<(), store::Error> {
        if is_empty(append) {
            return Ok(());
        }
        self.store.append(append.clone()).await
    }

    /// Waits for the next try, and tells those who ask meanwhile.
    async fn sleep_in_trouble(
        &self,
        wait: Duration,
        trouble: &Trouble,
        waiting: &mut VecDeque<Batch>,
        batches: &Receiver,
    ) {
        let mut over = std::pin::pin!(tokio::time::sleep(wait));
        loop {
            let mut new = VecDeque::new();
            batches.take(&mut new);
            for mut batch in new {
                answer_in_trouble(&mut batch.effects, trouble);
                if is_empty(&batch.append) && batch.effects.is_empty() {
                    self.gauge.inner.queued.fetch_sub(1, Ordering::AcqRel);
                } else {
                    waiting.push_back(batch);
                }
            }
            tokio::select! {
                () = &mut over => return,
                () = batches.news() => {}
            }
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
            Effect::Hold(once) => drop(once),
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
fn answer_in_trouble(effects: &mut Vec<Effect>, trouble: &Trouble) {
    let (replies, others): (Vec<_>, Vec<_>) =
        std::mem::take(effects).into_iter().partition(|effect| matches!(effect, Effect::Reply(_)));
    *effects = others;
    for reply in replies {
        if let Effect::Reply(reply) = reply {
            reply(Err(trouble.clone().into()));
        }
    }
}

/// An error that a later try can get over.
fn trouble_of(error: &store::Error) -> Option<Trouble> {
    match error {
        store::Error::Full { message } => Some(Trouble::Full(message.clone())),
        store::Error::Failed { .. } => Some(Trouble::Failed),
        store::Error::StaleEpoch { .. }
        | store::Error::NoSession { .. }
        | store::Error::OutOfOrder { .. }
        | store::Error::SandboxUsed { .. }
        | store::Error::KeyTaken { .. } => None,
    }
}

/// Whether an append is refused because an earlier try of it was written, though the store said it
/// failed. Nobody else writes under our epoch.
fn is_of_itself(error: &store::Error, append: &Append) -> bool {
    match error {
        store::Error::OutOfOrder { last, .. } => append.events.last().is_some_and(|event| event.seq == *last),
        store::Error::KeyTaken { key } => {
            append.events.is_empty() && append.done.as_ref().is_some_and(|done| done.key == *key)
        }
        store::Error::StaleEpoch { .. }
        | store::Error::NoSession { .. }
        | store::Error::SandboxUsed { .. }
        | store::Error::Full { .. }
        | store::Error::Failed { .. } => false,
    }
}

fn is_empty(append: &Append) -> bool {
    append.events.is_empty()
        && append.record.is_none()
        && append.programs.is_empty()
        && append.blobs.is_empty()
        && append.uses_sandbox.is_none()
        && append.acknowledges.is_none()
        && append.done.is_none()
}

/// Takes what is queued, and waits where that is nothing; a little longer where nobody waits for any
/// of it. False when there is nothing and nothing will come.
async fn fill(waiting: &mut VecDeque<Batch>, batches: &Receiver) -> bool {
    while batches.take(waiting) && waiting.is_empty() {
        batches.news().await;
    }
    if waiting.iter().all(is_patient) {
        let mut over = std::pin::pin!(tokio::time::sleep(PATIENCE));
        batches.gather(true);
        // What came before the line above is taken first.
        while batches.take(waiting) && waiting.len() < GATHERED_MAX && waiting.iter().all(is_patient) {
            tokio::select! {
                biased;
                () = &mut over => break,
                () = batches.news() => {}
            }
        }
        batches.gather(false);
        batches.take(waiting);
    }
    !waiting.is_empty()
}

/// Whether nobody waits for a step: it tells that a program has started, or of a call that was
/// dispatched and delivered ahead of the log because it may be made again. A reader may see either a
/// moment later.
fn is_patient(batch: &Batch) -> bool {
    let append = &batch.append;
    let is_told_later = |kind: &EventKind| {
        matches!(
            kind,
            EventKind::ProgramStarted { .. }
                | EventKind::CallMade(_)
                | EventKind::CallDispatched { .. }
                | EventKind::CallEnded { .. }
        )
    };
    append.done.is_none()
        && append.uses_sandbox.is_none()
        && append.blobs.is_empty()
        && append.events.iter().all(|event| is_told_later(&event.kind))
        && batch.effects.iter().all(|effect| is_ack(effect) || matches!(effect, Effect::Recorded(_)))
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
