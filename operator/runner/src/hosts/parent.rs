//! The warm parent: a process that has its interpreter ready and forks a host when asked.
//!
//! Starting an interpreter costs milliseconds, forking a process that has one a fraction of one.
//! The parent is executed before there is any secret, has one thread, can't be traced, reads
//! nothing but requests of the runner, and never sees a program. Its hosts are children of the
//! runner, not of it: the runner reaps them and they die with the runner.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::unistd::Pid;
use seance_proto::codec;
use seance_proto::host::v1alpha1::{Fork, Forked, FromHost, ToHost, from_host, to_host};

use super::channel::HOST_SOCKET_FD;

/// A request is a few bytes; one that is longer is none.
const REQUEST_BYTES_MAX: usize = 64;

/// Asks the parent at the other end of `control` for a host with these as its socket, standard
/// output and standard error. The answer is a [`Forked`] frame on `control`.
pub fn request(control: RawFd, descriptors: [RawFd; 3]) -> io::Result<()> {
    let frame = ToHost { frame: Some(to_host::Frame::Fork(Fork {})) };
    let bytes = codec::encode(&frame).map_err(io::Error::other)?;
    let sent = sendmsg::<()>(
        control,
        &[IoSlice::new(&bytes)],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    // A stream socket takes so few bytes whole or not at all.
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Forks a host at every request. Returns in each host, with its descriptors in place and none
/// else open; in the parent it ends with an error, or with the process when the runner is gone.
pub fn fork_hosts() -> io::Result<()> {
    // SAFETY: the runner's contract is that descriptor 3 is the control socket and that nobody
    // else in this process owns it; this is called once, at the start of the process.
    let control = UnixStream::from(unsafe { OwnedFd::from_raw_fd(HOST_SOCKET_FD) });
    let runner = nix::unistd::getppid();
    loop {
        let descriptors = next_request(&control)?;
        match fork_as_sibling() {
            Ok(Some(host)) => answer(&control, Forked { pid: host.as_raw(), error_number: 0 })?,
            Ok(None) => {
                become_host(runner, descriptors)?;
                // Its number is that of the host's socket now.
                std::mem::forget(control);
                return Ok(());
            }
            Err(error) => answer(&control, Forked { pid: 0, error_number: error as i32 })?,
        }
    }
}

fn next_request(control: &UnixStream) -> io::Result<[OwnedFd; 3]> {
    let mut bytes = [0; REQUEST_BYTES_MAX];
    let mut space = nix::cmsg_space!([RawFd; 3]);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(control.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut descriptors = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = message {
            // SAFETY: the kernel has just made these for us alone.
            descriptors.extend(numbers.iter().map(|number| unsafe { OwnedFd::from_raw_fd(*number) }));
        }
    }
    let n = received.bytes;
    if n == 0 {
        super::exit_now(0);
    }
    let mut decoder = codec::Decoder::new(REQUEST_BYTES_MAX);
    decoder.extend(&bytes[..n]);
    match decoder.next_message::<ToHost>().map_err(io::Error::other)? {
        Some(ToHost { frame: Some(to_host::Frame::Fork(Fork {})) }) => {
            descriptors.try_into().map_err(|_| io::Error::other("a request needs three descriptors"))
        }
        _ => Err(io::Error::other("a warm parent was asked for something else than a host")),
    }
}

fn answer(mut control: &UnixStream, forked: Forked) -> io::Result<()> {
    let frame = FromHost { frame: Some(from_host::Frame::Forked(forked)) };
    io::Write::write_all(&mut control, &codec::encode(&frame).map_err(io::Error::other)?)
}

/// Forks a child of our own parent. Nothing in the child, gives its number in this process.
fn fork_as_sibling() -> nix::Result<Option<Pid>> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: without a stack and without shared memory this is fork(2) but for who the parent is.
    // The process has one thread, so no lock is held by another; what the C library remembers of
    // the thread's number is asked of the kernel again where it is used.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_ulong, 0, 0, 0, 0) };
    match Errno::result(pid)? {
        0 => Ok(None),
        pid => Ok(Some(Pid::from_raw(pid as i32))),
    }
}

/// A session of its own, death with the runner, and the descriptors where a host looks for them.
fn become_host(runner: Pid, descriptors: [OwnedFd; 3]) -> io::Result<()> {
    nix::unistd::setsid()?;
    // SAFETY: takes an integer and touches no memory of ours.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    if nix::unistd::getppid() != runner {
        super::exit_now(1);
    }
    let [socket, stdout, stderr] = descriptors;
    for (from, to) in [(&stdout, 1), (&stderr, 2), (&socket, HOST_SOCKET_FD)] {
        // Received descriptors come after the control socket, so none is at its place yet.
        // SAFETY: plain system call on numbers; the ones replaced are ours to replace.
        Errno::result(unsafe { libc::dup2(from.as_raw_fd(), to) })?;
    }
    drop((socket, stdout, stderr));
    let first = HOST_SOCKET_FD as libc::c_uint + 1;
    // SAFETY: nothing in this process uses a descriptor beyond the ones just placed.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) })?;
    Ok(())
}
