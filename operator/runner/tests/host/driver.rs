//! Starts a host, gives it a program, answers its tool calls, and keeps what it said.

use std::collections::BTreeMap;
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use seance_proto::codec::{self, Decoder};
use seance_proto::host::v1alpha1::{
    CallError, CallResult, Ended, FromHost, HostLimits, Start, ToHost, ToolName, call_result, from_host,
    to_host,
};
use seance_runner::hosts::engine::Engine;
use seance_runner::hosts::{interpreted, javascript, parent, readable};

const DEADLINE: Duration = Duration::from_secs(30);

/// A program and what it is run with.
pub struct Run {
    pub start: Start,
}

/// What a host said.
#[derive(Debug)]
pub struct Said {
    pub texts: Vec<String>,
    /// What it wrote to its standard output and error, of which a pipe holds so much.
    pub output: String,
    /// Tool and arguments of every call, in order.
    pub calls: Vec<(String, String)>,
    pub cancelled: Vec<u64>,
    pub ended: Ended,
    pub took: Duration,
}

impl Said {
    pub fn value(&self) -> Option<&str> {
        assert_eq!(self.ended.error, None, "{self:?}");
        self.ended.value_json.as_deref()
    }

    pub fn error(&self) -> &seance_proto::host::v1alpha1::ProgramError {
        self.ended.error.as_ref().unwrap_or_else(|| panic!("no error: {self:?}"))
    }

    pub fn warnings(&self) -> Vec<&str> {
        self.ended.warnings.iter().map(|warning| warning.code.as_str()).collect()
    }
}

/// The tools of the program cases that need no broker, and one with a difficult name.
pub fn tools() -> Vec<ToolName> {
    [
        ("echo", "echo"),
        ("sleep", "sleep"),
        ("fail", "fail"),
        ("count", "count"),
        ("ids", "ids"),
        ("raw", "raw"),
        ("big", "big"),
        ("get-user", "get_user"),
        ("then", "_then"),
        ("constructor", "_constructor"),
    ]
    .map(|(name, alias)| ToolName {
        name: name.to_owned(),
        alias: alias.to_owned(),
        description: format!("the {name} tool"),
    })
    .to_vec()
}

pub fn limits() -> HostLimits {
    HostLimits {
        cpu_ms: 20_000,
        turn_ms: 5_000,
        memory_bytes: 64 * 1024 * 1024,
        pending_calls: 1024,
        value_bytes: 8 * 1024 * 1024,
        kept_bytes: 1024,
        detect_deadlock: true,
        output_bytes: 16 * 1024 * 1024,
    }
}

pub fn program(source: &str) -> Run {
    Run {
        start: Start {
            program: 1,
            language: "javascript".to_owned(),
            source: source.to_owned(),
            source_name: "program.js".to_owned(),
            tools: tools(),
            limits: Some(limits()),
            ..Start::default()
        },
    }
}

pub fn run(source: &str) -> Said {
    program(source).run()
}

/// The same in Python.
pub fn python(source: &str) -> Run {
    in_language(source, "python", "program.py")
}

/// The same in Ruby.
pub fn ruby(source: &str) -> Run {
    in_language(source, "ruby", "program.rb")
}

fn in_language(source: &str, language: &str, name: &str) -> Run {
    let mut run = program(source);
    run.start.language = language.to_owned();
    run.start.source_name = name.to_owned();
    run
}

impl Run {
    pub fn typescript(mut self) -> Self {
        self.start.language = "typescript".to_owned();
        self
    }

    pub fn option(mut self, option: &str) -> Self {
        self.start.options.push(option.to_owned());
        self
    }

    pub fn inputs(mut self, json: &str) -> Self {
        self.start.inputs_json = Some(json.to_owned());
        self
    }

    pub fn kept(mut self, key: &str, json: &str) -> Self {
        self.start.kept.insert(key.to_owned(), json.to_owned());
        self
    }

    pub fn limits(mut self, change: impl FnOnce(&mut HostLimits)) -> Self {
        change(self.start.limits.as_mut().unwrap());
        self
    }

