//! Keeps what is known of the link: its address from a Service, its CA from a file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use seance_operator_api::pauses::WatchPauses;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::build::link::Link;
use crate::context::LinkState;

/// How often the file is looked at. A renewed certificate has a new CA long before it is needed.
const FILE_PERIOD: Duration = Duration::from_secs(5);
/// A ConfigMap holds a megabyte; a CA and its successor are a few kilobytes.
const CA_BYTES_MAX: u64 = 256 << 10;

/// Where the address comes from.
#[expect(clippy::large_enum_variant, reason = "there is one, and it is handed over once")]
pub enum Source {
    /// A Service of this name.
    Service(Api<Service>, String),
    /// It is given.
    Address(SocketAddr),
}

/// What is known before anything was looked at.
pub fn unknown() -> LinkState {
    LinkState {
        link: Err("it hasn't been looked at yet".to_owned()),
        ca: Err("it hasn't been read yet".to_owned()),
    }
}

/// Keeps the state until it is dropped.
pub async fn keep(source: Source, ca_file: PathBuf, state: watch::Sender<LinkState>) {
    let mut links = match source {
        Source::Address(address) => stream::once(async move { Ok(Link::at(address)) }).boxed(),
        Source::Service(services, name) => of_service(services, name).boxed(),
    };
    let mut ticks = interval(FILE_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(link) = links.next() => set(&state, |state| &mut state.link, link),
            _ = ticks.tick() => {
                let ca = read_ca(&ca_file).await;
                // A file that is being replaced isn't there for a moment: what was read goes on.
                if ca.is_ok() || state.borrow().ca.is_err() {
                    set(&state, |state| &mut state.ca, ca);
                }
            }
        }
    }
}

fn set<T: PartialEq>(state: &watch::Sender<LinkState>, part: fn(&mut LinkState) -> &mut T, value: T) {
    state.send_if_modified(|state| {
        let part = part(state);
        let is_new = *part != value;
        *part = value;
        is_new
    });
}

fn of_service(services: Api<Service>, name: String) -> impl Stream<Item = Result<Link, String>> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher(services, config).backoff(WatchPauses::default());
    events
        .scan(false, move |is_there, event| {
            let missing = || Some(Err(format!("there is no service {name}")));
            let link = match event {
                Ok(Event::Apply(service) | Event::InitApply(service)) => {
                    *is_there = true;
                    Some(Link::of_service(&service).map_err(|error| error.to_string()))
                }
                Ok(Event::Init) => {
                    *is_there = false;
                    None
                }
                Ok(Event::InitDone) if *is_there => None,
                Ok(Event::InitDone | Event::Delete(_)) => missing(),
                Err(error) => {
                    tracing::warn!(service = %name, %error, "watch interrupted; it goes on");
                    None
                }
            };
            std::future::ready(Some(link))
        })
        .filter_map(std::future::ready)
}

async fn read_ca(file: &Path) -> Result<String, String> {
    let told = |error: std::io::Error| format!("can't read {}: {error}", file.display());
    let size = tokio::fs::metadata(file).await.map_err(told)?.len();
    if size > CA_BYTES_MAX {
        return Err(format!("{} has {size} bytes, over {CA_BYTES_MAX}", file.display()));
    }
    let text = tokio::fs::read_to_string(file).await.map_err(told)?;
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        return Err(format!("{} has no certificate in PEM", file.display()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n";

    #[tokio::test(start_paused = true)]
    async fn a_changed_ca_is_seen_and_a_missing_one_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.crt");
        let (sender, mut state) = watch::channel(unknown());
        let address = "192.0.2.1:7443".parse().expect("an address");
        let keeper = keep(Source::Address(address), file.clone(), sender);
        let checks = async {
            let is = |what: &'static str| {
                move |state: &LinkState| state.ca.clone().unwrap_or_else(|why| why).contains(what)
            };
            state.wait_for(is("can't read")).await.expect("it is kept");
            std::fs::write(&file, "no certificate").expect("written");
            state.wait_for(is("has no certificate")).await.expect("it is kept");
            std::fs::write(&file, FIRST).expect("written");
            state.wait_for(|state| state.ca.as_deref() == Ok(FIRST)).await.expect("it is kept");
            std::fs::remove_file(&file).expect("removed");
            let quiet = tokio::time::timeout(10 * FILE_PERIOD, state.changed()).await;
            assert!(quiet.is_err(), "what was read goes on");
            let second = FIRST.repeat(2);
            std::fs::write(&file, &second).expect("written");
            state.wait_for(|state| state.ca.as_ref() == Ok(&second)).await.expect("it is kept");
            assert_eq!(state.borrow().link, Ok(Link::at(address)));
        };
        tokio::select! {
            () = keeper => unreachable!("it keeps on until it is dropped"),
            () = checks => {}
        }
    }
}
