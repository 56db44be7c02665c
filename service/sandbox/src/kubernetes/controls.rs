//! Whether something listens at the targets that runners must not reach: the service dials them
//! itself. An unanswered dead target proves nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::world::World;

/// How long a target may take to answer.
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
/// How often targets are tried again.
const INTERVAL: Duration = Duration::from_secs(30);
/// The most targets that are tried; those over it stay unknown.
const TARGETS_MAX: usize = 256;

/// Tries for ever.
pub(super) async fn run(world: Arc<World>) {
    let mut look = tokio::time::interval(INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let is_look = tokio::select! {
            () = world.to_try.notified() => false,
            _ = look.tick() => true,
        };
        let targets = {
            let mut inner = world.lock();
            let mut all: Vec<SocketAddr> =
                inner.runners.values().flat_map(|runner| runner.judge.targets()).collect();
            all.sort_unstable();
            all.dedup();
            all.truncate(TARGETS_MAX);
            inner.listens.retain(|target, _| all.contains(target));
            all.retain(|target| is_look || !inner.listens.contains_key(target));
            all
        };
        let tries = targets.into_iter().map(|target| async move { (target, listens(target).await) });
        let found = futures::future::join_all(tries).await;
        let changed = {
            let mut inner = world.lock();
            let changed = found.iter().any(|(target, listens)| inner.listens.get(target) != Some(listens));
            inner.listens.extend(found);
            if changed {
                inner.look_at_all();
            }
            changed
        };
        if changed {
            world.tell();
        }
    }
}

async fn listens(target: SocketAddr) -> bool {
    matches!(tokio::time::timeout(TRY_TIMEOUT, TcpStream::connect(target)).await, Ok(Ok(_)))
}
