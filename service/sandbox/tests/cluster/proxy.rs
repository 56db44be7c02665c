//! Stands between runners and the link port, and cuts.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A forwarder of connections.
pub struct Proxy {
    pub address: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
    connections: Arc<Mutex<JoinSet<()>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let target = Arc::new(Mutex::new(Some(target)));
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let (to, all) = (Arc::clone(&target), Arc::clone(&connections));
        let accepting = tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                let to = *to.lock().unwrap();
                if let Some(to) = to {
                    all.lock().unwrap().spawn(forward(from, to));
                }
            }
        });
        Self { address, target, connections, accepting }
    }

    /// Cuts all connections; new ones go to `target`, or nowhere.
    pub fn cut(&self, target: Option<SocketAddr>) {
        *self.target.lock().unwrap() = target;
        *self.connections.lock().unwrap() = JoinSet::new();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(mut from: TcpStream, to: SocketAddr) {
    if let Ok(mut to) = TcpStream::connect(to).await {
        drop(tokio::io::copy_bidirectional(&mut from, &mut to).await);
    }
}
