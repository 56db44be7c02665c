//! The few questions to the engine that its Rust wrapper has no words for.

use rquickjs::{Ctx, Object, Result, Value, qjs};

/// What kind of object a value is, where JSON or we treat that kind in a special way. It is the
/// engine's own mark, which a program cannot forge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Date,
    Map,
    Set,
    Error,
    /// An array of numbers.
    Numbers,
    /// Bytes: a byte array, a buffer or a view.
    Bytes,
    Other,
}

/// The kind of an object.
pub fn kind(object: &Object<'_>) -> Kind {
    let raw = object.as_value().as_raw();
    // SAFETY: these functions only look at the class of a value that `object` keeps alive.
    unsafe {
        if qjs::JS_IsDate(raw) {
            return Kind::Date;
        }
        if qjs::JS_IsMap(raw) {
            return Kind::Map;
        }
        if qjs::JS_IsSet(raw) {
            return Kind::Set;
        }
        if qjs::JS_IsError(raw) {
            return Kind::Error;
        }
        if qjs::JS_IsArrayBuffer(raw) || qjs::JS_IsDataView(raw) {
            return Kind::Bytes;
        }
        match qjs::JS_GetTypedArrayType(raw) {
            -1 => Kind::Other,
            BYTE_ARRAY_CLAMPED | BYTE_ARRAY => Kind::Bytes,
            _ => Kind::Numbers,
        }
    }
}

const BYTE_ARRAY_CLAMPED: i32 = qjs::JSTypedArrayEnum_JS_TYPED_ARRAY_UINT8C as i32;
const BYTE_ARRAY: i32 = qjs::JSTypedArrayEnum_JS_TYPED_ARRAY_UINT8 as i32;

/// Which object this is; the same for every handle of it.
pub fn identity(object: &Object<'_>) -> usize {
    // SAFETY: the value is an object, so its payload is a pointer; it is compared, never followed.
    unsafe { qjs::JS_VALUE_GET_PTR(object.as_value().as_raw()) as usize }
}

/// A primitive as text. Half a surrogate pair, which UTF-8 has no form for, becomes U+FFFD.
pub fn text(value: &Value<'_>) -> Result<String> {
    let ctx = value.ctx().as_raw().as_ptr();
    let mut bytes = 0;
    // SAFETY: the context is alive as long as `value`; the buffer is copied before it is freed and
    // has the length that the engine told.
    let copied = unsafe {
        let start = qjs::JS_ToCStringLen2(ctx, &mut bytes, value.as_raw(), false);
        if start.is_null() {
            return Err(rquickjs::Error::Exception);
        }
        let copied = std::slice::from_raw_parts(start.cast::<u8>(), bytes as usize).to_vec();
        qjs::JS_FreeCString(ctx, start);
        copied
    };
    Ok(String::from_utf8(copied).unwrap_or_else(|error| replace_surrogates(error.as_bytes())))
}

/// Makes an object's properties fixed.
pub fn freeze(object: &Object<'_>) -> Result<()> {
    // SAFETY: the context and the object are alive as long as `object`.
    match unsafe { qjs::JS_FreezeObject(object.ctx().as_raw().as_ptr(), object.as_value().as_raw()) } {
        -1 => Err(rquickjs::Error::Exception),
        _ => Ok(()),
    }
}

/// Adds big integers, which the wrapper's list of built-in parts leaves out.
pub fn add_big_integers(ctx: &Ctx<'_>) {
    // SAFETY: the context is alive, and adding a built-in part twice is harmless.
    unsafe { qjs::JS_AddIntrinsicBigInt(ctx.as_raw().as_ptr()) };
}

/// Adds buffers and typed arrays to a running context.
pub fn add_binary(ctx: &Ctx<'_>) {
    // SAFETY: the context is alive; this is the function the wrapper itself calls.
    unsafe { qjs::JS_AddIntrinsicTypedArrays(ctx.as_raw().as_ptr()) };
}

/// Runs the next job; false when there is none. The wrapper's own function drops what escapes a
/// job, which has no promise to end up in: a microtask threw, or there was no memory left to
/// reject with.
pub fn run_job(ctx: &Ctx<'_>) -> Result<bool> {
    let mut ran_in = std::ptr::null_mut();
    // SAFETY: the runtime is alive as long as `ctx`, and this is its only context, so that is where
    // an exception is left.
    match unsafe { qjs::JS_ExecutePendingJob(qjs::JS_GetRuntime(ctx.as_raw().as_ptr()), &mut ran_in) } {
        0 => Ok(false),
        n if n > 0 => Ok(true),
        _ => Err(rquickjs::Error::Exception),
    }
}

/// Bytes in use by the interpreter's heap.
pub fn heap_bytes(ctx: &Ctx<'_>) -> u64 {
    // SAFETY: the structure is plain numbers that the call fills in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<qjs::JSMemoryUsage>();
        qjs::JS_ComputeMemoryUsage(qjs::JS_GetRuntime(ctx.as_raw().as_ptr()), &mut usage);
        usage
    };
    u64::try_from(usage.malloc_size).unwrap_or(0)
}

/// The engine writes half a pair as three bytes, ED A0..BF xx.
fn replace_surrogates(bytes: &[u8]) -> String {
    let mut fixed = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        if *first == 0xed && rest.len() >= 3 && rest[1] >= 0xa0 {
            fixed.extend_from_slice("\u{fffd}".as_bytes());
            rest = &rest[3..];
        } else {
            fixed.push(*first);
            rest = &rest[1..];
        }
    }
    String::from_utf8_lossy(&fixed).into_owned()
}
