// A code-mode agent: opens sessions, runs programs in them and answers their tool calls.
//
// The client has grpc-js's default options: no message sizes, no keep-alive. Every call has a deadline.
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import * as grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import protobuf from 'protobufjs';
import type { ProtoGrpcType as SessionsProto } from './generated/sessions.js';
import type { ProtoGrpcType as ToolsProto } from './generated/tools.js';
import type { Attach } from './generated/seance/v1alpha1/Attach.js';
import type { Call__Output } from './generated/seance/v1alpha1/Call.js';
import type { CloseResponse__Output } from './generated/seance/v1alpha1/CloseResponse.js';
import type { Event__Output } from './generated/seance/v1alpha1/Event.js';
import type { ExecuteRequest } from './generated/seance/v1alpha1/ExecuteRequest.js';
import type { ExecuteResponse__Output } from './generated/seance/v1alpha1/ExecuteResponse.js';
import type { GetProgramResponse__Output } from './generated/seance/v1alpha1/GetProgramResponse.js';
import type { GetResponse__Output } from './generated/seance/v1alpha1/GetResponse.js';
import type { Observation__Output } from './generated/seance/v1alpha1/Observation.js';
import type { ObserveOptions } from './generated/seance/v1alpha1/ObserveOptions.js';
import type { OpenRequest } from './generated/seance/v1alpha1/OpenRequest.js';
import type { OpenResponse__Output } from './generated/seance/v1alpha1/OpenResponse.js';
import type { Program__Output } from './generated/seance/v1alpha1/Program.js';
import type { ServeRequest } from './generated/seance/v1alpha1/ServeRequest.js';
import type { ServeResponse__Output } from './generated/seance/v1alpha1/ServeResponse.js';
import type { Session__Output } from './generated/seance/v1alpha1/Session.js';
import type { StopResponse__Output } from './generated/seance/v1alpha1/StopResponse.js';
import type { Tool } from './generated/seance/v1alpha1/Tool.js';
import type { ToolResult } from './generated/seance/v1alpha1/ToolResult.js';
import type { WaitResponse__Output } from './generated/seance/v1alpha1/WaitResponse.js';

const CALL_MS = 30_000;
const STREAM_MS = 90_000;
const FREE_MS = 10_000;
const AGAIN_MS = 100;
const CHUNK_BYTES = 1024 * 1024;
const INLINE_BYTES = 2 * 1024 * 1024;

// From build/, where the compiled agent is.
const PROTO = fileURLToPath(new URL('../../../../proto', import.meta.url));
const FILES = ['seance/v1alpha1/sessions.proto', 'seance/v1alpha1/tools.proto'];
const LOADED = loadSync(FILES, {
  includeDirs: [PROTO],
  longs: String,
  enums: String,
  defaults: true,
  oneofs: true,
});
const api = grpc.loadPackageDefinition(LOADED) as unknown as SessionsProto & ToolsProto;
const messages = new protobuf.Root();
messages.resolvePath = (_, target) => (target.startsWith('google/') ? target : `${PROTO}/${target}`);
messages.loadSync(FILES);

