//! A runner made of nothing but frames, which says whatever a test wants.

use std::net::SocketAddr;

use seance_proto::link::v1alpha1::{
    Assigned, AttachRequest, AttachResponse, Engine, Hello, HostEnd, IsolationCheck, IsolationOutcome,
    IsolationReport, ProgramEnded, ProgramStarted, attach_request::Frame, attach_response,
    link_client::LinkClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};

use super::{Files, uid};
use crate::testee::DEADLINE;

/// What is shown at the door.
#[derive(Debug, Clone)]
pub enum Credential {
    Token(String),
    Ticket(String),
    None,
}

impl Credential {
    pub fn of_pod(n: u32) -> Self {
        Credential::Token(format!("token-of-{}", uid(n)))
    }
}

/// A stream that was taken.
pub struct Client {
    pub frames: mpsc::Sender<AttachRequest>,
    pub incoming: Streaming<AttachResponse>,
    pub ticket: String,
    pub number: u64,
}

pub fn hello() -> Hello {
    let engine = |language: &str| Engine { language: language.to_owned(), version: "9".to_owned() };
    let engines = vec![engine("javascript"), engine("typescript")];
    Hello { version_min: 2, version_max: 2, engines, ..Hello::default() }
}

impl Client {
    /// Dials and says hello; gives the status with which it was refused.
    pub async fn dial(
        files: &Files,
        address: SocketAddr,
        credential: Credential,
        hello: Hello,
    ) -> Result<Self, Status> {
        let dialled = tokio::time::timeout(DEADLINE, attach(files, address, credential, hello)).await;
        dialled.expect("the door answers in time")
    }

    pub async fn send(&self, frame: Frame) {
        self.raw(0, frame).await;
    }

    pub async fn numbered(&mut self, frame: Frame) {
        self.number += 1;
        self.raw(self.number, frame).await;
    }

    /// What a broken stream does with it is for the test to see.
    pub async fn raw(&self, number: u64, frame: Frame) {
        drop(self.frames.send(AttachRequest { number, frame: Some(frame) }).await);
    }

    /// Says that all that is required is closed.
    pub async fn report_closed(&self) {
        self.report("pids-limit", "", IsolationOutcome::Limited).await;
    }

    /// Says that the resolver can be reached.
    pub async fn report_open(&self) {
        self.report("resolver", "10.96.0.10:53", IsolationOutcome::Open).await;
    }

    async fn report(&self, name: &str, address: &str, outcome: IsolationOutcome) {
        let (name, address) = (name.to_owned(), address.to_owned());
        let checks = vec![IsolationCheck { name, address, outcome: outcome.into() }];
        self.send(Frame::IsolationReport(IsolationReport { checks, memory_peak_bytes: 77 })).await;
    }

    /// Takes a session and runs its programs, each of which has the value 42, until the stream ends.
    pub async fn serve(mut self) {
        self.report_closed().await;
        loop {
            let message = self.incoming.message().await.ok().flatten();
            match message.and_then(|message| message.frame) {
                Some(attach_response::Frame::Assign(assign)) => {
                    self.send(Frame::Assigned(Assigned { session_id: assign.session_id })).await;
                }
                Some(attach_response::Frame::Execute(run)) => {
                    let program = run.program;
                    let engine_version = "9".to_owned();
                    self.numbered(Frame::ProgramStarted(ProgramStarted { program, engine_version })).await;
                    let report = seance_proto::host::v1alpha1::Ended {
                        value_json: Some("42".to_owned()),
                        ..Default::default()
                    };
                    let end = HostEnd::Reported.into();
                    let ended = ProgramEnded { program, end, report: Some(report), ..Default::default() };
                    self.numbered(Frame::ProgramEnded(ended)).await;
                }
                Some(_) => {}
                None => return,
            }
        }
    }

    /// The next frame, or nothing when the stream has ended.
    pub async fn next(&mut self) -> Option<attach_response::Frame> {
        let message = tokio::time::timeout(DEADLINE, self.incoming.message()).await;
        message.expect("something comes in time").ok().flatten().and_then(|message| message.frame)
    }

    /// Waits until the service has ended the stream.
    pub async fn ended(&mut self) {
        while self.next().await.is_some() {}
    }
}

async fn attach(
    files: &Files,
    address: SocketAddr,
    credential: Credential,
    hello: Hello,
) -> Result<Client, Status> {
    let ca = std::fs::read(files.path("ca.crt")).expect("it was written");
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("seance-link");
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("an address");
    let channel = endpoint.tls_config(tls).expect("a certificate").connect().await;
    let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
    let (frames, outgoing) = mpsc::channel(8);
    frames.send(AttachRequest { number: 0, frame: Some(Frame::Hello(hello)) }).await.expect("there is room");
    let mut request = Request::new(ReceiverStream::new(outgoing));
    let (name, value) = match credential {
        Credential::Token(token) => ("authorization", format!("Bearer {token}")),
        Credential::Ticket(ticket) => ("seance-ticket", ticket),
        Credential::None => ("x-nothing", String::new()),
    };
    request.metadata_mut().insert(name, value.parse().expect("text"));
    let mut incoming = LinkClient::new(channel).attach(request).await?.into_inner();
    let first = incoming.message().await?.and_then(|message| message.frame);
    let Some(attach_response::Frame::Welcome(welcome)) = first else { panic!("no welcome: {first:?}") };
    Ok(Client { frames, incoming, ticket: welcome.ticket, number: 0 })
}
