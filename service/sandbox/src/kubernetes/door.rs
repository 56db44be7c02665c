//! Where a runner's stream is taken: who it is comes first, then what it wants.
//!
//! At the first contact its pod's token says who it is, once for each pod; after that the ticket that it
//! was given. Nothing is allocated for a stranger but its connection, which is counted.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seance_core::ids::SandboxId;
use seance_operator_api::SandboxPool;
use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::link::v1alpha1::link_server::{self, LinkServer};
use seance_proto::link::v1alpha1::{AttachRequest, Hello};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::claimed::{listener, read_warm};
use super::peers::Stranger;
use super::review::{ReviewError, Reviews, sandbox_id};
use super::tickets::{Ticket, Tickets};
use super::world::{Inner, Phase, Runner, World};
use crate::link::{self, Attached, Budget, HELLO_TIMEOUT, Lasting, Messages, Refusal, SendBudget};

/// What a ticket is good for beyond the longest life of a pod. Kubernetes ends pods at their deadline with
/// a delay, and clocks differ.
const TICKET_MARGIN: Duration = Duration::from_secs(86_400);
/// The longest that a pod can wait for a session, where its pool can't be looked at.
const WARM_MAX: Duration = Duration::from_secs(366 * 86_400);
/// How long the Sandbox of a pod that is known to the API server may take to be seen here.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// How long a runner with a session is kept waiting for its session to be read from the store.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(30);

/// What all connections share.
pub(super) struct Shared {
    pub(super) world: Arc<World>,
    pub(super) reviews: Reviews,
    pub(super) tickets: Tickets,
    pub(super) budget: Budget,
    pub(super) send_budget: SendBudget,
    /// The longest life of a session's sandbox.
    pub(super) session_max: Duration,
}

/// The door of one connection.
pub(super) struct Door {
    shared: Arc<Shared>,
    address: IpAddr,
    is_taken: AtomicBool,
    /// Counts against its address until it is known.
    stranger: Mutex<Option<Stranger>>,
    known: watch::Sender<bool>,
    /// Ends the connection.
    cut: CancellationToken,
}

/// Who a runner is, and what it showed for it.
struct Known {
    id: SandboxId,
    pool: String,
    /// The ticket's generation; none for a token.
    generation: Option<u64>,
}

