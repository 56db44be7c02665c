"""The host's side of one program: its limits and clocks, its calls, its event loop, and its end."""

import asyncio
import inspect
import mmap
import os
import resource
import selectors
import signal
import sys
import threading
import time
import traceback
import types

import _seance_calls as calls
import _seance_errors as errors
import _seance_frames as frames
import _seance_source as source
import _seance_surface as surface
import _seance_values as values

#: Warnings beyond this many are only counted.
WARNINGS_MAX = 32
#: How often the clocks are looked at, in seconds of processor time.
TICK = 0.02
#: The stack of a thread that the program starts: address space that counts as its memory.
THREAD_STACK_BYTES = 1 << 20
#: Address space beyond what the program may use: frames, copies of values, what is imported.
ADDRESS_SPACE_RESERVE = 64 << 20
#: Where addresses end: no process has more.
ADDRESSES_END = 1 << 47
#: How long a host that is done waits to be killed before it ends by itself, in seconds.
KILLED_WITHIN = 1


class Source:
    def __init__(self, start):
        name = "".join(c for c in start.source_name if c.isprintable())[:256]
        self.name, self.text = name or "program.py", start.source.removeprefix("\ufeff")


class Host:
    def __init__(self, channel, start):
        self.channel, self.limits = channel, start.limits
        self.source = Source(start)
        self.names = {name for name, _, _ in start.tools}
        self.aliases = [alias for _, alias, _ in start.tools]
        self.store = surface.Store(self, start.kept, self.limits.kept_bytes)
        self.outputs = [surface.Lines(self, 1), surface.Lines(self, 2)]
        self.pending, self.unseen, self.n_calls = {}, [], 0
        self.warnings, self.unawaited = [], []
        self.is_lossy = self.is_over = False
        self.output_bytes = 0
        self.lock = threading.RLock()
        self.drained = None
        self.cpu_before, self.memory_before = time.process_time(), peak_bytes()
        self.turn_began = self.cpu_before
        self.loop = None

    # Output

    def text(self, text):
        """Writes text, up to the output limit; at the limit the program is over."""
        encoded = text.encode("utf-8", "replace")
        with self.lock:
            self.check_output(len(encoded))
            self.output_bytes += len(encoded)
            self.send(frames.TEXT, frames.data(1, encoded))

    def check_output(self, more):
        if 0 < self.limits.output_bytes < self.output_bytes + more or more > values.JSON_BYTES_MAX:
            self.fail("output_limit", f"wrote more than {self.limits.output_bytes} bytes of text")

    def write(self, value, bytes_max=values.JSON_BYTES_MAX):
        return values.write(value, bytes_max, self.has_no_form)

    def has_no_form(self, message):
        """Warns that a value has another form in JSON; once a program."""
        if not self.is_lossy:
            self.is_lossy = True
            self.warn("lossy_value", message)

    def warn(self, code, message):
        if len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(frames.data(1, code) + frames.data(2, errors.cut(message)))

    def send(self, frame, message):
        """Sends a frame, also from a thread that the program started; none after the last."""
        with self.lock:
            if not self.is_over:
                self.channel.send(frame, message)

    # Calls

    def call(self, tool, arguments):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("tools are called from the program's own thread, not from one that it started")
        text = self.write(arguments)
        if 0 < self.limits.pending_calls <= len(self.pending):
            limit = self.limits.pending_calls
            self.fail("call_limit", f"more than {limit} tool calls were waiting for an answer")
        self.n_calls += 1
        call = self.pending[self.n_calls] = calls.Call(self, self.n_calls, tool)
        message = frames.number(1, self.n_calls) + frames.data(2, tool) + frames.data(3, text)
        self.send(frames.TOOL_CALL, message)
        return call

    def cancel(self, number):
        if self.pending.pop(number, None) is not None:
            self.send(frames.CANCEL_CALL, frames.number(1, number))

    def take_results(self, timeout=0):
        """Takes the answers that are there, waiting for the first."""
        while frame := self.channel.receive(timeout):
            timeout = 0
            kind, message = frame
            if kind != frames.CALL_RESULT:
                os._exit(1)
            number, value, error = frames.call_result(message)
            # A call passes for its value, which may be false.
            if (call := self.pending.pop(number, None)) is not None:
                call.settle(value, error)
                if call.unseen_error is not None and len(self.unseen) < WARNINGS_MAX:
                    self.unseen.append(call)

    def wait_for(self, call):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a call is waited for in the program's own thread")
        while not call.is_settled:
            if call._number not in self.pending:
                raise asyncio.CancelledError
            self.take_results(None)
        self.begin_turn()

    def near(self, tool):
        return calls.near(tool, self.aliases)

    async def drain(self):
        """Waits until no call is unanswered. What the program left running goes on meanwhile."""
        self.drained = asyncio.get_running_loop().create_future()
        await self.drained

    def is_drained(self):
        """Tells so where that is waited for. Asked when nothing that the program left can go on."""
        if self.drained is None or self.drained.done() or self.pending:
            return False
        self.drained.set_result(None)
        return True

    def note_unawaited(self):
        for number, call in self.pending.items():
            self.unawaited.append(number)
            self.warn("unawaited_call", f'call {number} of "{call._tool}" was not awaited; it was finished first')

    # Clocks

    def begin_turn(self):
        self.turn_began = time.process_time()

    def check_clocks(self, *_):
        """Ends the program when one of its clocks has run out."""
        if self.channel.is_sending or self.is_over:
            return
        now, limits = time.process_time(), self.limits
        if 0 < limits.turn_ms < (now - self.turn_began) * 1000:
            self.fail("turn_limit", f"ran for more than {limits.turn_ms} ms without waiting for anything")
        if 0 < limits.cpu_ms < (now - self.cpu_before) * 1000:
            self.fail("cpu_limit", f"used more than {limits.cpu_ms} ms of processor time")

    def start_clocks(self, mapped_bytes):
        limits = self.limits
        if limits.memory_bytes:
            n_bytes = mapped_bytes + limits.memory_bytes + ADDRESS_SPACE_RESERVE
            resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes + ADDRESS_SPACE_RESERVE))
        if limits.cpu_ms:
            # Our own clock comes first; the kernel's has whole seconds only.
            seconds = -(-limits.cpu_ms // 1000) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        signal.signal(signal.SIGPROF, self.check_clocks)
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)

    # The end

    def fail(self, code, message, *place):
        """Fails the program without an exception. Nothing of it runs any more."""
        self.end(error=errors.failure(code, message, *place))

    def failed(self, error):
        if isinstance(error, MemoryError):
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        self.end(error=errors.describe(error, self.source, self.limits.memory_bytes))

    def completed(self, value, drain):
        """Ends a program that has run to its end, once its calls are finished."""
        bytes_max = min(self.limits.value_bytes or values.JSON_BYTES_MAX, values.JSON_BYTES_MAX)
        try:
            text = None if value is None else self.write(value, bytes_max)
        except values.ProgramError as error:
            # It is the value that is wrong, not a place in the source.
            self.fail(error.code, str(error))
        self.note_unawaited()
        drain()
        self.end(text)

    def finish(self, value=None):
        """Completes the program with this value. Nothing of it runs any more, no handler either."""

        def drain():
            while self.pending:
                self.take_results(None)

        try:
            self.completed(value, drain)
        except Exception as error:
            self.failed(error)

    def end(self, value=None, error=None):
        """Tells the runner how the program ended, and waits to be killed by it."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        for lines in () if self.is_over else self.outputs:
            lines.finish()
        for call in self.unseen:
            if (failed := call.unseen_error) is not None:
                self.warn("unhandled_rejection", f"{type(failed).__name__}: {failed}")
        kept, removed = ({}, []) if error else self.store.changes()
        pair = lambda key, text: frames.data(1, key) + frames.data(2, text)
        ended = [
            b"" if value is None else frames.data(1, value),
            b"" if error is None else frames.data(2, error),
            *(frames.data(3, pair(key, text)) for key, text in kept.items()),
            *(frames.data(4, key) for key in removed),
            *(frames.number(5, number) for number in self.unawaited),
            *(frames.data(6, warning) for warning in self.warnings),
            frames.number(7, int((time.process_time() - self.cpu_before) * 1e6)),
            frames.number(8, max(peak_bytes() - self.memory_before, 0)),
        ]
        with self.lock:
            self.send(frames.ENDED, b"".join(ended))
            self.is_over = True
        while self.channel.receive(KILLED_WITHIN):
            pass
        os._exit(0)

    # Waiting

    def is_stuck(self):
        """Whether nothing can happen any more that would make the program go on."""
        return self.limits.detect_deadlock and not self.pending and threading.active_count() == 1

    def deadlock(self, loop):
        message = "the program waits for something that can never happen: no tool call or timer is left"
        line = self.waiting_at(loop)
        self.fail("deadlock", message, "", line)

    def waiting_at(self, loop):
        """The line of the `await` at the top of the program, or of what it waits in."""
        coroutines = [task.get_coro() for task in asyncio.all_tasks(loop)]
        waiting = [each.cr_frame for each in coroutines if isinstance(each, types.CoroutineType)]
        running = [frame for frame, _ in traceback.walk_stack(None)]
        own = [each for each in [*waiting, *running] if each and each.f_code.co_filename == self.source.name]
        top = [each for each in own if each.f_code.co_name == "<module>"]
        return next((each.f_lineno for each in top or own), 0)


class Selector(selectors.DefaultSelector):
    """Where an event loop waits. A turn is everything from one wait to the next."""

    def __init__(self, host):
        super().__init__()
        self.host, self.loop = host, None

    def select(self, timeout=None):
        if timeout != 0 and self.host.is_drained():
            timeout = 0
        if timeout is None and self.host.is_stuck():
            self.host.deadlock(self.loop)
        ready = super().select(timeout)
        if timeout != 0:
            self.host.begin_turn()
        return ready


class Loop(asyncio.SelectorEventLoop):
    """An event loop that takes the answers to tool calls."""

    def __init__(self, host):
        selector = Selector(host)
        super().__init__(selector)
        selector.loop = self
        self.add_reader(frames.SOCKET, host.take_results)
        self.set_exception_handler(lambda _, context: self.unhandled(host, context))

    @staticmethod
    def unhandled(host, context):
        error = context.get("exception")
        what = f"{type(error).__name__}: {errors.text_of(error)}" if error else context.get("message", "")
        host.warn("unhandled_rejection", what)


class Policy(asyncio.DefaultEventLoopPolicy):
    """Makes asyncio.run() and its like use such a loop."""

    def __init__(self, host):
        super().__init__()
        self._loop_factory = lambda: Loop(host)


def run(channel, start, mapped_bytes):
    """Runs the program to its end, which is the end of the process. So much was mapped before it."""
    host = Host(channel, start)
    host.start_clocks(mapped_bytes)
    threading.stack_size(THREAD_STACK_BYTES)
    try:
        code = source.compiled(host.source.text, host.source.name)
    except source.Rejected as error:
        host.fail("syntax_error", str(error), error.error_class, error.line, error.column)
    asyncio.set_event_loop_policy(Policy(host))
    loop = host.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    sys.stdout, sys.stderr = host.outputs
    try:
        value = types.FunctionType(code, namespace(host, start))()
        if inspect.isawaitable(value):
            value = loop.run_until_complete(value if asyncio.iscoroutine(value) else awaited(value))
        host.completed(value, lambda: loop.run_until_complete(host.drain()))
    except SystemExit as error:
        if error.code in (None, 0):
            host.finish()
        host.failed(error)
    except BaseException as error:
        host.failed(error)


async def awaited(value):
    return await value


def namespace(host, start):
    """The program's global names: those of a main module, and ours."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    tools = tuple(
        types.MappingProxyType({"name": alias, "description": description})
        for _, alias, description in start.tools
    )
    vars(module).update(
        tools=calls.Tools(host, [(name, alias) for name, alias, _ in start.tools]),
        ALL_TOOLS=tools,
        INPUTS=None if start.inputs is None else values.read(start.inputs),
        text=lambda value: host.text(surface.plain_text(host, value)),
        finish=host.finish,
        store=host.store,
        ToolError=errors.ToolError,
    )
    return vars(module)


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def address_space_bytes():
    """What is mapped, found by what a limit on it refuses: where /proc can't be read, nothing else tells."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    page = resource.getpagesize()
    least, most = 0, ADDRESSES_END if hard == resource.RLIM_INFINITY else hard
    try:
        while most - least > page:
            middle = (least + most) // 2
            resource.setrlimit(resource.RLIMIT_AS, (middle, hard))
            try:
                mmap.mmap(-1, page).close()
                most = middle
            except (OSError, MemoryError):
                least = middle
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return most
