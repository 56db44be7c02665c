//! Tool calls and timers of a program: what it waits for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::{Ctx, Function, Object, Result, Value};
use seance_proto::host::v1alpha1::{CallError, CallResult, CancelCall, ToolCall, call_result, from_host};

use super::host::{Host, JSON_BYTES_MAX, over};
use super::prelude::{Prelude, ToolFailure};
use super::{json_in, json_out};

/// Timers that may be set at one time.
const TIMERS_MAX: usize = 1024;

/// A program as the interpreter sees it.
pub struct Program<'js> {
    pub host: Rc<Host>,
    pub prelude: Prelude<'js>,
    /// The names a program calls tools by, for hints.
    pub aliases: Vec<String>,
    calls: RefCell<BTreeMap<u64, Call<'js>>>,
    n_calls: Cell<u64>,
    timers: RefCell<BTreeMap<(Instant, u64), Timer<'js>>>,
    n_timers: Cell<u64>,
}

struct Call<'js> {
    tool: String,
    resolve: Function<'js>,
    reject: Function<'js>,
}

struct Timer<'js> {
    function: Function<'js>,
    arguments: Vec<Value<'js>>,
    every: Option<Duration>,
}

impl<'js> Program<'js> {
    pub fn new(host: Rc<Host>, prelude: Prelude<'js>, aliases: Vec<String>) -> Self {
        Self {
            host,
            prelude,
            aliases,
            calls: RefCell::default(),
            n_calls: Cell::new(0),
            timers: RefCell::default(),
            n_timers: Cell::new(0),
        }
    }

