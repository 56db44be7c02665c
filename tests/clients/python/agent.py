"""A code-mode agent: opens sessions, runs programs in them and answers their tool calls.

The channel has grpcio's default options: no message sizes, no keep-alive. Every call has a deadline.
"""

import concurrent.futures
import itertools
import json
import os
import queue
import threading
import time
import uuid

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

import stubs as api

CALL_SECONDS = 30
STREAM_SECONDS = 90
FREE_SECONDS = 10
AGAIN_SECONDS = 0.1
CHUNK_BYTES = 1024 * 1024
INLINE_BYTES = 2 * 1024 * 1024


class ToolFailed(Exception):
    """A failure that the program can catch."""

    def __init__(self, code, message, retryable=False):
        super().__init__(message)
        self.code, self.message, self.retryable = code, message, retryable


def tool(name, input_schema=None, **fields):
    """A tool for a catalog."""
    schema = json.dumps(input_schema) if input_schema is not None else ""
    return api.tools_pb2.Tool(name=name, input_schema_json=schema, **fields)


def result_of(call):
    """What `call` gives or raises, as a tool's result."""
    try:
        return api.tools_pb2.ToolResult(value_json=json.dumps(call()))
    except ToolFailed as failed:
        error = api.types_pb2.ToolError(code=failed.code, message=failed.message, retryable=failed.retryable)
        return api.tools_pb2.ToolResult(error=error)


def channel(address):
    """A channel, over TLS and with a bearer token where SEANCE_CA and SEANCE_TOKEN_FILE name them.

    SEANCE_SERVER_NAME is the certificate's name where it isn't the address.
    """
    if "SEANCE_CA" not in os.environ:
        return grpc.insecure_channel(address)
    with open(os.environ["SEANCE_CA"], "rb") as ca, open(os.environ["SEANCE_TOKEN_FILE"]) as token:
        tls = grpc.ssl_channel_credentials(ca.read())
        bearer = grpc.access_token_call_credentials(token.read().strip())
    name = os.environ.get("SEANCE_SERVER_NAME")
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, grpc.composite_channel_credentials(tls, bearer), options)


class Agent:
    """A connection to a service."""

    def __init__(self, address):
        self.channel = channel(address)
        self.sessions = api.sessions_pb2_grpc.SessionsStub(self.channel)
        self.tools = api.tools_pb2_grpc.ToolsStub(self.channel)
        self.engines = api.engines_pb2_grpc.EnginesStub(self.channel)
        self.server = api.server_pb2_grpc.ServerStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def open(self, tools=(), **fields):
        """Opens a session whose programs may call `tools`."""
        catalog = api.tools_pb2.CatalogSource(inline=api.tools_pb2.Catalog(tools=tools)) if tools else None
        fields.setdefault("idempotency_key", key())
        request = api.sessions_pb2.OpenRequest(engine="javascript", catalog=catalog, **fields)
        return Session(self, self.sessions.Open(request, timeout=CALL_SECONDS).session.session_id)


def key():
    """A new idempotency key."""
    return str(uuid.uuid4())


def window(seconds, **fields):
    """How to observe: for so many seconds."""
    duration = duration_pb2.Duration()
    duration.FromMilliseconds(int(seconds * 1000))
    return api.sessions_pb2.ObserveOptions(window=duration, **fields)


def detail(error, kind):
    """The detail of a kind that a status carries, or None."""
    status = rpc_status.from_call(error)
    for packed in status.details if status else ():
        found = kind()
        if packed.Unpack(found):
            return found
    return None


def when_free(control):
    """Does `control`, which must be repeatable, as soon as the session is free.

    A stream that was cut holds the session's control until the service has seen the cut. Until then others
    are refused, with the delay to ask again after. A connection may also turn out to be broken only now.
    """
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        try:
            return control()
        except grpc.RpcError as error:
            info = detail(error, error_details_pb2.ErrorInfo)
            again = detail(error, error_details_pb2.RetryInfo)
            broken = info is None and error.code() == grpc.StatusCode.UNAVAILABLE
            busy = info is not None and info.reason == "CONTROL_ACTIVE"
            if not (broken or busy) or time.monotonic() > deadline:
                raise
            time.sleep(again.retry_delay.ToTimedelta().total_seconds() if again else AGAIN_SECONDS)


