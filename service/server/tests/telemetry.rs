//! Spans, read back from a real OTLP receiver: one trace from the caller to the provider.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::tools_client::ToolsClient;
use seance_proto::v1alpha1::{self as proto};
use seance_server::config::{LogFormat, TelemetryConfig};
use seance_server::telemetry::Telemetry;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

#[derive(Clone, Default)]
struct Collector {
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.requests.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| &scope.spans).cloned().collect()
    }

    fn service_names(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources
            .flat_map(|spans| &spans.resource.as_ref().unwrap().attributes)
            .filter(|attribute| attribute.key == "service.name")
            .map(|attribute| format!("{:?}", attribute.value.as_ref().unwrap()))
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_goes_from_the_caller_to_the_provider() {
    let collector = Collector::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serving = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(collector.clone()))
        .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
    tokio::spawn(serving);
    let telemetry = Telemetry::install(&TelemetryConfig {
        log_format: LogFormat::Json,
        log_filter: "warn".to_owned(),
        otlp_endpoint: Some(endpoint),
    })
    .unwrap();

    let service = support::start(support::settings()).await;
    let channel = support::connect(&service).await;
    let mut sessions = SessionsClient::new(channel.clone());
    let session_id = support::open(&mut sessions).await;
    let (sender, requests) = mpsc::channel(8);
    let attach = proto::Attach { session_id: session_id.clone(), ..Default::default() };
    let attach = proto::ServeRequest { message: Some(proto::serve_request::Message::Attach(attach)) };
    sender.send(attach).await.unwrap();
    let mut served =
        ToolsClient::new(channel).serve(ReceiverStream::new(requests)).await.unwrap().into_inner();
    served.message().await.unwrap();

    let (trace_id, parent_id) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let mut request = Request::new(support::script(&session_id, &["call look {}"]));
    let context = format!("00-{trace_id}-{parent_id}-01");
    request.metadata_mut().insert("traceparent", context.parse().unwrap());
    let mut stream = sessions.execute(request).await.unwrap().into_inner();
    let call = match served.message().await.unwrap().unwrap().message.unwrap() {
        proto::serve_response::Message::Call(call) => call,
        other => panic!("{other:?}"),
    };
    let [version, trace, call_span, flags] = call.traceparent.split('-').collect::<Vec<_>>()[..] else {
        panic!("{}", call.traceparent)
    };
    assert_eq!((version, trace, flags), ("00", trace_id, "01"));
    let outcome = Some(proto::tool_result::Outcome::Text("x".to_owned()));
    let result = Some(proto::ToolResult { outcome, artifacts: Vec::new() });
    let result = proto::CallResult { call_id: call.call.unwrap().call_id, result };
    let result = proto::ServeRequest { message: Some(proto::serve_request::Message::Result(result)) };
    sender.send(result).await.unwrap();
    while stream.message().await.unwrap().is_some() {}
    drop((stream, served, sender));
    service.shutdown(support::SOON, std::future::pending()).await;
    telemetry.shutdown(Duration::from_secs(10)).await;

    let spans = collector.spans();
    assert!(collector.service_names().iter().all(|name| name.contains("seance")));
    let ours: Vec<&Span> = spans.iter().filter(|span| hex::encode(&span.trace_id) == trace_id).collect();
    let request = ours.iter().find(|span| span.name == "Sessions.Execute").expect("the request's span");
    assert_eq!(hex::encode(&request.parent_span_id), parent_id);
    // Up from the call that the provider was told of, every step is there, to the request.
    let mut id = call_span.to_owned();
    let mut names = Vec::new();
    while id != parent_id {
        let span = ours.iter().find(|span| hex::encode(&span.span_id) == id).unwrap_or_else(|| {
            panic!("{id} is missing above {names:?} in {ours:#?}");
        });
        names.push(span.name.clone());
        id = hex::encode(&span.parent_span_id);
    }
    assert_eq!(names.last().map(String::as_str), Some("Sessions.Execute"), "{names:?}");
    assert!(names.len() >= 3, "call, program, request: {names:?}");
}
