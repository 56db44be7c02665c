//! The services `Sessions`, `Tools` and `Engines` over a real connection.

mod support;

use std::time::Duration;

use proto::execute_response::Message;
use seance_proto::v1alpha1::engines_client::EnginesClient;
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::tools_client::ToolsClient;
use seance_proto::v1alpha1::{self as proto};
use seance_server::Service;
use support::{
    SOON, attach, connect, observed, open, program_at, reason, result, script, settings, start, text,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request};

struct Bench {
    service: Service,
    sessions: SessionsClient<Channel>,
    tools: ToolsClient<Channel>,
    session_id: String,
}

async fn bench() -> Bench {
    let service = start(settings()).await;
    let channel = connect(&service).await;
    let mut sessions = SessionsClient::new(channel.clone());
    let session_id = open(&mut sessions).await;
    Bench { service, sessions, tools: ToolsClient::new(channel), session_id }
}

fn observe(seconds: f64) -> proto::ObserveOptions {
    let window = Duration::from_secs_f64(seconds);
    let nanos = i32::try_from(window.subsec_nanos()).unwrap();
    let seconds = i64::try_from(window.as_secs()).unwrap();
    proto::ObserveOptions { window: Some(prost_types::Duration { seconds, nanos }), ..Default::default() }
}

/// A3, B5, B7: the stream begins with the number, has the output, and ends with the observation.
#[tokio::test]
async fn execute_streams_output_and_ends_with_one_observation() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let request = script(&session_id, &["text one", "text two"]);
    let mut stream = sessions.execute(request).await.unwrap().into_inner();
    let mut kinds = Vec::new();
    while let Some(response) = stream.message().await.unwrap() {
        kinds.push(response.message.unwrap());
    }
    assert_eq!(kinds[0], Message::Accepted(proto::Accepted { program_number: 1 }));
    let output: Vec<u8> = kinds
        .iter()
        .filter_map(|kind| match kind {
            Message::Output(chunk) => Some(chunk.data.to_vec()),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(output, b"one\ntwo");
    let Some(Message::Observation(last)) = kinds.last() else { panic!("{kinds:?}") };
    assert_eq!(last.status(), proto::ObservationStatus::Completed);
    assert_eq!((last.output.as_str(), last.output_separator.as_str()), ("one\ntwo", ""));
    let program = last.program.as_ref().unwrap();
    assert_eq!(
        (program.state(), program.value_json.as_deref()),
        (proto::ProgramState::Completed, Some("42"))
    );
}

#[tokio::test]
async fn without_streamed_output_there_is_one_message() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let observe = Some(proto::ObserveOptions { stream_output: Some(false), ..Default::default() });
    let request = proto::ExecuteRequest { observe, ..script(&session_id, &["text one"]) };
    let mut stream = sessions.execute(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap().message.unwrap();
    let Message::Observation(observation) = first else { panic!("{first:?}") };
    assert_eq!(observation.output, "one");
    assert!(stream.message().await.unwrap().is_none());
}

/// A4, A5, A6, A9: a window that closes, a refused second program, a stop.
#[tokio::test]
async fn a_program_outlives_its_window_and_is_stopped() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let request =
        proto::ExecuteRequest { observe: Some(observe(0.05)), ..script(&session_id, &["text a", "hang"]) };
    let (_, working) = observed(&mut sessions, request).await.unwrap();
    assert_eq!(working.status(), proto::ObservationStatus::StillWorking);
    let refused = observed(&mut sessions, script(&session_id, &["text b"])).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::FailedPrecondition, "PROGRAM_ACTIVE"));
    let stop = proto::StopRequest { session_id: session_id.clone(), ..Default::default() };
    let stopped = sessions.stop(stop).await.unwrap().into_inner().observation.unwrap();
    assert_eq!(stopped.status(), proto::ObservationStatus::Terminated);
    assert_eq!(format!("{}{}", working.output, stopped.output), "a");
    let stop = proto::StopRequest { session_id, ..Default::default() };
    let refused = sessions.stop(stop).await.unwrap_err();
    assert_eq!(reason(&refused), "NO_ACTIVE_PROGRAM");
}

