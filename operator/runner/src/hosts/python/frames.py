"""The frames of seance.host.v1alpha1 (host.proto), and the private socket they travel over.

Each is a 4-byte big-endian length and a protobuf message. These few messages are written and read by
hand: a host has nothing but the standard library.
"""

import os
import select
import struct

FRAME_BYTES_MAX = 64 << 20
READ_BYTES = 64 << 10
#: Where a host and its warm parent find their socket.
SOCKET = 3
#: The numbers of the frames a host sends.
READY, TEXT, TOOL_CALL, CANCEL_CALL, ENDED, FORKED = 1, 2, 3, 4, 5, 6
#: The numbers of the frames it gets.
START, CALL_RESULT = 1, 2


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field, value):
    """A field with a number; nothing for 0, as protobuf has it."""
    return varint(field << 3) + varint(value) if value else b""


def data(field, value):
    """A field with bytes, text or a message."""
    value = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def fields(message):
    """The fields of a message: their numbers, with a number or bytes."""
    at = 0

    def read_varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(message):
        key = read_varint()
        if key & 7 == 0:
            yield key >> 3, read_varint()
        elif key & 7 == 2:
            length = read_varint()
            at += length
            yield key >> 3, message[at - length : at]
        else:
            raise ValueError("a field of an unknown kind")


class Channel:
    """The socket, with what was read from it and is no whole frame yet."""

    def __init__(self):
        self.buffer = bytearray()
        self.is_sending = False

    def send(self, frame, message):
        """Sends a frame; waits until the runner takes it. Without a runner nobody can be told."""
        body = data(frame, message)
        rest = memoryview(struct.pack(">I", len(body)) + body)
        self.is_sending = True
        try:
            while rest:
                rest = rest[os.write(SOCKET, rest) :]
        except OSError:
            os._exit(1)
        self.is_sending = False

    def receive(self, timeout=None):
        """The next frame, its number and message; None when there is none in time, in seconds."""
        while (frame := self._take()) is None:
            if timeout is not None and not self._is_readable(timeout):
                return None
            try:
                read = os.read(SOCKET, READ_BYTES)
            except OSError:
                os._exit(1)
            if not read:
                os._exit(0)
            self.buffer += read
        return frame

    def _take(self):
        if len(self.buffer) < 4:
            return None
        length = int.from_bytes(self.buffer[:4], "big")
        if length > FRAME_BYTES_MAX:
            os._exit(1)
        if len(self.buffer) < 4 + length:
            return None
        message = bytes(self.buffer[4 : 4 + length])
        del self.buffer[: 4 + length]
        return next(fields(message))

    @staticmethod
    def _is_readable(timeout):
        poll = select.poll()
        poll.register(SOCKET, select.POLLIN)
        return bool(poll.poll(timeout * 1000))


class Limits:
    """HostLimits."""

    NAMES = "cpu_ms turn_ms memory_bytes pending_calls value_bytes kept_bytes detect_deadlock output_bytes"

    def __init__(self, message=b""):
        names = self.NAMES.split()
        for name in names:
            setattr(self, name, 0)
        for field, value in fields(message):
            if field <= len(names):
                setattr(self, names[field - 1], value)


class Start:
    """The program and all it is run with."""

    def __init__(self, message):
        self.source, self.source_name, self.inputs = "", "", None
        self.tools, self.kept, self.limits = [], {}, Limits()
        for field, value in fields(message):
            match field:
                case 3:
                    self.source = value.decode()
                case 4:
                    self.source_name = value.decode()
                case 5:
                    self.tools.append(texts(value, 3))
                case 6:
                    self.inputs = value.decode()
                case 7:
                    key, kept = texts(value, 2)
                    self.kept[key] = kept
                case 8:
                    self.limits = Limits(value)


def texts(message, n):
    """The first n fields of a message, all of which are text."""
    found = dict(fields(message))
    return [found.get(field, b"").decode() for field in range(1, n + 1)]


def call_result(message):
    """A call's number, its value as JSON text or None, and its error: code, message, retryable."""
    found = dict(fields(message))
    value, error = found.get(2), found.get(3)
    if error is not None:
        said = dict(fields(error))
        error = (said.get(1, b"").decode(), said.get(2, b"").decode(), bool(said.get(3, 0)))
    return found.get(1, 0), value and value.decode(), error
