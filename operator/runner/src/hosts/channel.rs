//! The host's end of its private socket: whole frames out, whole frames in, no threads.
//!
//! Writing blocks, which is how a runner that cannot take more output holds the program back.
//! Reading happens only between turns, after a poll.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use seance_proto::codec;
use seance_proto::host::v1alpha1::{FromHost, ToHost, from_host, to_host};

/// Where a host finds its socket.
pub const HOST_SOCKET_FD: i32 = 3;

const READ_BYTES: usize = 64 * 1024;
/// How long a host that is done waits to be killed before it ends by itself.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

/// What can go wrong between a host and its runner. None of it can be told to the runner.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket failed or the runner is gone.
    #[error("socket to the runner failed")]
    Socket(#[source] io::Error),
    /// The runner closed the socket.
    #[error("runner closed the socket")]
    Closed,
    /// The frame is too large, cut off or malformed.
    #[error("frame is not acceptable")]
    Frame(#[source] codec::Error),
    /// The frame is of a kind that has no place here.
    #[error("frame of an unknown or unexpected kind")]
    Unexpected,
}

/// The socket with what was read from it and is not a whole frame yet.
pub struct Channel {
    socket: UnixStream,
    decoder: codec::Decoder,
    scratch: Box<[u8]>,
}

impl Channel {
    /// Takes over the socket that the runner left at [`HOST_SOCKET_FD`].
    pub fn inherited() -> Self {
        // SAFETY: the runner's contract is that descriptor 3 is the socket and that nobody else in
        // this process owns it; this is called once, at the start of the process.
        let fd = unsafe { OwnedFd::from_raw_fd(HOST_SOCKET_FD) };
        Self {
            socket: UnixStream::from(fd),
            decoder: codec::Decoder::new(codec::FRAME_BYTES_MAX),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
        }
    }

    /// Sends one frame; blocks until the runner has room for it.
    pub fn send(&mut self, frame: from_host::Frame) -> Result<(), Error> {
        let bytes = codec::encode(&FromHost { frame: Some(frame) }).map_err(Error::Frame)?;
        self.socket.write_all(&bytes).map_err(Error::Socket)
    }

    /// The next frame, waiting at most `timeout`; without one, as long as it takes.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Option<to_host::Frame>, Error> {
        loop {
            if let Some(message) = self.decoder.next_message::<ToHost>().map_err(Error::Frame)? {
                return message.frame.map(Some).ok_or(Error::Unexpected);
            }
            if !self.wait_readable(timeout)? {
                return Ok(None);
            }
            match self.socket.read(&mut self.scratch) {
                Ok(0) => return Err(Error::Closed),
                Ok(n) => self.decoder.extend(&self.scratch[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Socket(error)),
            }
        }
    }

    /// Waits for the runner to kill this process. Results that come late are for nobody.
    pub fn until_killed(&mut self) {
        while let Ok(Some(_)) = self.receive(Some(KILLED_WITHIN)) {}
    }

    fn wait_readable(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            // A timer must not fire early, so a part of a millisecond counts as a whole one.
            PollTimeout::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(n) => Ok(n > 0),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(error) => Err(Error::Socket(error.into())),
        }
    }
}
