// runs: both databases
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t, { type Test } from 'tap'
import { buildApp } from '../../src/app.ts'
import { chainOf } from '../../src/db/rows/authority.ts'
import { connect } from '../../src/db/database.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { callWith, makeLevel, ON_CITUS, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { chainsOf } from '../helpers/chains.ts'
import { QUICK } from '../helpers/costs.ts'
import { command, scratchDirectory } from '../helpers/process.ts'

// If the process knows the end of the chain, it appends the event of a decrypted read in one statement (decision 0095).
// Otherwise it uses a transaction. In both cases the event is in the chain before the response.

// This file has its own database, because it verifies all chains, and counts the statements of its service.
const service = await startIsolatedApp(t)
const chains = chainsOf(service, scratchDirectory(t))
const skip = ON_CITUS && 'each event of a read has a transaction on Citus'
const skipAlone = skip || (service.env.DATABASE_URL === undefined && 'the embedded database has one process')

async function world () {
  const caller = await service.organization()
  const level = await makeLevel(caller)
  const stored = await caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: 'A=1' })
  if (stored.status !== 200) throw new Error(stored.text)
  const path = `/${caller.organization}/${level.project}/${level.target}/${level.environment}/secrets?decrypt=true`
  return { caller, level, path }
}

const eventsOf = async ({ organization }: Caller) => (await service.sql(`SELECT seq::int, action FROM audit_events
  WHERE organization_id = '${organization}' ORDER BY seq`)) as { seq: number, action: string }[]

/**
 * Asserts that the events have no gap in their numbers, that the chain is valid, and that it contains this number of
 * reads.
 */
async function hasReads (t: Test, caller: Caller, reads: number) {
  const events = await eventsOf(caller)
  t.strictSame(events.map(({ seq }) => seq), events.map((_, i) => i + 1))
  t.equal(events.filter(({ action }) => action === 'secret.decrypt').length, reads)
  t.match((await chains.inDatabase())[caller.organization], { events: events.length, broken: null })
}

const STATEMENTS: [name: string, text: RegExp][] = [
  ['append', /WITH ends AS/], ['move', /UPDATE organization_counters/], ['lock', /FOR NO KEY UPDATE/],
  ['commit', /^commit$/]
]

/** The statements of `work` that lock or move an organization's counter, and its commits. */
async function sentBy (work: () => Promise<unknown>): Promise<string[]> {
  const sent: string[] = []
  const look = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    const known = STATEMENTS.find(([, pattern]) => pattern.test(text))
    if (phase === 'before' && known !== undefined) sent.push(known[0])
  }
  subscribe('strongroom:statement', look)
  try {
    await work()
  } finally {
    unsubscribe('strongroom:statement', look)
  }
  return sent
}

const TRANSACTION = ['lock', 'move', 'commit']

t.test('after a store, another change or a read of this process, the event of a read is one statement', { skip }, async (t) => {
  const { caller, level, path } = await world()
  const o = caller.organization
  const before = {
    'a store': () => caller.call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=2' }),
    'a read': () => caller.call('GET', path),
    'another change': () => caller.call('PATCH', `/${o}/${level.project}`, { description: 'changed' })
  }
  for (const [what, work] of Object.entries(before)) {
    t.match(await work(), { status: 200 }, what)
    t.strictSame(await sentBy(async () => t.match(await caller.call('GET', path), { status: 200 })), ['append'], what)
  }
  await hasReads(t, caller, 4)
})

t.test('reads of several organizations at once take no transaction', { skip }, async (t) => {
  const worlds = await Promise.all(Array.from({ length: 5 }, world))
  const sent = await sentBy(() => Promise.all(worlds.map(async ({ caller, path }) =>
    t.match(await caller.call('GET', path), { status: 200 }))))
  t.ok(sent.length <= 5 && sent.every((one) => one === 'append'), sent.join())
  for (const { caller } of worlds) await hasReads(t, caller, 1)
})

