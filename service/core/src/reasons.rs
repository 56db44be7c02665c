//! Every reason and code in one table: where it appears, what it means, whether the same request
//! can succeed later, and what to do.
//!
//! A reason is never renamed. `docs/reasons.md` is made from this table.

/// Where a reason appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a gRPC status: `ErrorInfo.reason`, the trailer `seance-reason`, and the message. Of a
    /// program that was lost or never started it is `Program.reason` too.
    Status(Code),
    /// `Program.error.code`.
    Program,
    /// `Program.reason`.
    ProgramReason,
    /// `ToolError.code`, which the program can catch.
    Call,
    /// `Warning.code`.
    Warning,
    /// `SandboxEnded.reason`, and of a program that ran there `Program.reason` and the reason of an
    /// `UNAVAILABLE` status.
    Sandbox,
    /// `Session.reason`.
    Session,
}

/// The gRPC codes we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// INVALID_ARGUMENT
    InvalidArgument,
    /// NOT_FOUND
    NotFound,
    /// FAILED_PRECONDITION
    FailedPrecondition,
    /// RESOURCE_EXHAUSTED
    ResourceExhausted,
    /// ABORTED
    Aborted,
    /// UNAVAILABLE
    Unavailable,
    /// INTERNAL
    Internal,
    /// UNIMPLEMENTED
    Unimplemented,
    /// UNAUTHENTICATED
    Unauthenticated,
    /// PERMISSION_DENIED
    PermissionDenied,
    /// ALREADY_EXISTS
    AlreadyExists,
}

