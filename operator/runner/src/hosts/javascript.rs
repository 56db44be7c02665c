//! The JavaScript and TypeScript host: one process, one interpreter, one program.
//!
//! The warm parent has its interpreter ready. A host forked from it confines itself before it reads
//! anything, says that it is ready, and then waits for its program. Its one thread alternates
//! between running the program and waiting for tool results and timers; nothing else runs in the
//! process.
//!
//! What a program may rely on:
//!
//! - The source is the body of an async function: `await` and `return` work at its top. The value
//!   is what it returns, else its last statement when that is an expression, awaited when it is a
//!   promise. `if (true) { 4 }` has no value.
//! - TypeScript is accepted by erasing types; enums work, namespaces with values, parameter
//!   properties and decorators do not and say so.
//! - `tools`, `ALL_TOOLS`, `INPUTS`, `text`, `exit`, `store`, `ToolError`, `AbortController`,
//!   `AbortSignal` and the language. `console`, timers and binary types are options.
//! - Values cross as JSON; [`json_out`] says how each kind is written.
//! - A turn is everything from one wait to the next, all its jobs included, measured in processor
//!   time: a program that is held back because its output is not read does not use up its turn.
//! - A promise that is rejected without anyone to see it is a warning; calls that were not awaited
//!   are finished before the program completes; timers that are set then are dropped.

mod brackets;
mod calls;
pub(super) mod confine;
mod enums;
mod erase;
mod errors;
mod globals;
mod host;
pub mod json_in;
pub mod json_out;
mod positions;
mod prelude;
mod random;
mod raw;
mod run;
mod source;

use std::ffi::OsString;
use std::process::ExitCode;
use std::rc::Rc;

use rquickjs::{Context, Function, Object, Persistent, Promise, Runtime, Value, context::intrinsic};
use seance_proto::host::v1alpha1::{Ready, Start, from_host, to_host};

use crate::hosts::channel::{self, Channel};
use crate::hosts::engine::Engine;
use crate::hosts::{parent, readable};
use host::{Host, Store};

/// The interpreter that this host is built on.
pub const ENGINE_VERSION: &str = "quickjs-ng 0.16.2";

/// Programs and the parser recurse on the process's stack, which the runner makes this large; only
/// what is used of it is ever real.
pub const STACK_BYTES: u64 = 128 * 1024 * 1024;
/// How much of the stack a program may use before it gets a RangeError.
const PROGRAM_STACK_BYTES: usize = 8 * 1024 * 1024;
/// Address space beyond the program's heap: the binary, the stack, frames and copies of values.
const ADDRESS_SPACE_RESERVE: u64 = 1024 * 1024 * 1024;

type Intrinsics = (
    intrinsic::Date,
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::Proxy,
    intrinsic::MapSet,
    intrinsic::Promise,
    intrinsic::WeakRef,
);

/// Runs a warm parent, and each host it forks, to their ends. Returns only what could not start or
/// go on; the reason is on standard error, of which the runner counts the bytes.
pub fn host_main() -> ExitCode {
    match serve() {
        Ok(never) => match never {},
        Err(error) => eprintln!("host-javascript: {error:#}"),
    }
    ExitCode::FAILURE
}

/// The engine whose warm parent this program is, or another one with it under these words of its own.
pub fn engine(mut command: Vec<OsString>) -> Engine {
    command.push("host-javascript".into());
    let languages = &["javascript", "typescript"];
    Engine { languages, command, stack_bytes: STACK_BYTES, readable: None, confinement: confinement() }
}

/// The names of what confines a host on this kernel.
fn confinement() -> Vec<String> {
    let mut names = vec!["no_new_privs", "rlimits", "seccomp"];
    if readable::has_landlock() {
        names.push("landlock");
    }
    names.into_iter().map(str::to_owned).collect()
}

enum Never {}

fn serve() -> anyhow::Result<Never> {
    confine::make_untraceable()?;
    let runtime = Runtime::new()?;
    runtime.set_max_stack_size(PROGRAM_STACK_BYTES);
    let context = Context::custom::<Intrinsics>(&runtime)?;
    let prelude = context.with(|ctx| {
        raw::add_big_integers(&ctx);
        prelude::Prelude::load(&ctx)
    })?;
    warm(&context)?;
    parent::fork_hosts()?;
    let mut channel = Channel::inherited();
    confine::confine()?;
    // Once more: what is written to is copied now, and not when a program waits for it.
    warm(&context)?;
    channel.send(from_host::Frame::Ready(Ready { engine_version: ENGINE_VERSION.to_owned() }))?;
    let Some(to_host::Frame::Start(start)) = channel.receive(None)? else {
        return Err(channel::Error::Unexpected.into());
    };
    run(channel, &runtime, &context, prelude, start)
}

/// Touches the pages that any program will. Leaves nothing in the interpreter.
fn warm(context: &Context) -> anyhow::Result<()> {
    let source = "const warm: number[] = [1, 2].map((n) => n + 1); await warm; JSON.stringify({ warm })";
    let Ok(compiled) = source::compile(source, true, "waiting") else {
        anyhow::bail!("a program that warms the interpreter does not compile");
    };
    context.with(|ctx| {
        let main: Function<'_> = ctx.eval(compiled.code)?;
        let note = Function::new(ctx.clone(), |_: u32, value: Value<'_>| drop(value))?;
        main.call::<_, Promise<'_>>((note,))?;
        while raw::run_job(&ctx)? {}
        Ok(())
    })
}

fn run(
    channel: Channel,
    runtime: &Runtime,
    context: &Context,
    prelude: Persistent<Object<'static>>,
    mut start: Start,
) -> anyhow::Result<Never> {
    let limits = start.limits.unwrap_or_default();
    let address_space = match limits.memory_bytes {
        0 => 0,
        bytes => bytes.saturating_add(ADDRESS_SPACE_RESERVE),
    };
    // The interpreter's own clock comes first; the kernel's has whole seconds only.
    let cpu_seconds = if limits.cpu_ms == 0 { 0 } else { limits.cpu_ms.div_ceil(1000) + 1 };
    confine::confine_program(address_space, cpu_seconds)?;
    runtime.set_memory_limit(usize::try_from(limits.memory_bytes)?);
    let store = Store::new(std::mem::take(&mut start.kept), limits.kept_bytes);
    let host = Rc::new(Host::new(channel, limits, source_name(&start), store));
    let clocks = Rc::clone(&host);
    runtime.set_interrupt_handler(Some(Box::new(move || {
        clocks.check_clocks();
        false
    })));
    let rejections = Rc::clone(&host);
    runtime.set_host_promise_rejection_tracker(Some(Box::new(move |ctx, promise, reason, handled| {
        let Some(promise) = promise.as_object() else { return };
        match handled {
            true => rejections.handled(raw::identity(promise)),
            false => rejections.rejected(raw::identity(promise), errors::summary(&ctx, &rejections, &reason)),
        }
    })));
    context.with(|ctx| run::run(&ctx, host, prelude, &start))
}

/// The file name in errors. Line breaks and the like would make a trace unreadable.
fn source_name(start: &Start) -> String {
    let name: String = start.source_name.chars().filter(|c| !c.is_control()).take(256).collect();
    match (name.is_empty(), start.language.as_str()) {
        (false, _) => name,
        (true, "typescript") => "program.ts".to_owned(),
        (true, _) => "program.js".to_owned(),
    }
}
