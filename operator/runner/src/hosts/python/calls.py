"""Tool calls, as a program makes them and waits for them."""

import asyncio
import difflib
import operator
from collections.abc import Coroutine, Mapping

from _seance_errors import ToolError
from _seance_values import Pending, read

#: The value of a call that has none yet.
UNKNOWN = object()
#: The arguments of a call without any.
ABSENT = object()
#: What a value that is used without `await` is asked for.
OPERATORS = """
    __getitem__ __setitem__ __delitem__ __contains__ __len__ __iter__ __reversed__ __call__
    __str__ __repr__ __format__ __bytes__ __bool__ __int__ __float__ __index__ __round__
    __lt__ __le__ __eq__ __ne__ __gt__ __ge__ __neg__ __abs__
    __add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __or__ __and__
    __radd__ __rsub__ __rmul__ __rtruediv__ __rfloordiv__ __rmod__ __rpow__ __ror__ __rand__
""".split()


class Call(Pending, Coroutine):
    """A call that is under way from the moment it is made.

    It is awaited like a coroutine, as often as one likes, by itself or in a task. Used without `await`,
    it waits for its value right there and passes for it.
    """

    def __init__(self, host, number, tool):
        self._host, self._number, self._tool = host, number, tool
        self._value, self._error = UNKNOWN, None
        self._futures, self._steps, self._is_seen = [], None, False

    def settle(self, value, error):
        """Takes the answer."""
        if error is None:
            try:
                self._value = read(value)
            except Exception as unreadable:
                self._error = unreadable
        else:
            code, message, retryable = error
            hint = self._host.near(self._tool) if code == "unknown_tool" else None
            if hint and hint not in message:
                message = f"{message} (did you mean {hint}?)"
            self._error = ToolError(message, code, self._tool, self._number, retryable)
        for future in self._futures:
            if not future.done():
                self._tell(future)

    def value_now(self):
        self._is_seen = True
        self._host.wait_for(self)
        if self._error is not None:
            raise self._error
        return self._value

    @property
    def is_settled(self):
        return self._error is not None or self._value is not UNKNOWN

    @property
    def unseen_error(self):
        """The failure that nobody has asked for."""
        return None if self._is_seen else self._error

    def __await__(self):
        self._is_seen = True
        future = asyncio.get_running_loop().create_future()
        if self.is_settled:
            self._tell(future)
        else:
            self._futures.append(future)
            future.add_done_callback(self._given_up)
        return future.__await__()

    def send(self, value):
        self._steps = self._steps or self.__await__()
        return self._steps.send(value)

    def throw(self, *exception):
        self._steps = self._steps or self.__await__()
        return self._steps.throw(*exception)

    def close(self):
        pass

    def __getattr__(self, name):
        # What the interpreter asks coroutines for is not asked of the value.
        if name.startswith(("_", "cr_", "gi_", "ag_")):
            raise AttributeError(name)
        return getattr(self.value_now(), name)

    __hash__ = object.__hash__

    def _tell(self, future):
        if self._error is None:
            future.set_result(self._value)
        else:
            future.set_exception(self._error)

    def _given_up(self, future):
        if future.cancelled() and not self.is_settled:
            self._host.cancel(self._number)


def _of_value(name):
    ask = vars(operator).get(name)

    def method(self, *arguments):
        value = self.value_now()
        return ask(value, *arguments) if ask else getattr(type(value), name)(value, *arguments)

    return method


for _name in OPERATORS:
    setattr(Call, _name, _of_value(_name))


class Tools:
    """The tools by alias and by their own names. Any other name is a function too, whose call fails like
    one of an unknown tool: the attempt is the broker's to count and to answer."""

    __slots__ = ("_host", "_known")

    def __init__(self, host, tools):
        set_ = super().__setattr__
        set_("_host", host)
        set_("_known", {**{name: name for name, _ in tools}, **{alias: name for name, alias in tools}})

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        tool = self._known.get(name, name)

        def call(arguments=ABSENT, /, **keywords):
            return self._host.call(tool, _together(arguments, keywords))

        call.__name__ = call.__qualname__ = name
        return call

    def call(self, name, arguments=ABSENT, /, **keywords):
        """Calls a tool by any of its names."""
        known = self._host.names
        name = str(name)
        short = name.removeprefix("tools.")
        tool = name if name in known else self._known.get(name) or self._known.get(short, short)
        return self._host.call(tool, _together(arguments, keywords))

    def __setattr__(self, name, value):
        raise AttributeError("tools can't be changed")

    def __dir__(self):
        return [*self._known, "call"]

    def __repr__(self):
        return "<tools>"


def _together(arguments, keywords):
    """The arguments of a call. What is no object is the broker's to refuse, as an attempt."""
    if arguments is ABSENT:
        return keywords
    if isinstance(arguments, Pending):
        arguments = arguments.value_now()
    if not keywords:
        return arguments
    if not isinstance(arguments, Mapping):
        raise TypeError("a tool takes keyword arguments, or one mapping")
    return {**arguments, **keywords}


def near(name, names):
    """The name most like a wrong one, when one is like it at all."""
    return next(iter(difflib.get_close_matches(name[:64], names, n=1)), None)
