//! Providers over a real connection: one that is lost and comes back, and what calls leave behind.

mod support;

use proto::serve_response::Message as Served;
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::tools_client::ToolsClient;
use seance_proto::v1alpha1::{self as proto};
use support::{
    TwoTenants, as_caller, connect, observed, open, reason, result, script, settings, start, text,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

/// A provider's stream.
struct Provider {
    sends: mpsc::Sender<proto::ServeRequest>,
    served: Streaming<proto::ServeResponse>,
}

impl Provider {
    async fn attach<I: Interceptor + Clone>(
        tools: &ToolsClient<InterceptedService<Channel, I>>,
        attach: proto::Attach,
    ) -> Self {
        let (sends, requests) = mpsc::channel(8);
        let attach = proto::serve_request::Message::Attach(attach);
        sends.send(proto::ServeRequest { message: Some(attach) }).await.unwrap();
        let served = tools.clone().serve(ReceiverStream::new(requests)).await.unwrap().into_inner();
        Self { sends, served }
    }

    /// The next call.
    async fn call(&mut self) -> proto::ProviderCall {
        loop {
            match self.served.message().await.unwrap().unwrap().message.unwrap() {
                Served::Call(call) => return call,
                Served::Attached(_) | Served::Recorded(_) | Served::KeepAlive(_) => {}
                Served::Cancel(cancel) => panic!("{cancel:?}"),
            }
        }
    }
}

/// What a provider says of its call when it is back.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Says {
    Held,
    Finished,
    NeverSeen,
    Unknown,
}

/// DESIGN section 3: each call of a provider that was cut off has its own fate.
#[tokio::test]
async fn a_provider_that_comes_back_tells_the_fate_of_each_call() {
    use proto::CallState::{Finished, OutcomeUnknown};
    let service = start(settings()).await;
    let channel = connect(&service).await;
    let mut sessions = SessionsClient::new(channel.clone());
    let tools = ToolsClient::with_interceptor(channel, |request: Request<()>| Ok::<_, Status>(request));
    for (says, state, output) in [
        (Says::Held, Finished, "result"),
        (Says::Finished, Finished, "result"),
        (Says::NeverSeen, Finished, "result"),
        (Says::Unknown, OutcomeUnknown, "outcome_unknown"),
    ] {
        let session_id = open(&mut sessions).await;
        let attach = proto::Attach { session_id: session_id.clone(), ..Default::default() };
        let mut first = Provider::attach(&tools, attach.clone()).await;
        let running = {
            let (mut sessions, request) = (sessions.clone(), script(&session_id, &["call look {\"n\":1}"]));
            tokio::spawn(async move { observed(&mut sessions, request).await })
        };
        let call_id = first.call().await.call.unwrap().call_id;
        drop(first);

        let mut back = proto::Attach { again: true, ..attach };
        match says {
            Says::Held => back.held_call_ids = vec![call_id.clone()],
            Says::Finished => {
                let result = Some(text("result"));
                back.finished_results = vec![proto::CallResult { call_id: call_id.clone(), result }];
            }
            Says::Unknown => back.unknown_call_ids = vec![call_id.clone()],
            Says::NeverSeen => {}
        }
        let mut second = Provider::attach(&tools, back).await;
        if says == Says::NeverSeen {
            let again = second.call().await;
            assert_eq!(again.call.unwrap().call_id, call_id);
            assert!(!again.repeated_call, "it never saw the call");
        }
        if matches!(says, Says::Held | Says::NeverSeen) {
            second.sends.send(result(&call_id, text("result"))).await.unwrap();
        }
        let (_, observation) = running.await.unwrap().unwrap();
        assert_eq!(observation.status(), proto::ObservationStatus::Completed, "{says:?}");
        assert!(observation.output.contains(output), "{says:?}: {}", observation.output);
        let calls = observation.program.unwrap().calls;
        assert_eq!((calls.len(), calls[0].state()), (1, state), "{says:?}");
    }
}

/// P3, P12: what a call leaves behind is read in pieces, byte for byte, by its tenant only.
#[tokio::test]
async fn a_blob_is_read_in_pieces_from_any_point_by_its_tenant() {
    let tenants = TwoTenants::start().await;
    let channel = tenants.channel.clone();
    let mut sessions = SessionsClient::with_interceptor(channel.clone(), as_caller(&tenants.ours));
    let tools = ToolsClient::with_interceptor(channel.clone(), as_caller(&tenants.ours));
    let request = proto::OpenRequest {
        engine: "javascript".to_owned(),
        catalog: support::catalog("look"),
        ..Default::default()
    };
    let session_id = sessions.open(request).await.unwrap().into_inner().session.unwrap().session_id;

    let attach = proto::Attach { session_id: session_id.clone(), ..Default::default() };
    let mut provider = Provider::attach(&tools, attach).await;
    let mut executing = sessions.execute(script(&session_id, &["call look"])).await.unwrap().into_inner();
    let call_id = provider.call().await.call.unwrap().call_id;
    let data: Vec<u8> = (0..2_500_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let chart = proto::ArtifactData {
        name: "chart.png".to_owned(),
        media_type: "image/png".to_owned(),
        data: data.clone().into(),
    };
    let answer = proto::ToolResult { artifacts: vec![chart], ..text("drawn") };
    provider.sends.send(result(&call_id, answer)).await.unwrap();
    let observation = loop {
        let message = executing.message().await.unwrap().unwrap().message.unwrap();
        if let proto::execute_response::Message::Observation(observation) = message {
            break observation;
        }
    };
    let [artifact] = &observation.artifacts[..] else { panic!("{observation:?}") };
    assert_eq!((artifact.name.as_str(), artifact.size_bytes), ("chart.png", data.len() as u64));

    let blob = |offset: usize| proto::GetBlobRequest {
        session_id: session_id.clone(),
        blob_id: artifact.blob_id.clone(),
        offset: offset as u64,
    };
    for offset in [0, 1, 1024 * 1024, data.len() - 1, data.len()] {
        let mut pieces = sessions.get_blob(blob(offset)).await.unwrap().into_inner();
        let first = pieces.message().await.unwrap().unwrap();
        assert_eq!((first.total_bytes, first.media_type.as_str()), (data.len() as u64, "image/png"));
        let mut read = first.data.to_vec();
        while let Some(piece) = pieces.message().await.unwrap() {
            assert!(!piece.data.is_empty() && piece.data.len() <= 1024 * 1024);
            read.extend_from_slice(&piece.data);
        }
        assert!(read == data[offset..], "from {offset}: {} bytes", read.len());
    }
    let past = sessions.get_blob(blob(data.len() + 1)).await.unwrap_err();
    assert_eq!(reason(&past), "INVALID_REQUEST");
    let mut others = SessionsClient::with_interceptor(channel, as_caller(&tenants.theirs));
    let refused = others.get_blob(blob(0)).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::NotFound, "SESSION_NOT_FOUND"));
}
