//! `seance sessions`.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets};
use proto::SessionState;
use seance_proto::v1alpha1 as proto;

use crate::args::{Connection, Sessions};
use crate::client::Client;
use crate::{display, json};

/// The most sessions that one page has.
const PAGE_MAX: i32 = 500;

/// Lists sessions and looks at them.
pub async fn sessions(connection: &Connection, command: Sessions, as_json: bool) -> Result<ExitCode> {
    let state = match &command {
        Sessions::List { state, .. } => state_of(state.as_deref())?,
        _ => SessionState::Unspecified,
    };
    let client = Client::connect(connection).await?;
    let mut sessions = client.sessions.clone();
    match command {
        Sessions::List { labels, n, .. } => {
            list(&client, state, labels.into_iter().collect(), n, as_json).await?;
        }
        Sessions::Get { session } => {
            let session = sessions.get(proto::GetRequest { session_id: session }).await?.into_inner().session;
            show(&session.context("the service gave no session")?, as_json)?;
        }
        Sessions::Program { session, number } => {
            let request = proto::GetProgramRequest { session_id: session, program_number: number };
            let program = sessions.get_program(request).await?.into_inner().program;
            let program = json::of("Program", &program.context("the service gave no program")?)?;
            print_object(&program, as_json)?;
        }
        Sessions::Stop { session, number } => {
            let request = proto::StopRequest {
                session_id: session,
                program_number: number.unwrap_or(0),
                idempotency_key: uuid::Uuid::new_v4().to_string(),
                ..Default::default()
            };
            let observation = sessions.stop(request).await?.into_inner().observation;
            let observation =
                json::of("Observation", &observation.context("the service gave no observation")?)?;
            print_object(&observation, as_json)?;
        }
        Sessions::Close { session } => {
            let request = proto::CloseRequest { session_id: session, ..Default::default() };
            let session = sessions.close(request).await?.into_inner().session;
            show(&session.context("the service gave no session")?, as_json)?;
        }
        Sessions::Blob { session, blob } => {
            let request = proto::GetBlobRequest { session_id: session, blob_id: blob, offset: 0 };
            let mut stream = sessions.get_blob(request).await?.into_inner();
            let mut stdout = std::io::stdout().lock();
            while let Some(part) = stream.message().await? {
                stdout.write_all(&part.data)?;
            }
            stdout.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(
    client: &Client,
    state: SessionState,
    labels: std::collections::HashMap<String, String>,
    n: i32,
    as_json: bool,
) -> Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["SESSION", "STATE", "ENGINE", "PROGRAMS", "ACTIVE", "LABELS"]);
    let mut request = proto::ListRequest { state: state.into(), labels, ..Default::default() };
    let mut left = n.max(0);
    while left > 0 {
        request.page_size = left.min(PAGE_MAX);
        let page = client.sessions.clone().list(request.clone()).await?.into_inner();
        left -= i32::try_from(page.sessions.len()).unwrap_or(left);
        for session in &page.sessions {
            if as_json {
                json::print("Session", session)?;
            } else {
                table.add_row(row(session));
            }
        }
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    if !as_json {
        display::say(&table.to_string())?;
    }
    Ok(())
}

fn row(session: &proto::Session) -> [String; 6] {
    let active = match session.active_program {
        0 => "-".to_owned(),
        number => number.to_string(),
    };
    let mut labels: Vec<_> = session.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    labels.sort();
    [
        session.session_id.clone(),
        state_name(session.state()).to_owned(),
        session.engine.clone(),
        session.last_program.to_string(),
        active,
        labels.join(" "),
    ]
}

fn show(session: &proto::Session, as_json: bool) -> Result<()> {
    print_object(&json::of("Session", session)?, as_json)
}

/// One object: a line for programs, indented for people.
fn print_object(object: &serde_json::Value, as_json: bool) -> Result<()> {
    display::say(&if as_json { object.to_string() } else { serde_json::to_string_pretty(object)? })
}

fn state_of(name: Option<&str>) -> Result<SessionState> {
    match name {
        None => Ok(SessionState::Unspecified),
        Some("open") => Ok(SessionState::Open),
        Some("closing") => Ok(SessionState::Closing),
        Some("closed") => Ok(SessionState::Closed),
        Some(other) => bail!("there is no state {other:?}; it can be open, closing or closed"),
    }
}

fn state_name(state: SessionState) -> &'static str {
    match state {
        SessionState::Unspecified => "-",
        SessionState::Open => "open",
        SessionState::Closing => "closing",
        SessionState::Closed => "closed",
    }
}
