"""A first session: opens one, answers a program's tool calls, and prints what comes out."""

import json
import queue
import sys
import threading

import grpc
from seance.v1alpha1 import sessions_pb2 as s, sessions_pb2_grpc, tools_pb2 as t, tools_pb2_grpc, types_pb2

PROGRAM = """
const cities = ["Lima", "Oslo", "Pune"];
const days = await Promise.all(cities.map((city) => tools.weather({ city })));
days.sort((a, b) => b.celsius - a.celsius);
text(`The warmest is ${days[0].city}.`);
days.map((day) => day.celsius);
"""

SCHEMA = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
WEATHER = {"Lima": 19, "Oslo": 4, "Pune": 27}


def weather(arguments):
    return {"city": arguments["city"], "celsius": WEATHER[arguments["city"]]}


def result_of(call):
    """Runs the tool. An error that the program can catch is told from a value."""
    try:
        return t.ToolResult(value_json=json.dumps(weather(json.loads(call.arguments_json))))
    except KeyError as unknown:
        return t.ToolResult(error=types_pb2.ToolError(code="unknown_city", message=str(unknown)))


def answer(tools, session_id, attached):
    """Answers calls until the session is closed."""
    outbox = queue.SimpleQueue()
    outbox.put(t.ServeRequest(attach=t.Attach(session_id=session_id, tools=["weather"])))
    for message in tools.Serve(iter(outbox.get, None)):
        if message.HasField("attached"):
            attached.set()
        elif message.HasField("call"):
            call = message.call.call
            outbox.put(t.ServeRequest(result=t.CallResult(call_id=call.call_id, result=result_of(call))))
    outbox.put(None)


channel = grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7443")
sessions = sessions_pb2_grpc.SessionsStub(channel)
tools = tools_pb2_grpc.ToolsStub(channel)

weather_tool = t.Tool(
    name="weather", description="The weather in a city.", input_schema_json=json.dumps(SCHEMA), read_only=True
)
catalog = t.CatalogSource(inline=t.Catalog(tools=[weather_tool]))
session_id = sessions.Open(s.OpenRequest(engine="javascript", catalog=catalog)).session.session_id

attached = threading.Event()
provider = threading.Thread(target=answer, args=(tools, session_id, attached), daemon=True)
provider.start()
attached.wait(timeout=10)

for message in sessions.Execute(s.ExecuteRequest(session_id=session_id, source=PROGRAM.encode())):
    if message.HasField("output"):
        sys.stdout.write(message.output.data.decode())
    elif message.HasField("observation"):
        status = types_pb2.ObservationStatus.Name(message.observation.status)
        program = message.observation.program
        print(f"\n{status}: {program.value_json or program.error.message}")

sessions.Close(s.CloseRequest(session_id=session_id))
provider.join(timeout=10)
