// What every program finds that is easier to say in JavaScript than in Rust, and the few built-in
// functions that the host goes on needing after a program has had its hands on the prototypes.
// Runs before the program. Everything it uses later is captured here; nothing looks a method up on
// a shared prototype, spreads, or passes a descriptor that inherits.
(() => {
  "use strict";
  const { apply, defineProperty, setPrototypeOf } = Reflect;
  const toISOString = Date.prototype.toISOString;
  const mapForEach = Map.prototype.forEach;
  const setForEach = Set.prototype.forEach;
  const reject = Promise.reject;
  const ThePromise = Promise;
  const TheTypeError = TypeError;

  const list = () => {
    const items = [];
    setPrototypeOf(items, null);
    return items;
  };

  const dateText = (date) => {
    try {
      return apply(toISOString, date, []);
    } catch {
      return null;
    }
  };
  const mapItems = (map) => {
    const items = list();
    let n = 0;
    apply(mapForEach, map, [(value, key) => { items[n++] = key; items[n++] = value; }]);
    return items;
  };
  const setItems = (set) => {
    const items = list();
    let n = 0;
    apply(setForEach, set, [(value) => { items[n++] = value; }]);
    return items;
  };

  let toolErrorCode, programErrorCode;
  class ToolError extends Error {
    #genuine = true;
    code;
    tool;
    call;
    retryable;
    constructor(message, code, tool, call, retryable) {
      super(message);
      this.code = code;
      this.tool = tool;
      this.call = call;
      this.retryable = retryable === true;
    }
    static {
      toolErrorCode = (error) => (#genuine in error ? error.code : undefined);
    }
  }
  const named = (name) => ({ __proto__: null, value: name, writable: true, configurable: true });
  defineProperty(ToolError.prototype, "name", named("ToolError"));

  class ProgramError extends Error {
    #code;
    code;
    constructor(message, code) {
      super(message);
      this.#code = code;
      this.code = code;
    }
    static {
      programErrorCode = (error) => (#code in error ? error.#code : undefined);
    }
  }
  defineProperty(ProgramError.prototype, "name", named("ProgramError"));

  class AbortError extends Error {
    constructor(message) {
      super(message);
      defineProperty(this, "stack", named(""));
    }
  }
  defineProperty(AbortError.prototype, "name", named("AbortError"));

  const permission = {};
  let abort, onAbort, aborted;
  class AbortSignal {
    #aborted = false;
    #reason = undefined;
    #listeners = list();
    onabort = null;
    constructor(given) {
      if (given !== permission) throw new TheTypeError("an AbortSignal comes from an AbortController");
    }
    get aborted() { return this.#aborted; }
    get reason() { return this.#reason; }
    throwIfAborted() { if (this.#aborted) throw this.#reason; }
    addEventListener(type, listener) {
      if (type !== "abort" || typeof listener !== "function" || this.#aborted) return;
      const listeners = this.#listeners;
      for (let n = 0; n < listeners.length; n++) if (listeners[n] === listener) return;
      listeners[listeners.length] = listener;
    }
    removeEventListener(type, listener) {
      const listeners = this.#listeners;
      for (let n = 0; n < listeners.length; n++) if (listeners[n] === listener) listeners[n] = null;
    }
    static abort(reason) {
      const signal = new AbortSignal(permission);
      abort(signal, reason);
      return signal;
    }
    static any(signals) {
      const signal = new AbortSignal(permission);
      for (const each of signals) {
        if (each.aborted) { abort(signal, each.reason); break; }
        onAbort(each, (reason) => abort(signal, reason));
      }
      return signal;
    }
    static {
      aborted = (signal) => {
        if (typeof signal !== "object" || signal === null || !(#aborted in signal)) return undefined;
        return signal.#aborted;
      };
      onAbort = (signal, hook) => {
        const listeners = signal.#listeners;
        listeners[listeners.length] = () => hook(signal.#reason);
      };
      abort = (signal, reason) => {
        if (signal.#aborted) return;
        signal.#aborted = true;
        signal.#reason = reason === undefined ? new AbortError("the operation was aborted") : reason;
        const listeners = signal.#listeners;
        signal.#listeners = list();
        const event = { __proto__: null, type: "abort", target: signal };
        const tell = (listener) => {
          try {
            apply(listener, signal, [event]);
          } catch (error) {
            apply(reject, ThePromise, [error]);
          }
        };
        for (let n = 0; n < listeners.length; n++) if (listeners[n] !== null) tell(listeners[n]);
        if (typeof signal.onabort === "function") tell(signal.onabort);
      };
    }
  }
  class AbortController {
    #signal = new AbortSignal(permission);
    get signal() { return this.#signal; }
    abort(reason) { abort(this.#signal, reason); }
  }

  return {
    __proto__: null,
    ToolError,
    AbortController,
    AbortSignal,
    BigInt,
    dateText,
    mapItems,
    setItems,
    aborted,
    onAbort,
    reason: (signal) => signal.reason,
    toolError: (message, code, tool, call, retryable) => new ToolError(message, code, tool, call, retryable),
    programError: (message, code) => new ProgramError(message, code),
    typeError: (message) => new TheTypeError(message),
    codeOf: (error) => toolErrorCode(error) ?? programErrorCode(error),
    isToolError: (error) => toolErrorCode(error) !== undefined,
  };
})()