    /// Runs the program to its end.
    pub fn run(self) -> Said {
        let mut host = Host::start(&self.start.language);
        host.send(to_host::Frame::Start(self.start));
        let started = Instant::now();
        let mut said = Said {
            texts: vec![],
            output: String::new(),
            calls: vec![],
            cancelled: vec![],
            ended: Ended::default(),
            took: Duration::ZERO,
        };
        let mut due: Vec<(Instant, CallResult)> = vec![];
        let mut n_counted = 0;
        loop {
            let now = Instant::now();
            due.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            while due.last().is_some_and(|(at, _)| *at <= now) {
                let (_, result) = due.pop().unwrap();
                host.send(to_host::Frame::CallResult(result));
            }
            let wait = due.last().map_or(DEADLINE, |(at, _)| at.saturating_duration_since(now));
            match host.receive(wait.max(Duration::from_millis(1))) {
                None if started.elapsed() > DEADLINE => panic!("no end in time: {said:?}"),
                None => {}
                Some(from_host::Frame::Text(text)) => said.texts.push(text.text),
                Some(from_host::Frame::ToolCall(call)) => {
                    let (after, result) = answer(&call.tool, &call.arguments_json, &mut n_counted);
                    said.calls.push((call.tool, call.arguments_json));
                    let result = CallResult { call: call.call, result: Some(result) };
                    due.push((Instant::now() + after, result));
                }
                Some(from_host::Frame::CancelCall(cancel)) => {
                    due.retain(|(_, result)| result.call != cancel.call);
                    said.cancelled.push(cancel.call);
                }
                Some(from_host::Frame::Ended(ended)) => {
                    said.ended = ended;
                    said.took = started.elapsed();
                    said.output = host.output();
                    return said;
                }
                Some(from_host::Frame::Ready(_) | from_host::Frame::Forked(_)) => panic!("not said by hosts"),
            }
        }
    }
}

fn answer(tool: &str, arguments: &str, n_counted: &mut u64) -> (Duration, call_result::Result) {
    serde_json::from_str::<serde::de::IgnoredAny>(arguments).expect("arguments are JSON");
    let given: serde_json::Value = serde_json::from_str(arguments).unwrap_or_default();
    let value = |json: String| (Duration::ZERO, call_result::Result::ValueJson(json));
    let failed = |code: &str, message: &str| {
        let error = CallError { code: code.to_owned(), message: message.to_owned(), retryable: false };
        (Duration::ZERO, call_result::Result::Error(error))
    };
    let text = |key: &str| given[key].as_str().unwrap_or_default().to_owned();
    match tool {
        "echo" | "get-user" | "then" | "constructor" => value(given["value"].to_string()),
        "sleep" => {
            let after = Duration::from_millis(given["ms"].as_u64().unwrap_or(0));
            (after, call_result::Result::ValueJson(given["value"].to_string()))
        }
        "fail" => failed(&text("code"), &text("message")),
        "count" => {
            *n_counted += 1;
            value(n_counted.to_string())
        }
        "ids" => value(r#"{"id":9007199254740993}"#.to_owned()),
        "raw" => value(text("json")),
        "big" => value(
            serde_json::Value::from("x".repeat(given["bytes"].as_u64().unwrap_or(0) as usize)).to_string(),
        ),
        other => failed("unknown_tool", &format!("there is no tool {other:?}")),
    }
}

/// A warm parent, as a runner has one.
struct Parent {
    control: UnixStream,
    _process: Child,
}

impl Parent {
    fn start(engine: &Engine) -> Self {
        // Hosts whose own parent has ended are ours, as they are a runner's.
        // SAFETY: takes integers and touches no memory of ours.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        let (control, theirs) = UnixStream::pair().unwrap();
        let (fd, stack_bytes) = (theirs.as_raw_fd(), engine.stack_bytes);
        let rules = engine.readable.as_ref().and_then(|paths| readable::rules(paths).unwrap());
        let mut command = Command::new(&engine.command[0]);
        command.args(&engine.command[1..]).env_clear().stdin(Stdio::null());
        // SAFETY: only makes system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // First: they may have the number that the socket gets.
                rules.as_ref().map_or(Ok(()), |rules| readable::restrict(rules.as_raw_fd()))?;
                let stack = libc::rlimit { rlim_cur: stack_bytes, rlim_max: libc::RLIM_INFINITY };
                // Duplicating a descriptor onto itself would leave it to be closed.
                let done = if fd == 3 { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, 3) };
                if done < 0 || libc::setrlimit(libc::RLIMIT_STACK, &stack) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let (started, process) = std::sync::mpsc::channel();
        // Hosts die with the thread that started their parent, so it must not be a test's.
        std::thread::spawn(move || {
            started.send(command.spawn().unwrap()).unwrap();
            loop {
                std::thread::park();
            }
        });
        Self { control, _process: process.recv().unwrap() }
    }

    /// Forks a host with this socket, and this as its standard output and error, and gives its number.
    fn fork(&mut self, socket: OwnedFd, output: OwnedFd) -> i32 {
        let descriptors = [socket.as_raw_fd(), output.as_raw_fd(), output.as_raw_fd()];
        parent::request(self.control.as_raw_fd(), descriptors).unwrap();
        match next_frame(&mut self.control, &mut Decoder::new(codec::FRAME_BYTES_MAX), DEADLINE) {
            Some(from_host::Frame::Forked(forked)) if forked.pid > 0 => forked.pid,
            other => panic!("no host was forked: {other:?}"),
        }
    }
}

