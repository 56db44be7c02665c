//! What goes to a runner, in three lanes, so that an answer to a tool call never waits behind a
//! large frame.
//!
//! - urgent: small call results, acknowledgements and Shutdown; their order among the rest
//!   doesn't matter to a runner.
//! - ordered: Assign, Catalog, Execute and StopProgram, each after the one before.
//! - bulk: call results over [`WHOLE_BYTES_MAX`].
//!
//! Large frames go out as chunks, and before each chunk the lanes are looked at again. Every lane
//! is bounded, and the bytes of large frames together; when full, `send` waits.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use prost::Message;
use seance_core::link::{Addressed, ToRunner};
use seance_core::sandbox::{LinkGone, LinkSender};
use seance_proto::link::v1alpha1::{AttachResponse, Chunk, attach_response::Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Status;

use super::chunks::FRAME_BYTES_MAX;
use super::share::{Flow, Kept, Room, SendBudget, Share};
use crate::convert;

/// Frames up to this size travel in one message.
const WHOLE_BYTES_MAX: usize = 200 * 1024;
/// The data of one chunk; with its header well below the message limit.
const CHUNK_BYTES: usize = 128 * 1024;
/// Frames waiting in the urgent lane; 64 calls can be at work at one time, and their answers fit.
const URGENT_FRAMES_MAX: usize = 96;
/// Frames waiting in the ordered lane.
const ORDERED_FRAMES_MAX: usize = 16;
/// Frames waiting in the bulk lane.
const BULK_FRAMES_MAX: usize = 16;
/// Bytes of large frames waiting or half sent, in KiB: one of the largest and some.
const LARGE_KIB_MAX: u32 = 96 * 1024;
/// Chunks of frames that are sent again have ids from here on; the sender's count from 1.
const AGAIN_ID_MIN: u64 = 1 << 32;
/// Frames over this size are encoded away from the runtime's own threads.
const ENCODE_BYTES_INLINE: usize = 1024 * 1024;

/// Sends frames to one runner.
#[derive(Debug)]
pub struct Sender {
    urgent: mpsc::Sender<(AttachResponse, Option<Room>)>,
    ordered: mpsc::Sender<Outgoing>,
    bulk: mpsc::Sender<Outgoing>,
    large_kib: Arc<Semaphore>,
    next_chunk_id: AtomicU64,
    epoch: AtomicU64,
    /// Its part of the service's budget; none where there is none.
    share: Option<Share>,
}

#[derive(Debug)]
enum Outgoing {
    Whole { message: Box<AttachResponse>, _room: Option<Room> },
    Large(Large),
}

#[derive(Debug)]
struct Large {
    id: u64,
    epoch: u64,
    total_bytes: u64,
    rest: Bytes,
    /// Gives the bytes back when the last chunk is gone.
    _reserved: Option<OwnedSemaphorePermit>,
    _room: Option<Room>,
}

/// The stream of messages that gRPC sends.
#[derive(Debug)]
pub struct Messages {
    first: Option<AttachResponse>,
    /// What a runner that dials again may not have. It comes before the lanes.
    again: VecDeque<AttachResponse>,
    _again_room: Option<Kept>,
    again_now: Option<Large>,
    next_again_id: u64,
    urgent: mpsc::Receiver<(AttachResponse, Option<Room>)>,
    ordered: Lane,
    bulk: Lane,
    flow: Option<Arc<Flow>>,
}

#[derive(Debug)]
struct Lane {
    queue: mpsc::Receiver<Outgoing>,
    current: Option<Large>,
}

/// A sender and the messages it feeds; `first` goes out before anything else, and then `again`, for
/// which there is room until the messages are dropped.
pub(super) fn channel(
    first: AttachResponse,
    (again, again_room): (Vec<AttachResponse>, Option<Kept>),
    budget: Option<SendBudget>,
) -> (Sender, Messages) {
    let share = budget.map(Share::new);
    let flow = share.as_ref().map(Share::flow);
    let (urgent, urgent_queue) = mpsc::channel(URGENT_FRAMES_MAX);
    let (ordered, ordered_queue) = mpsc::channel(ORDERED_FRAMES_MAX);
    let (bulk, bulk_queue) = mpsc::channel(BULK_FRAMES_MAX);
    let sender = Sender {
        urgent,
        ordered,
        bulk,
        large_kib: Arc::new(Semaphore::new(LARGE_KIB_MAX as usize)),
        next_chunk_id: AtomicU64::new(1),
        epoch: AtomicU64::new(first.epoch),
        share,
    };
    let lane = |queue| Lane { queue, current: None };
    let (ordered, bulk) = (lane(ordered_queue), lane(bulk_queue));
    let messages = Messages {
        first: Some(first),
        again: again.into(),
        _again_room: again_room,
        again_now: None,
        next_again_id: AGAIN_ID_MIN,
        urgent: urgent_queue,
        ordered,
        bulk,
        flow,
    };
    (sender, messages)
}

impl Sender {
    /// Asks the runner to end, ahead of everything that waits. Does nothing when the link is gone
    /// or stuck: the sandbox is killed then.
    pub fn shut_down(&self) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let frame = Some(convert::to_proto(ToRunner::Shutdown));
        drop(self.urgent.try_send((AttachResponse { epoch, frame }, None)));
    }

    /// Whether what waits moves; none where no budget is.
    pub(super) fn flow(&self) -> Option<Arc<Flow>> {
        self.share.as_ref().map(Share::flow)
    }

    async fn room(&self, bytes: usize) -> Option<Room> {
        match &self.share {
            Some(share) => share.room(bytes).await,
            None => None,
        }
    }

    async fn send_large(&self, message: AttachResponse, bytes: usize, urgent: bool) -> Result<(), LinkGone> {
        if bytes as u64 > FRAME_BYTES_MAX {
            tracing::error!(bytes, "a frame to a runner is over the limit of the link; ending the link");
            return Err(LinkGone);
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).map_err(|_| LinkGone)?;
        let reserve = Arc::clone(&self.large_kib).acquire_many_owned(kib);
        let reserved = reserve.await.expect("the semaphore is never closed");
        let room = self.room(bytes).await;
        let epoch = message.epoch;
        let encoded = encode(message, bytes).await;
        let id = self.next_chunk_id.fetch_add(1, Ordering::Relaxed);
        let total_bytes = encoded.len() as u64;
        let large = Large { id, epoch, total_bytes, rest: encoded, _reserved: Some(reserved), _room: room };
        let lane = if urgent { &self.bulk } else { &self.ordered };
        lane.send(Outgoing::Large(large)).await.map_err(|_| LinkGone)
    }
}