class Stream:
    """What Execute or Wait sends: chunks as they come, then the observation."""

    def __init__(self, call, program=0):
        self.call, self.program = call, program
        self.messages = iter(call)
        self.chunks, self.observation = [], None

    def begun(self):
        """The same stream when its first message is there."""
        self.messages = itertools.chain([next(self.messages)], self.messages)
        return self

    def cancel(self):
        """Lets the program go on unobserved."""
        self.call.cancel()

    def next_chunk(self):
        """The next output, or None when the observation has come."""
        for message in self.messages:
            kind = message.WhichOneof("message")
            if kind == "accepted":
                self.program = message.accepted.program_number
            elif kind == "output":
                self.chunks.append(message.output)
                return message.output
            elif kind == "observation":
                assert self.observation is None, "an observation is the last message"
                self.observation = message.observation
                self.program = message.observation.program.number
        return None

    def finish(self):
        """Reads to the end; gives the observation."""
        while self.next_chunk() is not None:
            pass
        return self.observation

    @property
    def output(self):
        """The bytes of the chunks so far."""
        return b"".join(chunk.data for chunk in self.chunks)


class Session:
    """A session. It can be steered over any connection: see `over`."""

    def __init__(self, agent, session_id):
        self.agent, self.id = agent, session_id

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def over(self, agent):
        """The same session over another connection."""
        return Session(agent, self.id)

    def execute(self, source, observe=None, **fields):
        fields.setdefault("idempotency_key", key())
        request = api.sessions_pb2.ExecuteRequest(
            session_id=self.id, source=source.encode(), observe=observe, **fields
        )
        return Stream(self.agent.sessions.Execute(request, timeout=STREAM_SECONDS))

    def run(self, source, **fields):
        """Runs a program to its end; gives the last observation."""
        return self.execute(source, **fields).finish()

    def wait(self, program=0, cursor="", observe=None):
        request = api.sessions_pb2.WaitRequest(
            session_id=self.id, program_number=program, cursor=cursor, observe=observe
        )
        return Stream(self.agent.sessions.Wait(request, timeout=STREAM_SECONDS, wait_for_ready=True), program)

    def resume(self, program, cursor="", observe=None):
        """Waits for a program whose observation was cut off."""
        return when_free(lambda: self.wait(program, cursor, observe).begun())

    def stop(self, program=0):
        request = api.sessions_pb2.StopRequest(session_id=self.id, program_number=program, idempotency_key=key())
        return self.agent.sessions.Stop(request, timeout=CALL_SECONDS).observation

    def close(self):
        request = api.sessions_pb2.CloseRequest(session_id=self.id, idempotency_key=key())
        return self.agent.sessions.Close(request, timeout=CALL_SECONDS).session

    def get(self):
        request = api.sessions_pb2.GetRequest(session_id=self.id)
        return self.agent.sessions.Get(request, timeout=CALL_SECONDS).session

    def program(self, number):
        request = api.sessions_pb2.GetProgramRequest(session_id=self.id, program_number=number)
        return self.agent.sessions.GetProgram(request, timeout=CALL_SECONDS).program

    def follow(self, from_sequence=1, until_now=False):
        """The events from a sequence on."""
        request = api.sessions_pb2.FollowRequest(session_id=self.id, from_sequence=from_sequence, until_now=until_now)
        for message in self.agent.sessions.Follow(request, timeout=STREAM_SECONDS):
            if message.WhichOneof("message") == "event":
                yield message.event

    def blob(self, blob_id, offset=0):
        """The bytes of a blob from an offset on; gives them and the size of the whole."""
        request = api.sessions_pb2.GetBlobRequest(session_id=self.id, blob_id=blob_id, offset=offset)
        parts, total = [], 0
        for message in self.agent.sessions.GetBlob(request, timeout=STREAM_SECONDS):
            assert len(message.data) <= CHUNK_BYTES
            total = total or message.total_bytes
            parts.append(message.data)
        return b"".join(parts), total

    def answer(self, call_id, result):
        """Answers a pending call without a stream."""
        request = api.tools_pb2.AnswerRequest(
            session_id=self.id, call_id=call_id, result=result, idempotency_key=key()
        )
        self.agent.tools.Answer(request, timeout=CALL_SECONDS)

    def serve(self, tools, **attach):
        """Serves tools, given as functions by name, until the provider is closed."""
        return Provider(self, tools, lambda provider, call: provider.call_tool(call, tools), **attach)

    def hold(self, tools, on_call, **attach):
        """Serves tools by name; `on_call` takes each call, and the answer is sent by hand."""
        return Provider(self, tools, lambda _, call: on_call(call), **attach)


