//! The edge over a real connection: who gets in, what is found there, and what is refused.

mod support;

use std::time::Duration;

use prost::Message as _;
use seance_proto::v1alpha1::server_client::ServerClient;
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::tools_client::ToolsClient;
use seance_proto::v1alpha1::{self as proto};
use seance_server::auth::mint_token;
use seance_server::config::{Edge, Settings};
use seance_server::{Error, Service};
use support::{TwoTenants, as_caller, connect, open, reason, settings, start};
use tonic::{Code, Request};

fn with_token(token: &str) -> Request<proto::GetInfoRequest> {
    let mut request = Request::new(proto::GetInfoRequest {});
    request.metadata_mut().insert("authorization", token.parse().unwrap());
    request
}

#[tokio::test]
async fn loopback_without_tokens_is_the_tenant_default() {
    let service = start(settings()).await;
    let mut client = ServerClient::new(connect(&service).await);
    let info = client.get_info(proto::GetInfoRequest {}).await.unwrap();
    assert!(info.metadata().contains_key("seance-request-id"));
    let info = info.into_inner();
    assert_eq!((info.tenant.as_str(), info.backend.as_str()), ("default", "scripted"));
    assert_eq!(info.limits.len(), seance_core::limits::TABLE.len());
    service.shutdown(support::SOON, std::future::pending()).await;
}

#[tokio::test]
async fn with_tokens_only_who_has_one_gets_in() {
    let folder = tempfile::tempdir().unwrap();
    let tokens_file = folder.path().join("tokens.toml");
    let minted = mint_token(&"team-1".parse().unwrap(), "test").unwrap();
    std::fs::write(&tokens_file, &minted.file_entry).unwrap();
    let service = start(Settings { tokens_file: Some(tokens_file), ..settings() }).await;
    let channel = connect(&service).await;
    let mut client = ServerClient::new(channel.clone());

    let bearer = format!("Bearer {}", minted.token);
    assert_eq!(client.get_info(with_token(&bearer)).await.unwrap().into_inner().tenant, "team-1");
    let wrong = mint_token(&"team-1".parse().unwrap(), "").unwrap().token;
    let missing = Request::new(proto::GetInfoRequest {});
    for request in
        [missing, with_token(&format!("Bearer {wrong}")), with_token("Bearer"), with_token(&minted.token)]
    {
        let refused = client.get_info(request).await.unwrap_err();
        assert_eq!((refused.code(), reason(&refused).as_str()), (Code::Unauthenticated, "UNAUTHENTICATED"));
    }
    // Streams too, before anything is read of them.
    let serve = ToolsClient::new(channel.clone()).serve(tokio_stream::pending()).await;
    assert_eq!(reason(&serve.unwrap_err()), "UNAUTHENTICATED");
    // Probes have no token.
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    health.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap();
}

#[tokio::test]
async fn another_tenants_session_is_not_found_by_any_method() {
    let tenants = TwoTenants::start().await;
    let channel = tenants.channel.clone();
    let mut our_client = SessionsClient::with_interceptor(channel.clone(), as_caller(&tenants.ours));
    let request = proto::OpenRequest { engine: "javascript".to_owned(), ..Default::default() };
    let session_id = our_client.open(request).await.unwrap().into_inner().session.unwrap().session_id;

    let mut client = SessionsClient::with_interceptor(channel.clone(), as_caller(&tenants.theirs));
    let mut tools = ToolsClient::with_interceptor(channel, as_caller(&tenants.theirs));
    let blob_id = format!("blob_{}", "0".repeat(32));
    let call_id = format!("call_{}_1_1", session_id.trim_start_matches("ses_"));
    let id = || session_id.clone();
    let text = proto::ToolResult {
        outcome: Some(proto::tool_result::Outcome::Text("x".to_owned())),
        artifacts: Vec::new(),
    };
    let attach = proto::Attach { session_id: id(), ..Default::default() };
    let attach = proto::ServeRequest { message: Some(proto::serve_request::Message::Attach(attach)) };
    let refusals = [
        client.get(proto::GetRequest { session_id: id() }).await.map(drop),
        client.execute(support::script(&session_id, &["text a"])).await.map(drop),
        client
            .wait(proto::WaitRequest { session_id: id(), program_number: 1, ..Default::default() })
            .await
            .map(drop),
        client
            .stop(proto::StopRequest { session_id: id(), program_number: 1, ..Default::default() })
            .await
            .map(drop),
        client.close(proto::CloseRequest { session_id: id(), ..Default::default() }).await.map(drop),
        client.get_program(proto::GetProgramRequest { session_id: id(), program_number: 1 }).await.map(drop),
        client.follow(proto::FollowRequest { session_id: id(), ..Default::default() }).await.map(drop),
        client.get_blob(proto::GetBlobRequest { session_id: id(), blob_id, offset: 0 }).await.map(drop),
        tools.serve(tokio_stream::once(attach)).await.map(drop),
        tools
            .answer(proto::AnswerRequest {
                session_id: id(),
                call_id,
                result: Some(text),
                ..Default::default()
            })
            .await
            .map(drop),
    ];
    for (index, refusal) in refusals.into_iter().enumerate() {
        let refused = refusal.unwrap_err();
        assert_eq!(
            (refused.code(), reason(&refused).as_str()),
            (Code::NotFound, "SESSION_NOT_FOUND"),
            "{index}"
        );
    }
    let listed = client.list(proto::ListRequest::default()).await.unwrap().into_inner();
    assert!(listed.sessions.is_empty());
}

