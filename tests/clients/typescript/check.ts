// Checks a running service as a TypeScript agent sees it. SEANCE_ADDRESS says where it is.
//
// Prints each check and `N passed, N failed`; exits with 1 when one fails.
import { deepStrictEqual as same, ok, rejects, strictEqual as equal } from 'node:assert';
import * as grpc from '@grpc/grpc-js';
import { Agent, Session, ToolFailed, key, observeFor, refusal, resultOf, tool, whenFree } from './agent.js';
import type { Provider, Stream } from './agent.js';
import type { Call__Output } from './generated/seance/v1alpha1/Call.js';
import type { Program__Output } from './generated/seance/v1alpha1/Program.js';
import type { ToolResult } from './generated/seance/v1alpha1/ToolResult.js';
import { Relay } from './relay.js';

const ADDRESS = process.env['SEANCE_ADDRESS'] ?? '127.0.0.1:7443';
const READY_MS = 30_000;

const ECHO = tool('echo', { type: 'object', properties: { value: {} }, required: ['value'] }, { readOnly: true });
const GATE = tool('gate');
const FAIL = tool('fail');

function echo(args: Record<string, unknown>): unknown {
  return args['value'];
}

function valueOf(seen: { program: Program__Output }): unknown {
  return JSON.parse(seen.program.valueJson!);
}

/** Something that is given later. */
class Later<T> {
  give!: (value: T) => void;
  readonly given = new Promise<T>((resolve) => (this.give = resolve));
}

async function refused(call: Promise<unknown>, code: grpc.status, reason: string): Promise<void> {
  await rejects(call, (error: grpc.ServiceError) => {
    equal(error.code, code, error.message);
    same(error.metadata.get('seance-reason'), [reason]);
    ok(error.details.includes(reason), error.details);
    const told = refusal(error);
    equal(told.reason, reason);
    ok(told.domain);
    return true;
  });
}

/** Does `work` with a session and a provider, and closes both. */
async function withSession<T>(
  agent: Agent,
  tools: Parameters<Agent['open']>[0],
  provide: (session: Session) => Promise<Provider> | undefined,
  work: (session: Session, provider: Provider) => Promise<T>,
): Promise<T> {
  const session = await agent.open(tools);
  const provider = await provide(session);
  try {
    return await work(session, provider!);
  } finally {
    await provider?.close();
    await session.close();
  }
}

const alone = () => undefined;

async function aProgramGivesItsValueAndOutput(agent: Agent): Promise<void> {
  await withSession(agent, [], alone, async (session) => {
    const stream = session.execute('text("one"); text({two: 2}); return {answer: 41 + 1}');
    const seen = await stream.finish();
    equal(seen.status, 'OBSERVATION_STATUS_COMPLETED');
    equal(seen.output, 'one\n{"two":2}');
    equal(stream.output.toString(), seen.output);
    same(valueOf(seen), { answer: 42 });
    const again = await session.run('const n: number = INPUTS.n; return n', {
      language: 'typescript',
      inputsJson: '{"n": 7}',
    });
    same([again.program.number, valueOf(again)], ['2', 7]);
    const failed = await session.run('text("before");\n\nINPUTS.x');
    equal(failed.status, 'OBSERVATION_STATUS_ERROR');
    same([failed.program.error!.code, failed.program.error!.class, failed.program.error!.line], ['exception', 'TypeError', 3]);
  });
}

async function toolsAreServedOverAStream(agent: Agent): Promise<void> {
  const fail = () => {
    throw new ToolFailed('E_LUCK', 'no luck today');
  };
  await withSession(
    agent,
    [ECHO, FAIL],
    (session) => session.serve({ echo, fail }),
    async (session, provider) => {
      const seen = await session.run(`
        const values = await Promise.all([1, 2, 3].map(value => tools.echo({value})));
        try { await tools.fail() } catch (e) { return [values, e.code, e.message] }
      `);
      same(valueOf(seen), [[1, 2, 3], 'E_LUCK', 'no luck today']);
      const states = seen.program.calls.map((call) => call.state);
      const finished = 'CALL_STATE_FINISHED';
      same(states, [finished, finished, finished, 'CALL_STATE_FAILED']);
      await provider.close();
      same(new Set(provider.recorded), new Set(seen.program.calls.map((call) => call.callId)));
    },
  );
}

async function aCallIsAnsweredWithoutASecondStream(agent: Agent): Promise<void> {
  await withSession(agent, [ECHO], alone, async (session) => {
    const observe = observeFor(60_000, { returnOnPendingCall: true });
    const pending = await session.run('return (await tools.echo({value: {a: [1]}})).a', { observe });
    equal(pending.status, 'OBSERVATION_STATUS_STILL_WORKING');
    const [call] = pending.pendingCalls;
    same([call!.tool, JSON.parse(call!.argumentsJson)], ['echo', { value: { a: [1] } }]);
    await session.answer(call!.callId, await resultOf(() => echo(JSON.parse(call!.argumentsJson))));
    const twice = session.answer(call!.callId, { valueJson: '0' });
    await refused(twice, grpc.status.FAILED_PRECONDITION, 'CALL_NOT_PENDING');
    const seen = await session.wait('1', pending.nextCursor, observe).finish();
    same([seen.status, valueOf(seen)], ['OBSERVATION_STATUS_COMPLETED', [1]]);
  });
}

