//! Measures a host over its socket: start, memory, the round trip of a tool call.
//!
//! `cargo run --release -p seance-runner --example measure -- PATH-TO-SEANCE-RUNNER`

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use seance_proto::codec::{self, Decoder};
use seance_proto::host::v1alpha1::{
    CallResult, FromHost, HostLimits, Start, ToHost, ToolName, call_result, from_host, to_host,
};

const ROUNDS: usize = 50;
const CALLS: usize = 5000;

fn main() -> anyhow::Result<()> {
    let program = std::env::args().nth(1).unwrap_or_else(|| "target/release/seance-runner".to_owned());
    let (mut ready, mut first) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let mut host = Host::start(&program)?;
        host.next()?;
        ready.push(started.elapsed());
        let started = Instant::now();
        host.run("1+1")?;
        host.next()?;
        first.push(started.elapsed());
    }
    report("host started to ready", ready);
    report("ready host: program to result", first);

    let mut host = Host::start(&program)?;
    host.next()?;
    println!(
        "ready host: {} KiB resident, {} KiB of it its own",
        host.memory("Rss")?,
        host.memory("Private_Dirty")?
    );
    host.run(&format!("for (let i = 0; i < {CALLS}; i++) await tools.echo({{value: i}})"))?;
    let mut calls = vec![];
    let mut sent = Instant::now();
    while let from_host::Frame::ToolCall(call) = host.next()? {
        calls.push(sent.elapsed());
        sent = Instant::now();
        let result = Some(call_result::Result::ValueJson(r#"{"value":1}"#.to_owned()));
        host.send(to_host::Frame::CallResult(CallResult { call: call.call, result }))?;
    }
    report("tool call: result to next call", calls);
    Ok(())
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    println!("{what}: p50 {:?}, p99 {:?}, n {}", at(50), at(99), times.len());
}

struct Host {
    child: Child,
    socket: UnixStream,
    decoder: Decoder,
}

impl Host {
    fn start(program: &str) -> anyhow::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let fd = theirs.as_raw_fd();
        let mut command = Command::new(program);
        command.arg("host-javascript").env_clear().stdin(Stdio::null());
        // SAFETY: only makes a system call between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // Duplicating a descriptor onto itself would leave it to be closed.
                let done = if fd == 3 { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, 3) };
                if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        Ok(Self { child: command.spawn()?, socket, decoder: Decoder::new(codec::FRAME_BYTES_MAX) })
    }

    fn run(&mut self, source: &str) -> anyhow::Result<()> {
        let tool = ToolName { name: "echo".to_owned(), alias: "echo".to_owned(), ..ToolName::default() };
        let limits =
            HostLimits { turn_ms: 10_000, cpu_ms: 60_000, memory_bytes: 128 << 20, ..HostLimits::default() };
        self.send(to_host::Frame::Start(Start {
            program: 1,
            language: "javascript".to_owned(),
            source: source.to_owned(),
            tools: vec![tool],
            limits: Some(limits),
            ..Start::default()
        }))
    }

    fn send(&mut self, frame: to_host::Frame) -> anyhow::Result<()> {
        Ok(self.socket.write_all(&codec::encode(&ToHost { frame: Some(frame) })?)?)
    }

    fn next(&mut self) -> anyhow::Result<from_host::Frame> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.decoder.next_message::<FromHost>()? {
                return message.frame.ok_or_else(|| anyhow::anyhow!("unknown frame"));
            }
            let n = self.socket.read(&mut buffer)?;
            anyhow::ensure!(n > 0, "host is gone");
            self.decoder.extend(&buffer[..n]);
        }
    }

    fn memory(&self, field: &str) -> anyhow::Result<u64> {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = rollup.lines().find(|line| line.starts_with(&format!("{field}:")));
        let number =
            line.and_then(|line| line.split_whitespace().nth(1)).and_then(|number| number.parse().ok());
        number.ok_or_else(|| anyhow::anyhow!("no {field}"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
