//! A service of one link: hands out frames, keeps what the runner says, checks the numbers.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::codec::{self, Decoder};
use seance_proto::host::v1alpha1::{CallResult as Answer, HostLimits, ToolName, call_result};
use seance_proto::link::v1alpha1::{
    Ack, Assign, AttachRequest, AttachResponse, CallResult, Catalog, Chunk, Execute, Hello, ProgramEnded,
    StopProgram, Welcome, attach_request, attach_response,
};
use seance_proto::prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

pub use attach_request::Frame as FromRunner;
pub use attach_response::Frame as ToRunner;

const DEADLINE: Duration = Duration::from_secs(30);

/// A runner and the service's end of its link.
pub struct Service {
    pub hello: Hello,
    pub child: Child,
    to_runner: mpsc::Sender<AttachResponse>,
    from_runner: mpsc::Receiver<AttachRequest>,
    chunks: Vec<u8>,
    pub last_number: u64,
    pub epoch: u64,
    /// Whether every numbered frame is acknowledged as it comes.
    pub acknowledges: bool,
}

/// How a runner is started.
#[derive(Default)]
pub struct Options {
    /// A script that hosts become, instead of interpreting programs.
    pub host_script: Option<PathBuf>,
}

/// Hands over what the runner sends, until it is gone.
async fn read(mut socket: OwnedReadHalf, frames: mpsc::Sender<AttachRequest>) {
    let mut decoder = Decoder::new(LINK_MESSAGE_BYTES_MAX);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        while let Some(frame) = decoder.next_message().expect("the runner sends frames") {
            if frames.send(frame).await.is_err() {
                return;
            }
        }
        match socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(n) => decoder.extend(&buffer[..n]),
        }
    }
}

/// Sends what it is given, until the runner is gone.
async fn write(mut socket: OwnedWriteHalf, mut frames: mpsc::Receiver<AttachResponse>) {
    while let Some(frame) = frames.recv().await {
        if socket.write_all(&codec::encode(&frame).unwrap()).await.is_err() {
            return;
        }
    }
}

impl Service {
    /// Starts a runner, takes its hello and welcomes it.
    pub async fn start(options: Options) -> Self {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let parent = options.host_script.map(|script| [hostile_parent().into_os_string(), script.into()]);
        let child = spawn(&theirs.into(), parent.as_slice().as_flattened(), Stdio::inherit());
        ours.set_nonblocking(true).unwrap();
        let socket = tokio::net::UnixStream::from_std(ours).unwrap();
        let (frames, from_runner) = mpsc::channel(1024);
        let (to_runner, outgoing) = mpsc::channel(1024);
        let (reader, writer) = socket.into_split();
        tokio::spawn(read(reader, frames));
        tokio::spawn(write(writer, outgoing));
        let mut service = Self {
            hello: Hello::default(),
            child,
            to_runner,
            from_runner,
            chunks: Vec::new(),
            last_number: 0,
            epoch: 1,
            acknowledges: true,
        };
        let FromRunner::Hello(hello) = service.next().await else { panic!("hello comes first") };
        service.hello = hello;
        service.send(ToRunner::Welcome(Welcome { version: 1, ..Welcome::default() })).await;
        service
    }

    /// A runner that has its session and a catalog named "c".
    pub async fn assigned(options: Options) -> Self {
        let mut service = Self::start(options).await;
        let assign =
            Assign { session_id: "s_1".to_owned(), language: "javascript".to_owned(), deadline_seconds: 0 };
        service.send(ToRunner::Assign(assign)).await;
        let FromRunner::Assigned(assigned) = service.next().await else { panic!("not assigned") };
        assert_eq!(assigned.session_id, "s_1");
        let tool = |name: &str| ToolName {
            name: name.to_owned(),
            alias: name.to_owned(),
            description: String::new(),
        };
        let tools = vec![tool("echo"), tool("wait")];
        service.send(ToRunner::Catalog(Catalog { digest: "c".to_owned(), tools })).await;
        service
    }

    /// Sends a frame, cut into chunks when it is large.
    pub async fn send(&mut self, frame: ToRunner) {
        let response = AttachResponse { epoch: self.epoch, frame: Some(frame) };
        if response.encoded_len() <= 200 * 1024 {
            self.to_runner.send(response).await.unwrap();
            return;
        }
        let whole = response.encode_to_vec();
        let total_bytes = whole.len() as u64;
        for data in whole.chunks(200 * 1024) {
            let chunk = Chunk { id: 7, total_bytes, data: data.to_vec().into() };
            let response = AttachResponse { epoch: self.epoch, frame: Some(ToRunner::Chunk(chunk)) };
            self.to_runner.send(response).await.unwrap();
        }
    }

    /// The next frame, whole; the numbers rise by one.
    pub async fn next(&mut self) -> FromRunner {
        self.next_within(DEADLINE).await.expect("a frame in time")
    }