/** A failure that the program can catch. */
export class ToolFailed extends Error {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** A tool's answer to its arguments. */
export type Answer = (args: Record<string, unknown>) => unknown;

/** A new idempotency key. */
export function key(): string {
  return randomUUID();
}

/** A tool for a catalog. */
export function tool(name: string, inputSchema?: object, fields: Partial<Tool> = {}): Tool {
  return { name, inputSchemaJson: inputSchema ? JSON.stringify(inputSchema) : '', ...fields };
}

/** How to observe: for so many milliseconds. */
export function observeFor(ms: number, fields: ObserveOptions = {}): ObserveOptions {
  return { window: { seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1_000_000 }, ...fields };
}

/** What `answer` gives or throws, as a tool's result. */
export async function resultOf(answer: () => unknown): Promise<ToolResult> {
  try {
    return { valueJson: JSON.stringify((await answer()) ?? null) };
  } catch (error) {
    if (error instanceof ToolFailed) return { error: { code: error.code, message: error.message } };
    throw error;
  }
}

/** The reason that a status carries, and how long to wait before asking again. */
export function refusal(error: unknown): { reason?: string; domain?: string; retryMs?: number } {
  const packed = (error as grpc.ServiceError).metadata?.get('grpc-status-details-bin')[0];
  if (!Buffer.isBuffer(packed)) return {};
  const found: ReturnType<typeof refusal> = {};
  for (const { typeUrl, value } of STATUS.decode(packed).toJSON()['details'] ?? []) {
    const bytes = Buffer.from(value ?? '', 'base64');
    if (typeUrl.endsWith('/google.rpc.ErrorInfo')) Object.assign(found, ERROR_INFO.decode(bytes).toJSON());
    if (typeUrl.endsWith('/google.rpc.RetryInfo')) {
      const delay = RETRY_INFO.decode(bytes).toJSON()['retryDelay'] ?? {};
      found.retryMs = Number(delay.seconds ?? 0) * 1000 + (delay.nanos ?? 0) / 1_000_000;
    }
  }
  return found;
}

// The public definitions of google/rpc/status.proto and error_details.proto, as far as they are read here.
const RPC = protobuf.parse(`
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
  message Delay { int64 seconds = 1; int32 nanos = 2; }
  message RetryInfo { Delay retry_delay = 1; }
`).root;
const STATUS = RPC.lookupType('Status');
const ERROR_INFO = RPC.lookupType('ErrorInfo');
const RETRY_INFO = RPC.lookupType('RetryInfo');

/**
 * Does `control`, which must be repeatable, as soon as the session is free. A stream that was cut holds the
 * session's control until the service has seen the cut; until then others are refused, with the delay to ask
 * again after. A connection may also turn out to be broken only now.
 */
export async function whenFree<T>(control: () => Promise<T>): Promise<T> {
  const deadline = Date.now() + FREE_MS;
  for (;;) {
    try {
      return await control();
    } catch (error) {
      const { reason, retryMs } = refusal(error);
      const broken = reason === undefined && (error as grpc.ServiceError).code === grpc.status.UNAVAILABLE;
      if (!(broken || reason === 'CONTROL_ACTIVE') || Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, retryMs ?? AGAIN_MS));
    }
  }
}

function within(ms: number): grpc.CallOptions {
  return { deadline: Date.now() + ms };
}

function unary<T>(call: (done: grpc.requestCallback<T>) => void): Promise<T> {
  return new Promise((resolve, reject) =>
    call((error, response) => (error ? reject(error) : resolve(response as T))),
  );
}

/**
 * TLS and a bearer token where SEANCE_CA and SEANCE_TOKEN_FILE name them; SEANCE_SERVER_NAME is the certificate's
 * name where it isn't the address.
 */
function credentials(): [grpc.ChannelCredentials, grpc.ClientOptions] {
  const { SEANCE_CA: ca, SEANCE_TOKEN_FILE: file, SEANCE_SERVER_NAME: name } = process.env;
  if (!ca || !file) return [grpc.credentials.createInsecure(), {}];
  const metadata = new grpc.Metadata();
  metadata.set('authorization', `Bearer ${readFileSync(file, 'utf8').trim()}`);
  const bearer = grpc.credentials.createFromMetadataGenerator((_, done) => done(null, metadata));
  const tls = grpc.credentials.createSsl(readFileSync(ca));
  const options = name ? { 'grpc.ssl_target_name_override': name, 'grpc.default_authority': name } : {};
  return [grpc.credentials.combineChannelCredentials(tls, bearer), options];
}

/** A connection to a service. */
export class Agent {
  readonly sessions;
  readonly tools;

  constructor(address: string) {
    const how = credentials();
    this.sessions = new api.seance.v1alpha1.Sessions(address, ...how);
    this.tools = new api.seance.v1alpha1.Tools(address, ...how);
  }

  /** Waits until the service can be reached. */
  ready(ms: number): Promise<void> {
    return new Promise((resolve, reject) =>
      this.sessions.waitForReady(Date.now() + ms, (error) => (error ? reject(error) : resolve())),
    );
  }

  close(): void {
    // Not `close()`: our RPC of that name hides the client's own.
    this.sessions.getChannel().close();
    this.tools.getChannel().close();
  }

  /** Opens a session whose programs may call `tools`. */
  async open(tools: Tool[] = [], fields: OpenRequest = {}): Promise<Session> {
    const catalog = tools.length > 0 ? { inline: { tools } } : null;
    const request = { engine: 'javascript', catalog, idempotencyKey: key(), ...fields };
    const { session } = await unary<OpenResponse__Output>((done) =>
      this.sessions.Open(request, within(CALL_MS), done),
    );
    return new Session(this, session!.sessionId);
  }
}