/// The window ends half a second before the call's own deadline, so the observation arrives.
#[tokio::test]
async fn a_deadline_ends_the_window_in_time() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let mut request = Request::new(script(&session_id, &["text a", "hang"]));
    request.set_timeout(Duration::from_millis(1_500));
    let mut stream = sessions.execute(request).await.unwrap().into_inner();
    let mut last = None;
    while let Some(response) = stream.message().await.unwrap() {
        last = response.message;
    }
    let Some(Message::Observation(observation)) = last else { panic!("{last:?}") };
    assert_eq!(observation.status(), proto::ObservationStatus::StillWorking);
}

/// I7, I8: a cut stream only detaches.
#[tokio::test]
async fn a_cut_stream_detaches_and_the_cursor_goes_on() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let stream = sessions.execute(script(&session_id, &["text a", "call look", "text b"])).await.unwrap();
    drop(stream);
    let program = program_at(&mut sessions, &session_id, &[proto::ProgramState::Running]).await;
    assert_eq!(program.number, 1);
    let wait = || proto::WaitRequest {
        session_id: session_id.clone(),
        observe: Some(observe(0.05)),
        ..Default::default()
    };
    let waited = async {
        loop {
            // The cut is noticed a moment later; until then the first observer has the control.
            match sessions.wait(wait()).await {
                Ok(stream) => return stream.into_inner(),
                Err(status) => assert_eq!(reason(&status), "CONTROL_ACTIVE"),
            }
        }
    };
    let mut stream = tokio::time::timeout(SOON, waited).await.unwrap();
    while let Some(response) = stream.message().await.unwrap() {
        if let Some(proto::wait_response::Message::Observation(seen)) = response.message {
            assert_eq!(seen.status(), proto::ObservationStatus::StillWorking);
            assert_eq!(seen.program.unwrap().state(), proto::ProgramState::Running);
        }
    }
}

#[tokio::test]
async fn a_cut_stream_stops_the_program_where_the_caller_said_so() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let request = proto::ExecuteRequest {
        on_disconnect: proto::OnDisconnect::Stop.into(),
        ..script(&session_id, &["text a", "hang"])
    };
    let mut stream = sessions.execute(request).await.unwrap().into_inner();
    assert!(matches!(stream.message().await.unwrap().unwrap().message, Some(Message::Accepted(_))));
    drop(stream);
    let program = program_at(&mut sessions, &session_id, &[proto::ProgramState::Terminated]).await;
    assert_eq!(program.reason, "DISCONNECTED");
}

/// A program that ended its stream in order is over and not stopped again; the next one is its own.
#[tokio::test]
async fn a_finished_stream_stops_nothing() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let request = proto::ExecuteRequest {
        on_disconnect: proto::OnDisconnect::Stop.into(),
        observe: Some(observe(0.05)),
        ..script(&session_id, &["hang"])
    };
    let (_, working) = observed(&mut sessions, request).await.unwrap();
    assert_eq!(working.status(), proto::ObservationStatus::StillWorking);
    let request = proto::GetProgramRequest { session_id, program_number: 1 };
    let program = sessions.get_program(request).await.unwrap().into_inner().program.unwrap();
    assert_eq!(program.state(), proto::ProgramState::Running);
}

/// A client without a second stream: the window ends on the pending call, Answer ends the call.
#[tokio::test]
async fn a_pending_call_is_answered_without_a_second_stream() {
    let Bench { mut sessions, mut tools, session_id, service: _service, .. } = bench().await;
    let observe = Some(proto::ObserveOptions { return_on_pending_call: true, ..Default::default() });
    let request = proto::ExecuteRequest { observe, ..script(&session_id, &["call look {\"at\":1}"]) };
    let (_, observation) = observed(&mut sessions, request).await.unwrap();
    assert_eq!(observation.status(), proto::ObservationStatus::StillWorking);
    let [call] = &observation.pending_calls[..] else { panic!("{observation:?}") };
    assert_eq!((call.tool.as_str(), call.arguments_json.as_str()), ("look", "{\"at\":1}"));
    let answer = |call_id: &str| proto::AnswerRequest {
        session_id: session_id.clone(),
        call_id: call_id.to_owned(),
        result: Some(text("seen")),
        ..Default::default()
    };
    tools.answer(answer(&call.call_id)).await.unwrap();
    let again = tools.answer(answer(&call.call_id)).await.unwrap_err();
    assert_eq!(reason(&again), "CALL_NOT_PENDING");
    let program = program_at(&mut sessions, &session_id, &[proto::ProgramState::Completed]).await;
    assert_eq!(program.calls[0].state(), proto::CallState::Finished);
}