    /// The next frame, or nothing in time.
    pub async fn next_within(&mut self, time: Duration) -> Option<FromRunner> {
        loop {
            let received = tokio::time::timeout(time, self.from_runner.recv()).await.ok()?;
            let mut request = received.expect("the runner is attached");
            if let Some(FromRunner::Chunk(chunk)) = &request.frame {
                self.chunks.extend_from_slice(&chunk.data);
                if (self.chunks.len() as u64) < chunk.total_bytes {
                    continue;
                }
                request = AttachRequest::decode(std::mem::take(&mut self.chunks).as_slice()).unwrap();
            }
            if request.number > 0 {
                assert_eq!(request.number, self.last_number + 1);
                self.last_number = request.number;
                if self.acknowledges {
                    self.acknowledge().await;
                }
            }
            return request.frame;
        }
    }

    pub async fn acknowledge(&mut self) {
        let number = self.last_number;
        self.send(ToRunner::Ack(Ack { number })).await;
    }

    pub async fn execute(&mut self, program: u64, source: &str) {
        self.execute_with(program, source, |_| {}).await;
    }

    pub async fn execute_with(&mut self, program: u64, source: &str, change: impl FnOnce(&mut Execute)) {
        let mut execute = Execute {
            program,
            language: "javascript".to_owned(),
            source: source.to_owned(),
            source_name: "program.js".to_owned(),
            catalog_digest: "c".to_owned(),
            limits: Some(limits()),
            wall_ms: 60_000,
            ..Execute::default()
        };
        change(&mut execute);
        self.send(ToRunner::Execute(execute)).await;
    }

    pub async fn answer(&mut self, program: u64, call: u64, json: &str) {
        let result = Answer { call, result: Some(call_result::Result::ValueJson(json.to_owned())) };
        self.send(ToRunner::CallResult(CallResult { program, result: Some(result) })).await;
    }

    pub async fn stop(&mut self, program: u64) {
        self.send(ToRunner::StopProgram(StopProgram { program })).await;
    }

    /// Waits for the end of a program; what came before is passed over, calls of "echo" answered.
    pub async fn ended(&mut self) -> ProgramEnded {
        loop {
            match self.next().await {
                FromRunner::ProgramEnded(ended) => return ended,
                FromRunner::ToolCall(call) if call.tool == "echo" => {
                    let arguments: serde_json::Value = serde_json::from_str(&call.arguments_json).unwrap();
                    self.answer(call.program, call.call, &arguments["value"].to_string()).await;
                }
                FromRunner::Refused(refused) => panic!("{refused:?}"),
                _ => {}
            }
        }
    }

    /// Runs a program to its end and gives its value.
    pub async fn value(&mut self, program: u64, source: &str) -> String {
        self.execute(program, source).await;
        let ended = self.ended().await;
        let report = ended.report.clone().unwrap_or_else(|| panic!("{ended:?}"));
        report.value_json.clone().unwrap_or_else(|| panic!("{report:?}"))
    }

    /// The running host, which was started before the spare one.
    pub fn running_host(&self) -> i32 {
        *self.processes().get(1).expect("a running host")
    }

    /// The warm parent and the host for the next program, once there are no others: an earlier host,
    /// `gone`, is reaped a moment after its end was told.
    pub async fn settled(&self, gone: i32) -> [i32; 2] {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.processes()[..] {
                [parent, spare] if parent != gone && spare != gone => return [parent, spare],
                _ => assert!(Instant::now() < deadline, "too many or too few: {:?}", self.processes()),
            }
            tokio::task::yield_now().await;
        }
    }

    /// The runner's children, by age: the warm parent and hosts.
    pub fn processes(&self) -> Vec<i32> {
        let id = self.child.id();
        let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn limits() -> HostLimits {
    HostLimits {
        cpu_ms: 20_000,
        turn_ms: 5_000,
        memory_bytes: 64 * 1024 * 1024,
        pending_calls: 8,
        value_bytes: 8 * 1024 * 1024,
        kept_bytes: 1024 * 1024,
        detect_deadlock: true,
        output_bytes: 64 * 1024 * 1024,
    }
}

/// The example of that name, which the tests' build has put beside the runner.
fn hostile_parent() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_seance-runner")).with_file_name("examples").join("hostile_parent")
}

/// Starts a runner with the other end of its link. Its warm parent is what `parent` says, or what a
/// runner's own is.
pub fn spawn(link: &OwnedFd, parent: &[OsString], stderr: Stdio) -> Child {
    const LINK_FD: i32 = 500;
    let fd = link.as_raw_fd();
    let mut command = Command::new(env!("CARGO_BIN_EXE_seance-runner"));
    command.args(["runner", "--link-fd", &LINK_FD.to_string()]).stdin(Stdio::null()).stderr(stderr);
    if let [program, prefix @ ..] = parent {
        command.arg("--self-exe").arg(program);
        for word in prefix {
            command.arg("--host-prefix").arg(word);
        }
    }
    // SAFETY: only makes a system call between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // Duplicating a descriptor onto itself would leave it to be closed.
            let done =
                if fd == LINK_FD { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, LINK_FD) };
            if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    command.spawn().unwrap()
}
