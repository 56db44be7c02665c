// A first session: opens one, answers a program's tool calls, and prints what comes out.
import { promisify } from "node:util";
import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const program = `
const cities: string[] = ["Lima", "Oslo", "Pune"];
const days = await Promise.all(cities.map((city) => tools.weather({ city })));
days.sort((a, b) => b.celsius - a.celsius);
text(\`The warmest is \${days[0].city}.\`);
days.map((day) => day.celsius);
`;

const weather: Record<string, number> = { Lima: 19, Oslo: 4, Pune: 27 };
const schema = { type: "object", required: ["city"], properties: { city: { type: "string" } } };

const protos = loadSync(["seance/v1alpha1/sessions.proto", "seance/v1alpha1/tools.proto"], {
  includeDirs: ["../../proto"],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
});
const api = (loadPackageDefinition(protos) as any).seance.v1alpha1;
const address = process.argv[2] ?? "127.0.0.1:7443";
const sessions = new api.Sessions(address, credentials.createInsecure());
const tools = new api.Tools(address, credentials.createInsecure());
const open = promisify(sessions.open.bind(sessions)) as (request: object) => Promise<any>;
const close = promisify(sessions.close.bind(sessions)) as (request: object) => Promise<any>;

// Runs the tool. An error that the program can catch is told from a value.
function resultOf(argumentsJson: string) {
  const { city } = JSON.parse(argumentsJson);
  if (!(city in weather)) return { error: { code: "unknown_city", message: city } };
  return { value_json: JSON.stringify({ city, celsius: weather[city] }) };
}

const tool = {
  name: "weather",
  description: "The weather in a city.",
  input_schema_json: JSON.stringify(schema),
  read_only: true,
};
const { session } = await open({ engine: "javascript", catalog: { inline: { tools: [tool] } } });
const session_id = session.session_id;

// Answers calls until the session is closed.
const provider = tools.serve();
const attached = new Promise<void>((resolve, reject) => {
  provider.on("error", reject);
  provider.on("end", () => provider.end());
  provider.on("data", ({ message, call }: any) => {
    if (message === "attached") resolve();
    if (message !== "call") return;
    const { call_id, arguments_json } = call.call;
    provider.write({ result: { call_id, result: resultOf(arguments_json) } });
  });
});
provider.write({ attach: { session_id, tools: ["weather"] } });
await attached;

const execution = sessions.execute({ session_id, source: Buffer.from(program), language: "typescript" });
for await (const { message, output, observation } of execution) {
  if (message === "output") process.stdout.write(output.data);
  if (message === "observation") {
    console.log(`\n${observation.status}: ${observation.program.value_json ?? observation.program.error.message}`);
  }
}

await close({ session_id });
