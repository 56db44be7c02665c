"""Checks a running service as a Python agent sees it. SEANCE_ADDRESS says where it is, SEANCE_TENANT whose caller this is.

Prints each check and `N passed, N failed`; exits with 1 when one fails.
"""

import concurrent.futures
import json
import os
import queue
import sys
import threading
import time
import traceback

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import agent as seance
from relay import Relay
from stubs import engines_pb2, server_pb2, sessions_pb2, tools_pb2, types_pb2

ADDRESS = os.environ.get("SEANCE_ADDRESS", "127.0.0.1:7443")
TENANT = os.environ.get("SEANCE_TENANT", "default")
READY_SECONDS = 30

COMPLETED = types_pb2.OBSERVATION_STATUS_COMPLETED
STILL_WORKING = types_pb2.OBSERVATION_STATUS_STILL_WORKING
TERMINATED = types_pb2.OBSERVATION_STATUS_TERMINATED
ERROR = types_pb2.OBSERVATION_STATUS_ERROR

ECHO = seance.tool("echo", {"type": "object", "properties": {"value": {}}, "required": ["value"]}, read_only=True)
GATE = seance.tool("gate")
FAIL = seance.tool("fail")


def echo(arguments):
    return arguments["value"]


def value_of(observation):
    return json.loads(observation.program.value_json)


def refused(call, code, reason):
    """`call` is refused with this code and reason, told in all three places."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, (error.code(), error.details())
        trailers = dict(error.trailing_metadata())
        assert trailers["seance-reason"] == reason, (trailers, error.details())
        assert reason in error.details(), error.details()
        info = seance.detail(error, error_details_pb2.ErrorInfo)
        assert info is not None and info.reason == reason and info.domain, info
        return error
    raise AssertionError(f"it was not refused with {reason}")


# What the service says of itself.


def the_service_says_what_it_is_and_has(agent):
    health = health_pb2_grpc.HealthStub(agent.channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    info = agent.server.GetInfo(server_pb2.GetInfoRequest(), timeout=30)
    assert info.version and info.tenant == TENANT, info
    wall = next(limit for limit in info.limits if limit.name == "wall_ms")
    assert wall.minimum <= wall.default_value <= wall.maximum and wall.unit == "milliseconds", wall
    engines = agent.engines.List(engines_pb2.ListEnginesRequest(), timeout=30).engines
    javascript = next(engine for engine in engines if engine.name == "javascript")
    assert javascript.available and javascript.version, javascript
    assert {"javascript", "typescript"} <= set(javascript.languages), javascript


def reflection_lists_and_describes_the_services(agent):
    database = ProtoReflectionDescriptorDatabase(agent.channel)
    services = set(database.get_services())
    assert {f"seance.v1alpha1.{name}" for name in ("Sessions", "Tools", "Engines", "Server")} <= services, services
    sessions = database.FindFileContainingSymbol("seance.v1alpha1.Sessions")
    assert [method.name for method in sessions.service[0].method][:2] == ["Open", "Execute"]


def a_model_is_told_of_the_tools(agent):
    catalog = tools_pb2.CatalogSource(inline=tools_pb2.Catalog(tools=[ECHO, seance.tool("get-user")]))
    request = engines_pb2.DescribeRequest(engine="javascript", catalog=catalog)
    told = agent.engines.Describe(request, timeout=30)
    assert "echo" in told.declarations and told.declarations in told.instructions
    assert [(alias.name, alias.alias) for alias in told.aliases] == [("echo", "echo"), ("get-user", "get_user")]


# Programs.


def a_program_gives_its_value_and_output(agent):
    with agent.open() as session:
        stream = session.execute('text("one"); text({two: 2}); return {answer: 41 + 1}')
        seen = stream.finish()
        assert seen.status == COMPLETED and stream.program == 1, seen
        assert seen.output == 'one\n{"two":2}' and stream.output.decode() == seen.output, seen
        assert value_of(seen) == {"answer": 42}
        assert session.program(1).value_json == seen.program.value_json
        again = session.run("const n: number = INPUTS.n; return n", language="typescript", inputs_json='{"n": 7}')
        assert again.program.number == 2 and value_of(again) == 7, again


def large_integers_stay_exact(agent):
    with agent.open([ECHO]) as session, session.serve({"echo": echo}):
        seen = session.run("return await tools.echo({value: 9007199254740993n})")
        assert seen.program.value_json == "9007199254740993", seen
        assert session.program(1).calls[0].arguments_json == '{"value":9007199254740993}'


def a_failing_program_says_where(agent):
    with agent.open() as session:
        seen = session.run('text("before");\n\nINPUTS.x')
        assert seen.status == ERROR and seen.output == "before", seen
        error = seen.program.error
        found = (error.code, getattr(error, "class"), error.line)
        assert found == ("exception", "TypeError", 3), error
        assert session.run("return 1").status == COMPLETED


def programs_run_in_parallel_sessions(agent):
    """Each program's call is answered only when all of them have called."""
    n_sessions = 4
    barrier = threading.Barrier(n_sessions)

    def meet(arguments):
        barrier.wait(timeout=30)
        return arguments["value"] * 2

    def one(index):
        with agent.open([ECHO]) as session, session.serve({"echo": meet}):
            return value_of(session.run("return await tools.echo({value: INPUTS})", inputs_json=str(index)))

    with concurrent.futures.ThreadPoolExecutor(n_sessions) as workers:
        assert list(workers.map(one, range(n_sessions))) == [0, 2, 4, 6]


