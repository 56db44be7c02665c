//! Writes Sandboxes until what should stand there is seen: level by level, never event by event. A
//! write that fails is tried again with growing pauses, each Sandbox for itself.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use seance_operator_api::pauses::AWAY_PAUSE_MAX;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cluster::{Cluster, ClusterError};
use super::desired::{ToWrite, to_write};
use super::world::World;

/// Writes at one time.
const WRITES_MAX: usize = 8;
/// The pauses after a write that failed.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long a write may take to be seen before it is looked at again.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// How often everything is looked at: what follows from time alone is found then.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Writes for ever.
pub(super) async fn run(world: Arc<World>, cluster: Arc<dyn Cluster>) {
    let mut writer = Writer {
        world,
        cluster,
        writes: JoinSet::new(),
        busy: HashSet::new(),
        later: BTreeMap::new(),
        pauses: HashMap::new(),
    };
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = writer.start();
        let world = Arc::clone(&writer.world);
        tokio::select! {
            () = world.to_write.notified() => {}
            Some(done) = writer.writes.join_next() => writer.done(done.expect("a write doesn't panic")),
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            _ = look.tick() => {
                let mut inner = world.lock();
                let names: Vec<_> = inner.sandboxes.keys().cloned().collect();
                inner.dirty.extend(names);
            }
        }
    }
}

struct Writer {
    world: Arc<World>,
    cluster: Arc<dyn Cluster>,
    writes: JoinSet<(String, Result<(), ClusterError>)>,
    busy: HashSet<String>,
    /// When a Sandbox is looked at again, and whether nothing is written before.
    later: BTreeMap<String, (Instant, bool)>,
    pauses: HashMap<String, Duration>,
}

impl Writer {
    /// Starts as many writes as may be, and gives the time when another is due.
    fn start(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut inner = self.world.lock();
        let due: Vec<_> =
            self.later.iter().filter(|(_, (at, _))| *at <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.later.remove(&name);
            inner.dirty.insert(name);
        }
        let mut names: Vec<_> = inner
            .dirty
            .iter()
            .filter(|name| !self.busy.contains(*name))
            .filter(|name| self.later.get(*name).is_none_or(|(_, is_pause)| !is_pause))
            .cloned()
            .collect();
        // Callers wait until an end is written; nobody waits for anything else.
        names.sort_by_key(|name| !inner.is_ending(name));
        for name in names {
            if self.writes.len() >= WRITES_MAX {
                break;
            }
            inner.dirty.shift_remove(&name);
            let to_write = to_write(&inner, &name, Time(Timestamp::now()));
            if to_write != ToWrite::default() {
                self.busy.insert(name.clone());
                self.writes.spawn(write(Arc::clone(&self.cluster), name, to_write));
            } else {
                self.pauses.remove(&name);
            }
        }
        self.later.values().map(|(at, _)| *at).min()
    }

    fn done(&mut self, (name, result): (String, Result<(), ClusterError>)) {
        self.busy.remove(&name);
        let (pause, is_pause) = match result {
            // The watch shows it; if it doesn't, it is written again.
            Ok(()) => (SEEN_WITHIN, false),
            Err(ClusterError::Gone) => {
                self.pauses.remove(&name);
                return;
            }
            Err(error) => {
                // It is back for all Sandboxes at the same moment, whose callers wait for that.
                let is_away = matches!(error, ClusterError::Away(_));
                let most = if is_away { AWAY_PAUSE_MAX } else { PAUSE_MAX };
                let pause = self.pauses.get(&name).map_or(PAUSE_MIN, |pause| (*pause * 2).min(most));
                self.pauses.insert(name.clone(), pause);
                tracing::warn!(sandbox = name, %error, ?pause, "a Sandbox could not be written");
                (pause, true)
            }
        };
        self.later.insert(name, (Instant::now() + pause, is_pause));
    }
}

async fn write(
    cluster: Arc<dyn Cluster>,
    name: String,
    to_write: ToWrite,
) -> (String, Result<(), ClusterError>) {
    let result = async {
        if let Some(session) = &to_write.session {
            cluster.write_session(&name, session).await?;
        }
        if let Some((conditions, checks)) = to_write.status {
            cluster.write_status(&name, conditions, checks).await?;
        }
        Ok(())
    };
    let result = result.await;
    (name, result)
}
