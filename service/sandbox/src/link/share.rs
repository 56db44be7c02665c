//! How much may wait on its way to runners: a little for each link alone, and beyond that from one
//! budget of the whole service. A runner that reads nothing so takes up what its link may, and a
//! hundred of them no more than the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What one link may always have waiting, whatever others do, in KiB.
const OWN_KIB: usize = 256;
/// Frames up to this size count for nothing: the lanes bound how many there are, in bytes.
const FREE_BYTES: usize = 4 * 1024;
/// Results that one link may always keep to send again, in bytes.
const OWN_KEPT_BYTES: usize = 64 * 1024;

/// The bytes that may wait to be sent to all runners together, and as many that are kept to be sent
/// again. Over the first, a sender waits until others' frames have gone, and a runner that doesn't let
/// them go is ended; over the second, nothing is kept, and the link can't be taken up again after a cut.
#[derive(Debug, Clone)]
pub struct SendBudget {
    kib: Arc<Semaphore>,
    kib_max: u32,
    kept: Arc<AtomicUsize>,
    kept_bytes_max: usize,
}

impl SendBudget {
    /// Room for so many bytes of each of the two.
    pub fn new(bytes: u64) -> Self {
        let kib_max = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 4).max(1);
        Self {
            kib: Arc::new(Semaphore::new(kib_max as usize)),
            kib_max,
            kept: Arc::default(),
            kept_bytes_max: usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }

    /// Room to keep so many bytes, where a link has kept `held` before; none when there is none.
    pub(super) fn keep(&self, held: usize, bytes: usize) -> Option<Kept> {
        if held + bytes <= OWN_KEPT_BYTES {
            return Some(Kept { all: None, bytes });
        }
        let max = self.kept_bytes_max;
        let taken = self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |kept| {
            kept.checked_add(bytes).filter(|kept| *kept <= max)
        });
        taken.ok().map(|_| Kept { all: Some(Arc::clone(&self.kept)), bytes })
    }

    /// Bytes that are kept now, beside what is each link's own.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }
}

/// Room for something that is kept, until it is dropped.
#[derive(Debug)]
pub(super) struct Kept {
    all: Option<Arc<AtomicUsize>>,
    bytes: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            all.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// What one stream has of the budget.
#[derive(Debug)]
pub(super) struct Share {
    budget: SendBudget,
    own: Arc<Semaphore>,
    flow: Arc<Flow>,
}

/// Whether what waits on a stream moves.
#[derive(Debug, Default)]
pub(super) struct Flow {
    n_waiting: AtomicU64,
    n_sent: AtomicU64,
}

impl Flow {
    /// How many frames have left; none where nothing of the budget waits.
    pub(super) fn progress(&self) -> Option<u64> {
        (self.n_waiting.load(Ordering::Relaxed) > 0).then(|| self.n_sent.load(Ordering::Relaxed))
    }

    /// Something has left.
    pub(super) fn sent(&self) {
        self.n_sent.fetch_add(1, Ordering::Relaxed);
    }
}

impl Share {
    pub(super) fn new(budget: SendBudget) -> Self {
        Self { budget, own: Arc::new(Semaphore::new(OWN_KIB)), flow: Arc::default() }
    }

    pub(super) fn flow(&self) -> Arc<Flow> {
        Arc::clone(&self.flow)
    }

    /// Waits for room for a frame; small ones need none. Cancel-safe.
    pub(super) async fn room(&self, bytes: usize) -> Option<Room> {
        if bytes <= FREE_BYTES {
            return None;
        }
        let kib_max = self.budget.kib_max;
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(kib_max);
        let permit = match Arc::clone(&self.own).try_acquire_many_owned(kib) {
            Ok(permit) => permit,
            Err(_) => {
                let all = Arc::clone(&self.budget.kib).acquire_many_owned(kib.min(kib_max)).await;
                all.expect("the semaphore is never closed")
            }
        };
        self.flow.n_waiting.fetch_add(1, Ordering::Relaxed);
        Some(Room { _permit: permit, flow: Arc::clone(&self.flow) })
    }
}

/// Room for a frame that waits to be sent, until it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    _permit: OwnedSemaphorePermit,
    flow: Arc<Flow>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.flow.n_waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_link_has_its_own_room_whatever_others_do() {
        let budget = SendBudget::new(1 << 20);
        let (greedy, modest) = (Share::new(budget.clone()), Share::new(budget.clone()));
        let all = greedy.room(1 << 20).await;
        assert!(futures::poll!(std::pin::pin!(greedy.room(300 << 10))).is_pending(), "there is no more");
        let own = modest.room(200 << 10).await;
        assert!(futures::poll!(std::pin::pin!(modest.room(100 << 10))).is_pending());
        assert!(modest.room(FREE_BYTES).await.is_none(), "small ones need none");
        assert_eq!(modest.flow().progress(), Some(0));
        drop(own);
        assert!(modest.room(100 << 10).await.is_some());
        assert_eq!(modest.flow().progress(), None, "nothing waits");
        drop(all);
        assert!(greedy.room(u32::MAX as usize).await.is_some(), "the largest takes all there is");
    }

    #[test]
    fn what_is_kept_is_given_back() {
        let budget = SendBudget::new(100_000);
        let own = budget.keep(0, OWN_KEPT_BYTES).expect("it is the link's own");
        assert_eq!(budget.kept_bytes(), 0);
        let all = budget.keep(OWN_KEPT_BYTES, 100_000).expect("there is room");
        assert!(budget.keep(OWN_KEPT_BYTES, 1).is_none());
        drop((own, all));
        assert_eq!(budget.kept_bytes(), 0);
    }
}