# Tools.


def tools_are_served_over_a_stream(agent):
    def fail(_):
        raise seance.ToolFailed("E_LUCK", "no luck today")

    with agent.open([ECHO, FAIL]) as session, session.serve({"echo": echo, "fail": fail}) as provider:
        assert provider.served == ["echo", "fail"], provider.served
        seen = session.run(
            """
            const values = await Promise.all([1, 2, 3].map(value => tools.echo({value})));
            try { await tools.fail() } catch (e) { return [values, e.code, e.message] }
            """
        )
        assert value_of(seen) == [[1, 2, 3], "E_LUCK", "no luck today"], seen
        states = [call.state for call in seen.program.calls]
        finished, failed = types_pb2.CALL_STATE_FINISHED, types_pb2.CALL_STATE_FAILED
        assert states == [finished, finished, finished, failed] and seen.program.n_calls == 4, seen
        recorded = {provider.recorded.get(timeout=30) for _ in states}
        assert recorded == {call.call_id for call in seen.program.calls}


def a_call_is_answered_without_a_second_stream(agent):
    with agent.open([ECHO, FAIL]) as session:
        observe = seance.window(60, return_on_pending_call=True)
        seen = session.run(
            """
            const value = await tools.echo({value: {a: [1]}});
            try { await tools.fail({}) } catch (e) { return [value, e.code] }
            """,
            observe=observe,
        )
        assert seen.status == STILL_WORKING and len(seen.pending_calls) == 1, seen
        call = seen.pending_calls[0]
        assert (call.tool, json.loads(call.arguments_json)) == ("echo", {"value": {"a": [1]}}), call
        session.answer(call.call_id, seance.result_of(lambda: echo(json.loads(call.arguments_json))))
        refused(
            lambda: session.answer(call.call_id, tools_pb2.ToolResult(value_json="0")),
            grpc.StatusCode.FAILED_PRECONDITION,
            "CALL_NOT_PENDING",
        )
        seen = session.wait(cursor=seen.next_cursor, observe=observe).finish()
        assert seen.status == STILL_WORKING and seen.pending_calls[0].tool == "fail", seen
        error = types_pb2.ToolError(code="E_NO", message="no")
        session.answer(seen.pending_calls[0].call_id, tools_pb2.ToolResult(error=error))
        seen = session.wait(program=1, observe=observe).finish()
        assert seen.status == COMPLETED and value_of(seen) == [{"a": [1]}, "E_NO"], seen


def large_arguments_and_results_pass_stock_clients(agent):
    """4 MiB each way: over what a client takes in one message by default."""
    sizes = []

    def grow(arguments):
        sizes.append(len(arguments["text"]))
        return "y" * len(arguments["text"])

    with agent.open([seance.tool("grow")]) as session, session.serve({"grow": grow}):
        seen = session.run('return (await tools.grow({text: "x".repeat(5 * 2 ** 20)})).length')
        assert value_of(seen) == 5 * 2**20 and sizes == [5 * 2**20], seen
        assert seen.program.calls[0].arguments_blob_id and not seen.program.calls[0].arguments_json