/// One of each language for all tests; they end with their process.
static PARENTS: Mutex<BTreeMap<String, Parent>> = Mutex::new(BTreeMap::new());

fn engine(language: &str) -> Engine {
    match interpreted::by_engine(language) {
        Some(language) => language.engine(Path::new(language.interpreters[1])).unwrap(),
        None => javascript::engine(vec![env!("CARGO_BIN_EXE_seance-runner").into()]),
    }
}

/// A host's process and socket.
pub struct Host {
    pub pid: i32,
    pub socket: UnixStream,
    output: PipeReader,
    decoder: Decoder,
}

impl Host {
    /// Starts a host and waits until it is ready.
    pub fn start(language: &str) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut parents = PARENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let name = if language == "typescript" { "javascript" } else { language };
        let parent = parents.entry(name.to_owned()).or_insert_with(|| Parent::start(&engine(language)));
        let (output, written) = std::io::pipe().unwrap();
        let pid = parent.fork(theirs.into(), written.into());
        drop(parents);
        let mut host = Self { pid, socket: ours, output, decoder: Decoder::new(codec::FRAME_BYTES_MAX) };
        let Some(from_host::Frame::Ready(ready)) = host.receive(DEADLINE) else { panic!("not ready") };
        let version = match language {
            "python" => "CPython 3.",
            "ruby" => "CRuby 3.",
            _ => "quickjs-ng ",
        };
        assert!(ready.engine_version.starts_with(version));
        host
    }

    /// Sends a frame. A host that is gone shows in what is received, as it does to a runner.
    pub fn send(&mut self, frame: to_host::Frame) {
        let sent = self.socket.write_all(&codec::encode(&ToHost { frame: Some(frame) }).unwrap());
        assert!(!sent.is_err_and(|error| error.kind() != std::io::ErrorKind::BrokenPipe));
    }

    /// What is in its output's pipe now.
    fn output(&mut self) -> String {
        let mut bytes = vec![0; 64 * 1024];
        let flags = nix::fcntl::OFlag::O_NONBLOCK;
        nix::fcntl::fcntl(&self.output, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
        let n = self.output.read(&mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    /// The next frame, or nothing in time.
    pub fn receive(&mut self, timeout: Duration) -> Option<from_host::Frame> {
        next_frame(&mut self.socket, &mut self.decoder, timeout)
    }
}

fn next_frame(socket: &mut UnixStream, decoder: &mut Decoder, timeout: Duration) -> Option<from_host::Frame> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if let Some(message) = decoder.next_message::<FromHost>().unwrap() {
            return Some(message.frame.expect("a known frame"));
        }
        socket.set_read_timeout(Some(timeout)).unwrap();
        match socket.read(&mut buffer) {
            Ok(0) => panic!("the other end is gone"),
            Ok(n) => decoder.extend(&buffer[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: signals and waits for a child of this process; asked again, neither finds one.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}