async fn encode(message: AttachResponse, bytes: usize) -> Bytes {
    if bytes <= ENCODE_BYTES_INLINE {
        return message.encode_to_vec().into();
    }
    let encoded = tokio::task::spawn_blocking(move || message.encode_to_vec()).await;
    encoded.expect("encoding doesn't panic and the task is never aborted").into()
}

#[async_trait]
impl LinkSender for Sender {
    async fn send(&self, frame: Addressed) -> Result<(), LinkGone> {
        let Addressed { epoch, frame } = frame;
        self.epoch.fetch_max(epoch.0, Ordering::Relaxed);
        let urgent = matches!(frame, ToRunner::CallResult { .. } | ToRunner::Ack { .. } | ToRunner::Shutdown);
        let message = AttachResponse { epoch: epoch.0, frame: Some(convert::to_proto(frame)) };
        let bytes = message.encoded_len();
        if bytes > WHOLE_BYTES_MAX {
            return self.send_large(message, bytes, urgent).await;
        }
        let room = self.room(bytes).await;
        if urgent {
            return self.urgent.send((message, room)).await.map_err(|_| LinkGone);
        }
        self.ordered
            .send(Outgoing::Whole { message: Box::new(message), _room: room })
            .await
            .map_err(|_| LinkGone)
    }
}

impl Stream for Messages {
    type Item = Result<AttachResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let message = this.poll_message(cx);
        if let (Poll::Ready(Some(_)), Some(flow)) = (&message, &this.flow) {
            flow.sent();
        }
        message
    }
}

impl Messages {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AttachResponse, Status>>> {
        let this = self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if let Some(message) = this.next_again() {
            return Poll::Ready(Some(Ok(message)));
        }
        // The three queues have one sender, so they close together.
        let mut closed = 0;
        match this.urgent.poll_recv(cx) {
            Poll::Ready(Some((message, _))) => return Poll::Ready(Some(Ok(message))),
            Poll::Ready(None) => closed += 1,
            Poll::Pending => {}
        }
        for lane in [&mut this.ordered, &mut this.bulk] {
            match lane.poll_next(cx) {
                Poll::Ready(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Poll::Ready(None) => closed += 1,
                Poll::Pending => {}
            }
        }
        if closed == 3 { Poll::Ready(None) } else { Poll::Pending }
    }

    fn next_again(&mut self) -> Option<AttachResponse> {
        if self.again_now.is_none() {
            let message = self.again.pop_front()?;
            if message.encoded_len() <= WHOLE_BYTES_MAX {
                return Some(message);
            }
            let rest = Bytes::from(message.encode_to_vec());
            let (id, epoch, total_bytes) = (self.next_again_id, message.epoch, rest.len() as u64);
            self.next_again_id += 1;
            self.again_now = Some(Large { id, epoch, total_bytes, rest, _reserved: None, _room: None });
        }
        next_chunk(&mut self.again_now)
    }
}

/// The next chunk of a large frame, which is forgotten with its last.
fn next_chunk(current: &mut Option<Large>) -> Option<AttachResponse> {
    let large = current.as_mut()?;
    let data = large.rest.split_to(large.rest.len().min(CHUNK_BYTES));
    let frame = Some(Frame::Chunk(Chunk { id: large.id, total_bytes: large.total_bytes, data }));
    let message = AttachResponse { epoch: large.epoch, frame };
    if large.rest.is_empty() {
        *current = None;
    }
    Some(message)
}

impl Lane {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<AttachResponse>> {
        if self.current.is_none() {
            match ready!(self.queue.poll_recv(cx)) {
                Some(Outgoing::Whole { message, .. }) => return Poll::Ready(Some(*message)),
                Some(Outgoing::Large(large)) => self.current = Some(large),
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(next_chunk(&mut self.current))
    }
}

#[cfg(test)]
mod tests;
