"""What a program finds: its inputs, its output, what its session keeps."""

import io
import threading

from _seance_values import JSON_BYTES_MAX, ProgramError, plain, read


class Store:
    """What programs of a session keep: JSON values by key, bounded in bytes."""

    def __init__(self, host, kept, bytes_max):
        self._host, self._kept, self._bytes_max = host, dict(kept), bytes_max
        self._changed = set()
        self._bytes = sum(map(_size, kept, kept.values()))

    def get(self, key, default=None):
        text = self._kept.get(_key(key))
        return default if text is None else read(text)

    def set(self, key, value):
        key, text = _key(key), self._host.write(value)
        before = _size(key, self._kept[key]) if key in self._kept else 0
        n_bytes = self._bytes - before + _size(key, text)
        if 0 < self._bytes_max < n_bytes:
            raise ProgramError(f"the store may hold {self._bytes_max} bytes", "store_limit")
        self._bytes = n_bytes
        self._kept[key] = text
        self._changed.add(key)

    def delete(self, key):
        """Forgets a value; False when there was none."""
        text = self._kept.pop(_key(key), None)
        if text is None:
            return False
        self._bytes -= _size(key, text)
        self._changed.add(key)
        return True

    def keys(self):
        return sorted(self._kept)

    def changes(self):
        """What is to be kept, and the keys that are to be removed."""
        kept = {key: self._kept[key] for key in self._changed if key in self._kept}
        return kept, [key for key in self._changed if key not in self._kept]


def _key(key):
    if not isinstance(key, str):
        raise TypeError("a key of the store is text")
    return plain(key)


def _size(key, text):
    return len(key.encode()) + len(text.encode())


class Lines(io.TextIOBase):
    """Standard output or error: each line is written as text() writes. What has no end yet waits for it."""

    encoding, errors = "utf-8", "replace"

    def __init__(self, host, descriptor):
        self._host, self._descriptor = host, descriptor
        self._rest, self._length = [], 0
        self._lock = threading.RLock()

    def writable(self):
        return True

    def fileno(self):
        return self._descriptor

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() takes text, not {type(text).__name__}")
        with self._lock:
            lines, end, rest = text.rpartition("\n")
            if end:
                self._host.text("".join(self._rest) + lines)
                self._rest, self._length = [], 0
            if rest:
                self._rest.append(rest)
                self._length += len(rest)
                self._host.check_output(self._length)
        return len(text)

    def finish(self):
        """Writes what has no end."""
        if self._rest:
            rest, self._rest = "".join(self._rest), []
            self._host.text(rest)


def plain_text(host, value):
    """Text as it is, anything else as JSON."""
    return plain(str(value)) if isinstance(value, str) else host.write(value, JSON_BYTES_MAX)


