//! What the cluster does to sandboxes while programs run in them: each fault is told by its reason, and
//! the session takes the next program.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource as _, ResourceExt};
use seance_operator_api::SandboxPool;
use serde_json::json;

use super::ends::{not_ready, opened_with_gate};
use super::isolation;
use crate::agent::{Agent, Provider};
use crate::place::{POOL, Place, READY_WITHIN, SOON, TENANTS};
use crate::wait;

/// A program that goes on until its one call is answered.
const WAITS: &str = "await tools.gate({}); return 1;";
/// From the fault to the end of the caller's stream, where nothing else has to happen in between
/// (sandbox 2).
const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// A pod that is told to end from outside goes on for 2 s.
const DRAINED_WITHIN: Duration = Duration::from_secs(2 + 5);
/// The kubelet looks at disks every ten seconds.
const DISK_SEEN_WITHIN: Duration = Duration::from_secs(60);
/// A node that is not heard is unknown after 50 s.
const NODE_UNKNOWN_WITHIN: Duration = Duration::from_secs(90);

/// A session in the middle of a program.
struct Midway {
    agent: Agent,
    session: String,
    program: u64,
    pod: Pod,
    _provider: Provider,
}

impl Midway {
    async fn new(place: &Place) -> anyhow::Result<Self> {
        let agent = place.agent(TENANTS[0]).await?;
        let session = opened_with_gate(&agent).await?;
        let provider = agent.provide(&session, |_, _| None).await?;
        let program = agent.start(&session, WAITS).await?;
        let pod = place.pod_of(&session).await?;
        Ok(Self { agent, session, program, pod, _provider: provider })
    }

    /// The program's end has this reason, for who waits and in the record; how long that took.
    async fn ends_as(&self, reason: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let seen = self.agent.wait(&self.session, self.program).await?;
        let took = began.elapsed();
        let refusal = seen.end.err().context("a program whose sandbox ended has an observation")?;
        ensure!(refusal.code == tonic::Code::Unavailable && refusal.reason == reason, "{refusal:?}");
        let record = self.agent.program(&self.session, self.program).await?;
        ensure!(record.reason == reason, "the program's reason is {:?}", record.reason);
        Ok(took)
    }

    /// The session takes the next program, in another pod, and closes.
    async fn goes_on(self, place: &Place) -> anyhow::Result<()> {
        let again = self.agent.run(&self.session, "return 2;").await?;
        ensure!(again.value()? == "2", "{again:?}");
        let other = place.pod_of(&self.session).await?;
        ensure!(other.uid() != self.pod.uid(), "the session went on in the pod that ended");
        self.agent.close(&self.session).await
    }
}

/// The node that a pod is on.
fn node_of(pod: &Pod) -> anyhow::Result<String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).context("a pod has a node")
}

/// A drain asks for the eviction of each pod.
pub async fn a_drained_node_is_told(place: &mut Place) -> anyhow::Result<()> {
    const N_SESSIONS: usize = 3;
    let mut values = place.values();
    values["pools"][POOL] = crate::place::pool(4);
    place.install(&values).await?;
    place.warm().await?;
    let midway = try_join_all((0..N_SESSIONS).map(|_| Midway::new(place))).await?;
    let pods = place.theirs::<Pod>();
    let drain = midway.iter().map(|one| async {
        pods.evict(&one.pod.name_any(), &EvictParams::default()).await.context("evicting a pod")?;
        one.ends_as("DRAINED").await
    });
    for took in try_join_all(drain).await? {
        ensure!(took <= DRAINED_WITHIN, "it took {took:?} to tell of the drain");
    }
    for one in midway {
        one.goes_on(place).await?;
    }
    place.nothing_is_leaked().await
}

/// A cordoned node's warm sandboxes are for nobody; a session that has one keeps it.
pub async fn a_cordoned_node_takes_no_session(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let session = agent.opened().await?;
    place.warm().await?;
    let pod = place.pod_of(&session).await?;
    let name = node_of(&pod)?;
    let cordon = Cordon::new(place, &name).await?;
    let retired = |pool: &SandboxPool| (pool.status.as_ref()?.warm == 0).then_some(());
    place.pool_until("no sandbox of the cordoned node is warm", READY_WITHIN, retired).await?;
    let (reason, message) = place.pool_until("the pool says why", READY_WITHIN, not_ready).await?;
    ensure!(reason == "Unschedulable", "the pool's reason is {reason}: {message}");
    let refusal = agent.open(|_| ()).await.err().context("a session was opened on a cordoned node")?;
    ensure!(refusal.reason == "UNSCHEDULABLE", "{refusal:?}");
    let seen = agent.run(&session, "return 1;").await?;
    ensure!(seen.value()? == "1", "{seen:?}");
    ensure!(place.pod_of(&session).await?.uid() == pod.uid(), "the session has another pod");
    cordon.lift().await?;
    place.warm().await?;
    agent.close(&session).await?;
    place.nothing_is_leaked().await
}