/// A provider gets a call, answers it in pieces, and hears when the result is recorded.
#[tokio::test]
async fn a_provider_serves_calls_and_hears_of_records() {
    use proto::serve_response::Message as Served;
    let Bench { sessions, mut tools, session_id, service: _service, .. } = bench().await;
    let (sender, requests) = mpsc::channel(8);
    sender.send(attach(&session_id)).await.unwrap();
    let mut served = tools.serve(ReceiverStream::new(requests)).await.unwrap().into_inner();
    let first = served.message().await.unwrap().unwrap().message.unwrap();
    assert_eq!(first, Served::Attached(proto::Attached { tools: vec!["look".to_owned()] }));
    let refused = tools.serve(tokio_stream::once(attach(&session_id))).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::AlreadyExists, "PROVIDER_CONFLICT"));

    let running = {
        let mut sessions = sessions.clone();
        let request = script(&session_id, &["call look {}", "call look {\"n\":2}"]);
        tokio::spawn(async move { observed(&mut sessions, request).await })
    };
    let call = match served.message().await.unwrap().unwrap().message.unwrap() {
        Served::Call(call) => call,
        other => panic!("{other:?}"),
    };
    let call_id = call.call.unwrap().call_id;
    let whole =
        proto::CallResult { call_id: call_id.clone(), result: Some(text(&"y".repeat(3 * 1024 * 1024))) };
    let whole = prost::Message::encode_to_vec(&whole);
    for piece in whole.chunks(1024 * 1024) {
        let chunk = proto::ResultChunk {
            call_id: call_id.clone(),
            total_bytes: whole.len() as u64,
            data: piece.to_vec().into(),
        };
        let chunk = proto::ServeRequest { message: Some(proto::serve_request::Message::ResultChunk(chunk)) };
        sender.send(chunk).await.unwrap();
    }
    let (mut recorded, mut second) = (false, None);
    while !recorded || second.is_none() {
        match served.message().await.unwrap().unwrap().message.unwrap() {
            Served::Recorded(which) => {
                assert_eq!(which.call_id, call_id);
                recorded = true;
            }
            Served::Call(call) => second = call.call,
            other => panic!("{other:?}"),
        }
    }
    sender.send(result(&second.unwrap().call_id, text("last"))).await.unwrap();
    let (output, observation) = running.await.unwrap().unwrap();
    assert_eq!(observation.status(), proto::ObservationStatus::Completed);
    assert!(output.len() > 3 * 1024 * 1024 && String::from_utf8_lossy(&output).contains("last"));
}

#[tokio::test]
async fn a_provider_that_sends_nonsense_is_told_so_and_detached() {
    let Bench { mut tools, session_id, service: _service, .. } = bench().await;
    let nothing = tools.serve(tokio_stream::once(result("x", text("a")))).await.unwrap_err();
    assert_eq!(reason(&nothing), "INVALID_REQUEST");
    let requests = [attach(&session_id), attach(&session_id)];
    let mut served = tools.serve(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let refused = loop {
        match served.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no status"),
            Err(status) => break status,
        }
    };
    assert_eq!(reason(&refused), "INVALID_REQUEST");
    drop(served);
    // Its place is free.
    let mut served = tools.serve(tokio_stream::once(attach(&session_id))).await.unwrap().into_inner();
    assert!(served.message().await.unwrap().is_some());
}

/// A14, A15, A19.
#[tokio::test]
async fn close_is_repeatable_and_ends_the_session() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    for _ in 0..2 {
        let close = proto::CloseRequest { session_id: session_id.clone(), ..Default::default() };
        let closed = sessions.close(close).await.unwrap().into_inner().session.unwrap();
        assert_eq!(closed.state(), proto::SessionState::Closed);
        assert_eq!((closed.sandbox_id.as_str(), closed.reason.as_str()), ("", "CLOSED"));
    }
    let refused = observed(&mut sessions, script(&session_id, &["text a"])).await.unwrap_err();
    assert_eq!(reason(&refused), "SESSION_CLOSED");
}