def a_provider_comes_back_with_the_calls_it_holds(agent):
    calls = queue.Queue()
    with agent.open([GATE]) as session:
        stream = session.execute("return await tools.gate()")
        first = session.hold(["gate"], calls.put)
        call_id = calls.get(timeout=30).call_id
        first.cut()
        with session.hold(["gate"], calls.put, again=True, held_call_ids=[call_id]) as second:
            second.send(call_id, tools_pb2.ToolResult(value_json='"held"'))
            seen = stream.finish()
        assert seen.status == COMPLETED and value_of(seen) == "held", seen
        assert [call.call_id for call in seen.program.calls] == [call_id] and calls.empty(), seen


# Observing, stopping, being cut off.


def a_stopped_program_cancels_its_call(agent):
    calls = queue.Queue()
    with agent.open([GATE]) as session, session.hold(["gate"], calls.put) as provider:
        stream = session.execute('text("a"); await tools.gate(); text("b")')
        assert stream.next_chunk() is not None
        call_id = calls.get(timeout=30).call_id
        stream.cancel()
        seen = seance.when_free(session.stop)
        assert seen.status == TERMINATED and seen.output == "a", seen
        assert seen.program.reason == "STOPPED", seen
        assert seen.program.calls[0].state == types_pb2.CALL_STATE_CANCELLED, seen
        assert provider.cancelled.get(timeout=30) == (call_id, "STOPPED")


def a_window_closes_and_wait_goes_on(agent):
    opened = threading.Event()
    with agent.open([GATE]) as session, session.serve({"gate": lambda _: opened.wait(timeout=60)}):
        first = session.execute('text("a"); await tools.gate(); text("b")', observe=seance.window(0.2)).finish()
        assert first.status == STILL_WORKING and first.output in ("", "a"), first
        opened.set()
        second = session.wait(cursor=first.next_cursor).finish()
        assert second.status == COMPLETED, second
        whole = first.output_separator + first.output + second.output_separator + second.output
        assert whole == "a\nb", (first, second)
        again = session.wait(program=1, cursor=first.next_cursor).finish()
        assert again.output == second.output, again


def output_goes_on_byte_for_byte_after_a_cut(agent):
    """The connection is cut in the middle of Execute, and again in the middle of Wait."""
    # Less than 1 MiB in all: a slow service may have the most of it in the last observation.
    lines = [f"{number} {'é' * 100}" for number in range(4500)]
    expected = "\n".join(lines).encode()
    source = """
        const emit = (from, to) => { for (let n = from; n < to; n++) text(n + " " + "é".repeat(100)) };
        emit(0, 1500); await tools.gate(); emit(1500, 3000); await tools.gate(); emit(3000, 4500);
    """
    gate = threading.Semaphore(0)
    with Relay(ADDRESS) as relay, seance.Agent(relay.address) as cut_agent:
        with agent.open([GATE]) as direct, direct.serve({"gate": lambda _: gate.acquire(timeout=60)}):
            session = direct.over(cut_agent)
            execution = session.execute(source)
            assert execution.next_chunk() is not None
            relay.cut()
            lost(execution)
            assert expected.startswith(execution.output)

            # From the last observation, of which there is none: everything from the beginning.
            budget = {"max_output_tokens": 1_000_000}
            first = session.resume(execution.program, observe=seance.window(1, **budget))
            seen = first.finish()
            assert seen.status == STILL_WORKING and expected.startswith(first.output) and first.output, seen
            assert seen.output_separator + seen.output == first.output.decode()

            gate.release()
            second = session.wait(execution.program, seen.next_cursor)
            assert second.next_chunk() is not None
            relay.cut()
            lost(second)
            gate.release()

            third = session.resume(execution.program, seen.next_cursor, seance.window(60, **budget))
            ended = third.finish()
            assert ended.status == COMPLETED, ended
            assert third.output.startswith(second.output)
            assert first.output + third.output == expected
            assert ended.output_separator + ended.output == third.output.decode()
            repeated = session.wait(execution.program, seen.next_cursor)
            repeated.finish()
            assert repeated.output == third.output


