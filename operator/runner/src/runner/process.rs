//! A host's process, or its warm parent's: starting it, its socket and pipes, killing it, learning
//! how it ended.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use bytes::{Buf, Bytes};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use seance_proto::codec;
use seance_proto::host::v1alpha1::{FromHost, ToHost, from_host, to_host};
use seance_proto::link::v1alpha1::OutputSource;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;

use crate::hosts::channel::HOST_SOCKET_FD;
use crate::hosts::engine::Engine;
use crate::hosts::{parent, readable};

const READ_BYTES: usize = 64 * 1024;
/// More than `/proc/PID/status` has, so that it is read at once.
const STATUS_BYTES: usize = 4096;

/// A host or a warm parent that is running, or that has ended and is not forgotten yet.
pub struct HostProcess {
    pid: Pid,
    /// Readable when the process has ended.
    pidfd: AsyncFd<OwnedFd>,
    socket: Option<UnixStream>,
    decoder: codec::Decoder,
    unsent: VecDeque<Bytes>,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    is_dismissed: bool,
    ended: Option<Exit>,
    scratch: Vec<u8>,
}

/// What a host did.
#[expect(clippy::large_enum_variant, reason = "handed on at once, one at a time, and never kept in numbers")]
#[derive(Debug)]
pub enum Event {
    /// It sent a frame.
    Frame(from_host::Frame),
    /// It wrote to one of its standard streams.
    Output(OutputSource, Bytes),
    /// It sent what is no frame.
    Violation(String),
    /// It was dismissed, and everything it wrote until then has been read. The last event.
    Silent,
    /// It has ended, was reaped, and everything it wrote has been read. The last event.
    Exited(Exit),
}

/// How a process ended and what it used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exit {
    /// The signal's name; empty when none ended it.
    pub signal: String,
    pub status: i32,
    pub cpu_us: u64,
    pub peak_memory_bytes: u64,
}

/// A host that the warm parent was asked for.
pub struct Requested {
    socket: std::os::unix::net::UnixStream,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Requested {
    /// Takes the host over, once the parent has told its number.
    pub fn adopt(self, pid: Pid) -> io::Result<HostProcess> {
        HostProcess::adopt(pid, self.socket, Some(self.stdout), Some(self.stderr)).inspect_err(|_| {
            kill_group(pid);
            let _ = reap(pid, 0);
        })
    }
}

impl HostProcess {
    /// Asks this warm parent for a host. Its answer is a [`from_host::Frame::Forked`].
    pub fn request(&self) -> io::Result<Requested> {
        let Some(parent) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        let (socket, theirs) = std::os::unix::net::UnixStream::pair()?;
        let (stdout, their_stdout) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let (stderr, their_stderr) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let descriptors = [theirs.as_raw_fd(), their_stdout.as_raw_fd(), their_stderr.as_raw_fd()];
        parent::request(parent.as_raw_fd(), descriptors)?;
        Ok(Requested { socket, stdout, stderr })
    }

    /// Executes the warm parent of an engine: an empty environment, nothing on standard input, its socket
    /// at [`HOST_SOCKET_FD`] and no other descriptor, no files but what it may read, a session of its own,
    /// and death with the runner.
    pub fn spawn(engine: &Engine) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let [program, arguments @ ..] = engine.command.as_slice() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        command.args(arguments).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let socket = theirs.as_raw_fd();
        let (parent, stack_bytes) = (std::process::id(), engine.stack_bytes);
        let readable = match &engine.readable {
            Some(paths) => readable::rules(paths)?,
            None => None,
        };
        let rules = readable.as_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: `prepare` only makes system calls, so it is fit for between fork and exec.
        unsafe { command.pre_exec(move || prepare(socket, parent, stack_bytes, rules)) };
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(child.id() as i32);
        // From here on the process is ours to kill and reap; `Child` does neither when dropped.
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        Self::adopt(pid, ours, stdout, stderr).inspect_err(|_| {
            kill_group(pid);
            let _ = reap(pid, 0);
        })
    }