async function largeArgumentsAndResultsPassStockClients(agent: Agent): Promise<void> {
  const grow = (args: Record<string, unknown>) => 'y'.repeat((args['text'] as string).length);
  await withSession(
    agent,
    [tool('grow')],
    (session) => session.serve({ grow }),
    async (session) => {
      const seen = await session.run('return (await tools.grow({text: "x".repeat(5 * 2 ** 20)})).length');
      equal(valueOf(seen), 5 * 2 ** 20);
      ok(seen.program.calls[0]!.argumentsBlobId);
    },
  );
}

/** Each program's call is answered only when all of them have called. */
async function programsRunInParallelSessions(agent: Agent): Promise<void> {
  const all = new Later<void>();
  let nCalled = 0;
  const meet = async (args: Record<string, unknown>) => {
    if (++nCalled === 4) all.give();
    await all.given;
    return (args['value'] as number) * 2;
  };
  const one = (index: number) =>
    withSession(
      agent,
      [ECHO],
      (session) => session.serve({ echo: meet }),
      async (session) =>
        valueOf(await session.run('return await tools.echo({value: INPUTS})', { inputsJson: String(index) })),
    );
  same(await Promise.all([0, 1, 2, 3].map(one)), [0, 2, 4, 6]);
}

async function aProviderComesBackWithTheCallsItHolds(agent: Agent): Promise<void> {
  const called = new Later<Call__Output>();
  await withSession(agent, [GATE], alone, async (session) => {
    const first = await session.hold(['gate'], called.give);
    const stream = session.execute('return await tools.gate()');
    const { callId } = await called.given;
    await first.cut();
    const again: Call__Output[] = [];
    const second = await session.hold(['gate'], (call) => again.push(call), { again: true, heldCallIds: [callId] });
    second.send(callId, { valueJson: '"held"' } satisfies ToolResult);
    same(valueOf(await stream.finish()), 'held');
    same(again, []);
    await second.close();
  });
}

async function aStoppedProgramCancelsItsCall(agent: Agent): Promise<void> {
  const called = new Later<Call__Output>();
  await withSession(
    agent,
    [GATE],
    (session) => session.hold(['gate'], called.give),
    async (session, provider) => {
      const stream = session.execute('text("a"); await tools.gate(); text("b")');
      ok(await stream.nextChunk());
      const { callId } = await called.given;
      stream.cancel();
      const seen = await whenFree(() => session.stop());
      same([seen.status, seen.output, seen.program.reason], ['OBSERVATION_STATUS_TERMINATED', 'a', 'STOPPED']);
      equal(seen.program.calls[0]!.state, 'CALL_STATE_CANCELLED');
      await provider.close();
      same(provider.cancelled, [{ callId, reason: 'STOPPED' }]);
    },
  );
}

/** The stream breaks, and not with a result. */
async function lost(stream: Stream): Promise<void> {
  await rejects(stream.finish(), (error: grpc.ServiceError) => error.code === grpc.status.UNAVAILABLE);
}

/** The connection is cut in the middle of Execute, and again in the middle of Wait. */
async function outputGoesOnByteForByteAfterACut(agent: Agent): Promise<void> {
  const lines = Array.from({ length: 6000 }, (_, n) => `${n} ${'é'.repeat(100)}`);
  const expected = Buffer.from(lines.join('\n'));
  const source = `
    const emit = (from, to) => { for (let n = from; n < to; n++) text(n + " " + "é".repeat(100)) };
    emit(0, 2000); await tools.gate(); emit(2000, 4000); await tools.gate(); emit(4000, 6000);
  `;
  const gates = [new Later<void>(), new Later<void>()];
  let nPassed = 0;
  const gate = () => gates[nPassed++]!.given;
  const relay = await Relay.to(ADDRESS);
  const cutAgent = new Agent(relay.address);
  await withSession(
    agent,
    [GATE],
    (session) => session.serve({ gate }),
    async (direct) => {
      const session = direct.over(cutAgent);
      const execution = session.execute(source);
      ok(await execution.nextChunk());
      relay.cut();
      await lost(execution);
      ok(expected.indexOf(execution.output) === 0);

      // From the last observation, of which there is none: everything from the beginning.
      const first = await session.resume(execution.program, '', observeFor(1000, { maxOutputTokens: 1_000_000 }));
      const seen = await first.finish();
      equal(seen.status, 'OBSERVATION_STATUS_STILL_WORKING');
      equal(seen.outputSeparator + seen.output, first.output.toString());
      gates[0]!.give();
      const second = session.wait(execution.program, seen.nextCursor);
      ok(await second.nextChunk());
      relay.cut();
      await lost(second);
      gates[1]!.give();

      const third = await session.resume(execution.program, seen.nextCursor);
      equal((await third.finish()).status, 'OBSERVATION_STATUS_COMPLETED');
      ok(third.output.indexOf(second.output) === 0);
      ok(Buffer.concat([first.output, third.output]).equals(expected));
    },
  );
  cutAgent.close();
  relay.close();
}

