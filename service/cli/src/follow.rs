//! `seance follow`: a session's events as they are recorded.

use std::process::ExitCode;

use anyhow::Result;
use proto::event::Kind;
use proto::follow_response::Message;
use seance_proto::v1alpha1 as proto;

use crate::args::{Connection, Follow};
use crate::client::Client;
use crate::{display, json};

/// Prints events until the session is over, or the last one there is.
pub async fn follow(connection: &Connection, follow: Follow, as_json: bool) -> Result<ExitCode> {
    let client = Client::connect(connection).await?;
    let request = proto::FollowRequest {
        session_id: follow.session,
        from_sequence: follow.from,
        until_now: follow.until_now,
    };
    let mut stream = client.sessions.clone().follow(request).await?.into_inner();
    while let Some(response) = stream.message().await? {
        let Some(Message::Event(event)) = response.message else { continue };
        if as_json {
            json::print("Event", &event)?;
        } else {
            display::say(&line(&event))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn line(event: &proto::Event) -> String {
    let program = match event.program_number {
        0 => String::new(),
        number => format!("program {number} "),
    };
    let what = event.kind.as_ref().map_or_else(String::new, what);
    format!("{:>6}  {program}{what}", event.sequence).trim_end().to_owned()
}

fn what(kind: &Kind) -> String {
    match kind {
        Kind::SessionOpened(opened) => format!("session opened, engine {}", opened.engine),
        Kind::SandboxAssigned(assigned) => format!("sandbox {} assigned", assigned.sandbox_id),
        Kind::SandboxEnded(ended) => format!("sandbox {} ended: {}", ended.sandbox_id, ended.reason),
        Kind::ProgramAccepted(accepted) => format!("accepted, {}", accepted.language),
        Kind::ProgramStarted(started) => format!("started, engine version {}", started.engine_version),
        Kind::Output(chunk) => format!("output {:?}", String::from_utf8_lossy(&chunk.data)),
        Kind::Call(call) => {
            format!("call {} {} {}", call.call_id, call.tool, word(call.state().as_str_name(), "CALL_STATE_"))
        }
        Kind::ProgramEnded(program) => {
            format!("ended: {} {}", word(program.state().as_str_name(), "PROGRAM_STATE_"), program.reason)
        }
        Kind::HostExited(exited) => format!("an idle host ended: {}", exited.how),
        Kind::Observed(observed) => format!("observed up to {}", observed.up_to),
        Kind::SessionClosing(closing) => format!("session closing: {}", closing.reason),
        Kind::SessionClosed(_) => "session closed".to_owned(),
        Kind::OwnerChanged(owner) => format!("owner changed, epoch {}", owner.epoch),
        Kind::Artifact(artifact) => {
            format!("artifact {} {} ({} bytes)", artifact.name, artifact.media_type, artifact.size_bytes)
        }
    }
}

/// A name of an enum as a word.
fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase().replace('_', " ")
}
