//! What a runner that dials again may not have: frames that were sent and that nothing it said shows
//! to have arrived. All of them may come twice.

use std::collections::BTreeMap;

use seance_core::ids::ProgramNumber;
use seance_core::link::{FromRunner, RunProgram, ToRunner};
use tokio::time::Instant;

use super::share::{self, SendBudget};

/// The most bytes of call results that are kept; one that is larger is kept alone.
const RESULT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What a result costs beside its text, in bytes.
const RESULT_COST: usize = 128;

/// A result, and the room that it takes.
#[derive(Debug)]
struct KeptResult {
    bytes: usize,
    frame: ToRunner,
    _room: Option<share::Kept>,
}

/// Frames to send again.
#[derive(Debug, Default)]
pub(super) struct Kept {
    assign: Option<ToRunner>,
    catalog: Option<ToRunner>,
    execute: Option<(Instant, Box<RunProgram>)>,
    /// The program that was given last, until it has ended.
    program: Option<ProgramNumber>,
    stop: Option<ProgramNumber>,
    results: BTreeMap<u64, KeptResult>,
    result_bytes: usize,
    is_shut_down: bool,
    /// The budget of results over all links, from the first stream on.
    pub(super) budget: Option<SendBudget>,
    /// Results were forgotten for want of room, the link's or the service's.
    pub(super) is_lossy: bool,
}

impl Kept {
    /// Whether another frame may be sent now, or has to wait until the runner has taken results.
    pub(super) fn has_room(&self, frame: &ToRunner) -> bool {
        match frame {
            ToRunner::CallResult { result, .. } => {
                self.result_bytes == 0 || self.result_bytes + cost(result) <= RESULT_BYTES_MAX
            }
            ToRunner::Assign { .. }
            | ToRunner::Catalog { .. }
            | ToRunner::Execute(_)
            | ToRunner::StopProgram { .. }
            | ToRunner::Ack { .. }
            | ToRunner::Shutdown => true,
        }
    }

    /// Makes room where the runner never says what it has taken: what is forgotten can't be sent again.
    pub(super) fn make_room(&mut self) {
        self.results.clear();
        self.result_bytes = 0;
        self.is_lossy = true;
    }

    /// Keeps what may have to be sent again.
    pub(super) fn keep(&mut self, frame: &ToRunner) {
        match frame {
            ToRunner::Assign { .. } => self.assign = Some(frame.clone()),
            // A program names the catalog that was sent last.
            ToRunner::Catalog { .. } => self.catalog = Some(frame.clone()),
            ToRunner::Execute(run) => {
                self.forget_program();
                self.program = Some(run.program);
                self.execute = Some((Instant::now(), run.clone()));
            }
            ToRunner::CallResult { program, call, result } if self.program == Some(*program) => {
                let bytes = cost(result);
                let room = self.budget.as_ref().map(|budget| budget.keep(self.result_bytes, bytes));
                if room.as_ref().is_some_and(Option::is_none) {
                    // It still goes out now. Who keeps the most for runners that don't take it pays.
                    return self.make_room();
                }
                let kept = KeptResult { bytes, frame: frame.clone(), _room: room.flatten() };
                if self.results.insert(*call, kept).is_none() {
                    self.result_bytes += bytes;
                }
            }
            ToRunner::StopProgram { program } if self.program == Some(*program) => self.stop = Some(*program),
            ToRunner::Shutdown => self.is_shut_down = true,
            ToRunner::CallResult { .. } | ToRunner::StopProgram { .. } | ToRunner::Ack { .. } => {}
        }
    }

    /// A program runs that was given to the runner by an earlier start of the service.
    pub(super) fn go_on_with(&mut self, program: ProgramNumber) {
        self.program = Some(program);
    }

    /// Forgets what a frame shows to have arrived.
    pub(super) fn seen(&mut self, frame: &FromRunner) {
        match frame {
            FromRunner::Assigned { .. } => self.assign = None,
            FromRunner::ProgramStarted { program, .. } if self.program == Some(*program) => {
                self.execute = None
            }
            FromRunner::ProgramEnded(ended) if self.program == Some(ended.program) => self.forget_program(),
            // The session asks anew, or ends what it has.
            FromRunner::Refused { program: Some(program), .. } if self.program == Some(*program) => {
                self.execute = None;
            }
            FromRunner::ProgramStarted { .. }
            | FromRunner::ProgramEnded(_)
            | FromRunner::Refused { .. }
            | FromRunner::Output { .. }
            | FromRunner::ToolCall { .. }
            | FromRunner::CancelCall { .. }
            | FromRunner::HostExited { .. } => {}
        }
    }

    /// Forgets results that have reached the program.
    pub(super) fn applied(&mut self, program: ProgramNumber, calls: &[u64]) {
        if self.program != Some(program) {
            return;
        }
        for call in calls {
            if let Some(kept) = self.results.remove(call) {
                self.result_bytes -= kept.bytes;
            }
        }
    }