def lost(stream):
    """The stream breaks, and not with a result."""
    try:
        while stream.next_chunk() is not None:
            pass
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        return
    raise AssertionError("the stream ended as if nothing had been cut")


def a_cut_stops_the_program_when_asked_to(agent):
    with agent.open([GATE]) as session, session.hold(["gate"], lambda call: None):
        stream = session.execute('text("a"); await tools.gate()', on_disconnect=sessions_pb2.ON_DISCONNECT_STOP)
        assert stream.next_chunk() is not None
        stream.cancel()
        assert any(event.WhichOneof("kind") == "program_ended" for event in session.follow())
        program = session.program(1)
        assert program.state == types_pb2.PROGRAM_STATE_TERMINATED and program.reason == "DISCONNECTED", program


# What is kept.


def a_large_value_is_cut_and_whole_in_a_blob(agent):
    with agent.open() as session:
        seen = session.run("return Array.from({length: 400000}, (_, n) => 'item ' + n)")
        assert seen.status == COMPLETED, seen
        whole = json.dumps([f"item {n}" for n in range(400000)], separators=(",", ":")).encode()
        assert len(whole) > 3 * 1024 * 1024
        json.loads(seen.program.value_json)
        cut = seen.program.value_cut
        assert cut.original_bytes == len(whole) and cut.blob_id, cut
        bytes_of, total = session.blob(cut.blob_id)
        assert total == len(whole) and bytes_of == whole
        rest, total = session.blob(cut.blob_id, offset=len(whole) - 10)
        assert rest == whole[-10:]


def what_calls_leave_behind_is_an_artifact(agent):
    with agent.open([seance.tool("pic")]) as session:
        observe = seance.window(60, return_on_pending_call=True)
        pending = session.run("return await tools.pic()", observe=observe).pending_calls[0]
        picture = bytes(range(256)) * 4
        artifact = tools_pb2.ArtifactData(name="pic.png", media_type="image/png", data=picture)
        session.answer(pending.call_id, tools_pb2.ToolResult(value_json='{"ok":true}', artifacts=[artifact]))
        seen = session.wait(program=1).finish()
        assert seen.status == COMPLETED and value_of(seen) == {"ok": True}, seen
        left = seen.artifacts[0]
        assert (left.name, left.media_type, left.size_bytes, left.call_id) == (
            "pic.png",
            "image/png",
            1024,
            pending.call_id,
        ), left
        assert session.blob(left.blob_id)[0] == picture


def until_closed(session):
    """The session's events, followed as they come until the last that can be."""
    events = []
    for event in session.follow():
        events.append(event)
        if event.WhichOneof("kind") == "session_closed":
            return events
    raise AssertionError("the stream ended before the session did")


def events_are_followed_from_any_sequence(agent):
    with agent.open([ECHO], labels={"test": "events"}) as session, session.serve({"echo": echo}):
        workers = concurrent.futures.ThreadPoolExecutor(1)
        followed = workers.submit(until_closed, session)
        session.run('text("a"); return await tools.echo({value: 1})')
        session.close()
        events = followed.result(timeout=60)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        kinds = [event.WhichOneof("kind") for event in events]
        for earlier, later in zip(
            ["session_opened", "program_accepted", "program_started", "call", "program_ended", "session_closing"],
            ["program_accepted", "program_started", "call", "program_ended", "session_closing", "session_closed"],
        ):
            assert kinds.index(earlier) < kinds.index(later), kinds
        assert "output" in kinds and kinds[-1] == "session_closed", kinds
        tail = list(session.follow(from_sequence=3, until_now=True))
        assert [event.SerializeToString() for event in tail] == [e.SerializeToString() for e in events[2:]]


def sessions_are_listed_page_by_page(agent):
    label = {"test": seance.key()}
    sessions = [agent.open(labels=label) for _ in range(3)]
    listed, token = [], ""
    while True:
        request = sessions_pb2.ListRequest(page_size=2, page_token=token, labels=label)
        page = agent.sessions.List(request, timeout=30)
        assert len(page.sessions) <= 2
        listed += [session.session_id for session in page.sessions]
        token = page.next_page_token
        if not token:
            break
    assert listed == [session.id for session in reversed(sessions)], listed
    for session in sessions:
        session.close()


# Refusals.


