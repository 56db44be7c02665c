//! Steps on their way from a session's task to its committer.
//!
//! Waking the committer costs more than a step that nobody waits for is worth: while it gathers such
//! steps, they are put beside each other without waking it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Batch, is_patient};

/// Steps that nobody waits for are written once there are this many, however little time has passed.
pub(super) const GATHERED_MAX: usize = 64;

/// A queue and its two ends.
pub(super) fn queue() -> (Sender, Receiver) {
    let queue = Arc::new(Queue { state: Mutex::default(), news: Notify::new() });
    (Sender(queue.clone()), Receiver(queue))
}

struct Queue {
    state: Mutex<State>,
    /// Wakes the committer.
    news: Notify,
}

#[derive(Default)]
struct State {
    steps: VecDeque<Batch>,
    /// The committer has steps that nobody waits for, and waits for one that somebody does.
    is_gathering: bool,
    /// No more will come.
    is_over: bool,
    /// Nobody takes any more.
    is_gone: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task's end. Dropping it ends the queue.
pub(super) struct Sender(Arc<Queue>);

impl Sender {
    /// Puts a step into the queue; gives it back when nobody takes it any more.
    pub(super) fn send(&self, batch: Batch) -> Result<(), Box<Batch>> {
        let patient = is_patient(&batch);
        let mut state = self.0.state();
        if state.is_gone {
            return Err(Box::new(batch));
        }
        state.steps.push_back(batch);
        let waits = state.is_gathering && patient && state.steps.len() < GATHERED_MAX;
        drop(state);
        if !waits {
            self.0.news.notify_one();
        }
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.news.notify_one();
    }
}

/// The committer's end.
pub(super) struct Receiver(Arc<Queue>);

impl Receiver {
    /// Takes what is there; false when that is the last.
    pub(super) fn take(&self, into: &mut VecDeque<Batch>) -> bool {
        let mut state = self.0.state();
        into.append(&mut state.steps);
        !state.is_over
    }

    /// Waits until there may be something new. Cancel-safe.
    pub(super) async fn news(&self) {
        self.0.news.notified().await;
    }

    /// From now on, and until told otherwise, only a step that somebody waits for is news, or many
    /// that nobody does.
    pub(super) fn gather(&self, gather: bool) {
        self.0.state().is_gathering = gather;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.state().is_gone = true;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use seance_core::event::{Event, EventKind};
    use seance_core::ids::{Epoch, EventSeq, SessionId, TenantId};
    use seance_core::store::Append;
    use seance_core::time::Timestamp;

    use super::*;

    fn step(kind: EventKind) -> Batch {
        let event = Event { seq: EventSeq(1), at: Timestamp(0), program: None, kind };
        let session = SessionId::mint(Timestamp(0), [1; 10]);
        let append = Append::empty(TenantId::default_tenant(), session, Epoch(1));
        Batch { append: Append { events: vec![event], ..append }, effects: Vec::new() }
    }

    fn patient() -> Batch {
        step(EventKind::ProgramStarted { engine_version: String::new() })
    }

    fn has_news(receiver: &Receiver) -> bool {
        receiver.news().now_or_never().is_some()
    }

    #[test]
    fn steps_that_nobody_waits_for_wake_nobody_until_there_are_many() {
        let (sender, receiver) = queue();
        assert!(sender.send(patient()).is_ok());
        assert!(has_news(&receiver), "the first one does");
        receiver.gather(true);
        for n in 2..GATHERED_MAX {
            assert!(sender.send(patient()).is_ok());
            assert!(!has_news(&receiver), "step {n}");
        }
        assert!(sender.send(patient()).is_ok());
        assert!(has_news(&receiver));
        let mut taken = VecDeque::new();
        assert!(receiver.take(&mut taken));
        assert_eq!(taken.len(), GATHERED_MAX);
    }

    #[test]
    fn a_step_that_somebody_waits_for_is_news_at_once() {
        let (sender, receiver) = queue();
        receiver.gather(true);
        assert!(sender.send(step(EventKind::SessionClosed)).is_ok());
        assert!(has_news(&receiver));
        drop(sender);
        assert!(has_news(&receiver), "and so is the end");
        assert!(!receiver.take(&mut VecDeque::new()));
    }

    /// A step that somebody waits for takes along what was gathered, and waits for nothing.
    #[tokio::test(start_paused = true)]
    async fn what_was_gathered_goes_with_the_next_step_that_somebody_waits_for() {
        let (sender, receiver) = queue();
        let began = tokio::time::Instant::now();
        let mut waiting = VecDeque::new();
        assert!(sender.send(patient()).is_ok());
        let filled = crate::commit::fill(&mut waiting, &receiver);
        let sent = async {
            tokio::task::yield_now().await;
            assert!(sender.send(patient()).is_ok());
            tokio::task::yield_now().await;
            assert!(sender.send(step(EventKind::SessionClosed)).is_ok());
        };
        assert!(tokio::join!(filled, sent).0);
        assert_eq!((waiting.len(), began.elapsed()), (3, std::time::Duration::ZERO));
        waiting.clear();
        assert!(sender.send(patient()).is_ok());
        assert!(crate::commit::fill(&mut waiting, &receiver).await);
        assert!(waiting.len() == 1 && began.elapsed() >= crate::commit::PATIENCE);
    }

    #[test]
    fn a_step_that_nobody_takes_is_given_back() {
        let (sender, receiver) = queue();
        drop(receiver);
        assert!(sender.send(patient()).is_err());
    }
}
