//! Large frames, held back output, and where a new connection would go on.

use std::time::Duration;

use seance_proto::link::v1alpha1::HostEnd;

use crate::service::{FromRunner, Options, Service};

/// Case 81, L2: five megabytes go each way whole, in parts that fit the link.
#[tokio::test]
async fn large_arguments_and_results_travel_whole() {
    let mut service = Service::assigned(Options::default()).await;
    service
        .execute(1, "const r = await tools.echo({s: 'é'.repeat(2500000)}); return [r.length, INPUTS]")
        .await;
    let call = loop {
        if let FromRunner::ToolCall(call) = service.next().await {
            break call;
        }
    };
    assert_eq!(call.arguments_json.len(), 5_000_000 + r#"{"s":""}"#.len());
    let result = serde_json::Value::from("x".repeat(5_000_000)).to_string();
    service.answer(1, call.call, &result).await;
    assert_eq!(service.ended().await.report.unwrap().value_json.as_deref(), Some("[5000000,null]"));
    // So does a program.
    service.execute_with(2, "INPUTS.length", |execute| execute.inputs_json = Some(result)).await;
    assert_eq!(service.ended().await.report.unwrap().value_json.as_deref(), Some("5000000"));
}

/// I3, I20: output that nobody acknowledges holds the program back; nothing is cut or lost.
#[tokio::test]
async fn unacknowledged_output_holds_the_program_back() {
    const LINES: usize = 16 * 1024;
    let mut service = Service::assigned(Options::default()).await;
    service.acknowledges = false;
    let source = format!("const x = 'x'.repeat(1023); for (let i = 0; i < {LINES}; i++) text(x + i % 10)");
    service.execute(1, &source).await;
    let (mut received, mut acknowledged) = (0, 0);
    let mut expected = (0..LINES).map(|n| format!("{}{}", "x".repeat(1023), n % 10));
    let ended = loop {
        let is_full = received - acknowledged >= FULL_BYTES;
        // When it is full, nothing more comes however long one waits; some time is enough to see a
        // runner that does not stop.
        let next = match is_full {
            true => service.next_within(Duration::from_millis(200)).await,
            false => Some(service.next().await),
        };
        match next {
            Some(FromRunner::Output(output)) => {
                assert_eq!(output.data, expected.next().unwrap().as_bytes());
                received += output.data.len();
                assert!(received - acknowledged < 2 * FULL_BYTES, "not held at {received}");
            }
            Some(FromRunner::ProgramEnded(ended)) => break ended,
            Some(_) => {}
            None => {
                acknowledged = received;
                service.acknowledge().await;
            }
        }
    };
    assert_eq!(received, LINES * 1024);
    assert!(acknowledged >= 3 * FULL_BYTES && ended.report.is_some());
}

/// A program that is held back can still be stopped.
#[tokio::test]
async fn a_held_program_can_be_stopped() {
    let mut service = Service::assigned(Options::default()).await;
    service.acknowledges = false;
    service.execute(1, "for (;;) text('x'.repeat(10000))").await;
    let mut received = 0;
    while received < FULL_BYTES {
        if let FromRunner::Output(output) = service.next().await {
            received += output.data.len();
        }
    }
    service.stop(1).await;
    assert_eq!(service.ended().await.end(), HostEnd::Stopped);
}

/// A little under what a runner sends without an acknowledgement.
const FULL_BYTES: usize = 4_000_000;
