//! The operator as a whole: it gets the lease, watches, works, and stops in order.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{Action, Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::cluster::{Cluster, Error};
use crate::context::{Context, Settings};
use crate::http::{Health, Shown, serve};
use crate::lease::Election;
use crate::metrics::Metrics;
use crate::watch::{Concern, Concerns, Queues, concerns};
use crate::{leaks, link_watch, pool, sandbox};

mod watches;

/// What is under way when the operator stops may take so long.
const DRAIN: Duration = Duration::from_secs(10);
/// Changes of an object within this time are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Runs until a signal, or until something fails that must not.
///
/// # Errors
/// What failed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let metrics = Metrics::new();
    let cluster = Cluster::connect(&metrics).await.context("can't find the cluster")?;
    let stop = CancellationToken::new();
    let (stores, writers) = watches::stores(args.watch_nodes);
    let (link_state, link) = tokio::sync::watch::channel(link_watch::unknown());
    let settings = Settings {
        canaries: canaries(&args),
        finished_retention: Duration::from_secs(args.finished_retention.into()),
        warm_within: Duration::from_secs(args.warm_within.into()),
    };
    tracing::info!(?args, canaries = ?settings.canaries, "starts");
    let context = Arc::new(Context::new(cluster, settings, stores, link, metrics.clone()));
    let health = Health::default();

    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let shown = Shown { metrics, health: health.clone(), refresh: refresh(&context) };
    let (address, stop_serving) = (args.listen, stop.clone());
    tasks.spawn(async move { serve(address, shown, stop_serving).await.context("can't serve health") });
    tasks.spawn(stop_on_signal(stop.clone()));
    let work = Work { args, context, writers, link_state, health };
    tasks.spawn(lead(work, stop.clone()));
    // Each of them ends when it is stopped, and stops the others when it ends by itself.
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        stop.cancel();
        result = result.and(ended.unwrap_or_else(|error| Err(error.into())));
    }
    result
}

fn canaries(args: &Args) -> Vec<seance_operator_api::pool::Canary> {
    let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    args.canaries(|name| std::env::var(name).ok(), &resolv_conf)
}

fn refresh(context: &Arc<Context>) -> Arc<dyn Fn() + Send + Sync> {
    let context = Arc::clone(context);
    Arc::new(move || {
        let n_leaked = leaks::count(&context.stores.sandboxes.state(), &context.stores.pods.state());
        let leaked = context.metrics.leaked.with_label_values(&["operator"]);
        leaked.set(i64::try_from(n_leaked).unwrap_or(i64::MAX));
    })
}

async fn stop_on_signal(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("can't listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("can't listen for signals")?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("stops: SIGTERM"),
        _ = interrupt.recv() => tracing::info!("stops: SIGINT"),
        () = stop.cancelled() => {}
    }
    Ok(())
}

/// What the replica that works needs.
struct Work {
    args: Args,
    context: Arc<Context>,
    writers: watches::Writers,
    link_state: tokio::sync::watch::Sender<crate::context::LinkState>,
    health: Health,
}

/// Waits for the lease, works while it holds it, lets go.
async fn lead(work: Work, stop: CancellationToken) -> anyhow::Result<()> {
    if !work.args.leader_election {
        work.context.metrics.leader.set(1);
        return self::work(work, stop).await;
    }
    let mut election = election(&work);
    tokio::select! {
        () = election.acquire() => {}
        () = stop.cancelled() => return Ok(()),
    }
    tracing::info!("this replica works");
    let leader = work.context.metrics.leader.clone();
    leader.set(1);
    let stop_work = stop.child_token();
    let result = tokio::select! {
        result = self::work(work, stop_work) => result,
        lost = election.keep() => return Err(lost.into()),
    };
    leader.set(0);
    election.release().await;
    result
}

fn election(work: &Work) -> Election {
    let args = &work.args;
    let client = work.context.cluster.client();
    let namespace = args.lease_namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let identity = args.identity.clone().unwrap_or_else(|| {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".to_owned());
        format!("{host}-{:08x}", rand::random::<u32>())
    });
    tracing::info!(%identity, %namespace, lease = %args.lease_name, "waits for the lease");
    Election::new(work.context.cluster.api(&namespace), args.lease_name.clone(), identity)
}

