"""Python values to JSON text and back: the one rendering for arguments, values, text and the store.

Integers are exact. A number with a whole value is written as an integer, as every language does here.
What JSON has no form for has one form, and the first place where it is used is remembered for a warning:

    nan, inf, -inf         "NaN", "Infinity", "-Infinity"
    datetime, date, time   ISO 8601 text; a datetime with a zone in UTC, to the millisecond
    a mapping              an object when all keys are text, else an array of pairs
    a set                  an array
    bytes                  Base64 text
    an exception           {"name", "message"}
    Decimal, UUID, a path  their text
    a member of an enum    its value
    a data class           an object of its fields
"""

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import sys
import uuid
from collections.abc import Mapping
from json.encoder import encode_basestring as quoted

#: Arrays and objects may be nested this deep.
DEPTH_MAX = 512
#: Longer integers are refused, as converting them takes more than linear time.
DIGITS_MAX = 4300
#: No value, argument or text is longer, so that each fits in a frame.
JSON_BYTES_MAX = 48 << 20


class ProgramError(Exception):
    """Something that this service can't do for a program; `code` says what."""

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class Pending:
    """Something whose value is waited for where it is used."""

    def value_now(self):
        raise NotImplementedError


def read(text):
    """The value of JSON text."""
    try:
        return json.loads(text, parse_float=_double, parse_constant=_double)
    except RecursionError:
        raise ProgramError("the value is nested too deep", "value_limit") from None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError):
            raise ProgramError("the value is not valid JSON", "unserializable") from None
        raise _number_limit() from None


def write(value, bytes_max=JSON_BYTES_MAX, note=lambda message: None):
    """JSON text of at most `bytes_max` bytes. `note` is told of a form that isn't the value's own."""
    text = Writer(bytes_max, note).write(value)
    if len(text) * 4 > bytes_max and len(text.encode()) > bytes_max:
        raise _too_long(bytes_max)
    return text


def plain(text):
    """The same text without halves of surrogate pairs, which have no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Writer:
    def __init__(self, bytes_max, note):
        self.bytes_max, self.note = bytes_max, note
        self.out, self.length = [], 0
        self.parents, self.path = [], []

    def write(self, value):
        before = sys.getrecursionlimit()
        # Two calls for each level, beside what the program itself has used.
        sys.setrecursionlimit(before + 4 * DEPTH_MAX)
        try:
            self.value(value)
        finally:
            sys.setrecursionlimit(before)
        return "".join(self.out)

    def add(self, text):
        self.out.append(text)
        self.length += len(text)
        if self.length > self.bytes_max:
            raise _too_long(self.bytes_max)

    def value(self, value):
        if isinstance(value, Pending):
            value = value.value_now()
        match value:
            case None | True | False:
                self.add({None: "null", True: "true", False: "false"}[value])
            case enum.Enum():
                self.value(value.value)
            case str():
                self.add(quoted(plain(str(value))))
            case int():
                self.add(_integer(value))
            case float():
                self.float(float(value))
            case _:
                self.nested(value)

    def float(self, value):
        if not math.isfinite(value):
            word = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            self.has_no_form(word)
            self.add(f'"{word}"')
        else:
            self.add(_decimal(value))

    def nested(self, value):
        if any(parent is value for parent in self.parents):
            raise ProgramError(f"the value contains itself at {self.place()}", "unserializable")
        if len(self.parents) >= DEPTH_MAX:
            message = f"the value is nested more than {DEPTH_MAX} deep at {self.place()}"
            raise ProgramError(message, "unserializable")
        self.parents.append(value)
        self.compound(value)
        self.parents.pop()

    def compound(self, value):
        match value:
            case Mapping():
                self.mapping(value)
            case list() | tuple():
                self.array(value)
            case set() | frozenset():
                self.array(self.with_form(value, "a set"))
            case bytes() | bytearray() | memoryview():
                self.has_no_form("bytes")
                self.add(f'"{base64.b64encode(value).decode()}"')
            case datetime.date() | datetime.time():
                self.has_no_form("a date")
                self.value(_iso(value))
            case BaseException():
                self.has_no_form("an exception")
                self.mapping({"name": type(value).__name__, "message": str(value)})
            case decimal.Decimal() | uuid.UUID() | pathlib.PurePath():
                self.value(str(self.with_form(value, type(value).__name__)))
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                self.mapping({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
            case _:
                message = f"a value of type {type(value).__name__} at {self.place()} has no form in JSON"
                raise ProgramError(message, "unserializable")

    def with_form(self, value, what):
        self.has_no_form(what)
        return value

    def array(self, items):
        self.add("[")
        for index, item in enumerate(items):
            if index:
                self.add(",")
            self.at(index, item)
        self.add("]")

    def mapping(self, mapping):
        if not all(isinstance(key, str) for key in mapping):
            self.has_no_form("a mapping whose keys are not text")
            return self.array([list(pair) for pair in mapping.items()])
        self.add("{")
        for index, (key, item) in enumerate(mapping.items()):
            self.add(("," if index else "") + quoted(plain(str(key))) + ":")
            self.at(str(key), item)
        self.add("}")

    def at(self, step, value):
        self.path.append(step)
        self.value(value)
        self.path.pop()

    def has_no_form(self, what):
        self.note(f"{what} at {self.place()} has no JSON form of its own")

    def place(self):
        """Such as $.items[2]["two words"]."""
        is_name = lambda step: isinstance(step, str) and step.isidentifier()
        steps = (f".{step}" if is_name(step) else f"[{json.dumps(step)}]" for step in self.path)
        return "$" + "".join(steps)


def _integer(value):
    try:
        return int.__repr__(value)
    except ValueError:
        raise _number_limit() from None


def _decimal(value):
    """A number as JavaScript writes it, so that every language writes the same."""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    sign, n = "-" if value < 0 else "", len(digits)
    if digits == "0":
        return "0"
    if n <= point <= 21:
        return sign + digits + "0" * (point - n)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if n > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


def _double(text):
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _iso(value):
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        utc = value.astimezone(datetime.timezone.utc)
        return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat()


def _number_limit():
    message = f"a number has more than {DIGITS_MAX} digits or is too large for a double"
    return ProgramError(message, "number_limit")


def _too_long(bytes_max):
    return ProgramError(f"the value has more than {bytes_max} bytes as JSON", "value_limit")