impl Code {
    /// The code's name in gRPC.
    pub fn name(self) -> &'static str {
        match self {
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::NotFound => "NOT_FOUND",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::Aborted => "ABORTED",
            Code::Unavailable => "UNAVAILABLE",
            Code::Internal => "INTERNAL",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Unauthenticated => "UNAUTHENTICATED",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::AlreadyExists => "ALREADY_EXISTS",
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// The name.
    pub name: &'static str,
    /// Where it appears.
    pub place: Place,
    /// Whether the same request can succeed later without a change.
    pub retry: bool,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

macro_rules! reasons {
    ($($name:literal as $const:ident, $place:expr, $retry:literal, $meaning:literal, $remedy:literal;)*) => {
        $(#[doc = $meaning] pub const $const: &str = $name;)*

        /// All reasons, in the order that people see.
        pub const TABLE: &[Reason] = &[$(Reason {
            name: $name, place: $place, retry: $retry, meaning: $meaning, remedy: $remedy,
        },)*];
    };
}

use Code::*;
use Place::*;

reasons! {
    "INVALID_REQUEST" as INVALID_REQUEST, Status(InvalidArgument), false, "A field is missing or has a form it can't have; the message names it.", "Correct the field.";
    "UNSUPPORTED" as UNSUPPORTED, Status(InvalidArgument), false, "A limit, option or field value that this version can't honour.", "Leave it out, or see Server.GetInfo for what there is.";
    "LIMIT_OUT_OF_RANGE" as LIMIT_OUT_OF_RANGE, Status(InvalidArgument), false, "A limit outside its range, or over the session's.", "Server.GetInfo lists the ranges.";
    "SOURCE_TOO_LARGE" as SOURCE_TOO_LARGE, Status(InvalidArgument), false, "The source is over source_bytes.", "Send data as inputs or through tools instead.";
    "SOURCE_NOT_UTF8" as SOURCE_NOT_UTF8, Status(InvalidArgument), false, "The source isn't UTF-8; the message has the first bad byte's offset.", "Encode the source as UTF-8.";
    "INPUTS_TOO_LARGE" as INPUTS_TOO_LARGE, Status(InvalidArgument), false, "The inputs are over inputs_bytes.", "Let a tool give the data.";
    "INVALID_INPUTS" as INVALID_INPUTS, Status(InvalidArgument), false, "The inputs aren't one JSON value within bounds.", "Correct the JSON; the message has the offset.";
    "INVALID_CATALOG" as INVALID_CATALOG, Status(InvalidArgument), false, "A name or a schema in the catalog is wrong; the message names the tool.", "Correct the tool.";
    "CATALOG_TOO_LARGE" as CATALOG_TOO_LARGE, Status(InvalidArgument), false, "The catalog has too many tools or bytes.", "Offer fewer tools.";
    "CATALOG_NAME_CLASH" as CATALOG_NAME_CLASH, Status(InvalidArgument), false, "Two tools have one name in the guest language, or a tool has one of our own names.", "Rename one of those that the message names.";
    "CATALOG_NOT_FOUND" as CATALOG_NOT_FOUND, Status(NotFound), false, "No catalog has this digest.", "Put the catalog first.";
    "INVALID_CURSOR" as INVALID_CURSOR, Status(InvalidArgument), false, "The cursor isn't one of this program's.", "Leave it out to go on from the last observation.";
    "INVALID_RESULT" as INVALID_RESULT, Status(InvalidArgument), false, "A call's result isn't JSON within bounds.", "Correct the result.";
    "SESSION_NOT_FOUND" as SESSION_NOT_FOUND, Status(NotFound), false, "The caller has no such session, or it is no longer kept.", "Open a new one.";
    "PROGRAM_NOT_FOUND" as PROGRAM_NOT_FOUND, Status(NotFound), false, "The session has no program of this number.", "Session.last_program is the newest.";
    "BLOB_NOT_FOUND" as BLOB_NOT_FOUND, Status(NotFound), false, "The session has no such blob.", "Take the id from a program or an event.";
    "CALL_NOT_FOUND" as CALL_NOT_FOUND, Status(NotFound), false, "The session has no such call.", "Take the id from an observation.";
    "CALL_NOT_PENDING" as CALL_NOT_PENDING, Status(FailedPrecondition), false, "The call has ended; the answer wasn't used.", "Read the program to see how.";
    "ENGINE_NOT_FOUND" as ENGINE_NOT_FOUND, Status(NotFound), false, "There is no engine of this name.", "Engines.List tells which there are.";
    "ENGINE_UNAVAILABLE" as ENGINE_UNAVAILABLE, Status(FailedPrecondition), false, "The engine can't be used here; the message says why.", "Follow the message.";
    "NO_ACTIVE_PROGRAM" as NO_ACTIVE_PROGRAM, Status(FailedPrecondition), false, "No program is queued or runs, and the request names none.", "Execute one, or name a program by number.";
    "PROGRAM_ACTIVE" as PROGRAM_ACTIVE, Status(FailedPrecondition), true, "A program is queued or runs.", "Wait for it or stop it.";
    "CONTROL_ACTIVE" as CONTROL_ACTIVE, Status(Aborted), true, "Another execute, wait, stop or close of this session is at work; this one changed nothing.", "Let the other end first.";
    "SESSION_CLOSED" as SESSION_CLOSED, Status(FailedPrecondition), false, "The session is closing or closed.", "Open a new one.";
    "SESSION_EXPIRED" as SESSION_EXPIRED, Status(FailedPrecondition), false, "The session reached its session_ttl.", "Open a new one.";
    "CLEANUP_UNPROVEN" as CLEANUP_UNPROVEN, Status(Unavailable), true, "The end of the sandbox could not be proven in time; the clean-up goes on.", "Repeat Close; it tells the truth of that moment.";
    "SANDBOX_UNAVAILABLE" as SANDBOX_UNAVAILABLE, Status(Unavailable), true, "No sandbox could be had; the message says why.", "Try again later, or follow the message.";
    "SANDBOX_EXHAUSTED" as SANDBOX_EXHAUSTED, Status(ResourceExhausted), true, "All sandboxes are in use.", "Try again after the delay in RetryInfo.";
    "IMAGE_PULL_FAILED" as IMAGE_PULL_FAILED, Status(Unavailable), true, "A sandbox was made for the request, and its node can't get the image.", "The pool's Ready condition has the message of the registry; correct the image or its pull secret.";
    "UNSCHEDULABLE" as UNSCHEDULABLE, Status(Unavailable), true, "A sandbox was made for the request, and no node has room for it.", "Add nodes, or lower the pool's requests.";
    "QUOTA_EXCEEDED" as QUOTA_EXCEEDED, Status(ResourceExhausted), true, "A sandbox can't be made because a quota of the namespace is used up.", "Raise the quota, or close sessions.";
    "NO_POOL" as NO_POOL, Status(FailedPrecondition), false, "No pool has the engine, for this tenant, with the memory that was asked for; the message says which is missing.", "Ask for less memory, or for another engine; or set up a pool.";
    "CONFINEMENT_UNAVAILABLE" as CONFINEMENT_UNAVAILABLE, Status(FailedPrecondition), false, "This machine can't confine programs; the message has the remedy.", "Follow the message.";
    "TOO_MANY_SESSIONS" as TOO_MANY_SESSIONS, Status(ResourceExhausted), true, "The tenant has as many open sessions as it may.", "Close some.";
    "IDEMPOTENCY_KEY_REUSED" as IDEMPOTENCY_KEY_REUSED, Status(AlreadyExists), false, "The idempotency key was used with another request.", "Use a new key for a new request.";
    "PROVIDER_CONFLICT" as PROVIDER_CONFLICT, Status(AlreadyExists), true, "Another provider serves one of the tools.", "Let it detach first, or name other tools.";
    "STORE_FULL" as STORE_FULL, Status(ResourceExhausted), true, "The disk or a cap of the store is full; nothing acknowledged is lost.", "Make room.";
    "STORE_UNAVAILABLE" as STORE_UNAVAILABLE, Status(Unavailable), true, "The store can't be reached; nothing was acknowledged.", "Try again with the same idempotency key.";
    "SERVICE_STOPPING" as SERVICE_STOPPING, Status(Unavailable), true, "The service is stopping.", "Connect again.";
    "UNAUTHENTICATED" as UNAUTHENTICATED, Status(Unauthenticated), false, "The request has no valid credentials.", "Send `authorization: Bearer <token>`.";
    "AUTHENTICATION_UNAVAILABLE" as AUTHENTICATION_UNAVAILABLE, Status(Unavailable), true, "The cluster's API server can't say now whether the token is valid.", "Try again.";
    "INTERNAL" as INTERNAL, Status(Internal), false, "Something of ours went wrong; the log has the request id.", "Report it with the request id.";

    "exception" as EXCEPTION, Program, false, "The program threw and nothing caught it.", "See class, message and line.";
    "syntax_error" as SYNTAX_ERROR, Program, false, "The source could not be parsed.", "See line and column.";
    "import_denied" as IMPORT_DENIED, Program, false, "The source imports a module; there are none.", "Use tools and the language itself.";
    "deadlock" as DEADLOCK, Program, false, "The program waits for something that can't come.", "See the line of the await.";
    "turn_limit" as TURN_LIMIT, Program, false, "One turn took longer than turn_ms.", "Await something in long loops, or raise the limit.";
    "cpu_limit" as CPU_LIMIT, Program, false, "The program used more processor time than cpu_ms.", "Do less, or raise the limit.";
    "wall_limit" as WALL_LIMIT, Program, false, "The program timed out: it took longer than wall_ms.", "Do less, or raise the limit.";
    "memory_limit" as MEMORY_LIMIT, Program, false, "The program used more memory than memory_bytes.", "Keep less at one time, or raise the limit.";
    "process_limit" as PROCESS_LIMIT, Program, false, "The program had more processes or threads than it may.", "Start fewer.";
    "output_limit" as OUTPUT_LIMIT, Program, false, "The program wrote more output than output_bytes.", "Write less, or raise the limit.";
    "value_limit" as VALUE_LIMIT, Program, false, "The program's value is over value_bytes as JSON.", "Return less.";
    "unserializable" as UNSERIALIZABLE, Program, false, "The program's value, or a part of it, has no JSON form; the message has its path.", "Return plain data.";
    "number_limit" as NUMBER_LIMIT, Program, false, "An integer has more than 4,300 digits.", "Keep it as text.";
    "protocol" as PROTOCOL, Program, false, "The program's host wrote something that is no frame of ours.", "Don't write to the host's channel.";
    "engine_too_old" as ENGINE_TOO_OLD, Program, false, "The engine is older than the session's min_version; the message names both.", "Lower min_version, or update the engine.";
    "internal" as INTERNAL_PROGRAM, Program, false, "A provider failed unexpectedly; the message has the correlation id and the log has the cause.", "Look in the provider's log.";

    "call_limit" as CALL_LIMIT, Call, false, "The program made more calls than max_calls, or has more than pending_calls unanswered. Uncaught, it is the program's code.", "Make fewer calls, or raise the limit.";
    "unknown_tool" as UNKNOWN_TOOL, Call, false, "The catalog has no such tool.", "ALL_TOOLS lists them.";
    "invalid_arguments" as INVALID_ARGUMENTS, Call, false, "The arguments don't match the tool's schema, or are too large; the message has the path.", "Correct the arguments.";
    "invalid_result" as INVALID_RESULT_CALL, Call, false, "The tool's value doesn't match its output schema.", "Correct the tool.";
    "result_too_large" as RESULT_TOO_LARGE, Call, false, "The tool's result is over result_bytes.", "Ask the tool for less.";
    "artifact_limit" as ARTIFACT_LIMIT, Call, false, "What the call leaves behind is over a limit of artifacts.", "Leave less.";
    "call_timeout" as CALL_TIMEOUT, Call, true, "The provider did not answer in time; what the call did is unknown.", "Check before calling again.";
    "no_provider" as NO_PROVIDER, Call, true, "Nobody served the tool within provider_grace_ms; the call wasn't started.", "Attach a provider, or answer the call.";
    "outcome_unknown" as OUTCOME_UNKNOWN, Call, false, "The provider was lost and nobody can tell what the call did.", "Check before calling again.";
    "not_started" as NOT_STARTED_CALL, Call, true, "The provider never saw the call.", "Call again.";
    "cancelled" as CANCELLED, Call, false, "The program aborted the call.", "Nothing to do.";
    "tool_error" as TOOL_ERROR, Call, false, "The tool failed and gave no code of its own.", "See the message.";
    "store_limit" as STORE_LIMIT, Call, false, "store.set would go over kept_bytes. Not a call, but caught the same way.", "Keep less.";

    "STOPPED" as STOPPED, ProgramReason, false, "A caller stopped the program.", "Nothing to do.";
    "DISCONNECTED" as DISCONNECTED, ProgramReason, false, "The caller's stream was cut and it had asked for a stop then.", "Nothing to do.";
    "SESSION_CLOSED_PROGRAM" as CLOSED_PROGRAM, ProgramReason, false, "The session was closed while the program was active.", "Nothing to do.";
    "HOST_LOST" as HOST_LOST, Status(Unavailable), false, "The program's host ended without saying how; the message names the signal.", "See each call's state before running it again.";
    "SERVICE_RESTARTED" as SERVICE_RESTARTED, Status(Unavailable), false, "The service stopped while the program ran, and its local sandbox with it.", "See each call's state before running it again.";
    "NO_SANDBOX" as NO_SANDBOX, Status(Unavailable), true, "No sandbox could be had for the program; it never ran.", "Execute it again.";

    "unawaited_call" as UNAWAITED_CALL, Warning, false, "The program ended before a call that it did not await; the call was finished.", "Await it.";
    "unhandled_rejection" as UNHANDLED_REJECTION, Warning, false, "A promise was rejected and nobody handled it.", "Await or catch it.";
    "lossy_value" as LOSSY_VALUE, Warning, false, "Something without a JSON form was rendered as documented.", "Convert it yourself where it matters.";

    "RELEASED" as RELEASED, Sandbox, false, "The session ended it.", "Nothing to do.";
    "IDLE" as IDLE, Sandbox, false, "No program ran for the session's idle_timeout; the next one gets a new sandbox.", "Nothing to do.";
    "RUNNER_EXITED" as RUNNER_EXITED, Sandbox, true, "The runner ended by itself.", "Execute again.";
    "LINK_LOST" as LINK_LOST, Sandbox, true, "The link to the runner broke and did not come back.", "Execute again.";
    "SERVICE_STOPPED" as SERVICE_STOPPED, Sandbox, true, "The service that owned the local sandbox stopped.", "Execute again.";
    "OUT_OF_MEMORY" as OUT_OF_MEMORY, Sandbox, false, "The sandbox as a whole ran out of memory.", "Raise its memory, or keep less.";
    "PROTOCOL_BROKEN" as PROTOCOL_BROKEN, Sandbox, false, "The runner broke the link's protocol.", "Report it.";
    "DEADLINE" as DEADLINE, Sandbox, false, "The sandbox reached its deadline.", "Open a new session.";
    "UNRESPONSIVE" as UNRESPONSIVE, Sandbox, true, "Its runner did not do what it was asked in time, and was ended.", "Execute again.";
    "RUNNER_KILLED" as RUNNER_KILLED, Sandbox, true, "A signal ended its runner; the message names it.", "Execute again.";
    "EVICTED" as EVICTED, Sandbox, true, "Its node was short of something, or it used more disk than it may.", "Execute again.";
    "DRAINED" as DRAINED, Sandbox, true, "Its node was drained.", "Execute again.";
    "PREEMPTED" as PREEMPTED, Sandbox, true, "A pod of higher priority needed its place.", "Execute again.";
    "NODE_LOST" as NODE_LOST, Sandbox, true, "Its node went away or no longer answers.", "Execute again.";
    "POD_DELETED" as POD_DELETED, Sandbox, true, "Somebody deleted its pod.", "Execute again.";
    "ISOLATION_NOT_PROVEN" as ISOLATION_NOT_PROVEN, Sandbox, true, "A way out of the sandbox is open, or can't be shown to be closed, that the pool doesn't accept.", "The pool's checks name it; correct the network policies.";

    "CLOSED" as CLOSED, Session, false, "A caller closed it.", "Nothing to do.";
    "SESSION_TTL" as SESSION_TTL, Session, false, "It reached its session_ttl.", "Open a new one.";
}

/// The row and the gRPC code of a reason that can stand in a status. The end of a sandbox that a
/// program ran in is one: it is `UNAVAILABLE`.
pub fn status(name: &str) -> Option<(&'static Reason, Code)> {
    TABLE.iter().find_map(|reason| match reason.place {
        Status(code) if reason.name == name => Some((reason, code)),
        Sandbox if reason.name == name => Some((reason, Unavailable)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::EndReason;

    #[test]
    fn names_are_unique_and_in_their_form() {
        let mut names: Vec<_> = TABLE.iter().map(|reason| reason.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
        for reason in TABLE {
            let lower = matches!(reason.place, Program | Call | Warning);
            let ok = |b: u8| {
                b == b'_'
                    || if lower {
                        b.is_ascii_lowercase()
                    } else {
                        b.is_ascii_uppercase() || b.is_ascii_digit()
                    }
            };
            assert!(reason.name.bytes().all(ok), "{}", reason.name);
        }
    }

    #[test]
    fn every_end_of_a_sandbox_is_in_the_table() {
        use EndReason::*;
        let ends = [
            [Released, Idle, RunnerExited, LinkLost, ServiceStopped, OutOfMemory, ProtocolBroken, Deadline],
            [
                Unresponsive,
                RunnerKilled,
                Evicted,
                Drained,
                Preempted,
                NodeLost,
                PodDeleted,
                IsolationNotProven,
            ],
        ];
        for end in ends.into_iter().flatten() {
            assert!(TABLE.iter().any(|r| r.name == end.name() && r.place == Sandbox), "{end}");
        }
    }

    #[test]
    fn everything_that_blocks_a_start_can_stand_in_a_status() {
        use crate::sandbox::BlockReason::*;
        for block in [ImagePullFailed, Unschedulable, QuotaExceeded, IsolationNotProven] {
            assert!(status(block.name()).is_some(), "{block:?}");
        }
    }
}
