//! A runner that does what a program's source says: a line of small orders, parted by `;`.
//!
//! | order | what the program does |
//! |---|---|
//! | `text X`, `out X` | writes X by `text()`, or to standard output |
//! | `flood N X` | writes X N times to standard output |
//! | `sleep MS` | waits |
//! | `call TOOL JSON` | calls a tool and waits for the result; a failure is thrown |
//! | `send TOOL JSON` | calls a tool and goes on |
//! | `await N`, `try N` | waits for call N; a failure is thrown, or not |
//! | `abort N` | gives up on call N |
//! | `return JSON`, `throw X` | ends |
//! | `leave JSON` | ends with its calls still at work, which no honest host does |
//! | `die SIGNAL` | its host is killed |
//! | `cut REASON` | its sandbox ends: `link`, `memory`, `protocol` |
//! | `deaf` | is not told of stops from here on |
//! | `late X` | writes X once more after its end |
//! | `hang` | waits for ever |

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seance_core::event::OutputSource;
use seance_core::ids::ProgramNumber;
use seance_core::link::{
    Addressed, FromRunner, HostEnd, HostEnded, HostReport, Numbered, RunProgram, ToRunner,
};
use seance_core::program::{CallError, ProgramError};
use seance_core::sandbox::{EndReason, SandboxEnd};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::backend::SandboxFacts;

/// How a runner takes its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Greeting {
    /// It says that it has it.
    #[default]
    Takes,
    /// It says nothing.
    Silent,
    /// It ends.
    Dies,
}

/// Why a script goes no further.
enum Halt {
    Returned(Option<String>),
    Left(Option<String>),
    Thrown(Box<ProgramError>),
    Died(String),
    Stopped,
    Cut(SandboxEnd),
    Gone,
}

enum Until {
    Time(Instant),
    Result(u64),
    AllResults,
    Stop,
}

pub struct Runner {
    pub inbox: mpsc::Receiver<Addressed>,
    pub outbox: mpsc::Sender<Numbered>,
    pub facts: Arc<SandboxFacts>,
    pub greeting: Greeting,
    number: u64,
    program: ProgramNumber,
    results: HashMap<u64, Result<String, CallError>>,
    unanswered: BTreeSet<u64>,
    n_calls: u64,
    is_deaf: bool,
    late: Option<Bytes>,
}

impl Runner {
    pub fn new(
        inbox: mpsc::Receiver<Addressed>,
        outbox: mpsc::Sender<Numbered>,
        facts: Arc<SandboxFacts>,
        greeting: Greeting,
    ) -> Self {
        Self {
            inbox,
            outbox,
            facts,
            greeting,
            number: 0,
            program: ProgramNumber(0),
            results: HashMap::new(),
            unanswered: BTreeSet::new(),
            n_calls: 0,
            is_deaf: false,
            late: None,
        }
    }

    /// Runs until the sandbox ends; says why it did.
    pub async fn run(mut self) -> SandboxEnd {
        while let Some(Addressed { frame, .. }) = self.inbox.recv().await {
            let done = match frame {
                ToRunner::Assign { session, .. } => {
                    self.facts.assign(session);
                    match self.greeting {
                        Greeting::Takes => self.say(0, FromRunner::Assigned { session }).await,
                        Greeting::Silent => Ok(()),
                        Greeting::Dies => return SandboxEnd::new(EndReason::RunnerExited),
                    }
                }
                ToRunner::Execute(run) => self.program(*run).await,
                ToRunner::Shutdown => return SandboxEnd::new(EndReason::RunnerExited),
                ToRunner::Ack { number } => {
                    assert!(number <= self.number, "an acknowledgement of a frame that was not sent");
                    Ok(())
                }
                ToRunner::Catalog { .. } | ToRunner::CallResult { .. } | ToRunner::StopProgram { .. } => {
                    Ok(())
                }
            };
            match done {
                Ok(()) => {}
                Err(Halt::Cut(end)) => return end,
                Err(_) => break,
            }
        }
        SandboxEnd::new(EndReason::RunnerExited)
    }

    async fn program(&mut self, run: RunProgram) -> Result<(), Halt> {
        assert!(run.program > self.program, "program {} was sent twice", run.program);
        self.program = run.program;
        self.results.clear();
        self.unanswered.clear();
        self.n_calls = 0;
        self.is_deaf = false;
        self.late = None;
        let started = FromRunner::ProgramStarted { program: run.program, engine_version: "1.2.3".into() };
        self.send(started).await?;
        let halt = self.script(&run.source).await;
        let halt = match halt {
            Halt::Returned(value) => match self.pump(Until::AllResults).await {
                Ok(()) => Halt::Returned(value),
                Err(halt) => halt,
            },
            halt => halt,
        };
        let reported = |value, error| (HostEnd::Reported, Some(report(value, error)), String::new());
        let (end, report, signal) = match halt {
            Halt::Returned(value) | Halt::Left(value) => reported(value, None),
            Halt::Thrown(error) => reported(None, Some(*error)),
            Halt::Died(signal) => (HostEnd::Lost, None, signal),
            Halt::Stopped => (HostEnd::Stopped, None, String::new()),
            halt @ (Halt::Cut(_) | Halt::Gone) => return Err(halt),
        };
        let program = self.program;
        let ended = HostEnded {
            program,
            end,
            report,
            signal,
            exit_status: 0,
            cpu_us: 1_000,
            wall_us: 2_000,
            peak_memory_bytes: 1 << 20,
            detail: String::new(),
        };
        self.send(FromRunner::ProgramEnded(Box::new(ended))).await?;
        if let Some(data) = self.late.take() {
            self.send(FromRunner::Output { program, source: OutputSource::Stdout, data }).await?;
        }
        Ok(())
    }

