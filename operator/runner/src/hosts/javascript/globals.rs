//! What a program finds in its global scope, and what it must not find.

use std::rc::Rc;
use std::time::Duration;

use rquickjs::function::{Opt, Rest};
use rquickjs::object::Property;
use rquickjs::proxy::{ProxyHandler, ProxyProperty, ProxyReceiver, ProxyTarget};
use rquickjs::{Array, Ctx, Function, Object, Proxy, Result, Value};
use seance_proto::host::v1alpha1::{Start, ToolName};

use super::calls::Program;
use super::host::{JSON_BYTES_MAX, Outcome};
use super::json_out::atom;
use super::random;
use super::raw::{self, Kind};

/// Looked up on any object by the language itself; never a tool under this name, so that `tools`
/// can be awaited, printed and compared.
const NEVER_TOOLS: &[&str] = &[
    "then",
    "constructor",
    "prototype",
    "toString",
    "toLocaleString",
    "valueOf",
    "toJSON",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "__proto__",
    "__defineGetter__",
    "__defineSetter__",
    "__lookupGetter__",
    "__lookupSetter__",
];

/// Platform parts that programs do not have, unless an option says so.
const ABSENT: &[&str] = &[
    "process",
    "require",
    "module",
    "exports",
    "fetch",
    "WebAssembly",
    "SharedArrayBuffer",
    "Atomics",
    "performance",
    "navigator",
];
const CONSOLE: &[&str] = &["console"];
const TIMERS: &[&str] = &["setTimeout", "setInterval", "clearTimeout", "clearInterval", "queueMicrotask"];
const BINARY: &[&str] = &[
    "ArrayBuffer",
    "DataView",
    "Int8Array",
    "Uint8Array",
    "Uint8ClampedArray",
    "Int16Array",
    "Uint16Array",
    "Int32Array",
    "Uint32Array",
    "BigInt64Array",
    "BigUint64Array",
    "Float16Array",
    "Float32Array",
    "Float64Array",
];

/// The longest a timer can wait; the wall limit is shorter.
const TIMER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Fills the global scope for a program.
pub fn install<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>, start: &Start) -> Result<()> {
    let has = |option: &str| start.options.iter().any(|on| on == option);
    if has("binary") {
        raw::add_binary(ctx);
    }
    random::install(ctx)?;
    let globals = ctx.globals();
    let mut absent = ABSENT.to_vec();
    for (option, names) in [("console", CONSOLE), ("timers", TIMERS), ("binary", BINARY)] {
        if !has(option) {
            absent.extend(names);
        }
    }
    for name in absent {
        fix(&globals, name, Value::new_undefined(ctx.clone()))?;
    }
    fix(&globals, "tools", tools(ctx, program, &start.tools)?)?;
    fix(&globals, "ALL_TOOLS", all_tools(ctx, &start.tools)?)?;
    let inputs = match &start.inputs_json {
        Some(json) => program.read(ctx, json, true)?,
        None => Value::new_undefined(ctx.clone()),
    };
    fix(&globals, "INPUTS", inputs)?;
    fix(&globals, "text", text(ctx, program)?)?;
    fix(&globals, "exit", exit(ctx, program)?)?;
    fix(&globals, "store", store(ctx, program)?)?;
    for class in ["ToolError", "AbortController", "AbortSignal"] {
        fix(&globals, class, program.prelude.class(class)?)?;
    }
    if has("console") {
        fix(&globals, "console", console(ctx, program)?)?;
    }
    if has("timers") {
        timers(ctx, program, &globals)?;
    }
    Ok(())
}

/// A global that can be neither changed nor removed.
fn fix<'js, T: rquickjs::IntoJs<'js>>(globals: &Object<'js>, name: &str, value: T) -> Result<()> {
    globals.prop(name, Property::from(value))
}

/// A property that can be neither changed nor removed, but is listed.
fn member<'js>(object: &Object<'js>, name: &str, function: Function<'js>) -> Result<()> {
    object.prop(name, Property::from(function.with_name(name)?).enumerable())
}

fn bare<'js>(ctx: &Ctx<'js>) -> Result<Object<'js>> {
    Object::new_proto(ctx.clone(), None)
}

