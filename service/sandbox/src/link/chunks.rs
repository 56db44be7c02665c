//! Puts frames together that came as chunks. What a runner announces is only reserved; memory
//! grows with the bytes that really came.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use seance_proto::link::v1alpha1::Chunk;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::Breach;

/// The largest frame that is put together, in bytes: the host frame's limit and room for what
/// the link puts around it.
pub const FRAME_BYTES_MAX: u64 = 64 * 1024 * 1024 + 64 * 1024;
/// The most bytes of unfinished frames of one link. Over it the link is broken.
pub const LINK_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// The most unfinished frames of one link. Over it the link is broken.
pub const OPEN_CHUNKED_MAX: usize = 16;

/// The bytes of unfinished frames that all links of a service may have together. Over it, a link
/// isn't read until another has finished a frame, so that its runner is held back.
#[derive(Debug, Clone)]
pub struct Budget {
    kib: Arc<Semaphore>,
    kib_max: u32,
}

impl Budget {
    /// Room for so many bytes, and for one frame at least.
    pub fn new(bytes: u64) -> Self {
        let kib_max = u32::try_from(bytes.max(FRAME_BYTES_MAX).div_ceil(1024)).unwrap_or(u32::MAX >> 4);
        Self { kib: Arc::new(Semaphore::new(kib_max as usize)), kib_max }
    }

    /// Waits for room. Cancel-safe.
    pub(super) async fn room(&self, bytes: u64) -> OwnedSemaphorePermit {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(self.kib_max).min(self.kib_max);
        let room = Arc::clone(&self.kib).acquire_many_owned(kib).await;
        room.expect("the semaphore is never closed")
    }
}

/// Frames that are not whole yet.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    open: HashMap<u64, Partial>,
    reserved_bytes: u64,
    room: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct Partial {
    total_bytes: u64,
    data: BytesMut,
    since: Instant,
    /// Gives the room back when the frame is whole or the link gone.
    _room: Option<OwnedSemaphorePermit>,
}

impl Assembler {
    /// Takes a chunk and gives the whole frame with the last one.
    pub(super) fn take(&mut self, chunk: &Chunk) -> Result<Option<Bytes>, Breach> {
        if chunk.data.is_empty() {
            return Err(Breach::BadField { field: "chunk.data" });
        }
        self.reserve(chunk)?;
        let partial = self.open.get_mut(&chunk.id).expect("reserve made or found it");
        if partial.total_bytes != chunk.total_bytes {
            return Err(Breach::BadField { field: "chunk.total_bytes" });
        }
        let left = partial.total_bytes - partial.data.len() as u64;
        if chunk.data.len() as u64 > left {
            return Err(Breach::TooMuch {
                what: "bytes of a chunk",
                n: chunk.data.len() as u64,
                limit: left,
            });
        }
        partial.data.extend_from_slice(&chunk.data);
        if (partial.data.len() as u64) < partial.total_bytes {
            return Ok(None);
        }
        self.reserved_bytes -= chunk.total_bytes;
        Ok(self.open.remove(&chunk.id).map(|partial| partial.data.freeze()))
    }

    /// Whether a part of this frame is there.
    pub(super) fn has(&self, id: u64) -> bool {
        self.open.contains_key(&id)
    }

    /// When the frame was begun that is not whole for the longest time.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.open.values().map(|partial| partial.since).min()
    }

    /// The room of the frame that is begun next.
    pub(super) fn keep_room(&mut self, room: OwnedSemaphorePermit) {
        self.room = Some(room);
    }

    fn reserve(&mut self, chunk: &Chunk) -> Result<(), Breach> {
        if self.has(chunk.id) {
            return Ok(());
        }
        self.check(chunk)?;
        self.reserved_bytes += chunk.total_bytes;
        let (total_bytes, data, since) = (chunk.total_bytes, BytesMut::new(), Instant::now());
        self.open.insert(chunk.id, Partial { total_bytes, data, since, _room: self.room.take() });
        Ok(())
    }

    /// Whether a frame of this size may be begun.
    pub(super) fn check(&self, chunk: &Chunk) -> Result<(), Breach> {
        let total = chunk.total_bytes;
        if total > FRAME_BYTES_MAX {
            return Err(Breach::TooMuch { what: "bytes of a frame", n: total, limit: FRAME_BYTES_MAX });
        }
        if self.open.len() == OPEN_CHUNKED_MAX {
            let n = self.open.len() as u64 + 1;
            return Err(Breach::TooMuch { what: "unfinished frames", n, limit: OPEN_CHUNKED_MAX as u64 });
        }
        let reserved = self.reserved_bytes + total;
        if reserved > LINK_BYTES_MAX {
            let what = "bytes of unfinished frames";
            return Err(Breach::TooMuch { what, n: reserved, limit: LINK_BYTES_MAX });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(id: u64, total_bytes: u64, data: &[u8]) -> Chunk {
        Chunk { id, total_bytes, data: Bytes::copy_from_slice(data) }
    }

    #[test]
    fn chunks_of_several_frames_may_be_mixed() {
        let mut assembler = Assembler::default();
        assert_eq!(assembler.take(&chunk(1, 4, b"ab")), Ok(None));
        assert_eq!(assembler.take(&chunk(2, 3, b"xyz")), Ok(Some(Bytes::from_static(b"xyz"))));
        assert_eq!(assembler.take(&chunk(1, 4, b"cd")), Ok(Some(Bytes::from_static(b"abcd"))));
        assert_eq!((assembler.open.len(), assembler.reserved_bytes), (0, 0));
    }

    /// An announced size is refused before its bytes are there.
    #[test]
    fn sizes_are_refused_before_anything_is_kept() {
        let mut assembler = Assembler::default();
        let error = assembler.take(&chunk(1, u64::MAX, b"a")).unwrap_err();
        assert!(matches!(error, Breach::TooMuch { what: "bytes of a frame", .. }), "{error}");
        for id in 0..2 {
            let total = LINK_BYTES_MAX / 2 - 1;
            assert_eq!(assembler.take(&chunk(id, total, b"a")), Ok(None));
        }
        let error = assembler.take(&chunk(3, 3, b"a")).unwrap_err();
        assert!(matches!(error, Breach::TooMuch { what: "bytes of unfinished frames", .. }), "{error}");
    }

    #[test]
    fn a_seventeenth_unfinished_frame_breaks_the_link() {
        let mut assembler = Assembler::default();
        for id in 0..OPEN_CHUNKED_MAX as u64 {
            assert_eq!(assembler.take(&chunk(id, 2, b"a")), Ok(None));
        }
        assert!(matches!(assembler.take(&chunk(99, 2, b"a")), Err(Breach::TooMuch { .. })));
    }

    #[test]
    fn a_chunk_that_lies_about_its_frame_breaks_the_link() {
        let first = |assembler: &mut Assembler| assembler.take(&chunk(1, 4, b"ab")).unwrap();
        for bad in [chunk(1, 5, b"c"), chunk(1, 4, b"cde"), chunk(1, 4, b""), chunk(2, 0, b"a")] {
            let mut assembler = Assembler::default();
            first(&mut assembler);
            assert!(assembler.take(&bad).is_err(), "{bad:?}");
        }
    }
}
