//! A sandbox backend whose runners follow scripts and whose claims and ends go as a test says.
//! What it waits passes on the paused clock of its tests (`start_paused`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seance_core::ids::{SandboxId, SessionId};
use seance_core::link::{Addressed, Numbered};
use seance_core::sandbox::{
    ClaimError, ClaimRequest, Claimed, EndReason, EndUnproven, EngineStatus, LinkEvent, LinkGone,
    LinkReceiver, LinkSender, SandboxBackend, SandboxEnd, SandboxHandle,
};
use seance_sessions::Environment;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::runner::{Greeting, Runner};

/// Frames on their way, in each direction.
const LINK_FRAMES: usize = 32;

/// How one claim goes.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// How long the claim takes.
    pub delay: Duration,
    /// Why it fails, if it does.
    pub error: Option<ClaimError>,
    /// The sandbox is one that there was before, as a runner that lies about itself would be.
    pub again: Option<SandboxId>,
    /// Where the claim stands in line while it takes its time.
    pub position: usize,
    /// How the runner takes its session.
    pub greeting: Greeting,
    /// How long the sandbox takes to end; none for as long as the test wants.
    pub end: Option<Duration>,
}

impl Plan {
    /// A claim that goes well.
    pub fn good() -> Self {
        Self { end: Some(Duration::from_millis(1)), ..Self::default() }
    }
}

/// What is known of one sandbox.
pub struct SandboxFacts {
    pub id: SandboxId,
    sessions: Mutex<Vec<SessionId>>,
    end_asked: CancellationToken,
    end_after: Option<Duration>,
    end_at: Mutex<Option<Instant>>,
    proven: Mutex<bool>,
}

impl SandboxFacts {
    pub fn assign(&self, session: SessionId) {
        self.sessions.lock().unwrap().push(session);
    }

    /// The sessions that it was given: never more than one.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.sessions.lock().unwrap().clone()
    }

    /// Whether its end was proven to the session.
    pub fn is_proven(&self) -> bool {
        *self.proven.lock().unwrap()
    }
}

pub struct FakeBackend {
    environment: Arc<dyn Environment>,
    plans: Mutex<VecDeque<Plan>>,
    usual: Mutex<Plan>,
    sandboxes: Mutex<Vec<Arc<SandboxFacts>>>,
    may_end: watch::Sender<bool>,
}

impl FakeBackend {
    pub fn new(environment: Arc<dyn Environment>) -> Self {
        Self {
            environment,
            plans: Mutex::default(),
            usual: Mutex::new(Plan::good()),
            sandboxes: Mutex::default(),
            may_end: watch::Sender::new(false),
        }
    }

    /// Says how the next claim goes that no earlier plan is for.
    pub fn plan(&self, plan: Plan) {
        self.plans.lock().unwrap().push_back(plan);
    }

    /// Lets sandboxes end whose plan gives no time.
    pub fn let_end(&self) {
        self.may_end.send_replace(true);
    }

    /// All sandboxes there ever were, in order.
    pub fn sandboxes(&self) -> Vec<Arc<SandboxFacts>> {
        self.sandboxes.lock().unwrap().clone()
    }

    /// Ends a sandbox as if it were killed from outside.
    pub fn kill(&self, sandbox: SandboxId) {
        let found = self.sandboxes().into_iter().find(|facts| facts.id == sandbox);
        found.expect("the backend made it").end_asked.cancel();
    }

    fn next_plan(&self) -> Plan {
        let planned = self.plans.lock().unwrap().pop_front();
        planned.unwrap_or_else(|| self.usual.lock().unwrap().clone())
    }
}

#[async_trait]
impl SandboxBackend for FakeBackend {
    fn name(&self) -> &'static str {
        "local"
    }

    fn confinement(&self) -> Vec<String> {
        Vec::new()
    }

    fn engines(&self) -> Vec<EngineStatus> {
        vec![EngineStatus { name: "javascript".to_owned(), version: Ok("1.2.3".to_owned()) }]
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, ClaimError> {
        let plan = self.next_plan();
        request.position.set(plan.position);
        let waited = tokio::time::timeout(request.wait, tokio::time::sleep(plan.delay)).await;
        request.position.set(0);
        if waited.is_err() {
            return Err(ClaimError::Exhausted { waited: request.wait });
        }
        if let Some(error) = plan.error {
            return Err(error);
        }
        let facts = Arc::new(SandboxFacts {
            id: plan
                .again
                .unwrap_or_else(|| SandboxId::mint(self.environment.now(), self.environment.random())),
            sessions: Mutex::default(),
            end_asked: CancellationToken::new(),
            end_after: plan.end,
            end_at: Mutex::default(),
            proven: Mutex::new(false),
        });
        self.sandboxes.lock().unwrap().push(facts.clone());
        let (to_runner, inbox) = mpsc::channel(LINK_FRAMES);
        let (outbox, from_runner) = mpsc::channel(LINK_FRAMES);
        let (ended, end) = watch::channel(SandboxEnd::new(EndReason::RunnerExited));
        let runner = Runner::new(inbox, outbox, facts.clone(), plan.greeting);
        let killed = facts.end_asked.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = killed.cancelled() => {}
                end = runner.run() => {
                    ended.send_replace(end);
                }
            }
        });
        Ok(Claimed {
            id: facts.id,
            engine_version: "1.2.3".to_owned(),
            sender: Arc::new(Sender(to_runner)),
            receiver: Box::new(Receiver { frames: from_runner, end }),
            handle: Arc::new(Handle { facts, may_end: self.may_end.subscribe() }),
        })
    }

    fn n_leaked(&self) -> usize {
        0
    }

    async fn shutdown(&self, _within: Duration) {
        for sandbox in self.sandboxes() {
            sandbox.end_asked.cancel();
        }
    }
}

struct Sender(mpsc::Sender<Addressed>);

#[async_trait]
impl LinkSender for Sender {
    async fn send(&self, frame: Addressed) -> Result<(), LinkGone> {
        self.0.send(frame).await.map_err(|_| LinkGone)
    }
}

struct Receiver {
    frames: mpsc::Receiver<Numbered>,
    end: watch::Receiver<SandboxEnd>,
}

#[async_trait]
impl LinkReceiver for Receiver {
    async fn recv(&mut self) -> LinkEvent {
        match self.frames.recv().await {
            Some(frame) => LinkEvent::Frame(frame),
            None => {
                // The runner says why it ended right after it let go of its frames.
                let _ = self.end.changed().await;
                LinkEvent::Ended(self.end.borrow().clone())
            }
        }
    }
}

struct Handle {
    facts: Arc<SandboxFacts>,
    may_end: watch::Receiver<bool>,
}

#[async_trait]
impl SandboxHandle for Handle {
    async fn end(&self, _reason: EndReason, within: Duration) -> Result<(), EndUnproven> {
        self.facts.end_asked.cancel();
        let ending = async {
            let Some(after) = self.facts.end_after else {
                let mut may_end = self.may_end.clone();
                let _ = may_end.wait_for(|may_end| *may_end).await;
                return;
            };
            let at = *self.facts.end_at.lock().unwrap().get_or_insert(Instant::now() + after);
            tokio::time::sleep_until(at).await;
        };
        if tokio::time::timeout(within, ending).await.is_err() {
            return Err(EndUnproven { message: format!("the keeper of {} does not answer", self.facts.id) });
        }
        *self.facts.proven.lock().unwrap() = true;
        Ok(())
    }
}