def refusals_name_their_reason(agent):
    code = grpc.StatusCode
    unknown = seance.Session(agent, "ses_" + "0" * 32)
    refused(unknown.get, code.NOT_FOUND, "SESSION_NOT_FOUND")
    refused(seance.Session(agent, "nonsense").get, code.INVALID_ARGUMENT, "INVALID_REQUEST")
    refused(lambda: agent.open(limits={"speed": 1}), code.INVALID_ARGUMENT, "UNSUPPORTED")
    refused(lambda: agent.open(limits={"wall_ms": 0}), code.INVALID_ARGUMENT, "LIMIT_OUT_OF_RANGE")
    refused(lambda: agent.open([GATE, GATE]), code.INVALID_ARGUMENT, "CATALOG_NAME_CLASH")
    with agent.open([GATE]) as session:
        refused(lambda: session.wait().finish(), code.FAILED_PRECONDITION, "NO_ACTIVE_PROGRAM")
        refused(lambda: session.wait(program=9).finish(), code.NOT_FOUND, "PROGRAM_NOT_FOUND")
        refused(lambda: session.blob("blob_" + "0" * 32), code.NOT_FOUND, "BLOB_NOT_FOUND")
        session.run("await tools.gate()", observe=seance.window(60, return_on_pending_call=True))
        refused(lambda: session.run("return 1"), code.FAILED_PRECONDITION, "PROGRAM_ACTIVE")
        assert session.stop().status == TERMINATED


def a_repeated_request_repeats_nothing(agent):
    same = seance.key()
    first = agent.open(idempotency_key=same)
    assert agent.open(idempotency_key=same).id == first.id
    refused(
        lambda: agent.open(idempotency_key=same, labels={"other": "body"}),
        grpc.StatusCode.ALREADY_EXISTS,
        "IDEMPOTENCY_KEY_REUSED",
    )
    with first as session:
        one = session.run('text("once"); return 1', idempotency_key=same)
        two = session.execute('text("once"); return 1', idempotency_key=same)
        assert two.finish().program.number == one.program.number == 1
        assert session.get().last_program == 1


def a_closed_session_stays_closed(agent):
    session = agent.open()
    assert session.run("return 1").status == COMPLETED
    for _ in range(2):
        closed = session.close()
        assert closed.state == sessions_pb2.SESSION_STATE_CLOSED and not closed.sandbox_id, closed
    refused(lambda: session.run("return 2"), grpc.StatusCode.FAILED_PRECONDITION, "SESSION_CLOSED")
    assert value_of_program(session, 1) == 1


def value_of_program(session, number):
    return json.loads(session.program(number).value_json)


CHECKS = [
    the_service_says_what_it_is_and_has,
    reflection_lists_and_describes_the_services,
    a_model_is_told_of_the_tools,
    a_program_gives_its_value_and_output,
    large_integers_stay_exact,
    a_failing_program_says_where,
    programs_run_in_parallel_sessions,
    tools_are_served_over_a_stream,
    a_call_is_answered_without_a_second_stream,
    large_arguments_and_results_pass_stock_clients,
    a_provider_comes_back_with_the_calls_it_holds,
    a_stopped_program_cancels_its_call,
    a_window_closes_and_wait_goes_on,
    output_goes_on_byte_for_byte_after_a_cut,
    a_cut_stops_the_program_when_asked_to,
    a_large_value_is_cut_and_whole_in_a_blob,
    what_calls_leave_behind_is_an_artifact,
    events_are_followed_from_any_sequence,
    sessions_are_listed_page_by_page,
    refusals_name_their_reason,
    a_repeated_request_repeats_nothing,
    a_closed_session_stays_closed,
]


def main(names):
    n_passed = n_failed = 0
    with seance.Agent(ADDRESS) as agent:
        grpc.channel_ready_future(agent.channel).result(timeout=READY_SECONDS)
        for check in CHECKS:
            if names and check.__name__ not in names:
                continue
            began = time.monotonic()
            try:
                check(agent)
                n_passed += 1
                print(f"ok      {check.__name__} ({time.monotonic() - began:.2f} s)", flush=True)
            except Exception:
                n_failed += 1
                print(f"FAILED  {check.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"\n{n_passed} passed, {n_failed} failed")
    return 1 if n_failed or not n_passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
