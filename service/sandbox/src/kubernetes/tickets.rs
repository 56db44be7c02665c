//! Tickets: what a runner shows when it dials again, so that reconnecting needs no API server.
//!
//! A ticket names the pod, its pool, when it expires, and which contact it was given at. It is sealed
//! with a key that all replicas share; two keys overlap while they are rotated.

use std::sync::{PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What is sealed along: a ticket is nothing else.
const PURPOSE: &[u8] = b"seance-ticket/v1";
const KEY_BYTES: usize = 32;
const KEYS_MAX: usize = 2;
const KEY_ID_BYTES: usize = 4;
/// The longest ticket that is looked at, in bytes.
const TICKET_BYTES_MAX: usize = 1024;

/// What a ticket says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// The pod's UID.
    pub pod: String,
    /// Its pool.
    pub pool: String,
    /// When it expires, in seconds since 1970.
    pub expires: u64,
    /// The contact it was given at: each has a higher number.
    pub generation: u64,
}

/// Keys that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the file of ticket keys needs one or two lines of 32 bytes in base64: {message}")]
pub struct KeysError {
    /// What is wrong.
    pub message: String,
}

/// A ticket that isn't accepted. Which it is of these is for the log, never for the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// It is no ticket, or none of ours.
    #[error("the ticket is not one of ours")]
    Forged,
    /// Its time is over.
    #[error("the ticket has expired")]
    Expired,
}

struct Key {
    id: [u8; KEY_ID_BYTES],
    key: LessSafeKey,
}

/// Seals and opens tickets.
pub struct Tickets {
    keys: RwLock<Vec<Key>>,
}

impl Tickets {
    /// With the keys of a file's text.
    pub fn new(text: &str) -> Result<Self, KeysError> {
        Ok(Self { keys: RwLock::new(parse(text)?) })
    }

    /// Goes on with other keys. On an error those that are there stay.
    pub fn replace(&self, text: &str) -> Result<(), KeysError> {
        let keys = parse(text)?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// Seals a ticket as text that fits in a header.
    pub fn seal(&self, ticket: &Ticket) -> String {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.first().expect("parse gives one at least");
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).expect("the kernel has random bytes once it has started");
        let mut sealed = serde_json::to_vec(ticket).expect("a ticket is plain data");
        let nonce_once = Nonce::assume_unique_for_key(nonce);
        key.key
            .seal_in_place_append_tag(nonce_once, Aad::from(PURPOSE), &mut sealed)
            .expect("a ticket is far shorter than the cipher's limit");
        URL_SAFE_NO_PAD.encode([&key.id[..], &nonce, &sealed].concat())
    }

    /// Opens a ticket at a time, in seconds since 1970.
    pub fn open(&self, text: &str, now: u64) -> Result<Ticket, TicketError> {
        if text.len() > TICKET_BYTES_MAX {
            return Err(TicketError::Forged);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TicketError::Forged)?;
        let (id, rest) = bytes.split_at_checked(KEY_ID_BYTES).ok_or(TicketError::Forged)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN).ok_or(TicketError::Forged)?;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.iter().find(|key| key.id == id).ok_or(TicketError::Forged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| TicketError::Forged)?;
        let mut sealed = sealed.to_vec();
        let opened = key.key.open_in_place(nonce, Aad::from(PURPOSE), &mut sealed);
        let opened = opened.map_err(|_| TicketError::Forged)?;
        let ticket: Ticket = serde_json::from_slice(opened).map_err(|_| TicketError::Forged)?;
        if ticket.expires <= now { Err(TicketError::Expired) } else { Ok(ticket) }
    }
}

fn parse(text: &str) -> Result<Vec<Key>, KeysError> {
    let error = |message: &str| KeysError { message: message.to_owned() };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Vec<Key> = lines
        .map(|line| {
            let bytes = STANDARD.decode(line).map_err(|_| error("a line is no base64"))?;
            if bytes.len() != KEY_BYTES {
                return Err(error("a key has another length"));
            }
            let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| error("a key can't be used"))?;
            let mut id = [0; KEY_ID_BYTES];
            id.copy_from_slice(&Sha256::digest(&bytes)[..KEY_ID_BYTES]);
            Ok(Key { id, key: LessSafeKey::new(key) })
        })
        .collect::<Result<_, _>>()?;
    match keys.len() {
        0 => Err(error("there is none")),
        n if n > KEYS_MAX => Err(error("there are too many")),
        _ => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> String {
        STANDARD.encode([byte; KEY_BYTES])
    }

    fn ticket() -> Ticket {
        Ticket { pod: "p".to_owned(), pool: "small".to_owned(), expires: 100, generation: 3 }
    }

    #[test]
    fn a_ticket_opens_until_it_expires() {
        let tickets = Tickets::new(&key(1)).unwrap();
        let sealed = tickets.seal(&ticket());
        assert_eq!(tickets.open(&sealed, 99), Ok(ticket()));
        assert_eq!(tickets.open(&sealed, 100), Err(TicketError::Expired));
        assert_ne!(tickets.seal(&ticket()), sealed, "no two are alike");
    }

    /// The new key comes first, and the old one stays until what it sealed has gone round.
    #[test]
    fn two_keys_overlap_while_they_are_rotated() {
        let tickets = Tickets::new(&key(1)).unwrap();
        let old = tickets.seal(&ticket());
        tickets.replace(&format!("{}\n{}\n", key(2), key(1))).unwrap();
        let new = tickets.seal(&ticket());
        assert_eq!((tickets.open(&old, 0), tickets.open(&new, 0)), (Ok(ticket()), Ok(ticket())));
        tickets.replace(&key(2)).unwrap();
        assert_eq!((tickets.open(&old, 0), tickets.open(&new, 0)), (Err(TicketError::Forged), Ok(ticket())));
        assert!(tickets.replace("").is_err());
        assert_eq!(tickets.open(&new, 0), Ok(ticket()), "bad keys change nothing");
    }

    #[test]
    fn a_changed_ticket_is_none() {
        let tickets = Tickets::new(&key(1)).unwrap();
        let sealed = tickets.seal(&ticket());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(tickets.open(&changed, 0), Err(TicketError::Forged), "{at}");
        }
        let long = "A".repeat(TICKET_BYTES_MAX + 1);
        for text in ["", "A", "ä", &long, &sealed[..20]] {
            assert_eq!(tickets.open(text, 0), Err(TicketError::Forged), "{text}");
        }
    }

    #[test]
    fn keys_that_can_not_be_used_are_refused() {
        let three = [key(1), key(2), key(3)].join("\n");
        let short = STANDARD.encode([1; 16]);
        for text in ["", "\n", "x", short.as_str(), three.as_str()] {
            assert!(Tickets::new(text).is_err(), "{text}");
        }
    }
}