/// The tools by alias and, not listed, by their own names. Any other name is a function too, whose
/// call fails like one of an unknown tool: the attempt is the broker's to count and to answer.
fn tools<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>, names: &[ToolName]) -> Result<Object<'js>> {
    let tools = Object::new_proto(ctx.clone(), Some(&unknown_tools(ctx, program)?))?;
    member(&tools, "call", call_by_name(ctx, program, names)?)?;
    for tool in names.iter().filter(|tool| !is_never_tool(&tool.alias) && tool.alias != "call") {
        member(&tools, &tool.alias, tool_function(ctx, program, &tool.name)?)?;
    }
    for tool in names.iter().filter(|tool| tool.name != tool.alias && !is_never_tool(&tool.name)) {
        if !names.iter().any(|other| other.alias == tool.name) && tool.name != "call" {
            let function = tool_function(ctx, program, &tool.name)?.with_name(&tool.name)?;
            tools.prop(tool.name.as_str(), Property::from(function))?;
        }
    }
    raw::freeze(&tools)?;
    Ok(tools)
}

fn is_never_tool(name: &str) -> bool {
    NEVER_TOOLS.contains(&name)
}

fn tool_function<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>, tool: &str) -> Result<Function<'js>> {
    let (program, tool) = (Rc::clone(program), tool.to_owned());
    Function::new(ctx.clone(), move |ctx: Ctx<'js>, arguments: Opt<Value<'js>>, options: Opt<Value<'js>>| {
        program.call(&ctx, &tool, arguments.0, options.0)
    })
}

fn call_by_name<'js>(
    ctx: &Ctx<'js>,
    program: &Rc<Program<'js>>,
    names: &[ToolName],
) -> Result<Function<'js>> {
    let program = Rc::clone(program);
    let known: Vec<(String, String)> =
        names.iter().map(|tool| (tool.name.clone(), tool.alias.clone())).collect();
    let call =
        move |ctx: Ctx<'js>, name: Value<'js>, arguments: Opt<Value<'js>>, options: Opt<Value<'js>>| {
            let name = if name.is_string() { raw::text(&name)? } else { String::new() };
            let short = name.strip_prefix("tools.").unwrap_or(&name);
            let is = |wanted: &str| known.iter().find(|(name, alias)| name == wanted || alias == wanted);
            let tool = known
                .iter()
                .find(|(known, _)| *known == name)
                .or_else(|| is(&name))
                .or_else(|| is(short))
                .map_or(short, |(name, _)| name.as_str());
            program.call(&ctx, tool, arguments.0, options.0)
        };
    Function::new(ctx.clone(), call)
}

/// What stands behind `tools` for names that are no tool.
fn unknown_tools<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>) -> Result<Object<'js>> {
    let program = Rc::clone(program);
    let handler = ProxyHandler::from_object(bare(ctx)?)?.with_getter(
        move |target: ProxyTarget<'js>, property: ProxyProperty<'js>, _: ProxyReceiver<'js>| {
            let ctx = target.0.ctx().clone();
            let name = if property.is_symbol() { None } else { property.to_string().ok() };
            match name.filter(|name| !is_never_tool(name)) {
                Some(name) => tool_function(&ctx, &program, &name).map(Function::into_value),
                None => Ok(Value::new_undefined(ctx)),
            }
        },
    )?;
    Ok(Proxy::new(ctx.clone(), bare(ctx)?, handler)?.into_inner())
}

fn all_tools<'js>(ctx: &Ctx<'js>, names: &[ToolName]) -> Result<Object<'js>> {
    let all = Array::new(ctx.clone())?.into_object();
    for (index, tool) in names.iter().enumerate() {
        let entry = Object::new(ctx.clone())?;
        entry.prop("name", Property::from(tool.alias.as_str()).enumerable())?;
        entry.prop("description", Property::from(tool.description.as_str()).enumerable())?;
        raw::freeze(&entry)?;
        all.prop(atom(index), Property::from(entry).enumerable())?;
    }
    raw::freeze(&all)?;
    Ok(all)
}

fn text<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>) -> Result<Function<'js>> {
    let program = Rc::clone(program);
    let text = move |ctx: Ctx<'js>, value: Opt<Value<'js>>| -> Result<()> {
        let value = value.0.unwrap_or_else(|| Value::new_undefined(ctx.clone()));
        let text = plain_text(&ctx, &program, &value)?;
        program.host.text(text);
        Ok(())
    };
    Function::new(ctx.clone(), text)?.with_name("text")
}

/// Strings as they are, undefined as the word, anything else as JSON.
fn plain_text<'js>(ctx: &Ctx<'js>, program: &Program<'js>, value: &Value<'js>) -> Result<String> {
    if value.is_string() {
        return raw::text(value);
    }
    Ok(program.write(ctx, value, JSON_BYTES_MAX)?.unwrap_or_else(|| "undefined".to_owned()))
}

