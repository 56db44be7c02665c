//! Connections: TLS and certificates that change, clients that say nothing, silence on streams, and
//! addresses that can't be had.

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use seance_proto::v1alpha1::server_client::ServerClient;
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::tools_client::ToolsClient;
use seance_proto::v1alpha1::{self as proto};
use seance_server::config::Settings;
use seance_server::tls::TLS_FILES_LOOK;
use seance_server::{Error, Service};
use support::{Scripted, attach, open, script, settings, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

const NAME: &str = "seance.test";

/// An authority, and a certificate of it with its key.
struct Issued {
    authority: String,
    cert: String,
    key: String,
}

fn issue() -> Issued {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = rcgen::CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let cert = cert.signed_by(&key, &issuer).unwrap();
    Issued { authority, cert: cert.pem(), key: key.serialize_pem() }
}

impl Issued {
    /// Settings with this certificate in a folder.
    fn settings(&self, folder: &Path) -> Settings {
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&cert, &self.cert).unwrap();
        std::fs::write(&key, &self.key).unwrap();
        Settings { tls_cert: Some(cert), tls_key: Some(key), ..settings() }
    }

    /// A new connection of a client that trusts this authority only.
    async fn connect(&self, address: SocketAddr) -> Result<Channel, tonic::transport::Error> {
        let tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority)).domain_name(NAME);
        let endpoint = Channel::from_shared(format!("https://{address}")).unwrap();
        endpoint.tls_config(tls).unwrap().connect().await
    }
}

async fn works(channel: Channel) {
    ServerClient::new(channel).get_info(proto::GetInfoRequest {}).await.unwrap();
}

#[tokio::test]
async fn tls_is_served_with_a_certificate_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let issued = issue();
    let files = issued.settings(folder.path());
    let service = start(files.clone()).await;
    let address = service.local_addr().unwrap();
    works(issued.connect(address).await.unwrap()).await;
    assert!(issue().connect(address).await.is_err(), "a stranger's authority");
    let plain = Channel::from_shared(format!("http://{address}")).unwrap();
    let plain = plain.connect_timeout(support::SOON).connect_lazy();
    assert!(ServerClient::new(plain).get_info(proto::GetInfoRequest {}).await.is_err());

    let other = issue();
    for (cert, key, says) in [
        ("no certificate", issued.key.as_str(), "cert.pem is no PEM file with a certificate"),
        (&issued.cert, "no key", "key.pem is no PEM file with a key"),
        (&issued.cert, &other.key, "cert.pem and its key can't be used"),
    ] {
        std::fs::write(files.tls_cert.as_ref().unwrap(), cert).unwrap();
        std::fs::write(files.tls_key.as_ref().unwrap(), key).unwrap();
        let started = Service::start(&files.clone().parse().unwrap(), Arc::new(Scripted::default())).await;
        let Err(error @ Error::Tls(_)) = started else { panic!("it started") };
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Certificates are renewed while the service runs; one that can't be used changes nothing.
#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (issue(), issue());
    let service = start(before.settings(folder.path())).await;
    let address = service.local_addr().unwrap();
    let open = before.connect(address).await.unwrap();
    works(open.clone()).await;

    std::fs::write(folder.path().join("key.pem"), &after.key).unwrap();
    look().await;
    works(before.connect(address).await.unwrap()).await;

    after.settings(folder.path());
    look().await;
    works(after.connect(address).await.unwrap()).await;
    assert!(before.connect(address).await.is_err(), "new connections get the new certificate only");
    works(open).await;
}

/// Lets the service look at its files.
async fn look() {
    tokio::time::pause();
    tokio::time::advance(TLS_FILES_LOOK).await;
    tokio::task::yield_now().await;
    tokio::time::resume();
}

/// A client that stalls before the HTTP/2 preface, or within the TLS handshake, holds no place.
#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    for settings in [settings(), issue().settings(folder.path())] {
        let service = start(settings).await;
        // Nothing; half a preface; a TLS record that announces more than comes.
        for said in [b"".as_slice(), b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00\x01"] {
            let begun = Instant::now();
            let mut stream = TcpStream::connect(service.local_addr().unwrap()).await.unwrap();
            stream.write_all(said).await.unwrap();
            let mut answer = Vec::new();
            // A reset is an end too.
            let _ = stream.read_to_end(&mut answer).await;
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?} after {said:?}", begun.elapsed());
        }
    }
}

/// B5: in every 10 s of silence a stream shows that it lives.
#[tokio::test(start_paused = true)]
async fn streams_beat_in_ten_seconds_of_silence() {
    use proto::{execute_response, follow_response, serve_response, wait_response};
    let service = start(settings()).await;
    let channel = service.channel();
    let (mut sessions, mut tools) = (SessionsClient::new(channel.clone()), ToolsClient::new(channel));
    let session_id = open(&mut sessions).await;
    let (_held, requests) = {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        sender.send(attach(&session_id)).await.unwrap();
        (sender, tokio_stream::wrappers::ReceiverStream::new(receiver))
    };
    let mut served = tools.serve(requests).await.unwrap().into_inner();
    let mut executing = sessions.execute(script(&session_id, &["hang"])).await.unwrap().into_inner();
    macro_rules! beats {
        ($stream:expr, $beat:pat) => {{
            let mut last = Instant::now();
            let mut n_beats = 0;
            while n_beats < 2 {
                let message = $stream.message().await.unwrap().unwrap().message.unwrap();
                let silence = last.elapsed();
                assert!(silence <= Duration::from_secs(11), "{silence:?} before {message:?}");
                n_beats += u32::from(matches!(message, $beat));
                last = Instant::now();
            }
        }};
    }
    beats!(executing, execute_response::Message::Heartbeat(_));
    drop(executing);
    let follow = proto::FollowRequest { session_id: session_id.clone(), ..Default::default() };
    let mut following = sessions.follow(follow).await.unwrap().into_inner();
    beats!(following, follow_response::Message::Heartbeat(_));
    let wait = proto::WaitRequest { session_id, ..Default::default() };
    let mut waiting = loop {
        // The cut is noticed a moment later; until then the first observer has the control.
        match sessions.wait(wait.clone()).await {
            Ok(stream) => break stream.into_inner(),
            Err(status) => assert_eq!(support::reason(&status), "CONTROL_ACTIVE"),
        }
    };
    beats!(waiting, wait_response::Message::Heartbeat(_));
    let attached = served.message().await.unwrap().unwrap().message.unwrap();
    assert!(matches!(attached, serve_response::Message::Attached(_)));
    beats!(served, serve_response::Message::KeepAlive(_));
}

/// A service whose address is taken says which setting that is, and leaves nothing behind.
#[tokio::test]
async fn a_taken_address_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (taken_at, free_at) = (taken.local_addr().unwrap(), free.local_addr().unwrap());
    drop(free);
    let data_dir = folder.path().join("data");
    for (listen, admin, setting) in [(taken_at, free_at, "(listen)"), (free_at, taken_at, "(admin_listen)")] {
        let settings = Settings {
            listen: Some(listen.to_string()),
            admin_listen: Some(admin.to_string()),
            data_dir: Some(data_dir.clone()),
            ..settings()
        };
        let started = Service::start(&settings.parse().unwrap(), Arc::new(Scripted::default())).await;
        let Err(error) = started else { panic!("it started") };
        let message = error.to_string();
        assert!(message.contains(setting) && message.contains(&taken_at.to_string()), "{message}");
        assert!(message.contains("another program listens there"), "{message}");
        assert!(TcpStream::connect(free_at).await.is_err(), "the other address is free");
        assert!(!data_dir.exists());
    }
}
