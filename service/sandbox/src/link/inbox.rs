//! What comes from a runner: whole, numbered, checked frames.

use bytes::Bytes;
use prost::Message;
use seance_core::link::Numbered;
use seance_proto::link::v1alpha1::{AttachRequest, attach_request::Frame};
use tonic::{Code, Status, Streaming};

use super::chunks::Assembler;
use super::numbers::{Acknowledged, Numbers, Turn};
use super::{Breach, wire};
use crate::convert;

/// Why nothing more comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// The runner or the connection ended.
    Lost,
    /// The runner broke the protocol.
    Broken(Breach),
}

/// Receives a runner's frames. Polling it is what lets the runner send more.
#[derive(Debug)]
pub struct Inbox {
    stream: Streaming<AttachRequest>,
    assembler: Assembler,
    numbers: Numbers,
    closed: Option<Closed>,
}

impl Inbox {
    pub(super) fn new(stream: Streaming<AttachRequest>, acknowledged: Acknowledged) -> Self {
        let numbers = Numbers::new(acknowledged);
        Self { stream, assembler: Assembler::default(), numbers, closed: None }
    }

    /// The next frame, or why there are no more; then always the same answer.
    ///
    /// Cancel-safe: a message that came in part stays in the stream's buffer.
    pub async fn next(&mut self) -> Result<Numbered, Closed> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone());
        }
        let result = self.next_open().await;
        if let Err(closed) = &result {
            self.closed = Some(closed.clone());
        }
        result
    }

    async fn next_open(&mut self) -> Result<Numbered, Closed> {
        loop {
            let message = match self.stream.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return Err(Closed::Lost),
                Err(status) => return Err(closed_by(&status)),
            };
            if let Some(frame) = self.take(message).map_err(Closed::Broken)? {
                return Ok(frame);
            }
        }
    }

    fn take(&mut self, message: AttachRequest) -> Result<Option<Numbered>, Breach> {
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

    fn take_whole(&mut self, message: AttachRequest) -> Result<Option<Numbered>, Breach> {
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
        convert::from_proto(frame).map(|frame| Some(Numbered { number, frame }))
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
