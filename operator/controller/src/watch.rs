//! Watches: each keeps a store and says whom a change concerns. An object that can't be decoded is
//! counted and left out; it stops nothing.

use std::fmt::Debug;
use std::hash::Hash;

use futures::{SinkExt, StreamExt, channel::mpsc};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{Lookup, ObjectRef, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use seance_operator_api::pauses::WatchPauses;
use seance_operator_api::{Sandbox, SandboxPool};
use serde::de::DeserializeOwned;

use crate::metrics::Metrics;

/// So many objects may wait to be looked at; beyond that, watches wait. The scheduler behind takes
/// them at once and keeps each object once.
const WAITING_MAX: usize = 1024;

/// An object to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Concern {
    /// A Sandbox.
    Sandbox(ObjectRef<Sandbox>),
    /// A pool.
    Pool(ObjectRef<SandboxPool>),
}

/// Where concerns go.
#[derive(Debug, Clone)]
pub struct Concerns {
    sandboxes: mpsc::Sender<ObjectRef<Sandbox>>,
    pools: mpsc::Sender<ObjectRef<SandboxPool>>,
}

/// Where concerns come out.
#[derive(Debug)]
pub struct Queues {
    /// Sandboxes to look at.
    pub sandboxes: mpsc::Receiver<ObjectRef<Sandbox>>,
    /// Pools to look at.
    pub pools: mpsc::Receiver<ObjectRef<SandboxPool>>,
}

/// The two ends.
pub fn concerns() -> (Concerns, Queues) {
    let (sandboxes_in, sandboxes) = mpsc::channel(WAITING_MAX);
    let (pools_in, pools) = mpsc::channel(WAITING_MAX);
    (Concerns { sandboxes: sandboxes_in, pools: pools_in }, Queues { sandboxes, pools })
}

impl Concerns {
    /// Has the objects looked at. Those of a controller that has ended are dropped.
    pub async fn tell(&mut self, concerns: impl IntoIterator<Item = Concern>) {
        for concern in concerns {
            // An error is a receiver that is gone: its controller has ended, and so will this.
            match concern {
                Concern::Sandbox(sandbox) => drop(self.sandboxes.send(sandbox).await),
                Concern::Pool(pool) => drop(self.pools.send(pool).await),
            }
        }
    }
}

/// Watches until it is dropped. `concerned` is asked after the store has the change; it is given
/// `None` when the whole store was read anew.
pub async fn watch<K>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    mut writer: Writer<K>,
    metrics: Metrics,
    mut concerns: Concerns,
    mut concerned: impl FnMut(Option<&K>) -> Vec<Concern>,
) where
    K: Resource<DynamicType = ()>
        + Lookup<DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let kind = <K as Resource>::kind(&()).into_owned();
    loop {
        let mut events = watcher(api.clone(), config.clone()).backoff(WatchPauses::default()).boxed();
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => decoded(event),
                Err(error) => {
                    tracing::warn!(%kind, %error, "watch interrupted; it goes on");
                    continue;
                }
            };
            let event = match event {
                Decoded::Event(event) => event,
                Decoded::Bad { error, name, is_gone } => {
                    metrics.undecodable.with_label_values(&[kind.as_str()]).inc();
                    tracing::warn!(%kind, %name, %error, "object can't be decoded; it is left out");
                    // Its last good version may be in the store: only a new list takes it out.
                    if is_gone {
                        break;
                    }
                    continue;
                }
            };
            let event = event.modify(|object| object.managed_fields_mut().clear());
            writer.apply_watcher_event(&event);
            let list = match &event {
                Event::Apply(object) | Event::Delete(object) => concerned(Some(object)),
                Event::InitDone => concerned(None),
                Event::Init | Event::InitApply(_) => continue,
            };
            concerns.tell(list).await;
        }
    }
}

enum Decoded<K> {
    Event(Event<K>),
    Bad { error: String, name: String, is_gone: bool },
}

fn decoded<K>(event: Event<DeserializeGuard<K>>) -> Decoded<K> {
    let object = |guard: DeserializeGuard<K>, is_gone: bool, event: fn(K) -> Event<K>| match guard.0 {
        Ok(object) => Decoded::Event(event(object)),
        Err(bad) => Decoded::Bad { error: bad.error, name: bad.metadata.name.unwrap_or_default(), is_gone },
    };
    match event {
        Event::Apply(guard) => object(guard, false, Event::Apply),
        Event::Delete(guard) => object(guard, true, Event::Delete),
        Event::InitApply(guard) => object(guard, false, Event::InitApply),
        Event::Init => Decoded::Event(Event::Init),
        Event::InitDone => Decoded::Event(Event::InitDone),
    }
}
