//! The local backend: claims, ends and their proof, with and without confinement.

mod testee;

use seance_core::sandbox::SandboxBackend;
use seance_proto::link::v1alpha1::AttachRequest;
use seance_sandbox::local::Confinement;
use testee::{Guest, backend};
use tokio::sync::mpsc;

async fn attempt(source: &str, _frames: &mpsc::Sender<AttachRequest>) -> String {
    source.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_runs_in_a_claimed_sandbox() {
    let backend = backend(Confinement::Required).await;
    println!("{:?}", backend.confinement());
    let mut guest = Guest::new(&backend).await;
    assert_eq!(guest.run("hello").await, "hello");
    backend.shutdown(testee::DEADLINE).await;
    assert_eq!(backend.sandboxes(), []);
}
