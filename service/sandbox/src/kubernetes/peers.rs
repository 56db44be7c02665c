//! How much of the link port one address can take up before it has shown who it is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Strangers over all addresses: connections in their handshake, or whose runner isn't known yet.
const STRANGERS_MAX: usize = 256;

/// Counts connections.
#[derive(Debug)]
pub(super) struct Peers {
    strangers: Mutex<HashMap<IpAddr, usize>>,
    strangers_max: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    per_address_max: usize,
}

/// A connection that counts as a stranger's until this is dropped.
#[derive(Debug)]
pub(super) struct Stranger {
    peers: Arc<Peers>,
    address: IpAddr,
    _place: OwnedSemaphorePermit,
}

impl Peers {
    pub(super) fn new(connections_max: usize, per_address_max: usize) -> Arc<Self> {
        Arc::new(Self {
            strangers: Mutex::default(),
            strangers_max: Arc::new(Semaphore::new(STRANGERS_MAX)),
            connections: Arc::new(Semaphore::new(connections_max)),
            per_address_max,
        })
    }

    /// Lets a connection in, or not: then it is closed without a word.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<(OwnedSemaphorePermit, Stranger)> {
        let connection = Arc::clone(&self.connections).try_acquire_owned().ok()?;
        let place = Arc::clone(&self.strangers_max).try_acquire_owned().ok()?;
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let n = strangers.entry(address).or_default();
        if *n >= self.per_address_max {
            return None;
        }
        *n += 1;
        drop(strangers);
        Some((connection, Stranger { peers: Arc::clone(self), address, _place: place }))
    }
}

impl Stranger {
    /// Where it comes from.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut strangers = self.peers.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = strangers.get_mut(&self.address) {
            *n -= 1;
            if *n == 0 {
                strangers.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_strangers_and_leaves_room_for_others() {
        let peers = Peers::new(10, 2);
        let [one, other] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let (connection, stranger) = peers.admit(one).unwrap();
        let second = peers.admit(one).unwrap();
        assert!(peers.admit(one).is_none());
        assert!(peers.admit(other).is_some());
        drop(stranger);
        let third = peers.admit(one).unwrap();
        drop((connection, second, third));
        assert!(peers.strangers.lock().unwrap().is_empty());
    }

    #[test]
    fn connections_are_bounded_over_all() {
        let peers = Peers::new(1, 2);
        let (connection, stranger) = peers.admit([10, 0, 0, 1].into()).unwrap();
        drop(stranger);
        assert!(peers.admit([10, 0, 0, 2].into()).is_none());
        drop(connection);
        assert!(peers.admit([10, 0, 0, 2].into()).is_some());
    }
}