/// Ends the program from inside: no code of it runs after this, also no handler of its own. Calls
/// under way are finished first.
fn exit<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>) -> Result<Function<'js>> {
    let program = Rc::clone(program);
    let exit = move || -> () {
        program.note_unawaited();
        while program.has_calls() {
            if let Some(seance_proto::host::v1alpha1::to_host::Frame::CallResult(result)) =
                program.host.receive(None)
            {
                program.finish_silently(result.call);
            }
        }
        program.host.end(Outcome::Completed(None))
    };
    Function::new(ctx.clone(), exit)?.with_name("exit")
}

fn store<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>) -> Result<Object<'js>> {
    let object = bare(ctx)?;
    let this = Rc::clone(program);
    let get = move |ctx: Ctx<'js>, key: String| {
        let json = this.host.store.borrow().get(&key).map(str::to_owned);
        json.map(|json| this.read(&ctx, &json, false)).transpose()
    };
    let this = Rc::clone(program);
    let set = move |ctx: Ctx<'js>, key: String, value: Opt<Value<'js>>| -> Result<()> {
        let json = match value.0 {
            Some(value) => this.write(&ctx, &value, JSON_BYTES_MAX)?,
            None => None,
        };
        let Some(json) = json else {
            this.host.store.borrow_mut().remove(&key);
            return Ok(());
        };
        let is_kept = this.host.store.borrow_mut().set(key, json);
        if is_kept {
            return Ok(());
        }
        let message = format!("the store may hold {} bytes", this.host.limits.kept_bytes);
        Err(ctx.throw(this.prelude.program_error("store_limit", &message)?))
    };
    let this = Rc::clone(program);
    let delete = move |key: String| this.host.store.borrow_mut().remove(&key);
    let this = Rc::clone(program);
    let keys = move |ctx: Ctx<'js>| -> Result<Object<'js>> {
        let keys = Array::new(ctx)?.into_object();
        for (index, key) in this.host.store.borrow().keys().into_iter().enumerate() {
            keys.prop(atom(index), super::json_in::plain(key))?;
        }
        Ok(keys)
    };
    member(&object, "get", Function::new(ctx.clone(), get)?)?;
    member(&object, "set", Function::new(ctx.clone(), set)?)?;
    member(&object, "delete", Function::new(ctx.clone(), delete)?)?;
    member(&object, "keys", Function::new(ctx.clone(), keys)?)?;
    raw::freeze(&object)?;
    Ok(object)
}

/// All of it is output, as text() is.
fn console<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>) -> Result<Object<'js>> {
    let object = bare(ctx)?;
    for name in ["log", "info", "warn", "error", "debug"] {
        let program = Rc::clone(program);
        let log = move |ctx: Ctx<'js>, values: Rest<Value<'js>>| -> Result<()> {
            let mut words = Vec::with_capacity(values.len());
            for value in values.iter() {
                words.push(console_word(&ctx, &program, value)?);
            }
            program.host.text(words.join(" "));
            Ok(())
        };
        member(&object, name, Function::new(ctx.clone(), log)?)?;
    }
    raw::freeze(&object)?;
    Ok(object)
}

/// As text(), and an error as its name and message: that is what people log errors for.
fn console_word<'js>(ctx: &Ctx<'js>, program: &Program<'js>, value: &Value<'js>) -> Result<String> {
    match value.as_object() {
        Some(object) if raw::kind(object) == Kind::Error => {
            Ok(super::errors::summary(ctx, &program.host, value))
        }
        _ => plain_text(ctx, program, value),
    }
}

fn timers<'js>(ctx: &Ctx<'js>, program: &Rc<Program<'js>>, globals: &Object<'js>) -> Result<()> {
    for (name, repeats) in [("setTimeout", false), ("setInterval", true)] {
        let program = Rc::clone(program);
        let set = move |ctx: Ctx<'js>,
                        function: Function<'js>,
                        after: Opt<Value<'js>>,
                        rest: Rest<Value<'js>>| {
            let after = after.0.and_then(|after| after.as_number()).unwrap_or(0.0);
            let after = Duration::try_from_secs_f64(after / 1000.0).unwrap_or_default().min(TIMER_MAX);
            program.set_timer(&ctx, function, after, repeats, rest.into_inner()).map(|number| number as f64)
        };
        fix(globals, name, Function::new(ctx.clone(), set)?.with_name(name)?)?;
    }
    for name in ["clearTimeout", "clearInterval"] {
        let program = Rc::clone(program);
        let clear = move |number: Opt<Value<'js>>| {
            let number = number.0.and_then(|number| number.as_number()).unwrap_or(0.0);
            program.clear_timer(number as u64);
        };
        fix(globals, name, Function::new(ctx.clone(), clear)?.with_name(name)?)?;
    }
    let queue: Value<'js> = globals.get("queueMicrotask")?;
    fix(globals, "queueMicrotask", queue)
}