#[tokio::test]
async fn a_repeated_request_does_nothing_twice_and_a_changed_one_is_refused() {
    let Bench { mut sessions, service: _service, .. } = bench().await;
    let request = |engine_options: &[&str]| proto::OpenRequest {
        engine: "javascript".to_owned(),
        idempotency_key: "once".to_owned(),
        labels: support::labels(&[("a", "1"), ("b", "2"), ("c", "3")]),
        engine_options: engine_options.iter().map(|&option| option.to_owned()).collect(),
        ..Default::default()
    };
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(sessions.open(request(&[])).await.unwrap().into_inner().session.unwrap().session_id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let refused = sessions.open(request(&["console"])).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::AlreadyExists, "IDEMPOTENCY_KEY_REUSED"));
}

#[tokio::test]
async fn lists_have_pages_and_filters() {
    let Bench { mut sessions, service: _service, .. } = bench().await;
    for n in 0..4 {
        let labels = support::labels(&[("even", if n % 2 == 0 { "yes" } else { "no" })]);
        let request = proto::OpenRequest { engine: "javascript".to_owned(), labels, ..Default::default() };
        sessions.open(request).await.unwrap();
    }
    let labels = support::labels(&[("even", "yes")]);
    let list = sessions.list(proto::ListRequest { labels, ..Default::default() }).await.unwrap().into_inner();
    assert_eq!((list.sessions.len(), list.next_page_token.as_str()), (2, ""));
    let (mut seen, mut page_token, mut n_pages) = (Vec::new(), String::new(), 0);
    loop {
        let request = proto::ListRequest { page_size: 2, page_token, ..Default::default() };
        let page = sessions.list(request).await.unwrap().into_inner();
        n_pages += 1;
        seen.extend(page.sessions.into_iter().map(|session| session.session_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let mut newest_first = seen.clone();
    newest_first.sort_by(|a, b| b.cmp(a));
    newest_first.dedup();
    assert_eq!((seen.len(), n_pages, &seen), (5, 3, &newest_first));
}

#[tokio::test]
async fn bad_requests_are_refused_with_their_reason_and_the_session_goes_on() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let base = || script(&session_id, &["text a"]);
    let limits = std::collections::HashMap::from([("speed".to_owned(), 1)]);
    for (request, wanted) in [
        (proto::ExecuteRequest { source: vec![0xff, 0xfe].into(), ..base() }, "SOURCE_NOT_UTF8"),
        (proto::ExecuteRequest { source: vec![b'x'; 2 << 20].into(), ..base() }, "SOURCE_TOO_LARGE"),
        (proto::ExecuteRequest { inputs_json: Some("[".repeat(100_000)), ..base() }, "INVALID_INPUTS"),
        (proto::ExecuteRequest { inputs_json: Some("9".repeat(10_000)), ..base() }, "INVALID_INPUTS"),
        (proto::ExecuteRequest { limits, ..base() }, "UNSUPPORTED"),
        (proto::ExecuteRequest { language: "cobol".to_owned(), ..base() }, "UNSUPPORTED"),
        (proto::ExecuteRequest { on_disconnect: 9, ..base() }, "UNSUPPORTED"),
        (proto::ExecuteRequest { session_id: "ses_1".to_owned(), ..base() }, "INVALID_REQUEST"),
        (proto::ExecuteRequest { observe: Some(observe(61.0)), ..base() }, "LIMIT_OUT_OF_RANGE"),
    ] {
        let refused = sessions.execute(request).await.unwrap_err();
        assert_eq!(reason(&refused), wanted);
    }
    observed(&mut sessions, base()).await.unwrap();
}

#[tokio::test]
async fn engines_are_listed_and_described() {
    let Bench { service, mut sessions, session_id, .. } = bench().await;
    let mut engines = EnginesClient::new(service.channel());
    let list = engines.list(proto::ListEnginesRequest {}).await.unwrap().into_inner().engines;
    assert!(list[0].available && list[0].name == "javascript" && list[0].version == "0.16.2");
    for engine in &list[1..] {
        assert!(!engine.available && engine.version.is_empty(), "{engine:?}");
        assert_eq!(engine.unavailable_reason, "no sandbox of this service has it");
    }
    let request = proto::DescribeRequest {
        engine: "javascript".to_owned(),
        catalog: support::catalog("look-up"),
        ..Default::default()
    };
    let described = engines.describe(request.clone()).await.unwrap().into_inner();
    assert!(described.instructions.contains(&described.declarations));
    let alias = proto::ToolAlias { name: "look-up".to_owned(), alias: "look_up".to_owned() };
    assert_eq!(described.aliases, [alias]);
    let tool = |schema: &str| proto::Tool {
        name: "look".to_owned(),
        input_schema_json: schema.to_owned(),
        ..proto::Tool::default()
    };
    // What Execute refuses is refused here, in the same words.
    for schema in [r#"{"properties":{"a":{"type":"objekt"}}}"#, r#"{"$ref":"https://a.test/s"}"#, "["] {
        let inline = proto::Catalog { tools: vec![tool(schema)] };
        let source = Some(proto::catalog_source::Source::Inline(inline));
        let catalog = Some(proto::CatalogSource { source });
        let describe = proto::DescribeRequest { catalog: catalog.clone(), ..request.clone() };
        let described = engines.describe(describe).await.unwrap_err();
        let execute = proto::ExecuteRequest { catalog, ..script(&session_id, &["text a"]) };
        let executed = sessions.execute(execute).await.map(drop).unwrap_err();
        assert_eq!(
            (reason(&described).as_str(), reason(&executed).as_str()),
            ("INVALID_CATALOG", "INVALID_CATALOG")
        );
        assert!(
            described.message().contains("\"look\"") && !described.message().contains("at \"\""),
            "{described}"
        );
    }
    let unknown = proto::DescribeRequest { engine: "cobol".to_owned(), ..request.clone() };
    assert_eq!(reason(&engines.describe(unknown).await.unwrap_err()), "ENGINE_NOT_FOUND");
    let option = proto::DescribeRequest { engine_options: vec!["fast".to_owned()], ..request };
    assert_eq!(reason(&engines.describe(option).await.unwrap_err()), "UNSUPPORTED");
}

/// An engine that no sandbox has is described all the same, and refused by name before a record exists.
#[tokio::test]
async fn an_engine_without_a_sandbox_is_refused_before_a_record_exists() {
    let Bench { service, mut sessions, .. } = bench().await;
    let mut engines = EnginesClient::new(service.channel());
    for (engine, shown) in [("python", "async def look_up("), ("ruby", "def tools.look_up(")] {
        let n_sessions = async |sessions: &mut SessionsClient<Channel>| {
            sessions.list(proto::ListRequest::default()).await.unwrap().into_inner().sessions.len()
        };
        let before = n_sessions(&mut sessions).await;
        let open = proto::OpenRequest { engine: engine.to_owned(), ..Default::default() };
        let refused = sessions.open(open).await.unwrap_err();
        assert_eq!(reason(&refused), "ENGINE_UNAVAILABLE");
        let message = format!("the {engine} engine is unavailable here: no sandbox of this service has it");
        assert!(refused.message().contains(&message), "{refused}");
        assert_eq!(n_sessions(&mut sessions).await, before);
        let request = proto::DescribeRequest {
            engine: engine.to_owned(),
            catalog: support::catalog("look-up"),
            ..Default::default()
        };
        let described = engines.describe(request).await.unwrap().into_inner();
        assert!(described.declarations.contains(shown), "{}", described.declarations);
    }
}

#[tokio::test]
async fn a_missing_blob_is_not_found() {
    let Bench { mut sessions, session_id, service: _service, .. } = bench().await;
    let blob_id = format!("blob_{}", "0".repeat(32));
    let request = proto::GetBlobRequest { session_id, blob_id, offset: 0 };
    assert_eq!(reason(&sessions.get_blob(request).await.unwrap_err()), "BLOB_NOT_FOUND");
}