/** What Execute or Wait sends: chunks as they come, then the observation. */
export class Stream {
  readonly chunks: Buffer[] = [];
  observation: Observation__Output | undefined;
  private readonly messages: AsyncIterator<ExecuteResponse__Output | WaitResponse__Output>;
  private ahead: IteratorResult<ExecuteResponse__Output | WaitResponse__Output> | undefined;

  constructor(
    private readonly call: grpc.ClientReadableStream<ExecuteResponse__Output | WaitResponse__Output>,
    public program = '0',
  ) {
    // A stream that is let go ends with an error that nobody waits for.
    call.on('error', () => {});
    this.messages = call[Symbol.asyncIterator]();
  }

  /** The same stream when its first message is there. */
  async begun(): Promise<this> {
    this.ahead = await this.messages.next();
    return this;
  }

  /** The next output, or undefined when the observation has come. */
  async nextChunk(): Promise<Buffer | undefined> {
    for (;;) {
      const next = this.ahead ?? (await this.messages.next());
      this.ahead = undefined;
      if (next.done) return undefined;
      const message = next.value;
      if ('accepted' in message && message.accepted) this.program = message.accepted.programNumber;
      if (message.observation) this.observation = message.observation;
      if (message.output) {
        this.chunks.push(message.output.data as Buffer);
        return message.output.data as Buffer;
      }
    }
  }

  /** Reads to the end; gives the observation. */
  async finish(): Promise<Observation__Output & { program: Program__Output }> {
    while ((await this.nextChunk()) !== undefined);
    if (!this.observation?.program) throw new Error('the stream ended without an observation');
    this.program = this.observation.program.number;
    return this.observation as Observation__Output & { program: Program__Output };
  }

  /** The bytes of the chunks so far. */
  get output(): Buffer {
    return Buffer.concat(this.chunks);
  }

  /** Lets the program go on unobserved. */
  cancel(): void {
    this.call.cancel();
  }
}

/** A session. It can be steered over any connection: see `over`. */
export class Session {
  constructor(
    readonly agent: Agent,
    readonly id: string,
  ) {}

  /** The same session over another connection. */
  over(agent: Agent): Session {
    return new Session(agent, this.id);
  }

  execute(source: string, fields: ExecuteRequest = {}): Stream {
    const request = { sessionId: this.id, source: Buffer.from(source), idempotencyKey: key(), ...fields };
    return new Stream(this.agent.sessions.Execute(request, within(STREAM_MS)));
  }

  /** Runs a program to its end; gives the last observation. */
  run(source: string, fields: ExecuteRequest = {}) {
    return this.execute(source, fields).finish();
  }

  wait(program = '0', cursor = '', observe: ObserveOptions | null = null): Stream {
    const request = { sessionId: this.id, programNumber: program, cursor, observe };
    const metadata = new grpc.Metadata({ waitForReady: true });
    return new Stream(this.agent.sessions.Wait(request, metadata, within(STREAM_MS)), program);
  }

  /** Waits for a program whose observation was cut off. */
  resume(program: string, cursor = '', observe: ObserveOptions | null = null): Promise<Stream> {
    return whenFree(() => this.wait(program, cursor, observe).begun());
  }

  async stop(program = '0') {
    const request = { sessionId: this.id, programNumber: program, idempotencyKey: key() };
    const { observation } = await unary<StopResponse__Output>((done) =>
      this.agent.sessions.Stop(request, within(CALL_MS), done),
    );
    return observation as Observation__Output & { program: Program__Output };
  }

  async close(): Promise<Session__Output> {
    const request = { sessionId: this.id, idempotencyKey: key() };
    const { session } = await unary<CloseResponse__Output>((done) =>
      this.agent.sessions.Close(request, within(CALL_MS), done),
    );
    return session!;
  }

  async get(): Promise<Session__Output> {
    const request = { sessionId: this.id };
    const { session } = await unary<GetResponse__Output>((done) =>
      this.agent.sessions.Get(request, within(CALL_MS), done),
    );
    return session!;
  }

  async program(programNumber: string): Promise<Program__Output> {
    const request = { sessionId: this.id, programNumber };
    const { program } = await unary<GetProgramResponse__Output>((done) =>
      this.agent.sessions.GetProgram(request, within(CALL_MS), done),
    );
    return program!;
  }

