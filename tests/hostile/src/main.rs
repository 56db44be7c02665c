//! `seance-hostile`: the real runner, whose hosts interpret no language: a program names an attempt to
//! leave the sandbox, and the answer of the system is its output.
//!
//! In a pod it stands at the runner's place. Its hosts give up nothing before they begin, as a host would
//! that a program has taken over, so that what is tried is the pod's own wall.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use seance_proto::host::v1alpha1::{Ended, Ready, Start, Text, from_host, to_host};
use seance_runner::hosts::channel::Channel;
use seance_runner::hosts::parent;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_none_or(|mode| mode != "host-javascript") {
        return seance_runner::main_from_args(args.into_iter());
    }
    match host() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("seance-hostile: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Takes one program and makes its attempt.
fn host() -> anyhow::Result<()> {
    parent::fork_hosts().context("forking hosts")?;
    let mut channel = Channel::inherited();
    channel.send(from_host::Frame::Ready(Ready { engine_version: "hostile".to_owned() }))?;
    let Some(to_host::Frame::Start(Start { source, .. })) = channel.receive(None)? else {
        bail!("there is no program")
    };
    let (what, argument) = source.split_once(' ').unwrap_or((&source, ""));
    let text = seance_hostile::attempt(what, argument);
    channel.send(from_host::Frame::Text(Text { text }))?;
    channel.send(from_host::Frame::Ended(Ended::default()))?;
    Ok(())
}
