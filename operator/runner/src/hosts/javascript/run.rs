//! Running a program: turns of the interpreter, and waiting between them.

use std::rc::Rc;

use rquickjs::context::EvalOptions;
use rquickjs::promise::PromiseState;
use rquickjs::{Ctx, Function, Object, Persistent, Promise, Value};
use seance_proto::host::v1alpha1::{ProgramError, Start, to_host};

use crate::hosts::exit_now;

use super::calls::Program;
use super::host::{Host, JSON_BYTES_MAX, Outcome};
use super::prelude::Prelude;
use super::source::{self, Rejected};
use super::{errors, globals, raw};

/// Runs the program to its end, which is the end of the process.
pub fn run(ctx: &Ctx<'_>, host: Rc<Host>, prelude: Persistent<Object<'static>>, start: &Start) -> ! {
    let prelude = Prelude::restore(ctx, prelude).unwrap_or_else(|_| exit_now(1));
    let aliases = start.tools.iter().map(|tool| tool.alias.clone()).collect();
    let program = Rc::new(Program::new(host, prelude, aliases));
    let main = match begin(ctx, &program, start) {
        Ok(main) => main,
        Err(error) => fail(ctx, &program, error),
    };
    loop {
        turn(ctx, &program);
        if main.state() != PromiseState::Pending {
            break;
        }
        wait(ctx, &program);
    }
    let outcome = outcome(ctx, &program, &main);
    if let Outcome::Completed(_) = outcome {
        program.note_unawaited();
        while program.has_calls() {
            wait(ctx, &program);
            turn(ctx, &program);
        }
    }
    program.host.end(outcome)
}

/// Compiles the source, fills the global scope and takes the program to its first wait.
fn begin<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>, start: &Start) -> rquickjs::Result<Promise<'js>> {
    globals::install(ctx, program, start)?;
    let host = &program.host;
    let waiting = hidden_name();
    let compiled = source::compile(&start.source, start.language == "typescript", &waiting)
        .unwrap_or_else(|rejected| host.end(Outcome::Failed(refused(rejected))));
    let mut options = EvalOptions::default();
    options.strict = false;
    options.filename = Some(host.source_name.clone());
    let code = compiled.code.clone();
    let _ = host.compiled.set(compiled);
    let main: Function<'js> = match ctx.eval_with_options(code, options) {
        Ok(main) => main,
        Err(rquickjs::Error::Exception) => {
            let mut error = errors::describe(ctx, host, &program.prelude, &ctx.catch());
            if error.class == "SyntaxError" {
                error.code = "syntax_error".to_owned();
                error.backtrace = String::new();
            }
            host.end(Outcome::Failed(error))
        }
        Err(error) => return Err(error),
    };
    let waits = Rc::clone(host);
    let note = Function::new(ctx.clone(), move |index: u32, value: Value<'js>| {
        waits.waiting_at.set(Some(index as usize));
        value
    })?;
    main.call((note,))
}

/// Runs jobs until none is left. The clocks see all of it as one turn.
fn turn<'js>(ctx: &Ctx<'js>, program: &Program<'js>) {
    loop {
        while raw::run_job(ctx).unwrap_or_else(|error| fail(ctx, program, error)) {}
        match program.run_timer(ctx) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => fail(ctx, program, error),
        }
    }
}

/// Waits for a tool result or a timer.
fn wait<'js>(ctx: &Ctx<'js>, program: &Program<'js>) {
    let timer = program.next_timer();
    let host = &program.host;
    if timer.is_none() && !program.has_calls() && host.limits.detect_deadlock {
        host.end(Outcome::Failed(deadlock(ctx, host)));
    }
    match host.receive(timer) {
        Some(to_host::Frame::CallResult(result)) => {
            if let Err(error) = program.apply(ctx, result) {
                fail(ctx, program, error);
            }
        }
        // A second program or a fork has no place here; the runner is not ours any more.
        Some(to_host::Frame::Start(_) | to_host::Frame::Fork(_)) => exit_now(1),
        None => {}
    }
}

fn outcome<'js>(ctx: &Ctx<'js>, program: &Program<'js>, main: &Promise<'js>) -> Outcome {
    let host = &program.host;
    host.handled(raw::identity(main));
    let value = match main.result::<Value<'js>>() {
        Some(Ok(value)) => value,
        _ => return Outcome::Failed(errors::describe(ctx, host, &program.prelude, &ctx.catch())),
    };
    let bytes_max = match usize::try_from(host.limits.value_bytes) {
        Ok(bytes) if bytes > 0 => bytes.min(JSON_BYTES_MAX),
        _ => JSON_BYTES_MAX,
    };
    match program.write(ctx, &value, bytes_max) {
        Ok(json) => Outcome::Completed(json),
        Err(_) => {
            let mut error = errors::describe(ctx, host, &program.prelude, &ctx.catch());
            if error.class == "ProgramError" {
                // It is the value that is wrong, not a place in the source.
                (error.class, error.line, error.column) = (String::new(), 0, 0);
            }
            Outcome::Failed(error)
        }
    }
}

fn deadlock(ctx: &Ctx<'_>, host: &Host) -> ProgramError {
    if errors::is_memory_used_up(ctx, host) {
        let message = format!("used more than {} bytes of memory", host.limits.memory_bytes);
        return ProgramError { code: "memory_limit".to_owned(), message, ..Default::default() };
    }
    let place = errors::waiting_at(host);
    ProgramError {
        code: "deadlock".to_owned(),
        message: "the program waits for something that can never happen: no tool call or timer is left"
            .to_owned(),
        line: place.map_or(0, |place| place.line),
        column: place.map_or(0, |place| place.column),
        ..Default::default()
    }
}

fn refused(rejected: Rejected) -> ProgramError {
    ProgramError {
        code: rejected.code.to_owned(),
        message: rejected.message,
        class: if rejected.code == "syntax_error" { "SyntaxError".to_owned() } else { String::new() },
        line: rejected.position.line,
        column: rejected.position.column,
        backtrace: String::new(),
    }
}

/// Ends the program for an exception outside of its own promise.
fn fail<'js>(ctx: &Ctx<'js>, program: &Program<'js>, error: rquickjs::Error) -> ! {
    let error = match error {
        rquickjs::Error::Exception => errors::describe(ctx, &program.host, &program.prelude, &ctx.catch()),
        other => {
            ProgramError { code: "exception".to_owned(), message: other.to_string(), ..Default::default() }
        }
    };
    program.host.end(Outcome::Failed(error))
}

/// A name the source cannot contain but by chance.
fn hidden_name() -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).unwrap_or_else(|_| exit_now(1));
    format!("_{}", hex::encode(random))
}