    /// What goes out after a reconnect, in order.
    pub(super) fn again(&self) -> Vec<ToRunner> {
        if self.is_shut_down {
            return vec![ToRunner::Shutdown];
        }
        let mut again = Vec::new();
        again.extend(self.assign.clone());
        again.extend(self.catalog.clone());
        if let Some((at, run)) = &self.execute {
            let mut run = run.clone();
            run.wall_left = run.wall_left.saturating_sub(at.elapsed());
            again.push(ToRunner::Execute(run));
        }
        again.extend(self.results.values().map(|kept| kept.frame.clone()));
        again.extend(self.stop.map(|program| ToRunner::StopProgram { program }));
        again
    }

    fn forget_program(&mut self) {
        (self.execute, self.program, self.stop) = (None, None, None);
        self.results.clear();
        self.result_bytes = 0;
    }
}

fn cost(result: &Result<String, seance_core::program::CallError>) -> usize {
    RESULT_COST + result.as_ref().map_or_else(|error| error.message.len(), String::len)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use seance_core::limits::Limits;
    use seance_core::link::{HostEnd, HostEnded};

    use super::*;

    const PROGRAM: ProgramNumber = ProgramNumber(3);

    fn execute() -> ToRunner {
        ToRunner::Execute(Box::new(RunProgram {
            program: PROGRAM,
            language: "javascript".to_owned(),
            source: String::new(),
            source_name: String::new(),
            catalog: None,
            inputs: None,
            kept: Default::default(),
            limits: Limits::default(),
            wall_left: Duration::from_secs(60),
            options: Vec::new(),
        }))
    }

    fn result(call: u64, bytes: usize) -> ToRunner {
        ToRunner::CallResult { program: PROGRAM, call, result: Ok("x".repeat(bytes)) }
    }

    fn names(kept: &Kept) -> String {
        let name = |frame: &ToRunner| match frame {
            ToRunner::Assign { .. } => "assign".to_owned(),
            ToRunner::Catalog { .. } => "catalog".to_owned(),
            ToRunner::Execute(_) => "execute".to_owned(),
            ToRunner::CallResult { call, .. } => format!("result{call}"),
            ToRunner::StopProgram { .. } => "stop".to_owned(),
            ToRunner::Ack { .. } => "ack".to_owned(),
            ToRunner::Shutdown => "shutdown".to_owned(),
        };
        kept.again().iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_arrived_is_not_sent_again() {
        let mut kept = Kept::default();
        for frame in [execute(), result(1, 1), result(2, 1), ToRunner::StopProgram { program: PROGRAM }] {
            kept.keep(&frame);
        }
        kept.keep(&ToRunner::Ack { number: 9 });
        assert_eq!(names(&kept), "execute result1 result2 stop");
        kept.seen(&FromRunner::ProgramStarted { program: PROGRAM, engine_version: String::new() });
        kept.applied(PROGRAM, &[1, 77]);
        kept.applied(ProgramNumber(9), &[2]);
        assert_eq!(names(&kept), "result2 stop");
        let ended = HostEnded {
            program: PROGRAM,
            end: HostEnd::Stopped,
            report: None,
            signal: String::new(),
            exit_status: 0,
            cpu_us: 0,
            wall_us: 0,
            peak_memory_bytes: 0,
            detail: String::new(),
        };
        kept.seen(&FromRunner::ProgramEnded(Box::new(ended)));
        assert_eq!((names(&kept).as_str(), kept.result_bytes), ("", 0));
        kept.keep(&result(3, 1));
        kept.keep(&ToRunner::StopProgram { program: PROGRAM });
        assert_eq!(names(&kept), "", "it is over");
        kept.keep(&ToRunner::Shutdown);
        assert_eq!(names(&kept), "shutdown");
    }

    /// A link whose results find no room in the service's budget forgets its own, and can't be taken up
    /// after a cut; nobody waits for it.
    #[test]
    fn results_over_the_services_budget_are_not_kept() {
        let budget = SendBudget::new(1 << 20);
        let kept = || Kept { budget: Some(budget.clone()), ..Kept::default() };
        let (mut greedy, mut other) = (kept(), kept());
        greedy.keep(&execute());
        greedy.keep(&result(1, 900 << 10));
        assert!(!greedy.is_lossy && budget.kept_bytes() > 0);
        other.keep(&execute());
        other.keep(&result(1, 1 << 10));
        assert!(!other.is_lossy, "a little is every link's own");
        other.keep(&result(2, 300 << 10));
        assert!(other.is_lossy && other.results.is_empty());
        greedy.keep(&result(2, 300 << 10));
        assert!(greedy.is_lossy);
        assert_eq!(budget.kept_bytes(), 0);
    }

    #[test]
    fn results_wait_for_room_and_one_always_fits() {
        let mut kept = Kept::default();
        kept.keep(&execute());
        let large = result(1, RESULT_BYTES_MAX);
        assert!(kept.has_room(&large));
        kept.keep(&large);
        assert!(!kept.has_room(&result(2, 1)) && kept.has_room(&ToRunner::Shutdown));
        kept.applied(PROGRAM, &[1]);
        assert!(kept.has_room(&result(2, 1)));
    }
}