    fn adopt(
        pid: Pid,
        socket: std::os::unix::net::UnixStream,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            pid,
            // SAFETY: an `OwnedFd` keeps the same open descriptor until it is dropped, and the
            // registration goes with it.
            pidfd: unsafe { AsyncFd::register_with_interest(open_pidfd(pid)?, Interest::READABLE)? },
            socket: Some(UnixStream::from_std(socket)?),
            decoder: codec::Decoder::new(codec::FRAME_BYTES_MAX),
            unsent: VecDeque::new(),
            stdout: stdout.map(Receiver::from_owned_fd).transpose()?,
            stderr: stderr.map(Receiver::from_owned_fd).transpose()?,
            is_dismissed: false,
            ended: None,
            scratch: vec![0; READ_BYTES],
        })
    }

    /// The process's number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a frame, as far as the host takes it now; the rest goes while waiting for events.
    /// A host that is gone shows as its exit.
    pub fn send(&mut self, frame: to_host::Frame) -> Result<(), codec::Error> {
        self.unsent.push_back(codec::encode(&ToHost { frame: Some(frame) })?);
        if let (Some(socket), 1) = (&self.socket, self.unsent.len())
            && let Ok(n) = nix::sys::socket::send(
                socket.as_raw_fd(),
                &self.unsent[0],
                nix::sys::socket::MsgFlags::MSG_NOSIGNAL | nix::sys::socket::MsgFlags::MSG_DONTWAIT,
            )
        {
            self.sent(n);
        }
        Ok(())
    }

    /// Kills the host and everything it started that stayed in its group.
    pub fn kill(&self) {
        if self.ended.is_none() {
            kill_group(self.pid);
        }
    }

    /// Takes leave of a host that has said that it is done, and gives what it used until now: what it
    /// has written is read, and nothing more. Neither its end nor killing it is waited for, since
    /// taking its memory down takes the kernel longer than a small program ran; [`Self::kill`] follows
    /// once its end is told. Nothing where what it used can't be seen, because it has begun to end or
    /// `/proc` hides it: then it is killed, and its exit tells.
    pub fn dismiss(&mut self) -> Option<Exit> {
        let Some((cpu_us, peak_memory_bytes)) = usage(self.pid) else {
            self.kill();
            return None;
        };
        self.is_dismissed = true;
        Some(Exit { cpu_us, peak_memory_bytes, ..Exit::default() })
    }

    /// Waits until a dismissed host is gone, and reaps it. Losing this future loses nothing.
    pub async fn gone(&mut self) {
        if self.ended.is_none() {
            drop(self.pidfd.readable().await);
            self.ended = Some(reap(self.pid, libc::WNOHANG).unwrap_or_default());
        }
    }

    /// Whether the process has ended, even if nobody has looked yet.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some() || is_readable(self.pidfd.get_ref().as_fd())
    }

    /// What the host does next. While `is_held`, its frames and output stay where they are and it
    /// has to wait. Losing this future loses nothing.
    pub async fn next_event(&mut self, is_held: bool) -> Event {
        loop {
            let is_over = self.is_dismissed || self.ended.is_some();
            if !is_held || is_over {
                match self.decoder.next_message::<FromHost>() {
                    Ok(Some(FromHost { frame: Some(frame) })) => return Event::Frame(frame),
                    Ok(Some(FromHost { frame: None })) => {
                        return self.violation("a frame of an unknown kind".to_owned());
                    }
                    Ok(None) => {}
                    Err(error) => return self.violation(error.to_string()),
                }
            }
            if is_over {
                let drained = self.drain();
                if !matches!(drained, Drained::Nothing) {
                    // One that has left something is killed before the rest is read, so that this has an end.
                    self.kill();
                }
                match drained {
                    Drained::Event(event) => return event,
                    Drained::Frames => continue,
                    Drained::Nothing => return self.ended.clone().map_or(Event::Silent, Event::Exited),
                }
            }
            let is_read = !is_held;
            tokio::select! {
                biased;
                // The socket comes before the end of the process, so that a last frame is seen.
                _ = socket_ready(self.socket.as_ref(), Interest::READABLE), if is_read => {
                    self.read_socket();
                }
                _ = socket_ready(self.socket.as_ref(), Interest::WRITABLE), if !self.unsent.is_empty() => {
                    self.write_socket();
                }
                _ = pipe_ready(self.stdout.as_ref()), if is_read => {
                    if let Some(data) = read_pipe(&mut self.stdout, &mut self.scratch) {
                        return Event::Output(OutputSource::Stdout, data);
                    }
                }
                _ = pipe_ready(self.stderr.as_ref()), if is_read => {
                    if let Some(data) = read_pipe(&mut self.stderr, &mut self.scratch) {
                        return Event::Output(OutputSource::Stderr, data);
                    }
                }
                _ = self.pidfd.readable() => {
                    // What the host left behind holds the pipes open and may not go on.
                    kill_group(self.pid);
                    self.ended = Some(reap(self.pid, libc::WNOHANG).unwrap_or_default());
                }
            }
        }
    }

    fn violation(&mut self, what: String) -> Event {
        // What follows cannot be told apart from garbage.
        self.decoder = codec::Decoder::new(codec::FRAME_BYTES_MAX);
        self.socket = None;
        Event::Violation(what)
    }

    fn read_socket(&mut self) {
        let Some(socket) = &self.socket else { return };
        match socket.try_read(&mut self.scratch) {
            Ok(0) => self.socket = None,
            Ok(n) => self.decoder.extend(&self.scratch[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.socket = None,
        }
    }

    fn write_socket(&mut self) {
        let (Some(socket), Some(front)) = (&self.socket, self.unsent.front()) else { return };
        match socket.try_write(front) {
            Ok(n) => self.sent(n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.unsent.clear(),
        }
    }

    fn sent(&mut self, n: usize) {
        if let Some(front) = self.unsent.front_mut() {
            front.advance(n);
            if front.is_empty() {
                self.unsent.pop_front();
            }
        }
    }

    /// Reads a piece of what a host that has ended or was dismissed left in its socket and pipes. Nothing
    /// waits here.
    fn drain(&mut self) -> Drained {
        if let Some(socket) = &self.socket {
            match read_now(socket.as_fd(), &mut self.scratch) {
                Some(n) => {
                    self.decoder.extend(&self.scratch[..n]);
                    return Drained::Frames;
                }
                None => self.socket = None,
            }
        }
        for (source, pipe) in
            [(OutputSource::Stdout, &mut self.stdout), (OutputSource::Stderr, &mut self.stderr)]
        {
            let Some(open) = pipe else { continue };
            match read_now(open.as_fd(), &mut self.scratch) {
                Some(n) => {
                    return Drained::Event(Event::Output(source, Bytes::copy_from_slice(&self.scratch[..n])));
                }
                None => *pipe = None,
            }
        }
        Drained::Nothing
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        if self.ended.is_none() {
            kill_group(self.pid);
            let _ = reap(self.pid, 0);
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "handed on at once, one at a time, and never kept in numbers")]
enum Drained {
    Event(Event),
    Frames,
    Nothing,
}

async fn socket_ready(socket: Option<&UnixStream>, interest: Interest) {
    match socket {
        // An error shows again in the read or write that follows.
        Some(socket) => drop(socket.ready(interest).await),
        None => std::future::pending().await,
    }
}

async fn pipe_ready(pipe: Option<&Receiver>) {
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

/// Output that is there now. The pipe is forgotten at its end.
fn read_pipe(pipe: &mut Option<Receiver>, scratch: &mut [u8]) -> Option<Bytes> {
    match pipe.as_ref()?.try_read(scratch) {
        Ok(n) if n > 0 => return Some(Bytes::copy_from_slice(&scratch[..n])),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        _ => *pipe = None,
    }
    None
}

/// Bytes that are there now; nothing at the end, on an error, and when none are.
fn read_now(fd: BorrowedFd<'_>, into: &mut [u8]) -> Option<usize> {
    nix::unistd::read(fd, into).ok().filter(|n| *n > 0)
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).is_ok_and(|n| n > 0)
}

/// Runs in the child between fork and exec.
fn prepare(socket: RawFd, parent: u32, stack_bytes: u64, rules: Option<RawFd>) -> io::Result<()> {
    // SAFETY: plain system calls on numbers, allowed between fork and exec.
    unsafe {
        let mut stack = std::mem::zeroed::<libc::rlimit>();
        check(libc::getrlimit(libc::RLIMIT_STACK, &mut stack))?;
        stack.rlim_cur = stack_bytes.min(stack.rlim_max);
        check(libc::setrlimit(libc::RLIMIT_STACK, &stack))?;
        check(libc::setsid())?;
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        if libc::getppid() as u32 != parent {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if let Some(rules) = rules {
            readable::restrict(rules)?;
        }
        if socket == HOST_SOCKET_FD {
            check(libc::fcntl(socket, libc::F_SETFD, 0))?;
        } else {
            check(libc::dup2(socket, HOST_SOCKET_FD))?;
        }
        let first = HOST_SOCKET_FD as libc::c_uint + 1;
        let close = libc::CLOSE_RANGE_CLOEXEC as libc::c_long;
        match libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, close) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn open_pidfd(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: returns a new descriptor or an error; the new one is ours.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), libc::PIDFD_NONBLOCK) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd as RawFd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A host leads its own group, so its number is the group's.
fn kill_group(pid: Pid) {
    let _ = nix::sys::signal::killpg(pid, Signal::SIGKILL);
    let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
}

/// Takes an ended process's status; nothing when there is none to take.
pub fn reap(pid: Pid, flags: i32) -> Option<Exit> {
    let mut status = 0;
    // SAFETY: both out parameters are ours and of the right type; zeroes are a valid rusage.
    let (reaped, usage) = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        (libc::wait4(pid.as_raw(), &mut status, flags, &mut usage), usage)
    };
    if reaped != pid.as_raw() {
        return None;
    }
    let micros = |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec).unsigned_abs();
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    Some(Exit {
        signal: signal.map(signal_name).unwrap_or_default(),
        status: if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 0 },
        cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
        peak_memory_bytes: usage.ru_maxrss.unsigned_abs() * 1024,
    })
}

/// Processor time in microseconds and the largest resident size in bytes of a process that has not
/// begun to end.
fn usage(pid: Pid) -> Option<(u64, u64)> {
    let mut status = String::with_capacity(STATUS_BYTES);
    std::fs::File::open(format!("/proc/{pid}/status")).ok()?.read_to_string(&mut status).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let peak_kib: u64 = peak.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((cpu_us(pid)?, peak_kib * 1024))
}

fn cpu_us(pid: Pid) -> Option<u64> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both out parameters are ours and of the right type.
    let failed = unsafe {
        libc::clock_getcpuclockid(pid.as_raw(), &mut clock) != 0 || libc::clock_gettime(clock, &mut time) != 0
    };
    (!failed).then(|| time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000)
}

fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}
