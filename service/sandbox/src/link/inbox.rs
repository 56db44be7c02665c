//! What comes from a runner: whole, numbered, checked frames.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use seance_core::link::Numbered;
use seance_proto::link::v1alpha1::{AttachRequest, attach_request::Frame};
use seance_proto::socket::Reader;
use tonic::{Code, Status, Streaming};

use super::chunks::{Assembler, Budget};
use super::numbers::{Numbers, Turn};
use super::{Breach, local, wire};
use crate::convert::{self, Aside};

/// How long a frame in chunks may take from its first chunk to its last.
const FRAME_TIMEOUT: Duration = Duration::from_secs(60);

/// Why nothing more comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// The runner or the connection ended.
    Lost,
    /// The runner broke the protocol.
    Broken(Breach),
}

/// What a runner sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A frame for the session.
    Frame(Numbered),
    /// A frame for the link itself.
    Aside(Aside),
}

/// Where a runner's messages come from.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A stream over the network.
    Network(Box<Streaming<AttachRequest>>),
    /// A socket of this machine.
    Local(Reader),
}

impl Incoming {
    /// The next message; none when no more comes. Cancel-safe.
    pub(super) async fn message(&mut self) -> Result<Option<AttachRequest>, Closed> {
        match self {
            Incoming::Network(stream) => stream.message().await.map_err(|status| closed_by(&status)),
            Incoming::Local(reader) => local::message(reader).await,
        }
    }
}

/// Receives a runner's frames. Polling it is what lets the runner send more.
#[derive(Debug)]
pub struct Inbox {
    incoming: Incoming,
    /// A message whose frame waits for room in the budget.
    waiting: Option<AttachRequest>,
    assembler: Assembler,
    budget: Option<Budget>,
    numbers: Numbers,
    closed: Option<Closed>,
}

impl Inbox {
    pub(super) fn new(incoming: Incoming, numbers: Numbers, budget: Option<Budget>) -> Self {
        Self { incoming, waiting: None, assembler: Assembler::default(), budget, numbers, closed: None }
    }

    /// What comes next, or why there is no more; then always the same answer.
    ///
    /// Cancel-safe: a message that came in part stays in the stream's buffer.
    pub async fn next(&mut self) -> Result<Received, Closed> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone());
        }
        let result = match self.assembler.oldest() {
            None => self.next_open().await,
            Some(oldest) => {
                let in_time = tokio::time::timeout_at(oldest + FRAME_TIMEOUT, self.next_open()).await;
                in_time.unwrap_or(Err(Closed::Broken(Breach::OutOfPlace {
                    frame: "no rest of a chunked frame",
                })))
            }
        };
        if let Err(closed) = &result {
            self.closed = Some(closed.clone());
        }
        result
    }

    /// The next frame for the session; those for a link that lasts are passed over.
    ///
    /// Cancel-safe.
    pub async fn next_frame(&mut self) -> Result<Numbered, Closed> {
        loop {
            if let Received::Frame(frame) = self.next().await? {
                return Ok(frame);
            }
        }
    }

    async fn next_open(&mut self) -> Result<Received, Closed> {
        loop {
            let message = self.message().await?;
            if let Some(received) = self.take(message).map_err(Closed::Broken)? {
                return Ok(received);
            }
        }
    }

    async fn message(&mut self) -> Result<AttachRequest, Closed> {
        if self.waiting.is_none() {
            self.waiting = Some(self.incoming.message().await?.ok_or(Closed::Lost)?);
        }
        if let (Some(budget), Some(AttachRequest { frame: Some(Frame::Chunk(chunk)), .. })) =
            (&self.budget, &self.waiting)
            && !self.assembler.has(chunk.id)
        {
            self.assembler.check(chunk).map_err(Closed::Broken)?;
            let room = budget.room(chunk.total_bytes).await;
            self.assembler.keep_room(room);
        }
        Ok(self.waiting.take().expect("set above"))
    }

    fn take(&mut self, message: AttachRequest) -> Result<Option<Received>, Breach> {
        let Some(Frame::Chunk(chunk)) = &message.frame else { return self.take_whole(message) };
        if message.number != 0 {
            return Err(Breach::BadField { field: "number of a chunk" });
        }
        let Some(frame) = self.assembler.take(chunk)? else { return Ok(None) };
        let message = decode(frame)?;
        if matches!(message.frame, Some(Frame::Chunk(_))) {
            return Err(Breach::OutOfPlace { frame: "chunk in a chunk" });
        }
        self.take_whole(message)
    }

    fn take_whole(&mut self, message: AttachRequest) -> Result<Option<Received>, Breach> {
        let AttachRequest { number, frame } = message;
        let frame = frame.ok_or(Breach::OutOfPlace { frame: "unknown" })?;
        match (convert::is_numbered(&frame), number) {
            (true, _) => {
                if self.numbers.check(number)? == Turn::Drop {
                    return Ok(None);
                }
            }
            (false, 0) => {}
            (false, _) => return Err(Breach::BadField { field: "number of a frame without one" }),
        }
        let frame = match convert::aside(frame)? {
            Ok(aside) => return Ok(Some(Received::Aside(aside))),
            Err(frame) => convert::from_proto(frame)?,
        };
        Ok(Some(Received::Frame(Numbered { number, frame })))
    }
}

fn decode(frame: Bytes) -> Result<AttachRequest, Breach> {
    wire::check(&frame)?;
    AttachRequest::decode(frame).map_err(|error| Breach::Malformed { detail: error.to_string() })
}

/// Tells a message that can't be decoded, whose status has no cause below it, from a connection
/// that broke.
pub(super) fn closed_by(status: &Status) -> Closed {
    let decoding = matches!(status.code(), Code::OutOfRange | Code::Internal | Code::Unimplemented)
        && std::error::Error::source(status).is_none();
    if !decoding {
        return Closed::Lost;
    }
    Closed::Broken(Breach::Malformed { detail: status.message().chars().take(200).collect() })
}