async function aLargeValueIsCutAndWholeInABlob(agent: Agent): Promise<void> {
  await withSession(agent, [], alone, async (session) => {
    const seen = await session.run("return Array.from({length: 400000}, (_, n) => 'item ' + n)");
    const whole = Buffer.from(JSON.stringify(Array.from({ length: 400_000 }, (_, n) => `item ${n}`)));
    ok(whole.length > 3 * 1024 * 1024);
    valueOf(seen);
    const { blobId, originalBytes } = seen.program.valueCut!;
    equal(originalBytes, String(whole.length));
    const { bytes, totalBytes } = await session.blob(blobId);
    equal(totalBytes, whole.length);
    ok(bytes.equals(whole));
    const rest = await session.blob(blobId, String(whole.length - 10));
    ok(rest.bytes.equals(whole.subarray(-10)));
  });
}

async function eventsAreFollowedFromAnySequence(agent: Agent): Promise<void> {
  const session = await agent.open();
  const collect = async (from: string, untilNow: boolean) => {
    const events = [];
    for await (const event of session.follow(from, untilNow)) {
      events.push(event);
      if (event.kind === 'sessionClosed' && !untilNow) break;
    }
    return events;
  };
  const followed = collect('1', false);
  await session.run('text("a")');
  await session.close();
  const events = await followed;
  same(
    events.map((event) => event.sequence),
    events.map((_, index) => String(index + 1)),
  );
  const kinds = events.map((event) => event.kind);
  const inOrder = ['sessionOpened', 'programAccepted', 'programStarted', 'programEnded', 'sessionClosing', 'sessionClosed'];
  same(kinds.filter((kind) => inOrder.includes(kind!)), inOrder);
  same(await collect('3', true), events.slice(2));
}

async function refusalsNameTheirReason(agent: Agent): Promise<void> {
  const { FAILED_PRECONDITION, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS } = grpc.status;
  await refused(new Session(agent, `ses_${'0'.repeat(32)}`).get(), NOT_FOUND, 'SESSION_NOT_FOUND');
  await refused(agent.open([], { limits: { speed: 1 } }), INVALID_ARGUMENT, 'UNSUPPORTED');
  const idempotencyKey = key();
  const session = await agent.open([], { idempotencyKey });
  equal((await agent.open([], { idempotencyKey })).id, session.id);
  await refused(agent.open([ECHO], { idempotencyKey }), ALREADY_EXISTS, 'IDEMPOTENCY_KEY_REUSED');
  await refused(session.wait().finish(), FAILED_PRECONDITION, 'NO_ACTIVE_PROGRAM');
  await refused(session.wait('9').finish(), NOT_FOUND, 'PROGRAM_NOT_FOUND');
  equal(valueOf(await session.run('return 1')), 1);
  for (let n = 0; n < 2; n++) equal((await session.close()).state, 'SESSION_STATE_CLOSED');
  await refused(session.run('return 2'), FAILED_PRECONDITION, 'SESSION_CLOSED');
  equal((await session.program('1')).valueJson, '1');
}

const CHECKS = [
  aProgramGivesItsValueAndOutput,
  toolsAreServedOverAStream,
  aCallIsAnsweredWithoutASecondStream,
  largeArgumentsAndResultsPassStockClients,
  programsRunInParallelSessions,
  aProviderComesBackWithTheCallsItHolds,
  aStoppedProgramCancelsItsCall,
  outputGoesOnByteForByteAfterACut,
  aLargeValueIsCutAndWholeInABlob,
  eventsAreFollowedFromAnySequence,
  refusalsNameTheirReason,
];

async function main(names: string[]): Promise<number> {
  const agent = new Agent(ADDRESS);
  await agent.ready(READY_MS);
  let nPassed = 0;
  let nFailed = 0;
  for (const check of CHECKS.filter(({ name }) => names.length === 0 || names.includes(name))) {
    const began = Date.now();
    try {
      await check(agent);
      nPassed += 1;
      console.log(`ok      ${check.name} (${((Date.now() - began) / 1000).toFixed(2)} s)`);
    } catch (error) {
      nFailed += 1;
      console.log(`FAILED  ${check.name}`);
      console.log(error);
    }
  }
  agent.close();
  console.log(`\n${nPassed} passed, ${nFailed} failed`);
  return nFailed > 0 || nPassed === 0 ? 1 : 0;
}

process.exitCode = await main(process.argv.slice(2));