/// Watches and works until it is stopped.
async fn work(work: Work, stop: CancellationToken) -> anyhow::Result<()> {
    let Work { args, context, writers, link_state, health } = work;
    let (concerns, queues) = concerns();
    let mut watching = JoinSet::new();
    let source = match (&args.link_service, args.link_address) {
        (Some(service), _) => {
            link_watch::Source::Service(context.cluster.api(&service.namespace), service.name.clone())
        }
        (None, Some(address)) => link_watch::Source::Address(address),
        (None, None) => anyhow::bail!("neither --link-service nor --link-address is given"),
    };
    watching.spawn(link_watch::keep(source, args.link_ca_file.clone(), link_state));
    watching.spawn(tell_of_link(Arc::clone(&context), concerns.clone()));
    let namespace = args.namespace.as_deref();
    let seen = watches::start(&mut watching, &context, namespace, writers, &concerns, &health);
    drop(concerns);
    tokio::select! {
        seen = seen => seen?,
        () = stop.cancelled() => return Ok(()),
    }
    tracing::info!("everything was seen; work begins");

    let control = control(&context, queues, args.concurrency);
    tokio::pin!(control);
    tokio::select! {
        () = &mut control => anyhow::bail!("the controllers ended"),
        Some(ended) = watching.join_next() => {
            ended.context("a watch failed")?;
            anyhow::bail!("a watch ended");
        }
        () = stop.cancelled() => {}
    }
    // Without watches nothing new comes in, and what is under way ends.
    watching.shutdown().await;
    if timeout(DRAIN, control).await.is_err() {
        tracing::warn!("what was under way didn't end in time; it is done again after a restart");
    }
    Ok(())
}

/// Has everything looked at when the link changes: pods, policies and the CA depend on it.
async fn tell_of_link(context: Arc<Context>, mut concerns: Concerns) {
    let mut link = context.link.clone();
    while link.changed().await.is_ok() {
        link.mark_unchanged();
        let pools = context.stores.pools.state();
        let sandboxes = context.stores.sandboxes.state();
        let all = pools.iter().map(|pool| Concern::Pool(ObjectRef::from_obj(pool.as_ref())));
        let sandboxes =
            sandboxes.iter().map(|sandbox| Concern::Sandbox(ObjectRef::from_obj(sandbox.as_ref())));
        let all: Vec<Concern> = all.chain(sandboxes).collect();
        concerns.tell(all).await;
    }
}

/// The two controllers, until their queues end.
async fn control(context: &Arc<Context>, queues: Queues, concurrency: u16) {
    let stores = &context.stores;
    let sandboxes = controller(
        context,
        stores.sandboxes.clone(),
        queues.sandboxes,
        concurrency,
        |sandbox, context: Arc<Context>| async move {
            let timer = context.metrics.sandbox_seconds.start_timer();
            let result = sandbox::reconcile::reconcile(sandbox, Arc::clone(&context)).await;
            timer.observe_duration();
            result
        },
    );
    let pools =
        controller(context, stores.pools.clone(), queues.pools, concurrency, pool::reconcile::reconcile);
    tokio::join!(sandboxes, pools);
}

async fn controller<K, F>(
    context: &Arc<Context>,
    store: Store<K>,
    queue: impl Stream<Item = ObjectRef<K>> + Send + 'static,
    concurrency: u16,
    mut reconcile: impl FnMut(Arc<K>, Arc<Context>) -> F,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + 'static,
    F: Future<Output = Result<Action, Error>>,
{
    let kind = K::kind(&()).into_owned();
    let on_error = |object: Arc<K>, error: &Error, context: Arc<Context>| {
        let uid = object.uid().unwrap_or_default();
        let pause = context.backoff.failed(&uid, Instant::now(), rand::random());
        let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        tracing::warn!(name = %object.name_any(), %error, source, pause = ?pause, "a pass failed; it is tried again");
        Action::requeue(pause)
    };
    let passes = applier(
        move |object, context| Box::pin(reconcile(object, context)),
        on_error,
        Arc::clone(context),
        store,
        queue.map(Ok::<_, std::convert::Infallible>),
        Config::default().concurrency(concurrency).debounce(DEBOUNCE),
    );
    tokio::pin!(passes);
    while let Some(pass) = passes.next().await {
        use kube::runtime::controller::Error::{ObjectNotFound, ReconcilerFailed};
        let result = match pass {
            Ok(_) => "done",
            Err(ReconcilerFailed(..)) => "failed",
            // It was deleted before its turn.
            Err(ObjectNotFound(_)) => continue,
            Err(error) => {
                tracing::error!(%kind, %error, "a controller failed");
                "broken"
            }
        };
        context.metrics.reconciles.with_label_values(&[kind.as_str(), result]).inc();
    }
}

/// The Sandbox and the pool that a pod concerns.
fn of_pod(context: &Context, pod: &Pod) -> Vec<Concern> {
    let Some(owner) = crate::context::owner(pod) else { return Vec::new() };
    let sandbox = context.stores.sandboxes.get(&owner);
    let pool = sandbox.map(|sandbox| of_pool_name(&sandbox.spec.pool, sandbox.namespace()));
    std::iter::once(Concern::Sandbox(owner)).chain(pool).collect()
}

fn of_pool_name(name: &str, namespace: Option<String>) -> Concern {
    Concern::Pool(ObjectRef::new(name).within(&namespace.unwrap_or_default()))
}