/// A node that is cordoned.
struct Cordon {
    nodes: Api<Node>,
    name: String,
}

impl Cordon {
    async fn new(place: &Place, name: &str) -> anyhow::Result<Self> {
        let nodes: Api<Node> = Api::all(place.setting.client.clone());
        nodes.cordon(name).await.context("cordoning the node")?;
        Ok(Self { nodes, name: name.to_owned() })
    }

    async fn lift(self) -> anyhow::Result<()> {
        self.nodes.uncordon(&self.name).await.context("lifting the cordon")?;
        Ok(())
    }
}

impl Drop for Cordon {
    /// A test that fails leaves a cluster that takes pods. Again, where it was lifted already.
    fn drop(&mut self) {
        let (nodes, name) = (self.nodes.clone(), self.name.clone());
        tokio::spawn(async move { nodes.uncordon(&name).await });
    }
}

/// More on the node's disk than the pod may have: here, beside its logs, which count.
pub async fn a_disk_that_is_too_full_is_told(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let midway = Midway::new(place).await?;
    place.setting.node()?.write_logs(&midway.pod, 80 << 20)?;
    let took = midway.ends_as("EVICTED").await?;
    ensure!(took <= DISK_SEEN_WITHIN, "it took {took:?} to tell of the eviction");
    midway.goes_on(place).await?;
    place.nothing_is_leaked().await
}

/// A pod that matters more needs the room of a sandbox. No other pod of the cluster can be taken for it.
pub async fn a_preempted_sandbox_is_told(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    // The pool comes after its priority.
    values["pools"] = json!({ "javascript": null });
    place.install(&values).await?;
    let (low, middle) = (format!("{}-low", place.namespace), format!("{}-middle", place.namespace));
    priority(place, &low, -1000).await?;
    priority(place, &middle, -100).await?;
    values["pools"] = json!({ "javascript": null, POOL: crate::place::pool(1) });
    values["pools"][POOL]["template"]["priorityClassName"] = json!(low);
    values["pools"][POOL]["template"]["resources"]["requests"]["cpu"] = json!("500m");
    place.upgrade(&values).await?;
    place.warm().await?;
    let midway = Midway::new(place).await?;
    place.warm().await?;

    // It needs the room of both sandboxes, the warm one and the session's.
    let mut greedy = isolation::pod(place, "greedy", &["sleep", "600"]);
    greedy["spec"]["priorityClassName"] = json!(middle);
    let free = free_millicores(place, &midway.pod).await?;
    greedy["spec"]["containers"][0]["resources"] =
        json!({ "requests": { "cpu": format!("{}m", free + 900) } });
    let pods = place.ours::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(greedy)?)
        .await
        .context("making the greedy pod")?;
    midway.ends_as("PREEMPTED").await?;
    pods.delete("greedy", &DeleteParams::default().grace_period(0))
        .await
        .context("deleting the greedy pod")?;
    midway.goes_on(place).await?;
    place.nothing_is_leaked().await
}

/// A class of pods that goes with the test's namespace.
async fn priority(place: &Place, name: &str, value: i32) -> anyhow::Result<()> {
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(place.setting.client.clone());
    let owner = namespaces.get(&place.namespace).await.context("reading the namespace")?;
    let class = PriorityClass {
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: owner.owner_ref(&()).map(|owner| vec![owner]),
            ..kube::api::ObjectMeta::default()
        },
        value,
        ..PriorityClass::default()
    };
    let classes: Api<PriorityClass> = Api::all(place.setting.client.clone());
    classes.create(&PostParams::default(), &class).await.context("making a priority class")?;
    Ok(())
}

