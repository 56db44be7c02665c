//! Length-prefixed frames: a 4-byte big-endian length and a body of that many bytes.
//!
//! The length is checked before anything is allocated. A clean end of stream between frames is no
//! frame; inside a frame it is an error (session contract L1–L5).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// The largest frame body that is accepted or sent.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

const PREFIX_BYTES: usize = 4;

/// What can be wrong with a frame.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The length is over the limit; nothing was allocated for it.
    #[error("frame of {bytes} bytes is over the limit of {limit}")]
    TooLarge { bytes: usize, limit: usize },
    /// The stream ended inside a frame.
    #[error("stream ended inside a frame with {missing} bytes missing")]
    Truncated { missing: usize },
    /// The body is no message of the expected type.
    #[error("frame body is malformed: {detail}")]
    Malformed { detail: String },
}

/// Encodes a message as one frame.
pub fn encode(message: &impl Message) -> Result<Bytes, Error> {
    let bytes = message.encoded_len();
    if bytes > FRAME_BYTES_MAX {
        return Err(Error::TooLarge { bytes, limit: FRAME_BYTES_MAX });
    }
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    frame.put_u32(u32::try_from(bytes).expect("the limit fits in 32 bits"));
    message.encode(&mut frame).expect("the buffer has the encoded length");
    Ok(frame.freeze())
}

/// Takes frames from a growing buffer, piece by piece; a partial frame gives nothing and loses
/// nothing.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    limit: usize,
}

impl Decoder {
    /// A decoder that refuses bodies over `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), limit: limit.min(FRAME_BYTES_MAX) }
    }

    /// Adds bytes read from the stream.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame's body, if it is there.
    pub fn next_body(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(bytes) = self.pending_length()? else { return Ok(None) };
        if self.buffer.len() < PREFIX_BYTES + bytes {
            return Ok(None);
        }
        self.buffer.advance(PREFIX_BYTES);
        Ok(Some(self.buffer.split_to(bytes).freeze()))
    }

    /// The next whole frame as a message.
    pub fn next_message<M: Message + Default>(&mut self) -> Result<Option<M>, Error> {
        let Some(body) = self.next_body()? else { return Ok(None) };
        M::decode(body).map(Some).map_err(|error| Error::Malformed { detail: error.to_string() })
    }

    /// Checks that the stream ended between frames.
    pub fn finish(&self) -> Result<(), Error> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let whole = self.pending_length()?.map_or(PREFIX_BYTES, |bytes| PREFIX_BYTES + bytes);
        Err(Error::Truncated { missing: whole.saturating_sub(self.buffer.len()) })
    }

    fn pending_length(&self) -> Result<Option<usize>, Error> {
        let Some(mut prefix) = self.buffer.get(..PREFIX_BYTES) else { return Ok(None) };
        let bytes = prefix.get_u32() as usize;
        if bytes > self.limit {
            return Err(Error::TooLarge { bytes, limit: self.limit });
        }
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::v1alpha1::Text;

    fn text(text: &str) -> Text {
        Text { text: text.to_owned() }
    }

    /// L5, L6, J17: every split of a stream gives the same frames, counted in bytes.
    #[test]
    fn frames_survive_every_split() {
        for length in [0, 1, 62, 63, 64, 125, 126, 127, 128, 255, 256] {
            let sent = text(&"é".repeat(length));
            let frame = encode(&sent).unwrap();
            for split in 0..=frame.len() {
                let mut decoder = Decoder::new(FRAME_BYTES_MAX);
                decoder.extend(&frame[..split]);
                if split < frame.len() {
                    assert_eq!(decoder.next_message::<Text>().unwrap(), None);
                }
                decoder.extend(&frame[split..]);
                assert_eq!(decoder.next_message::<Text>().unwrap(), Some(sent.clone()));
                decoder.finish().unwrap();
            }
        }
    }

    /// L2: the length is refused before the body is there.
    #[test]
    fn a_length_over_the_limit_is_refused_before_its_body() {
        let mut decoder = Decoder::new(100);
        decoder.extend(&[0, 0, 0, 101]);
        assert_eq!(decoder.next_body(), Err(Error::TooLarge { bytes: 101, limit: 100 }));
        let mut decoder = Decoder::new(usize::MAX);
        decoder.extend(&[0xff; 4]);
        assert!(matches!(decoder.next_body(), Err(Error::TooLarge { .. })));
    }

    /// L3: an end inside a frame is an error, also inside its length.
    #[test]
    fn an_end_inside_a_frame_is_an_error() {
        let frame = encode(&text("abc")).unwrap();
        for split in 1..frame.len() {
            let mut decoder = Decoder::new(100);
            decoder.extend(&frame[..split]);
            assert!(matches!(decoder.finish(), Err(Error::Truncated { .. })), "split {split}");
        }
    }

    /// L4: a body that is no message is an error, not a panic.
    #[test]
    fn a_malformed_body_is_an_error() {
        let mut decoder = Decoder::new(100);
        decoder.extend(&[0, 0, 0, 2, 0x0a, 0x7f]);
        assert!(matches!(decoder.next_message::<Text>(), Err(Error::Malformed { .. })));
    }
}