    async fn script(&mut self, source: &str) -> Halt {
        for order in source.split(';').map(str::trim).filter(|order| !order.is_empty()) {
            if let Err(halt) = self.order(order).await {
                return halt;
            }
        }
        Halt::Returned(None)
    }

    async fn order(&mut self, order: &str) -> Result<(), Halt> {
        while let Ok(frame) = self.inbox.try_recv() {
            self.hear(frame)?;
        }
        let (verb, rest) = order.split_once(' ').unwrap_or((order, ""));
        match verb {
            "text" => self.write(OutputSource::Text, rest).await,
            "out" => self.write(OutputSource::Stdout, rest).await,
            "flood" => {
                let (n, what) = rest.split_once(' ').expect("flood N X");
                for _ in 0..parsed(n) {
                    self.write(OutputSource::Stdout, what).await?;
                    while let Ok(frame) = self.inbox.try_recv() {
                        self.hear(frame)?;
                    }
                }
                Ok(())
            }
            "sleep" => self.pump(Until::Time(Instant::now() + Duration::from_millis(parsed(rest)))).await,
            "call" => {
                let call = self.call(rest).await?;
                self.pump(Until::Result(call)).await?;
                self.result(call)
            }
            "send" => self.call(rest).await.map(drop),
            "await" => {
                self.pump(Until::Result(parsed(rest))).await?;
                self.result(parsed(rest))
            }
            "try" => self.pump(Until::Result(parsed(rest))).await,
            "abort" => {
                let call = parsed(rest);
                self.unanswered.remove(&call);
                self.send(FromRunner::CancelCall { program: self.program, call }).await
            }
            "return" => Err(Halt::Returned(Some(rest.to_owned()))),
            "leave" => Err(Halt::Left(Some(rest.to_owned()))),
            "throw" => Err(Halt::Thrown(exception(rest))),
            "die" => Err(Halt::Died(rest.to_owned())),
            "cut" => Err(Halt::Cut(SandboxEnd::new(match rest {
                "link" => EndReason::LinkLost,
                "memory" => EndReason::OutOfMemory,
                _ => EndReason::ProtocolBroken,
            }))),
            "deaf" => {
                self.is_deaf = true;
                Ok(())
            }
            "late" => {
                self.late = Some(Bytes::copy_from_slice(rest.as_bytes()));
                Ok(())
            }
            "hang" => self.pump(Until::Stop).await,
            _ => panic!("a script has no order {order:?}"),
        }
    }

    async fn write(&mut self, source: OutputSource, what: &str) -> Result<(), Halt> {
        let data = Bytes::copy_from_slice(what.as_bytes());
        self.send(FromRunner::Output { program: self.program, source, data }).await
    }

    async fn call(&mut self, what: &str) -> Result<u64, Halt> {
        let (tool, arguments) = what.split_once(' ').unwrap_or((what, "{}"));
        self.n_calls += 1;
        let call = self.n_calls;
        self.unanswered.insert(call);
        let (tool, arguments) = (tool.to_owned(), arguments.to_owned());
        self.send(FromRunner::ToolCall { program: self.program, call, tool, arguments }).await?;
        Ok(call)
    }

    fn result(&self, call: u64) -> Result<(), Halt> {
        match self.results.get(&call) {
            Some(Err(error)) => Err(Halt::Thrown(exception(&format!("{}: {}", error.code, error.message)))),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    async fn pump(&mut self, until: Until) -> Result<(), Halt> {
        loop {
            let is_there = match &until {
                Until::Time(at) => Instant::now() >= *at,
                Until::Result(call) => !self.unanswered.contains(call),
                Until::AllResults => self.unanswered.is_empty(),
                Until::Stop => false,
            };
            if is_there {
                return Ok(());
            }
            let frame = match &until {
                Until::Time(at) => match tokio::time::timeout_at(*at, self.inbox.recv()).await {
                    Ok(frame) => frame,
                    Err(_) => continue,
                },
                Until::Result(_) | Until::AllResults | Until::Stop => self.inbox.recv().await,
            };
            self.hear(frame.ok_or(Halt::Gone)?)?;
        }
    }

    fn hear(&mut self, Addressed { frame, .. }: Addressed) -> Result<(), Halt> {
        match frame {
            ToRunner::StopProgram { program } if program == self.program && !self.is_deaf => {
                Err(Halt::Stopped)
            }
            ToRunner::CallResult { program, call, result } if program == self.program => {
                self.unanswered.remove(&call);
                self.results.insert(call, result);
                Ok(())
            }
            ToRunner::Execute(run) => panic!("program {} came while {} runs", run.program, self.program),
            ToRunner::Assign { .. } => panic!("a runner was given a second session"),
            ToRunner::StopProgram { .. }
            | ToRunner::CallResult { .. }
            | ToRunner::Catalog { .. }
            | ToRunner::Ack { .. } => Ok(()),
            ToRunner::Shutdown => Err(Halt::Gone),
        }
    }

    async fn send(&mut self, frame: FromRunner) -> Result<(), Halt> {
        self.number += 1;
        self.say(self.number, frame).await
    }

    async fn say(&mut self, number: u64, frame: FromRunner) -> Result<(), Halt> {
        self.outbox.send(Numbered { number, frame }).await.map_err(|_| Halt::Gone)
    }
}

fn report(value: Option<String>, error: Option<ProgramError>) -> HostReport {
    HostReport { value, error, ..HostReport::default() }
}

fn exception(message: &str) -> Box<ProgramError> {
    let (code, message) = ("exception".to_owned(), message.to_owned());
    Box::new(ProgramError { code, message, ..ProgramError::default() })
}

fn parsed(text: &str) -> u64 {
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}