/// The processors of a pod's node that no pod has asked for.
async fn free_millicores(place: &Place, pod: &Pod) -> anyhow::Result<i64> {
    let node_name = node_of(pod)?;
    let nodes: Api<Node> = Api::all(place.setting.client.clone());
    let status = nodes.get(&node_name).await.context("reading the node")?.status;
    let all = status.and_then(|status| status.allocatable?.get("cpu").map(|cpu| millicores(&cpu.0)));
    let pods: Api<Pod> = Api::all(place.setting.client.clone());
    let pods = wait::all(&pods).await.context("listing pods")?;
    let there = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref())
        .filter(|spec| spec.node_name.as_ref() == Some(&node_name));
    let asked = there.flat_map(|spec| &spec.containers).filter_map(|container| {
        container.resources.as_ref()?.requests.as_ref()?.get("cpu").map(|cpu| millicores(&cpu.0))
    });
    Ok(all.context("the node has processors")? - asked.sum::<i64>())
}

/// `2`, `500m`.
fn millicores(cpu: &str) -> i64 {
    match cpu.strip_suffix('m') {
        Some(thousandths) => thousandths.parse().unwrap_or(0),
        None => cpu.parse::<i64>().unwrap_or(0) * 1000,
    }
}

/// A pod's own deadline, which outlives every service that could end it.
pub async fn a_pod_past_its_deadline_is_told(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let midway = Midway::new(place).await?;
    let standing = |pods: &[Pod]| {
        let own = pods.iter().find(|pod| pod.uid() == midway.pod.uid())?;
        own.spec.as_ref()?.active_deadline_seconds
    };
    let what = "the session's pod has a deadline";
    let deadline = wait::until(&place.theirs(), what, SOON, standing, |pod: &Pod| pod.name_any()).await?;
    ensure!(deadline > 0, "the deadline is {deadline} s");
    // Nearer than ours, which is a day from now.
    let nearer = Patch::Merge(json!({ "spec": { "activeDeadlineSeconds": 1 } }));
    let pods = place.theirs::<Pod>();
    pods.patch(&midway.pod.name_any(), &PatchParams::default(), &nearer)
        .await
        .context("a nearer deadline")?;
    midway.ends_as("DEADLINE").await?;
    midway.goes_on(place).await?;
    place.nothing_is_leaked().await
}

/// The runner killed in its pod, which ends with it.
pub async fn a_killed_runner_is_told(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let midway = Midway::new(place).await?;
    let node = place.setting.node()?;
    node.kill(node.runner_of(&midway.pod)?)?;
    let took = midway.ends_as("RUNNER_KILLED").await?;
    ensure!(took <= TOLD_WITHIN, "it took {took:?} to tell of the kill");
    midway.goes_on(place).await?;
    place.nothing_is_leaked().await
}

/// The node is no longer heard: its kubelet is killed. A session goes on for as long as its link is
/// there. When the cluster gives the pod up, which it does after five minutes and the test at once, the
/// session is told.
pub async fn a_lost_node_is_told(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let midway = Midway::new(place).await?;
    let kubelet = place.setting.node()?.stop("kubelet").await?;
    let name = node_of(&midway.pod)?;
    let is_unknown = |nodes: &[Node]| {
        let node = nodes.iter().find(|node| node.name_any() == name)?;
        let conditions = node.status.as_ref()?.conditions.as_deref()?;
        conditions.iter().any(|is| is.type_ == "Ready" && is.status == "Unknown").then_some(())
    };
    let nodes: Api<Node> = Api::all(place.setting.client.clone());
    wait::until(&nodes, "the node is unknown", NODE_UNKNOWN_WITHIN, is_unknown, Node::name_any).await?;
    let seen = midway.agent.program(&midway.session, midway.program).await?;
    ensure!(seen.reason.is_empty(), "the program ended although its link is there: {:?}", seen.reason);

    let pods = place.theirs::<Pod>();
    pods.delete(&midway.pod.name_any(), &DeleteParams::default()).await.context("giving the pod up")?;
    let took = midway.ends_as("NODE_LOST").await?;
    ensure!(took <= TOLD_WITHIN, "it took {took:?} to tell of the lost node");
    kubelet.start()?;
    place.warm().await?;
    midway.goes_on(place).await?;
    place.nothing_is_leaked().await
}

#[cfg(test)]
mod tests {
    use super::millicores;

    #[test]
    fn processors_are_counted_in_thousandths() {
        assert_eq!((millicores("2"), millicores("500m"), millicores("x")), (2000, 500, 0));
    }
}