/// A public address only with tokens and TLS, also when the configuration was not parsed from text.
#[tokio::test]
async fn a_public_address_is_refused_without_tokens_and_tls() {
    let mut config = settings().parse().unwrap();
    config.edge =
        Edge { listen: Some("0.0.0.0:0".parse().unwrap()), tokens_file: None, callers: None, tls: None };
    let backend = std::sync::Arc::new(support::Scripted::default());
    let Err(Error::Unsafe(lacks)) = Service::start(&config, backend).await else { panic!("it started") };
    assert!(lacks[0].contains("tokens_file") && lacks[1].contains("tls_cert"), "{lacks:?}");
}

#[tokio::test]
async fn health_and_both_versions_of_reflection_name_every_service() {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };
    let service = start(settings()).await;
    let channel = connect(&service).await;
    let ours = ["Sessions", "Engines", "Tools", "Server"].map(|name| format!("seance.v1alpha1.{name}"));
    let mut health = HealthClient::new(channel.clone());
    for name in std::iter::once(String::new()).chain(ours.clone()) {
        let status = health.check(HealthCheckRequest { service: name }).await.unwrap().into_inner();
        assert_eq!(status.status(), ServingStatus::Serving);
    }
    macro_rules! listed {
        ($version:ident) => {{
            use tonic_reflection::pb::$version as pb;
            let request = pb::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(pb::server_reflection_request::MessageRequest::ListServices(
                    String::new(),
                )),
            };
            let mut client = pb::server_reflection_client::ServerReflectionClient::new(channel.clone());
            let stream = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
            let answer = stream.into_inner().message().await.unwrap().unwrap().message_response.unwrap();
            let pb::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else {
                panic!("{answer:?}")
            };
            list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
        }};
    }
    for listed in [listed!(v1), listed!(v1alpha)] {
        assert!(ours.iter().all(|name| listed.contains(name)), "{listed:?}");
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_in_our_words() {
    let service = start(settings()).await;
    let mut client = ToolsClient::new(connect(&service).await);
    let tool =
        proto::Tool { name: "a".to_owned(), description: "x".repeat(4 * 1024 * 1024), ..Default::default() };
    let catalog = Some(proto::Catalog { tools: vec![tool] });
    let request = proto::PutCatalogRequest { catalog, ..Default::default() };
    let refused = client.put_catalog(request).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::InvalidArgument, "INVALID_REQUEST"));
    assert!(refused.message().contains("3 MiB"), "{}", refused.message());
}

/// A field that this version doesn't know is refused, not ignored.
#[tokio::test]
async fn a_field_from_a_later_version_is_refused_by_its_place() {
    #[derive(Clone, PartialEq, prost::Message)]
    struct LaterOpen {
        #[prost(string, tag = "1")]
        engine: String,
        #[prost(bool, tag = "77")]
        teleport: bool,
    }
    let service = start(settings()).await;
    let mut client = tonic::client::Grpc::new(connect(&service).await);
    let mut open = async |teleport| {
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<LaterOpen, proto::OpenResponse>::default();
        let path = http::uri::PathAndQuery::from_static("/seance.v1alpha1.Sessions/Open");
        let request = LaterOpen { engine: "javascript".to_owned(), teleport };
        client.unary(Request::new(request), path, codec).await
    };
    open(false).await.unwrap();
    let refused = open(true).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::InvalidArgument, "UNSUPPORTED"));
    assert!(refused.message().contains("field 77"), "{}", refused.message());
}

