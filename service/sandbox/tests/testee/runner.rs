//! The inside: says hello, takes its session, and hands each "program" to [`super::attempts`].

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::codec::{self, Decoder};
use seance_proto::link::v1alpha1::{
    Assigned, AttachRequest, AttachResponse, Engine, Hello, HostEnd, Output, OutputSource, ProgramEnded,
    attach_request::Frame, attach_response,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use crate::attempt;

pub fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime needs nothing that a sandbox lacks");
    runtime.block_on(serve());
    ExitCode::SUCCESS
}

async fn serve() {
    // SAFETY: the keeper left the link here, for us alone.
    let link = unsafe { OwnedFd::from_raw_fd(3) };
    let link = std::os::unix::net::UnixStream::from(link);
    link.set_nonblocking(true).expect("it is a socket");
    let (reader, writer) = UnixStream::from_std(link).expect("it is a socket").into_split();
    let (frames, queue) = mpsc::channel(64);
    let writing = tokio::spawn(write(writer, queue));
    let mut incoming = Incoming { socket: reader, decoder: Decoder::new(LINK_MESSAGE_BYTES_MAX) };
    let mut wire = Wire { frames, number: 0 };
    let engine = Engine { language: "javascript".to_owned(), version: "test".to_owned() };
    let hello = Hello { version_min: 1, version_max: 1, engines: vec![engine], ..Hello::default() };
    wire.unnumbered(Frame::Hello(hello)).await;
    while let Some(message) = incoming.message().await {
        match message.frame {
            Some(attach_response::Frame::Assign(assign)) => {
                wire.unnumbered(Frame::Assigned(Assigned { session_id: assign.session_id })).await;
            }
            Some(attach_response::Frame::Execute(execute)) => {
                let output = attempt(&execute.source, &mut wire).await;
                wire.numbered(output_of(execute.program, output.into())).await;
                let end = HostEnd::Reported as i32;
                let report = Some(Default::default());
                let ended = ProgramEnded { program: execute.program, end, report, ..Default::default() };
                wire.numbered(Frame::ProgramEnded(ended)).await;
            }
            Some(attach_response::Frame::Shutdown(_)) => return,
            _ => {}
        }
    }
    drop(wire);
    writing.await.expect("writing doesn't panic");
}

/// From the service.
struct Incoming {
    socket: OwnedReadHalf,
    decoder: Decoder,
}

impl Incoming {
    async fn message(&mut self) -> Option<AttachResponse> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            if let Some(message) = self.decoder.next_message().expect("the service sends frames") {
                return Some(message);
            }
            match self.socket.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.decoder.extend(&buffer[..n]),
            }
        }
    }
}

async fn write(mut socket: OwnedWriteHalf, mut queue: mpsc::Receiver<AttachRequest>) {
    while let Some(message) = queue.recv().await {
        if socket.write_all(&codec::encode(&message).expect("it fits in a frame")).await.is_err() {
            return;
        }
    }
}

pub fn output_of(program: u64, data: bytes::Bytes) -> Frame {
    Frame::Output(Output { program, source: OutputSource::Text as i32, data })
}

/// To the service.
pub struct Wire {
    pub frames: mpsc::Sender<AttachRequest>,
    pub number: u64,
}

impl Wire {
    pub async fn numbered(&mut self, frame: Frame) {
        self.number += 1;
        self.raw(self.number, Some(frame)).await;
    }

    pub async fn unnumbered(&mut self, frame: Frame) {
        self.raw(0, Some(frame)).await;
    }

    pub async fn raw(&mut self, number: u64, frame: Option<Frame>) {
        self.frames.send(AttachRequest { number, frame }).await.expect("the link is there");
    }
}