    /// Calls a tool. What is wrong with the arguments rejects the promise; nothing is sent then.
    pub fn call(
        self: &Rc<Self>,
        ctx: &Ctx<'js>,
        tool: &str,
        arguments: Option<Value<'js>>,
        options: Option<Value<'js>>,
    ) -> Result<Value<'js>> {
        let (promise, resolve, reject) = ctx.promise()?;
        let prepared = self.json(ctx, arguments).and_then(|json| Ok((json, signal(options)?)));
        let (arguments_json, signal) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                reject.call::<_, ()>((thrown(ctx, error)?,))?;
                return Ok(promise.into_value());
            }
        };
        if let Some(signal) = &signal {
            match self.prelude.aborted(signal)? {
                Some(false) => {}
                Some(true) => {
                    reject.call::<_, ()>((self.prelude.reason(signal)?,))?;
                    return Ok(promise.into_value());
                }
                None => {
                    let error = self.prelude.type_error("signal must be an AbortSignal")?;
                    reject.call::<_, ()>((error,))?;
                    return Ok(promise.into_value());
                }
            }
        }
        let call = self.next_call();
        self.calls.borrow_mut().insert(call, Call { tool: tool.to_owned(), resolve, reject });
        self.host.send(from_host::Frame::ToolCall(ToolCall { call, tool: tool.to_owned(), arguments_json }));
        if let Some(signal) = signal {
            let program = Rc::clone(self);
            let hook = Function::new(ctx.clone(), move |reason: Value<'js>| program.cancel(call, reason))?;
            self.prelude.on_abort(&signal, hook)?;
        }
        Ok(promise.into_value())
    }

    /// Takes a result. One for a call that is no longer waited for changes nothing.
    pub fn apply(&self, ctx: &Ctx<'js>, result: CallResult) -> Result<()> {
        let Some(Call { tool, resolve, reject }) = self.calls.borrow_mut().remove(&result.call) else {
            return Ok(());
        };
        match result.result {
            Some(call_result::Result::ValueJson(json)) => match self.read(ctx, &json, false) {
                Ok(value) => resolve.call((value,)),
                Err(error) => reject.call((thrown(ctx, error)?,)),
            },
            Some(call_result::Result::Error(error)) => {
                reject.call((self.tool_error(&tool, result.call, &error)?,))
            }
            None => Ok(()),
        }
    }

    /// Whether any call is unanswered.
    pub fn has_calls(&self) -> bool {
        !self.calls.borrow().is_empty()
    }

    /// Lists what is unanswered as not awaited, when the program itself is done.
    pub fn note_unawaited(&self) {
        for (number, call) in self.calls.borrow().iter() {
            self.host.unawaited(*number, &call.tool);
        }
    }

    /// Forgets an answered call without running anything of the program.
    pub fn finish_silently(&self, call: u64) {
        self.calls.borrow_mut().remove(&call);
    }

    /// Reads JSON text; what cannot be read is thrown as an error of ours.
    pub fn read(&self, ctx: &Ctx<'js>, json: &str, frozen: bool) -> Result<Value<'js>> {
        let (code, message) = match json_in::read(ctx, &self.prelude, json, frozen) {
            Ok(value) => return Ok(value),
            Err(json_in::Error::Engine(error)) => return Err(error),
            Err(json_in::Error::Number) => {
                let digits = json_in::INTEGER_DIGITS_MAX;
                (
                    "number_limit",
                    format!("a number has more than {digits} digits or is too large for a double"),
                )
            }
            Err(json_in::Error::Depth) => ("value_limit", "the value is nested too deep".to_owned()),
            Err(json_in::Error::Malformed) => ("unserializable", "the value is not valid JSON".to_owned()),
        };
        Err(ctx.throw(self.prelude.program_error(code, &message)?))
    }

    /// Writes JSON text of at most `bytes_max` bytes; what cannot be written is thrown as an error
    /// of ours.
    pub fn write(&self, ctx: &Ctx<'js>, value: &Value<'js>, bytes_max: usize) -> Result<Option<String>> {
        let (code, message) = match json_out::write(&self.prelude, value, bytes_max) {
            Ok(json) => {
                self.host.warn_lossy(json.lossy);
                return Ok(json.text);
            }
            Err(json_out::Error::Thrown(error)) => return Err(error),
            Err(json_out::Error::Cycle(path)) => {
                ("unserializable", format!("the value contains itself at {path}"))
            }
            Err(json_out::Error::Depth(path)) => (
                "unserializable",
                format!("the value is nested more than {} deep at {path}", json_out::DEPTH_MAX),
            ),
            Err(json_out::Error::Size(bytes)) => {
                ("value_limit", format!("the value has more than {bytes} bytes as JSON"))
            }
        };
        Err(ctx.throw(self.prelude.program_error(code, &message)?))
    }

    /// Sets a timer and gives its number.
    pub fn set_timer(
        &self,
        ctx: &Ctx<'js>,
        function: Function<'js>,
        after: Duration,
        repeats: bool,
        arguments: Vec<Value<'js>>,
    ) -> Result<u64> {
        if self.timers.borrow().len() >= TIMERS_MAX {
            return Err(rquickjs::Exception::throw_range(
                ctx,
                &format!("more than {TIMERS_MAX} timers are set"),
            ));
        }
        let number = self.n_timers.get() + 1;
        self.n_timers.set(number);
        let timer = Timer { function, arguments, every: repeats.then_some(after) };
        self.timers.borrow_mut().insert((Instant::now() + after, number), timer);
        Ok(number)
    }

    /// Forgets a timer.
    pub fn clear_timer(&self, number: u64) {
        self.timers.borrow_mut().retain(|(_, set), _| *set != number);
    }

    /// How long until the next timer; nothing when none is set.
    pub fn next_timer(&self) -> Option<Duration> {
        let timers = self.timers.borrow();
        let (due, _) = timers.keys().next()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Runs the next timer that is due; false when none is.
    pub fn run_timer(&self, ctx: &Ctx<'js>) -> Result<bool> {
        let due = self.timers.borrow().keys().next().copied().filter(|(due, _)| *due <= Instant::now());
        let Some(key) = due else { return Ok(false) };
        let Some(timer) = self.timers.borrow_mut().remove(&key) else { return Ok(false) };
        let mut arguments = rquickjs::function::Args::new(ctx.clone(), timer.arguments.len());
        for argument in &timer.arguments {
            arguments.push_arg(argument.clone())?;
        }
        let function = timer.function.clone();
        if let Some(every) = timer.every {
            // A timer that is always due would keep the others and the socket waiting.
            let next = Instant::now() + every.max(Duration::from_millis(1));
            self.timers.borrow_mut().insert((next, key.1), timer);
        }
        function.call_arg::<()>(arguments)?;
        Ok(true)
    }

    fn next_call(&self) -> u64 {
        let limit = self.host.limits.pending_calls;
        if over(self.calls.borrow().len() as u64 + 1, limit) {
            self.host.fail("call_limit", format!("more than {limit} tool calls were waiting for an answer"));
        }
        self.n_calls.set(self.n_calls.get() + 1);
        self.n_calls.get()
    }

    fn cancel(&self, call: u64, reason: Value<'js>) -> Result<()> {
        let Some(Call { reject, .. }) = self.calls.borrow_mut().remove(&call) else { return Ok(()) };
        self.host.send(from_host::Frame::CancelCall(CancelCall { call }));
        reject.call((reason,))
    }

    fn json(&self, ctx: &Ctx<'js>, arguments: Option<Value<'js>>) -> Result<String> {
        let Some(arguments) = arguments.filter(|arguments| !arguments.is_undefined()) else {
            return Ok("{}".to_owned());
        };
        match self.write(ctx, &arguments, JSON_BYTES_MAX)? {
            Some(json) => Ok(json),
            None => Err(ctx.throw(self.prelude.type_error("tool arguments must be an object")?)),
        }
    }

    fn tool_error(&self, tool: &str, call: u64, error: &CallError) -> Result<Value<'js>> {
        let hint = match error.code.as_str() {
            "unknown_tool" => near(tool, &self.aliases).filter(|near| !error.message.contains(near.as_str())),
            _ => None,
        };
        let message = match hint {
            Some(near) => format!("{} (did you mean {near}?)", error.message),
            None => error.message.clone(),
        };
        self.prelude.tool_error(ToolFailure {
            message: &message,
            code: &error.code,
            tool,
            call,
            retryable: error.retryable,
        })
    }
}

/// What is being thrown, for rejecting a promise with it.
fn thrown<'js>(ctx: &Ctx<'js>, error: rquickjs::Error) -> Result<Value<'js>> {
    match error {
        rquickjs::Error::Exception => Ok(ctx.catch()),
        other => Err(other),
    }
}

fn signal<'js>(options: Option<Value<'js>>) -> Result<Option<Value<'js>>> {
    let Some(options) = options.as_ref().and_then(Value::as_object) else { return Ok(None) };
    let signal: Value<'js> = Object::get(options, "signal")?;
    Ok(Some(signal).filter(|signal| !signal.is_undefined() && !signal.is_null()))
}

/// The name most like a wrong one, when one is like it at all.
fn near(wrong: &str, names: &[String]) -> Option<String> {
    let wrong: Vec<char> = wrong.chars().take(64).collect();
    let close = names.iter().map(|name| (distance(&wrong, name), name)).min()?;
    (close.0 <= wrong.len().div_ceil(3)).then(|| close.1.clone())
}

/// Characters to insert, remove or change to make one name of another.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let change = diagonal + usize::from(!left.eq_ignore_ascii_case(right));
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