impl Door {
    /// The service of one connection, whether its runner is known, and what ends it.
    pub(super) fn new(
        shared: Arc<Shared>,
        stranger: Stranger,
    ) -> (LinkServer<Self>, watch::Receiver<bool>, CancellationToken) {
        let (known, is_known) = watch::channel(false);
        let (address, stranger) = (stranger.address(), Mutex::new(Some(stranger)));
        let cut = CancellationToken::new();
        let is_taken = AtomicBool::new(false);
        let door = Self { shared, address, is_taken, stranger, known, cut: cut.clone() };
        let server = LinkServer::new(door)
            .max_decoding_message_size(LINK_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(LINK_MESSAGE_BYTES_MAX);
        (server, is_known, cut)
    }

    async fn identify(&self, metadata: &MetadataMap) -> Result<Known, Status> {
        if let Some(ticket) = text(metadata, "seance-ticket")? {
            return self.by_ticket(ticket);
        }
        let bearer = text(metadata, "authorization")?.and_then(|text| text.strip_prefix("Bearer "));
        match bearer {
            Some(token) => self.by_token(token).await,
            None => Err(Status::unauthenticated("a runner shows a token or a ticket")),
        }
    }

    fn by_ticket(&self, ticket: &str) -> Result<Known, Status> {
        let refused = || Status::unauthenticated("the ticket is refused");
        let now = seconds_since_1970();
        let ticket = self.shared.tickets.open(ticket, now).map_err(|error| {
            tracing::info!(%error, "a ticket is refused");
            refused()
        })?;
        let id = sandbox_id(&ticket.pod).ok_or_else(refused)?;
        let inner = self.shared.world.lock();
        if inner.runners.get(&id).is_some_and(|runner| ticket.generation < runner.generation_min) {
            tracing::warn!(sandbox = %id, generation = ticket.generation, "a ticket was shown again");
            return Err(refused());
        }
        Ok(Known { id, pool: ticket.pool, generation: Some(ticket.generation) })
    }

    async fn by_token(&self, token: &str) -> Result<Known, Status> {
        let pod = self.shared.reviews.review(self.address, token).await.map_err(|error| {
            tracing::info!(%error, "a token is not accepted");
            match error {
                ReviewError::Refused(_) => Status::unauthenticated("the token is refused"),
                ReviewError::Unavailable(_) => Status::unavailable("tokens can't be reviewed now"),
            }
        })?;
        let deadline = Instant::now() + SEEN_WITHIN;
        let pool = self
            .shared
            .world
            .wait_for(deadline, |inner| Some(inner.sandbox_of(pod.id)?.spec.pool.clone()))
            .await;
        let pool = pool.ok_or_else(|| {
            tracing::info!(sandbox = %pod.id, pod = pod.name, "a pod has no Sandbox, or it isn't seen yet");
            Status::unavailable("the pod isn't known yet")
        })?;
        if self.shared.world.lock().runners.get(&pod.id).is_some_and(|runner| runner.generation > 0) {
            tracing::warn!(sandbox = %pod.id, pod = pod.name, "a pod's first contact came twice");
            return Err(Status::permission_denied("a pod has one first contact"));
        }
        Ok(Known { id: pod.id, pool, generation: None })
    }

    /// Waits for the session of a runner that says it has one and that nobody here knows.
    async fn await_session(&self, known: &Known, hello: &Hello) -> Result<(), Status> {
        let has_session = hello.resume.as_ref().is_some_and(|resume| !resume.session_id.is_empty());
        if !has_session {
            return Ok(());
        }
        let deadline = Instant::now() + TAKEN_BACK_WITHIN;
        let id = known.id;
        let is_there =
            self.shared.world.wait_for(deadline, |inner| inner.runners.contains_key(&id).then_some(()));
        match is_there.await {
            Some(()) => Ok(()),
            None if self.shared.world.lock().has_settled() => {
                Err(Status::permission_denied("no session has this sandbox"))
            }
            None => Err(Status::unavailable("the session isn't known yet")),
        }
    }

    fn attach_known(
        &self,
        known: Known,
        hello: Hello,
        version: u32,
        stream: Streaming<AttachRequest>,
    ) -> Result<Messages, Status> {
        let world = &self.shared.world;
        let connected = world.change(|inner| {
            if !inner.runners.contains_key(&known.id) {
                new_runner(world, inner, &known)?;
            }
            let runner = inner.runners.get_mut(&known.id).expect("it was there or was made");
            if runner.pool.is_empty() {
                runner.pool.clone_from(&known.pool);
            }
            let warm_max = inner.pools.get(&runner.pool).map_or(WARM_MAX, warm_max);
            let ticket_life = ticket_life(warm_max, self.shared.session_max);
            let shown = known.generation.unwrap_or(0);
            let generation = runner.generation.max(shown) + 1;
            let ticket = self.shared.tickets.seal(&Ticket {
                pod: known.id.to_string().trim_start_matches("sbx_").to_owned(),
                pool: runner.pool.clone(),
                expires: seconds_since_1970().saturating_add(ticket_life.as_secs()),
                generation,
            });
            let engines = engines(&hello);
            let Shared { budget, send_budget, .. } = &*self.shared;
            let (budget, send_budget, cut) = (budget.clone(), send_budget.clone(), self.cut.clone());
            let attached = Attached { hello, version, stream, ticket, budget, send_budget, cut };
            let connected = runner.link.connect(attached);
            if let Ok((n_stream, _)) = &connected {
                runner.engines.clone_from(&engines);
                (runner.generation, runner.n_stream) = (generation, *n_stream);
                runner.generation_min = runner.generation_min.max(shown);
                let pool = runner.pool.clone();
                // A name that the pool doesn't have is the runner's own invention.
                let known = inner.pools.get(&pool).map(|pool| pool.spec.engines.as_slice());
                let known = known.unwrap_or_default();
                let engines: Vec<_> = engines.into_iter().filter(|(name, _)| known.contains(name)).collect();
                inner.versions.extend(engines.into_iter().map(|(name, is)| ((pool.clone(), name), is)));
            }
            inner.look(known.id);
            Ok::<_, Status>(connected.map(|(_, messages)| messages))
        })?;
        connected.map_err(|refusal| {
            tracing::warn!(sandbox = %known.id, %refusal, "the stream of a runner is refused");
            match refusal {
                Refusal::Breach(_) => Status::failed_precondition("the handshake failed"),
                Refusal::StaleOwner => Status::unavailable("the session has another owner"),
                Refusal::Ended => Status::permission_denied("the sandbox has ended"),
                Refusal::Full => Status::unavailable("there is no room now"),
            }
        })
    }
}

/// A runner that nobody knows and that has no session.
fn new_runner(world: &Arc<World>, inner: &mut Inner, known: &Known) -> Result<(), Status> {
    if inner.is_stopping {
        return Err(Status::unavailable("the service is stopping"));
    }
    let Some(sandbox) = inner.sandbox_of(known.id) else {
        return Err(Status::unavailable("the pod isn't known yet"));
    };
    if let Some(bar) = inner.bars(known.id) {
        return Err(Status::permission_denied(bar));
    }
    let (sandbox, pool) = (sandbox.metadata.name.clone().unwrap_or_default(), sandbox.spec.pool.clone());
    let link = Lasting::new(listener(world, known.id));
    let (stop, reader) = read_warm(world, known.id, &link);
    inner.runners.insert(known.id, Runner::new(sandbox, pool, link, Phase::Warm { stop, reader }));
    Ok(())
}

#[tonic::async_trait]
impl link_server::Link for Door {
    type AttachStream = Messages;

