use futures::StreamExt;
use seance_core::ids::{Epoch, ProgramNumber};

use super::*;

fn open() -> (Sender, Messages) {
    channel(AttachResponse::default(), (Vec::new(), None), None)
}

fn result(bytes: usize) -> Addressed {
    let result = Ok("x".repeat(bytes));
    let frame = ToRunner::CallResult { program: ProgramNumber(1), call: 1, result };
    Addressed { epoch: Epoch(3), frame }
}

fn addressed(frame: ToRunner) -> Addressed {
    Addressed { epoch: Epoch(3), frame }
}

async fn next(messages: &mut Messages) -> AttachResponse {
    messages.next().await.expect("the sender is there").expect("messages have no errors")
}

#[tokio::test]
async fn a_large_frame_travels_as_chunks_and_small_ones_overtake_it() {
    let (sender, mut messages) = open();
    next(&mut messages).await;
    sender.send(result(3 * CHUNK_BYTES)).await.unwrap();
    let mut whole = Vec::new();
    let mut total = u64::MAX;
    let mut n_small = 0;
    while (whole.len() as u64) < total {
        sender.send(addressed(ToRunner::Ack { number: 1 })).await.unwrap();
        assert!(matches!(next(&mut messages).await.frame, Some(Frame::Ack(_))));
        n_small += 1;
        let message = next(&mut messages).await;
        assert!(message.encoded_len() < seance_proto::LINK_MESSAGE_BYTES_MAX);
        assert_eq!(message.epoch, 3);
        let Some(Frame::Chunk(chunk)) = message.frame else { panic!("no chunk") };
        total = chunk.total_bytes;
        whole.extend_from_slice(&chunk.data);
    }
    assert_eq!(n_small, 4);
    let frame = AttachResponse::decode(whole.as_slice()).unwrap();
    assert!(matches!(frame.frame, Some(Frame::CallResult(_))));
}

/// A stop that overtook its Execute would be ignored, and the program would run.
#[tokio::test]
async fn a_stop_stays_behind_the_frames_before_it() {
    let (sender, mut messages) = open();
    next(&mut messages).await;
    let tool = |n: usize| seance_core::link::GuestTool {
        name: format!("t{n}"),
        alias: format!("t{n}"),
        description: "d".repeat(1000),
    };
    let digest = seance_core::ids::CatalogDigest::of(b"");
    let tools: Arc<[_]> = (0..400).map(tool).collect();
    sender.send(addressed(ToRunner::Catalog { digest, tools })).await.unwrap();
    sender.send(addressed(ToRunner::StopProgram { program: ProgramNumber(1) })).await.unwrap();
    drop(sender);
    let frames: Vec<_> = messages.map(|message| message.unwrap().frame.unwrap()).collect().await;
    let (stop, chunks) = frames.split_last().unwrap();
    assert!(matches!(stop, Frame::StopProgram(_)));
    assert!(chunks.len() > 2 && chunks.iter().all(|frame| matches!(frame, Frame::Chunk(_))));
}

#[tokio::test]
async fn a_full_lane_makes_the_sender_wait() {
    let (sender, mut messages) = open();
    next(&mut messages).await;
    let send = || sender.send(addressed(ToRunner::Ack { number: 1 }));
    for _ in 0..URGENT_FRAMES_MAX {
        send().await.unwrap();
    }
    assert!(futures::poll!(std::pin::pin!(send())).is_pending());
    next(&mut messages).await;
    send().await.unwrap();
    drop(messages);
    assert_eq!(send().await, Err(LinkGone));
}

/// What is sent again comes whole, in its order and before what is new.
#[tokio::test]
async fn what_is_sent_again_comes_first() {
    let frame = |addressed: Addressed| AttachResponse {
        epoch: addressed.epoch.0,
        frame: Some(convert::to_proto(addressed.frame)),
    };
    let again = vec![frame(result(WHOLE_BYTES_MAX + 1)), frame(result(1))];
    let (sender, mut messages) = channel(AttachResponse::default(), (again, None), None);
    sender.send(addressed(ToRunner::Shutdown)).await.unwrap();
    next(&mut messages).await;
    for _ in 0..2 {
        assert!(matches!(next(&mut messages).await.frame, Some(Frame::Chunk(_))));
    }
    assert!(matches!(next(&mut messages).await.frame, Some(Frame::CallResult(_))));
    assert!(matches!(next(&mut messages).await.frame, Some(Frame::Shutdown(_))));
}
