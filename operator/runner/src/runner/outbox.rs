//! Frames on their way to the service: numbered, kept until they are acknowledged, cut into chunks
//! when they are large.
//!
//! Frames leave in the order of their numbers; a service that has one has all before it. What is
//! kept is bounded by not reading the host while it is full, so that a program is held back and
//! nothing is cut.

use std::collections::VecDeque;

use bytes::Bytes;
use seance_proto::link::v1alpha1::{AttachRequest, Chunk, attach_request::Frame};
use seance_proto::prost::Message;
use tokio::sync::mpsc;

/// The outbox is full when this many bytes wait to be acknowledged.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Frames over this size travel as chunks of this size.
pub const CHUNK_BYTES: usize = 200 * 1024;

/// Frames to the service.
pub struct Outbox {
    /// None until the service has said what it has.
    wire: Option<mpsc::Sender<AttachRequest>>,
    waiting: VecDeque<Waiting>,
    unacknowledged: VecDeque<Kept>,
    unacknowledged_bytes: usize,
    next_number: u64,
    next_chunk_id: u64,
}

enum Waiting {
    Whole(Box<AttachRequest>),
    Chunks { id: u64, rest: Bytes, total_bytes: u64 },
}

struct Kept {
    number: u64,
    bytes: usize,
    request: AttachRequest,
}

impl Outbox {
    /// Frames wait until there is a connection.
    pub fn new() -> Self {
        Self {
            wire: None,
            waiting: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            unacknowledged_bytes: 0,
            next_number: 1,
            next_chunk_id: 1,
        }
    }

    /// Sends a frame that must not be lost.
    pub fn push(&mut self, frame: Frame) {
        let request = AttachRequest { number: self.next_number, frame: Some(frame) };
        self.next_number += 1;
        let bytes = request.encoded_len();
        self.unacknowledged.push_back(Kept { number: request.number, bytes, request: request.clone() });
        self.unacknowledged_bytes += bytes;
        self.enqueue(request);
    }

    /// Sends a frame that nobody acknowledges.
    pub fn push_unnumbered(&mut self, frame: Frame) {
        self.enqueue(AttachRequest { number: 0, frame: Some(frame) });
    }

    /// Forgets everything up to a number.
    pub fn acknowledge(&mut self, number: u64) {
        while self.unacknowledged.front().is_some_and(|kept| kept.number <= number) {
            if let Some(kept) = self.unacknowledged.pop_front() {
                self.unacknowledged_bytes -= kept.bytes;
            }
        }
    }

    /// Whether the service has all that is numbered.
    pub fn is_acknowledged(&self) -> bool {
        self.unacknowledged.is_empty()
    }

    /// Whether the host must not be read until the service has acknowledged more.
    pub fn is_full(&self) -> bool {
        self.unacknowledged_bytes >= UNACKNOWLEDGED_BYTES_MAX
    }

    /// The lowest number that is not acknowledged, or the next one.
    pub fn first_unacknowledged(&self) -> u64 {
        self.unacknowledged.front().map_or(self.next_number, |kept| kept.number)
    }

    /// Goes on over a new connection: forgets what the service has, sends the rest, again or for
    /// the first time. The bound of `wire` is how many frames the connection may lag behind.
    pub fn connect(&mut self, wire: mpsc::Sender<AttachRequest>, acknowledged: u64) {
        self.wire = Some(wire);
        self.waiting.clear();
        self.acknowledge(acknowledged);
        let again: Vec<AttachRequest> = self.unacknowledged.iter().map(|kept| kept.request.clone()).collect();
        for request in again {
            self.enqueue(request);
        }
    }

    /// The connection broke: frames wait for the next one.
    pub fn disconnect(&mut self) {
        self.wire = None;
        self.waiting.clear();
    }

    /// Whether the service has said from where it wants frames, and the connection holds.
    pub fn is_connected(&self) -> bool {
        self.wire.is_some()
    }

    /// Sends what goes at once, then a last frame, and closes the connection behind it.
    pub fn say_last(&mut self, frame: Frame) {
        self.push_unnumbered(frame);
        self.disconnect();
    }

