"""From an exception to what the program's author reads: the class, the message, the place in the
author's own source, and the author's own frames."""

import traceback

from _seance_frames import data, number
from _seance_values import ProgramError, plain

#: Messages and traces are cut here; what a program raises can be as long as its memory.
MESSAGE_CHARS_MAX = 16 * 1024
FRAMES_MAX = 32


class ToolError(Exception):
    """A tool call failed: `tool`, `call` (its number), `code`, `message`, `retryable`."""

    def __init__(self, message, code="tool_error", tool="", call=0, retryable=False):
        super().__init__(message)
        self.message, self.code, self.tool, self.call = message, code, tool, call
        self.retryable = retryable


def failure(code, message, error_class="", line=0, column=0, backtrace=""):
    """A ProgramError frame."""
    return b"".join(
        [
            data(1, code),
            data(2, cut(message)),
            data(3, error_class),
            number(4, line),
            number(5, column),
            data(6, cut(backtrace)),
        ]
    )


def describe(error, source, memory_bytes):
    """The failure that an uncaught exception is."""
    frames = author_frames(error, source)
    line, column = (frames[-1].lineno, column_of(frames[-1], source)) if frames else (0, 0)
    message = summary_of_group(error) if isinstance(error, BaseExceptionGroup) else text_of(error)
    code = code_of(error)
    if code == "memory_limit":
        message = f"used more than {memory_bytes} bytes of memory"
    trace = "".join(f'File "{source.name}", line {each.lineno}, in {each.name}\n' for each in frames)
    return failure(code, message, type(error).__name__, line, column, trace.rstrip("\n"))


def author_frames(error, source):
    """The frames in the author's source, outermost first, the last of them at most."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if frame.filename == source.name][-FRAMES_MAX:]


def column_of(frame, source):
    lines = source.text.splitlines()
    if frame.colno is None or not 0 < frame.lineno <= len(lines):
        return 0
    # The interpreter counts bytes.
    return len(lines[frame.lineno - 1].encode("utf-8", "replace")[: frame.colno].decode("utf-8", "replace")) + 1


def code_of(error):
    leaf = first_leaf(error)
    match leaf:
        case MemoryError():
            return "memory_limit"
        case ToolError(code="call_limit"):
            return "call_limit"
        case ProgramError():
            return leaf.code
        case _:
            return "exception"


def first_leaf(error):
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def summary_of_group(group):
    """A group's own message says only how many there are."""
    leaf = first_leaf(group)
    return f"{text_of(group)}: {type(leaf).__name__}: {text_of(leaf)}"


def text_of(error):
    try:
        return str(error)
    except Exception:
        return ""


def cut(text):
    text = plain(text)
    return text if len(text) <= MESSAGE_CHARS_MAX else text[:MESSAGE_CHARS_MAX] + "…"