class Provider:
    """Answers the calls of a session over a stream of its own. Calls overlap."""

    def __init__(self, session, tools, on_call, **attach):
        self.session, self.on_call = session, on_call
        self.outbox, self.recorded, self.cancelled = queue.Queue(), queue.Queue(), queue.Queue()
        self.attached = concurrent.futures.Future()
        self.workers = concurrent.futures.ThreadPoolExecutor(max_workers=16)
        first = api.tools_pb2.Attach(session_id=session.id, tools=list(tools), **attach)
        self.outbox.put(api.tools_pb2.ServeRequest(attach=first))
        self.call = session.agent.tools.Serve(iter(self.outbox.get, None), timeout=STREAM_SECONDS)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.served = self.attached.result(timeout=CALL_SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the stream in order: we say that nothing follows, the service ends its side."""
        self.outbox.put(None)
        self.reader.join(timeout=CALL_SECONDS)
        assert not self.reader.is_alive(), "the service doesn't end the stream of a provider that ended its own"
        self.workers.shutdown(wait=True)

    def cut(self):
        """Ends the stream at once, as a lost connection does."""
        self.call.cancel()
        self.outbox.put(None)
        self.reader.join(timeout=CALL_SECONDS)
        self.workers.shutdown(wait=False)

    def _read(self):
        try:
            for message in self.call:
                kind = message.WhichOneof("message")
                if kind == "attached":
                    self.attached.set_result(list(message.attached.tools))
                elif kind == "call":
                    self.workers.submit(self.on_call, self, message.call.call)
                elif kind == "cancel":
                    self.cancelled.put((message.cancel.call_id, message.cancel.reason))
                elif kind == "recorded":
                    self.recorded.put(message.recorded.call_id)
        except grpc.RpcError as error:
            if not self.attached.done():
                self.attached.set_exception(error)

    def call_tool(self, call, tools):
        """Calls the tool with what the program gave and sends what comes of it."""
        text = call.arguments_json
        if call.arguments_blob_id:
            text = self.session.blob(call.arguments_blob_id)[0]
        self.send(call.call_id, result_of(lambda: tools[call.tool](json.loads(text))))

    def send(self, call_id, result):
        """Sends a result, in parts when it is too large for one message."""
        whole = api.tools_pb2.CallResult(call_id=call_id, result=result)
        if whole.ByteSize() <= INLINE_BYTES:
            self.outbox.put(api.tools_pb2.ServeRequest(result=whole))
            return
        encoded = whole.SerializeToString()
        for start in range(0, len(encoded), CHUNK_BYTES):
            part = api.tools_pb2.ResultChunk(
                call_id=call_id, total_bytes=len(encoded), data=encoded[start : start + CHUNK_BYTES]
            )
            self.outbox.put(api.tools_pb2.ServeRequest(result_chunk=part))