    async fn attach(&self, request: Request<Streaming<AttachRequest>>) -> Result<Response<Messages>, Status> {
        if self.is_taken.swap(true, Ordering::Relaxed) {
            return Err(Status::already_exists("a runner has one link"));
        }
        let (metadata, _, mut stream) = request.into_parts();
        let known = self.identify(&metadata).await?;
        drop(self.stranger.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.known.send_replace(true);
        let hello = timeout(HELLO_TIMEOUT, link::hello(&mut stream)).await;
        let hello = hello.ok().and_then(Result::ok);
        let hello =
            hello.ok_or_else(|| Status::failed_precondition("the first frame is a hello, in time"))?;
        let version =
            link::check(&hello).map_err(|breach| Status::failed_precondition(breach.to_string()))?;
        self.await_session(&known, &hello).await?;
        Ok(Response::new(self.attach_known(known, hello, version, stream)?))
    }
}

fn warm_max(pool: &SandboxPool) -> Duration {
    Duration::from_secs(u64::try_from(pool.spec.max_warm_age_seconds).unwrap_or(0))
}

/// How long a ticket is good: for as long as its pod can be there, so that none expires that a session
/// still needs, even where its link never broke before. Each connect gives a new one.
fn ticket_life(warm_max: Duration, session_max: Duration) -> Duration {
    warm_max.saturating_add(session_max).saturating_add(TICKET_MARGIN)
}

fn engines(hello: &Hello) -> Vec<(String, String)> {
    hello.engines.iter().map(|engine| (engine.language.clone(), engine.version.clone())).collect()
}

fn text<'a>(metadata: &'a MetadataMap, name: &str) -> Result<Option<&'a str>, Status> {
    let value = metadata.get(name).map(|value| value.to_str());
    value.transpose().map_err(|_| Status::unauthenticated("a credential has to be text"))
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