  /** The events from a sequence on. */
  async *follow(fromSequence = '1', untilNow = false): AsyncGenerator<Event__Output> {
    const request = { sessionId: this.id, fromSequence, untilNow };
    for await (const message of this.agent.sessions.Follow(request, within(STREAM_MS))) {
      if (message.event) yield message.event;
    }
  }

  /** The bytes of a blob from an offset on, and the size of the whole. */
  async blob(blobId: string, offset = '0'): Promise<{ bytes: Buffer; totalBytes: number }> {
    const parts: Buffer[] = [];
    let totalBytes = 0;
    const request = { sessionId: this.id, blobId, offset };
    for await (const message of this.agent.sessions.GetBlob(request, within(STREAM_MS))) {
      totalBytes ||= Number(message.totalBytes);
      parts.push(message.data);
    }
    return { bytes: Buffer.concat(parts), totalBytes };
  }

  /** Answers a pending call without a stream. */
  async answer(callId: string, result: ToolResult): Promise<void> {
    const request = { sessionId: this.id, callId, result, idempotencyKey: key() };
    await unary((done) => this.agent.tools.Answer(request, within(CALL_MS), done));
  }

  /** Serves tools by name until the provider is closed. */
  serve(tools: Record<string, Answer>): Promise<Provider> {
    return Provider.attach(this, { tools: Object.keys(tools) }, async (provider, call) => {
      const text = call.argumentsBlobId ? (await this.blob(call.argumentsBlobId)).bytes.toString() : call.argumentsJson;
      provider.send(call.callId, await resultOf(() => tools[call.tool]!(JSON.parse(text))));
    });
  }

  /** Serves tools by name; `onCall` takes each call, and the answer is sent by hand. */
  hold(tools: string[], onCall: (call: Call__Output) => void, attach: Attach = {}): Promise<Provider> {
    return Provider.attach(this, { tools, ...attach }, async (_, call) => onCall(call));
  }
}

/** Answers the calls of a session over a stream of its own. Calls overlap. */
export class Provider {
  readonly recorded: string[] = [];
  readonly cancelled: { callId: string; reason: string }[] = [];
  private readonly ended: Promise<void>;

  private constructor(
    private readonly stream: grpc.ClientDuplexStream<ServeRequest, ServeResponse__Output>,
    onCall: (provider: Provider, call: Call__Output) => Promise<void>,
    attached: (provider: Provider) => void,
    failed: (error: unknown) => void,
  ) {
    stream.on('data', (message: ServeResponse__Output) => {
      if (message.attached) attached(this);
      if (message.call?.call) onCall(this, message.call.call).catch((error) => stream.destroy(error));
      if (message.cancel) this.cancelled.push(message.cancel);
      if (message.recorded) this.recorded.push(message.recorded.callId);
    });
    stream.on('error', failed);
    this.ended = new Promise((resolve) => stream.on('status', () => resolve()));
  }

  static attach(
    session: Session,
    attach: Attach,
    onCall: (provider: Provider, call: Call__Output) => Promise<void>,
  ): Promise<Provider> {
    return new Promise((resolve, reject) => {
      const stream = session.agent.tools.Serve(within(STREAM_MS));
      new Provider(stream, onCall, resolve, reject);
      stream.write({ attach: { sessionId: session.id, ...attach } });
    });
  }

  /** Sends a result, in parts when it is too large for one message. */
  send(callId: string, result: ToolResult): void {
    const type = messages.lookupType('seance.v1alpha1.CallResult');
    const encoded = Buffer.from(type.encode(type.fromObject({ callId, result })).finish());
    if (encoded.length <= INLINE_BYTES) {
      this.stream.write({ result: { callId, result } });
      return;
    }
    for (let start = 0; start < encoded.length; start += CHUNK_BYTES) {
      const data = encoded.subarray(start, start + CHUNK_BYTES);
      this.stream.write({ resultChunk: { callId, totalBytes: encoded.length, data } });
    }
  }

  /** Ends the stream in order: we say that nothing follows, the service ends its side. */
  async close(): Promise<void> {
    this.stream.end();
    await this.ended;
  }

  /** Ends the stream at once, as a lost connection does. */
  async cut(): Promise<void> {
    this.stream.cancel();
    await this.ended;
  }
}