    /// Whether frames wait for the connection.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Waits until the connection takes another frame, or is gone. Losing this future loses nothing.
    pub async fn writable(&self) {
        // A closed connection shows when the incoming side ends; sending does not fail before.
        match &self.wire {
            Some(wire) => drop(wire.reserve().await),
            None => std::future::pending().await,
        }
    }

    /// Hands over as much as the connection takes now.
    pub fn flush(&mut self) {
        let Some(wire) = &self.wire else { return };
        while let Some(front) = self.waiting.front_mut() {
            let Ok(permit) = wire.try_reserve() else { return };
            match front {
                Waiting::Whole(request) => {
                    permit.send(std::mem::take(&mut **request));
                    self.waiting.pop_front();
                }
                Waiting::Chunks { id, rest, total_bytes } => {
                    let data = rest.split_to(rest.len().min(CHUNK_BYTES));
                    let chunk = Chunk { id: *id, total_bytes: *total_bytes, data };
                    permit.send(AttachRequest { number: 0, frame: Some(Frame::Chunk(chunk)) });
                    if rest.is_empty() {
                        self.waiting.pop_front();
                    }
                }
            }
        }
    }

    fn enqueue(&mut self, request: AttachRequest) {
        if request.encoded_len() <= CHUNK_BYTES {
            self.waiting.push_back(Waiting::Whole(Box::new(request)));
        } else {
            let rest = Bytes::from(request.encode_to_vec());
            let total_bytes = rest.len() as u64;
            self.waiting.push_back(Waiting::Chunks { id: self.next_chunk_id, rest, total_bytes });
            self.next_chunk_id += 1;
        }
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seance_proto::link::v1alpha1::Output;

    fn output(bytes: usize) -> Frame {
        Frame::Output(Output { program: 1, source: 1, data: vec![b'x'; bytes].into() })
    }

    fn connected(wire: mpsc::Sender<AttachRequest>) -> Outbox {
        let mut outbox = Outbox::new();
        outbox.connect(wire, 0);
        outbox
    }

    fn numbers(wire: &mut mpsc::Receiver<AttachRequest>) -> Vec<u64> {
        std::iter::from_fn(|| wire.try_recv().ok()).map(|request| request.number).collect()
    }

    #[test]
    fn a_resumed_connection_gets_exactly_what_was_not_acknowledged() {
        let (wire, mut sent) = mpsc::channel(2);
        let mut outbox = connected(wire);
        for _ in 0..5 {
            outbox.push(output(10));
        }
        assert_eq!(numbers(&mut sent), [1, 2]);
        assert!(outbox.is_waiting());
        outbox.acknowledge(1);
        assert_eq!(outbox.first_unacknowledged(), 2);
        let (wire, mut sent) = mpsc::channel(10);
        outbox.connect(wire, 3);
        assert_eq!(numbers(&mut sent), [4, 5]);
        assert_eq!(outbox.first_unacknowledged(), 4);
        outbox.acknowledge(5);
        assert_eq!(outbox.first_unacknowledged(), 6);
    }

    #[test]
    fn it_is_full_until_enough_is_acknowledged() {
        let (wire, _sent) = mpsc::channel(1);
        let mut outbox = connected(wire);
        for _ in 0..5 {
            outbox.push(output(1024 * 1024));
        }
        assert!(outbox.is_full());
        outbox.acknowledge(2);
        assert!(!outbox.is_full());
    }

    #[test]
    fn a_large_frame_travels_as_chunks_and_arrives_whole() {
        let (wire, mut sent) = mpsc::channel(64);
        let mut outbox = connected(wire);
        outbox.push(output(CHUNK_BYTES * 3));
        let mut whole = Vec::new();
        while let Ok(request) = sent.try_recv() {
            assert!(request.encoded_len() <= seance_proto::LINK_MESSAGE_BYTES_MAX);
            let Some(Frame::Chunk(chunk)) = request.frame else { panic!("not a chunk") };
            whole.extend_from_slice(&chunk.data);
            assert!(whole.len() as u64 <= chunk.total_bytes);
        }
        let request = AttachRequest::decode(whole.as_slice()).unwrap();
        assert_eq!(request.number, 1);
        assert_eq!(request.frame, Some(output(CHUNK_BYTES * 3)));
    }
}
