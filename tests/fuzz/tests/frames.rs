//! Bytes of hostile hosts and runners: the frame decoder and the messages in it.

use seance_fuzz::mutations;
use seance_proto::codec::{self, Decoder, Error};
use seance_proto::prost::Message;
use seance_proto::{host, link};

/// Small, so that a length over it is found early.
const LIMIT: usize = 4096;

/// All frames of these bytes, given in pieces of this size, and how it ends.
fn frames(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, String) {
    let mut decoder = Decoder::new(LIMIT);
    let mut bodies = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        decoder.extend(piece);
        loop {
            match decoder.next_body() {
                Ok(Some(body)) => bodies.push(body.to_vec()),
                Ok(None) => break,
                Err(error) => return (bodies, error.to_string()),
            }
        }
    }
    (bodies, decoder.finish().err().map(|error| error.to_string()).unwrap_or_default())
}

/// L2, L3, L5: however the bytes come, the frames are the same, none is over the limit, and what they were made
/// of is in them.
#[test]
fn frames_do_not_depend_on_their_pieces() {
    bolero::check!().for_each(|bytes: &[u8]| {
        for bytes in mutations(bytes) {
            let whole = frames(&bytes, bytes.len());
            for piece in [1, 3, 64] {
                assert_eq!(frames(&bytes, piece), whole);
            }
            assert!(whole.0.iter().all(|body| body.len() <= LIMIT));
            let framed = |body: &Vec<u8>| [&(body.len() as u32).to_be_bytes()[..], body].concat();
            let again: Vec<u8> = whole.0.iter().flat_map(framed).collect();
            assert!(bytes.starts_with(&again));
        }
    });
}

/// L4, L8: what decodes says the same when it is written again; what doesn't is an error and nothing else.
#[test]
fn messages_of_hosts_and_runners_are_read_or_refused() {
    fn check<M: Message + Default + PartialEq>(bytes: &[u8]) {
        let Ok(message) = M::decode(bytes) else { return };
        let encoded = message.encode_to_vec();
        assert!(M::decode(&encoded[..]).is_ok_and(|again| again == message));
        match codec::encode(&message) {
            Ok(framed) => {
                let mut decoder = Decoder::new(codec::FRAME_BYTES_MAX);
                decoder.extend(&framed);
                assert!(decoder.next_message::<M>().is_ok_and(|again| again == Some(message)));
            }
            Err(error) => assert!(matches!(error, Error::TooLarge { .. })),
        }
    }
    bolero::check!().for_each(|bytes: &[u8]| {
        for bytes in mutations(bytes) {
            check::<host::v1alpha1::FromHost>(&bytes);
            check::<host::v1alpha1::ToHost>(&bytes);
            check::<link::v1alpha1::AttachRequest>(&bytes);
            check::<link::v1alpha1::AttachResponse>(&bytes);
        }
    });
}