t.test('after another process has appended an event, reads take a transaction until one was undisturbed', { skip: skipAlone }, async (t) => {
  const { caller, path } = await world()
  const read = () => sentBy(async () => t.match(await caller.call('GET', path), { status: 200 }))
  t.strictSame(await read(), ['append'])
  const args = ['token', 'add', '--organization', caller.organization, '--name', 'Another']
  t.match(await command(args, service.env), { code: 0 })
  t.strictSame(await read(), ['append', ...TRANSACTION], 'the end was another one')
  t.strictSame(await read(), TRANSACTION)
  t.strictSame(await read(), ['append'])
  await hasReads(t, caller, 4)
})

t.test('a new chain key is used by the next read', { skip: skipAlone }, async (t) => {
  const { caller, path } = await world()
  t.equal((await caller.call('GET', path)).status, 200)
  t.equal((await command(['audit', 'rotate-key', '--organization', caller.organization], service.env)).code, 0)
  for (let i = 0; i < 3; i++) t.equal((await caller.call('GET', path)).status, 200)
  await hasReads(t, caller, 4)
})

t.test('where the estimate of the time is wrong, the event has the time of the database', { skip }, async (t) => {
  const { caller, path } = await world()
  const chain = chainOf(service.database.db)
  const { now } = chain
  t.teardown(() => { chain.now = now })
  for (const wrong of [-3_600_000, 3_600_000]) {
    chain.now = () => new Date(now().getTime() + wrong)
    const sent = await sentBy(async () => t.match(await caller.call('GET', path), { status: 200 }))
    t.strictSame(sent, ['append', ...TRANSACTION], String(wrong))
    chain.now = now
    t.strictSame(await sentBy(async () => t.match(await caller.call('GET', path), { status: 200 })), ['append'])
  }
  const strange = await service.sql(`SELECT seq FROM audit_events WHERE organization_id = '${caller.organization}'
    AND occurred_at NOT BETWEEN now() - interval '5 minutes' AND now()`)
  t.equal(strange.length, 0)
  await hasReads(t, caller, 4)
})

t.test('a read whose event the database refuses is 503, and the next read is recorded', { skip }, async (t) => {
  const { caller, path } = await world()
  await service.sql(`CREATE FUNCTION refuse_reads () RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN IF NEW.organization_id = '${caller.organization}' THEN RAISE 'not now'; END IF; RETURN NEW; END $$`)
  await service.sql(`CREATE TRIGGER refuse_reads BEFORE INSERT ON audit_events
    FOR EACH ROW EXECUTE FUNCTION refuse_reads()`)
  try {
    t.match(await caller.call('GET', path), { status: 503, body: { error: 'service_unavailable' } })
  } finally {
    await service.sql('DROP FUNCTION refuse_reads CASCADE')
  }
  t.equal((await caller.call('GET', path)).status, 200)
  await hasReads(t, caller, 1)
})

t.test('two instances read and write one organization at once: each event is there once, in one chain', { skip: skipAlone }, async (t) => {
  const { caller, level, path } = await world()
  const database = await connect({ url: service.env.DATABASE_URL!, pool: 10 })
  await openRows(database, service.keyring)
  const { config, keyring } = service
  const app = await buildApp({ config, database, keyring, costs: QUICK, logStream: { write: () => {} } })
  t.teardown(() => app.close().then(() => database.close()))
  await app.ready()
  const other = callWith({
    inject: async (options) => {
      const { statusCode, headers, payload } = await app.inject(options)
      return { status: statusCode, headers, text: payload, body: JSON.parse(payload) }
    }
  }, caller.token)
  const READS = 40
  const reads = Array.from({ length: READS }, (_, i) => i)
  const answers = await Promise.all([caller.call, other].flatMap((call) => reads.map(async (i) => {
    const { status } = await call('GET', path)
    if (i % 10 !== 0) return [status]
    const stored = await call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: `A=${i}` })
    return [status, stored.status]
  })))
  t.ok(answers.flat().every((status) => status === 200), answers.flat().join())
  await hasReads(t, caller, 2 * READS)
})
