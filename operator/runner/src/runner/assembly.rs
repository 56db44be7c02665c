//! Large frames from the service, put together from their chunks within fixed bounds.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use seance_proto::codec::FRAME_BYTES_MAX;
use seance_proto::link::v1alpha1::Chunk;

/// A whole frame: the largest host frame and what is around it.
const FRAME_MAX: u64 = FRAME_BYTES_MAX as u64 + 64 * 1024;
/// All frames that are not whole yet.
const OPEN_BYTES_MAX: u64 = 2 * FRAME_MAX;
const OPEN_MAX: usize = 16;

/// Chunks that make no frame.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A frame is larger than any may be.
    #[error("chunked frame of {0} bytes is too large")]
    TooLarge(u64),
    /// Too much is open at one time.
    #[error("too many chunked frames are open")]
    TooManyOpen,
    /// The chunks do not agree with each other.
    #[error("chunks of a frame do not fit together")]
    Mismatch,
}

/// Frames that are not whole yet.
#[derive(Default)]
pub struct Assembly {
    open: HashMap<u64, Partial>,
}

struct Partial {
    total_bytes: u64,
    data: BytesMut,
}

impl Assembly {
    /// Takes a chunk; gives the frame when it is whole. Memory is used as data comes, not as it is
    /// announced.
    pub fn add(&mut self, chunk: Chunk) -> Result<Option<Bytes>, Error> {
        if chunk.total_bytes > FRAME_MAX {
            return Err(Error::TooLarge(chunk.total_bytes));
        }
        if chunk.data.is_empty() {
            return Err(Error::Mismatch);
        }
        if !self.open.contains_key(&chunk.id) {
            let announced: u64 = self.open.values().map(|partial| partial.total_bytes).sum();
            if self.open.len() >= OPEN_MAX || announced + chunk.total_bytes > OPEN_BYTES_MAX {
                return Err(Error::TooManyOpen);
            }
            self.open.insert(chunk.id, Partial { total_bytes: chunk.total_bytes, data: BytesMut::new() });
        }
        let Some(partial) = self.open.get_mut(&chunk.id) else { return Err(Error::Mismatch) };
        let bytes = (partial.data.len() + chunk.data.len()) as u64;
        if partial.total_bytes != chunk.total_bytes || bytes > chunk.total_bytes {
            return Err(Error::Mismatch);
        }
        partial.data.extend_from_slice(&chunk.data);
        if bytes < chunk.total_bytes {
            return Ok(None);
        }
        Ok(self.open.remove(&chunk.id).map(|partial| partial.data.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(id: u64, total_bytes: u64, data: &'static [u8]) -> Chunk {
        Chunk { id, total_bytes, data: Bytes::from_static(data) }
    }

    #[test]
    fn mixed_chunks_make_their_frames() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(chunk(1, 4, b"ab")), Ok(None));
        assert_eq!(assembly.add(chunk(2, 2, b"xy")), Ok(Some(Bytes::from_static(b"xy"))));
        assert_eq!(assembly.add(chunk(1, 4, b"cd")), Ok(Some(Bytes::from_static(b"abcd"))));
    }

    #[test]
    fn what_is_too_much_or_does_not_fit_is_refused() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(chunk(1, FRAME_MAX + 1, b"a")), Err(Error::TooLarge(FRAME_MAX + 1)));
        assert_eq!(assembly.add(chunk(1, 3, b"")), Err(Error::Mismatch));
        assert_eq!(assembly.add(chunk(1, 3, b"ab")), Ok(None));
        assert_eq!(assembly.add(chunk(1, 4, b"c")), Err(Error::Mismatch));
        assert_eq!(assembly.add(chunk(1, 3, b"cd")), Err(Error::Mismatch));
        for id in 2..=OPEN_MAX as u64 {
            assert_eq!(assembly.add(chunk(id, 3, b"a")), Ok(None));
        }
        assert_eq!(assembly.add(chunk(99, 3, b"a")), Err(Error::TooManyOpen));
    }
}
