//! Waiting for what the cluster's objects come to be, through watches, with a deadline that tells what
//! was there instead.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use anyhow::bail;
use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Between two looks at what can't be watched.
const LOOK: Duration = Duration::from_millis(200);

/// Waits until the objects of an API satisfy `wanted`, and gives what it found.
///
/// # Errors
/// At the deadline, with the objects as they were then in `told`'s words.
pub async fn until<K, T>(
    api: &Api<K>,
    what: &str,
    deadline: Duration,
    mut wanted: impl FnMut(&[K]) -> Option<T>,
    told: impl Fn(&K) -> String,
) -> anyhow::Result<T>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut objects: BTreeMap<String, K> = BTreeMap::new();
    let waiting = async {
        let mut events = watcher(api.clone(), watcher::Config::default()).default_backoff().boxed();
        let mut is_listed = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => {
                    objects.clear();
                    is_listed = false;
                }
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    objects.insert(object.name_any(), object);
                }
                Ok(Event::Delete(object)) => {
                    objects.remove(&object.name_any());
                }
                Ok(Event::InitDone) => is_listed = true,
                // The watch goes on after a while; the deadline is ours.
                Err(_) => continue,
            }
            if !is_listed {
                continue;
            }
            let now: Vec<K> = objects.values().cloned().collect();
            if let Some(found) = wanted(&now) {
                return Some(found);
            }
        }
        None
    };
    match tokio::time::timeout(deadline, waiting).await {
        Ok(Some(found)) => Ok(found),
        Ok(None) => bail!("the watch for {what} ended"),
        Err(_) => {
            let there: Vec<String> = objects.values().map(told).collect();
            bail!(
                "{what}: not within {} s; there were {}: {}",
                deadline.as_secs(),
                there.len(),
                there.join("; ")
            )
        }
    }
}

/// Waits until the object of this name is gone.
///
/// # Errors
/// At the deadline.
pub async fn until_gone<K>(api: &Api<K>, name: &str, deadline: Duration) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let waiting = async {
        let mut events = watcher(api.clone(), config).default_backoff().boxed();
        let mut is_there = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => is_there = false,
                Ok(Event::InitApply(_) | Event::Apply(_)) => is_there = true,
                Ok(Event::InitDone) if !is_there => return,
                Ok(Event::Delete(_)) => return,
                Ok(Event::InitDone) | Err(_) => {}
            }
        }
    };
    match tokio::time::timeout(deadline, waiting).await {
        Ok(()) => Ok(()),
        Err(_) => bail!("{} {name} was not gone within {} s", K::kind(&()), deadline.as_secs()),
    }
}

/// Asks again and again until there is an answer of the kind that is wanted. For what has no watch:
/// metrics, and calls that are refused for a moment.
///
/// # Errors
/// At the deadline, with the last reason why not.
pub async fn until_told<T, F>(what: &str, deadline: Duration, mut ask: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, String>>,
{
    let mut last = "it was never asked".to_owned();
    let asking = async {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(why) => last = why,
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    match tokio::time::timeout(deadline, asking).await {
        Ok(answer) => Ok(answer),
        Err(_) => bail!("{what}: not within {} s; last: {last}", deadline.as_secs()),
    }
}

/// All objects of an API, as they are now.
///
/// # Errors
/// When they can't be listed.
pub async fn all<K>(api: &Api<K>) -> anyhow::Result<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    Ok(api.list(&kube::api::ListParams::default()).await?.items)
}