/// A client with default settings takes 4 MiB: everything of a large session arrives.
#[tokio::test]
async fn a_stock_client_reads_all_of_a_session_with_much_output() {
    let service = start(settings()).await;
    let mut client = SessionsClient::new(connect(&service).await);
    let session_id = open(&mut client).await;
    let observe = proto::ObserveOptions { max_output_tokens: Some(1_048_576), ..Default::default() };
    let request = proto::ExecuteRequest {
        observe: Some(observe),
        ..support::script(&session_id, &["text begin", "big 6000000", "text end"])
    };
    let (output, observation) = support::observed(&mut client, request).await.unwrap();
    assert!(output.len() > 6_000_000 && output.starts_with(b"begin\n") && output.ends_with(b"\nend"));
    assert!(observation.output.len() <= 1024 * 1024 + 100);
    let cut = observation.output_cut.unwrap();
    assert_eq!(cut.original_tokens, (output.len() as u64).div_ceil(4));
    assert!(observation.output.starts_with("begin\n") && observation.output.ends_with("\nend"));

    let request = proto::FollowRequest { session_id, until_now: true, ..Default::default() };
    let mut events = client.follow(request).await.unwrap().into_inner();
    let (mut last, mut followed) = (0, 0);
    while let Some(response) = events.message().await.unwrap() {
        assert!(response.encoded_len() < seance_proto::PUBLIC_MESSAGE_BYTES_MAX);
        let Some(proto::follow_response::Message::Event(event)) = response.message else { continue };
        assert_eq!(event.sequence, last + 1);
        last = event.sequence;
        if let Some(proto::event::Kind::Output(chunk)) = event.kind {
            followed += chunk.data.len();
        }
    }
    assert_eq!(followed, output.len());
}

#[tokio::test]
async fn metrics_and_probes_are_on_a_port_of_their_own() {
    let service = start(Settings { admin_listen: Some("127.0.0.1:0".to_owned()), ..settings() }).await;
    let mut client = SessionsClient::new(connect(&service).await);
    let session_id = open(&mut client).await;
    support::observed(&mut client, support::script(&session_id, &["text a"])).await.unwrap();
    client.get(proto::GetRequest { session_id: "x".to_owned() }).await.unwrap_err();
    let admin = service.admin_addr().unwrap();
    assert!(http_get(admin, "/healthz").await.ends_with("ok\n"));
    assert!(http_get(admin, "/ready").await.contains("200 OK"));
    let text = http_get(admin, "/metrics").await;
    for line in [
        r#"seance_requests_total{code="OK",method="Sessions.Open"} 1"#,
        r#"seance_requests_total{code="OK",method="Sessions.Execute"} 1"#,
        r#"seance_requests_total{code="INVALID_ARGUMENT",method="Sessions.Get"} 1"#,
        "seance_request_seconds_bucket{method=\"Sessions.Open\",le=",
        "seance_connections 1",
        "seance_requests_running 0",
        "seance_leaked_sandboxes 0",
        "seance_sessions 1",
        r#"seance_programs_total{state="completed"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

async fn http_get(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_shutdown_ends_streams_and_is_not_held_up_by_an_idle_connection() {
    let service = start(settings()).await;
    let channel = connect(&service).await;
    let mut client = SessionsClient::new(channel.clone());
    let session_id = open(&mut client).await;
    let mut following =
        client.follow(proto::FollowRequest { session_id, ..Default::default() }).await.unwrap().into_inner();
    let raw = tokio::net::TcpStream::connect(service.local_addr().unwrap()).await.unwrap();
    let stopping = tokio::spawn(service.shutdown(Duration::from_millis(300), std::future::pending()));
    let refused = loop {
        match following.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::Unavailable, "SERVICE_STOPPING"));
    tokio::time::timeout(support::SOON, stopping).await.expect("it stops").unwrap();
    drop(raw);
}
