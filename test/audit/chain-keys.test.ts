// runs: one database
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { asc, eq, sql, type SQL } from 'drizzle-orm'
import t from 'tap'
import { buildApp } from '../../src/app.ts'
import { rotateChainKey, rotateChainKeys, verifyDatabase } from '../../src/commands/audit/audit.ts'
import { rewrap } from '../../src/commands/keys/rewrap.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../../src/crypto/keyring.ts'
import { random, takeKey } from '../../src/crypto/primitives.ts'
import { chainOf } from '../../src/db/rows/authority.ts'
import { connect, type Database } from '../../src/db/database.ts'
import { transaction } from '../../src/changes/transaction.ts'
import type { ChainedEvent } from '../../src/db/events.ts'
import { audit_events } from '../../src/db/tables.ts'
import { recordLate, recordOfPerson } from '../../src/changes/late.ts'
import { listLate, systemOf } from '../../src/repositories/audit/audit.ts'
import { handOverProof } from '../../src/vault/audit/chain.ts'
import { createLateEventWorker } from '../../src/jobs/late-events.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { Anchors } from '../../src/vault/audit/verification.ts'
import { freshDatabase, makeLevel, makeOrganization, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { chainsOf, collect } from '../helpers/chains.ts'
import { QUICK } from '../helpers/costs.ts'
import { LONG } from '../helpers/long.ts'
import { command, emptyPlace, scratchDirectory } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'
import { until } from '../helpers/until.ts'

// The key of a chain changes while the service runs. An attacker has the former key and the database. Verification
// finds each change of earlier or later events.

t.setTimeout(120_000)

let url: string | undefined
// This file has its own database, because it changes the chain keys of the installation, and verifies all of it.
const service = await startIsolatedApp(t, {}, QUICK, async (of) => { url = of; return of })
const { database, keyring } = service
const scratch = scratchDirectory(t)
const { inDatabase, exported, inFile, tampered, anchorsOf } = chainsOf(service, scratch)
const severalProcesses = { skip: url === undefined && 'one process at a time has an embedded database' }

const level = { project: 'orbit', target: 'backend', environment: 'live' }
const store = (caller: Caller, i: number) =>
  caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: `TOKEN=${i}` })
const read = (caller: Caller) => caller.call('GET', `/${caller.organization}/orbit/backend/live/secrets?decrypt=true`)

async function world (events = 0): Promise<Caller> {
  const caller = await service.organization()
  await makeLevel(caller, { slug: 'orbit' })
  for (let i = 0; i < events; i++) await store(caller, i)
  return caller
}

const rotate = async ({ organization }: Caller) => (await rotateChainKey(database.db, keyring, organization))!
const eventsOf = async ({ organization }: Caller) => await service.sql(
  `SELECT seq::int, action, chain_kid, mac FROM audit_events WHERE organization_id = '${organization}' ORDER BY seq`
) as { seq: number, action: string, chain_kid: string, mac: Buffer }[]

/** Records an event like a sign-in of a person. Returns whether one of the events became late. */
const signIn = (through: Database, ...callers: Caller[]) => transaction(through.db, async (db) => recordOfPerson(
  db, callers.map(({ organization }) => systemOf(organization)),
  { action: 'session.create', resource_type: 'user', resource_id: '1' }
))

/** Runs the work while a transaction locks the counter of an organization. */
const holding = ({ organization }: Caller, work: () => Promise<unknown>) => transaction(database.db, async (db) => {
  await beside(async () => db.execute(
    sql`SELECT FROM organization_counters WHERE organization_id = ${organization} FOR UPDATE`
  ))
  await work()
})

/** Another process on the database, with its own ring. */
async function process (ring = keyring) {
  const its = await connect({ url: url!, pool: 5 })
  await openRows(its, ring)
  const app = await buildApp({
    config: service.config, database: its, keyring: ring, costs: QUICK, logStream: { write: () => {} }
  })
  await app.ready()
  const close = async () => {
    await app.close()
    await its.close()
  }
  const through = (caller: Caller): Caller => ({
    ...caller,
    call: async (method, path, payload) => {
      const response = await app.inject({
        method: method as 'GET',
        url: `/api/v1${path}`,
        headers: { authorization: `Bearer ${caller.token}` },
        ...(payload !== undefined && { payload: payload as object })
      })
      return { status: response.statusCode, headers: response.headers, text: response.payload, body: response.json() }
    }
  })
  return { database: its, through, close }
}

t.test('AU-03: a chain is handed over to another key and verifies across it, in the database and in exports', async (t) => {
  const caller = await world(2)
  const { organization } = caller
  const anchors = await anchorsOf()
  const before = (await eventsOf(caller)).length
  const first = await rotate(caller)
  t.equal(first.from_seq, before + 2)
  t.equal((await store(caller, 3)).status, 200)
  t.equal((await read(caller)).status, 200)
  const between = new Date()
  t.same((await eventsOf(caller)).slice(before).map(({ action, chain_kid }) => [action, chain_kid]), [
    ['chain-key.rotate', 'events'], ['secret.store', first.kid], ['secret.decrypt', first.kid]
  ])
  const listed = await caller.call('GET', `/${organization}/audit-events?action=chain-key.rotate`)
  t.match(listed.body.data.map(({ attributes }: { attributes: object }) => attributes), [
    { action: 'chain-key.rotate', actor: { type: 'operator' }, resource: { type: 'chain-key', id: first.kid } }
  ])

  const second = await rotate(caller)
  const third = await rotate(caller)
  t.equal(third.from_seq, second.from_seq + 1, 'one key hands over to the next at once')
  t.equal((await store(caller, 4)).status, 200)
  const all = await inDatabase(anchors)
  t.match(all[organization], { last: before + 6, events: before + 6, broken: null }, 'anchors from before agree')
  const text = await exported()
  t.strictSame(await inFile(text, await anchorsOf()), all)
  t.equal(text.match(/"chain_key"/g)!.length, 3)
  const place = `"from_seq":${third.from_seq},"organization_id":"${organization}"`
  for (const [said, instead] of [
    [place, place.replace(/\d+/, '"x"')], [place, place.replace(/\d+/, '1e300')],
    [`"chain_key":"${third.kid}"`, '"chain_key":"\\ud800"']
  ] as const) {
    t.ok(text.includes(said))
    const found = (await inFile(text.replace(said, instead)))[organization]
    t.match(found, { broken: { sequence: third.from_seq - 1 } }, instead)
  }

  const part = await exported(between)
  t.match((await inFile(part))[organization], { after: before + 3, events: 3, broken: null })
  t.equal(part.match(/"chain_key"/g)!.length, 3, 'the one in force where it begins, and what follows')
  const end = await exported(new Date(Date.now() + 60_000))
  t.match((await inFile(end))[organization], { events: 0, broken: null })
  t.match(end.match(/"chain_key":"\w+"/g), [`"chain_key":"${third.kid}"`], 'and none that it does not need')
})

t.test('AU-06: each manipulation across a hand-over is found at the right event, even with the former key', async (t) => {
  const [caller, other] = [await world(2), await world(1)]
  const own = `organization_id = '${caller.organization}'`
  const key = await rotate(caller)
  const theirs = await rotate(other)
  const at = key.from_seq - 1
  for (let i = 0; i < 3; i++) await store(caller, i)
  const last = (await eventsOf(caller)).length
  const anchors = await anchorsOf()
  const chain = chainOf(database.db)
  const rows = await beside(() => database.db.select().from(audit_events)
    .where(eq(audit_events.organization_id, caller.organization)).orderBy(asc(audit_events.seq))
  ) as (ChainedEvent & { mac: Buffer })[]

  /** Changes a range of events and computes their MACs again, each with the key that the event names. */
  const resealed = (from: number, to: number, change: (event: ChainedEvent) => ChainedEvent) => {
    let previous = rows[from - 2]!.mac
    return rows.slice(from - 1, to).map((row) => {
      const event = change(row)
      previous = chain.mac(event, previous)
      return `UPDATE audit_events SET action = '${event.action}', chain_kid = '${event.chain_kid}',
        resource_id = '${event.resource_id}', details = '${JSON.stringify(event.details)}', mac = '\\x${previous.toString('hex')}'
        WHERE ${own} AND seq = ${row.seq}`
    })
  }
  const endAt = (seq: number, kid: string | null) => `UPDATE organization_counters SET next_event = ${seq} + 1,
    chain_kid = ${kid === null ? 'NULL' : `'${kid}'`},
    event_head = (SELECT mac FROM audit_events WHERE ${own} AND seq = ${seq}) WHERE ${own}`
  const cut = [`DELETE FROM audit_events WHERE ${own} AND seq >= ${at}`, endAt(at - 1, null)]
  const noKey = `DELETE FROM chain_keys WHERE ${own}`
  const forged = (event: ChainedEvent) => event.seq === at - 1 ? { ...event, action: 'organization.read' } : event
  const mine = { organization_id: caller.organization, kid: '01ARZ3NDEKTSV4RRFFQ69G5FAV', from_seq: at + 1 }
  const planted = handOverProof(takeKey(random(32)), mine, rows[at - 2]!.mac).toString('hex')

  const strange = createKeyring([parseMasterKey(generateMasterKey().text)]).wrap(random(32), random(8))

  const cases: [what: string, sequence: number | undefined, statements: string[], isOlder?: boolean][] = [
    ['the hand-over removed', at, [`DELETE FROM audit_events WHERE ${own} AND seq = ${at}`]],
    ['the hand-over removed, the rest moved up', at, [
      `DELETE FROM audit_events WHERE ${own} AND seq = ${at}`,
      `UPDATE audit_events SET seq = -seq WHERE ${own} AND seq > ${at}`,
      `UPDATE audit_events SET seq = -seq - 1 WHERE ${own} AND seq < 0`, endAt(last - 1, key.kid)
    ]],
    ['the hand-over made another event, by who has the former key', at, resealed(at, at, (event) =>
      ({ ...event, action: 'project.update' }))],
    ['a key of their own, by who has the former key', at, [
      ...resealed(at, at, (event) => ({ ...event, resource_id: mine.kid, details: { proof: planted } })),
      `UPDATE chain_keys SET kid = '${mine.kid}' WHERE ${own}`
    ]],
    ['an event before changed, by who has the former key', at, resealed(at - 1, at, forged)],
    ['the same with the hand-over as the last event', at, [
      ...resealed(at - 1, at, forged), `DELETE FROM audit_events WHERE ${own} AND seq > ${at}`, endAt(at, key.kid)
    ]],
    ['events behind it under the former key', at + 1, [
      ...resealed(at + 1, last, (event) => ({ ...event, chain_kid: chain.kid })), endAt(last, null)
    ]],
    ['the key removed', at, [noKey]],
    ['another key in its place', at, [
      `UPDATE chain_keys SET wrapped = '\\x${theirs.wrapped.toString('hex')}' WHERE ${own}`
    ]],
    ['the key said to be from a later event on', at, [`UPDATE chain_keys SET from_seq = from_seq + 1 WHERE ${own}`]],
    ['the key said to be from where no number is', at, [`UPDATE chain_keys SET from_seq = ${2n ** 60n} WHERE ${own}`]],
    ['the key said to be from before all', at, [`UPDATE chain_keys SET from_seq = 0 WHERE ${own}`]],
    ['the key under an unknown master key', at, [
      `UPDATE chain_keys SET wrapped = '\\x${strange.toString('hex')}' WHERE ${own}`
    ]],
    ['such a key as one more', undefined, [`INSERT INTO chain_keys (organization_id, kid, from_seq, wrapped)
      VALUES ('${caller.organization}', '${mine.kid}', ${at}, '\\x${strange.toString('hex')}')`]],
    ['all from the hand-over on cut off', at, cut],
    ['all from the hand-over on cut off, and the key', undefined, [...cut, noKey], true],
    ['the counter said to be under the former key', last + 1, [`UPDATE organization_counters SET chain_kid = NULL WHERE ${own}`]]
  ]
  for (const [i, [what, sequence, statements, isOlder]] of cases.entries()) {
    await tampered(statements, async () => {
      const text = LONG || i % 2 === 1 ? await exported() : ''
      // Without LONG, alternates between the two.
      for (const [where, verify] of ([
        ['in the database', inDatabase], ['in the export', (given?: Anchors) => inFile(text, given)]
      ] as const).filter((_, which) => LONG || which === i % 2)) {
        t.equal((await verify())[caller.organization]!.broken?.sequence, sequence, `${what}, ${where}`)
        t.equal((await verify(anchors))[caller.organization]!.broken?.sequence, isOlder ? at : sequence, `${what}, ${where}, anchors`)
        t.equal((await verify())[other.organization]!.broken, null)
      }
    })
  }
  t.match((await inDatabase(anchors))[caller.organization], { events: last, broken: null })
})

t.test('an export says nothing of itself that the service did not: not from where on it is, and not of whom', async (t) => {
  const caller = await world(4)
  const { organization } = caller
  const events = await eventsOf(caller)
  const last = events.length
  const [whole, part] = [await exported(), await exported(new Date(Date.now() + 60_000))]
  const isOwn = (line: string, seq: number) => line.includes(`"organization_id":"${organization}","seq":${seq},`)
  const lineOf = (text: string) => text.split('\n').find((line) => line.startsWith(`{"organization":"${organization}"`))!
  const since = (text: string, time: string | null) => text.replace(/"since":(null|"[^"]*")/, `"since":${JSON.stringify(time)}`)
  const without = (text: string, upTo: number) =>
    text.split('\n').filter((line) => !events.some(({ seq }) => seq <= upTo && isOwn(line, seq))).join('\n')
  const behind = (text: string, seq: number) => text.replace(lineOf(text), JSON.stringify({
    ...JSON.parse(lineOf(text)), after: { seq, mac: events[seq - 1]!.mac.toString('hex') }
  }))
  const moment = '2026-03-01T00:00:00.000Z'
  const cases: [what: string, text: string][] = [
    ['a whole one made a part', behind(without(since(whole, moment), 3), 3)],
    ['a whole one said to be a part', since(whole, moment)],
    ['a part said to be of another moment', since(part, moment)],
    ['a part said to be a whole one', since(part, null)],
    ['the line of another export put in', whole.replace(lineOf(whole), lineOf(part))],
    ['the MAC taken out', whole.replace(lineOf(whole), lineOf(whole).replace(/,"mac":"\w+"\}$/, '}'))],
    ['said to be of this one alone', whole.replace('"organization":null', `"organization":"${organization}"`)]
  ]
  t.equal(new Set(cases.map(([, text]) => text)).size, cases.length)
  for (const [what, text] of cases) {
    t.not(text, whole)
    t.match((await inFile(text))[organization], { broken: { sequence: 1 } }, what)
  }
  t.match((await inFile(whole))[organization], { events: last, after: null, broken: null })
  t.match((await inFile(part))[organization], { events: 0, after: last, broken: null })
  await t.rejects(inFile(whole.replace('export 2', 'export 1')), /incompatible build/)
})

t.test('an organization whose key is gone records nothing more, and no other one suffers', severalProcesses, async (t) => {
  const count = async (one: Caller) => (await eventsOf(one)).length
  for (const change of ["wrapped = '\\x00'", `from_seq = ${2n ** 60n}`]) {
    const [caller, other] = [await world(1), await world(1)]
    for (const one of [caller, other]) await rotate(one)
    const before = [await count(caller), await count(other)] as const
    await tampered([`UPDATE chain_keys SET ${change} WHERE organization_id = '${caller.organization}'`], async () => {
      const second = await process()
      const [there, otherThere] = [second.through(caller), second.through(other)]
      t.match(await store(there, 1), { status: 500, body: { error: 'integrity_error' } }, change)
      t.ok((await read(there)).status >= 500)
      t.equal((await store(otherThere, 1)).status, 200)
      await signIn(second.database, caller, other)
      t.same([await count(caller), await count(other)], [before[0], before[1] + 2], 'a person is kept out by none')
      await second.close()
    })
  }
})

t.test('late events are numbered beside an organization whose key is gone, and one that is held', severalProcesses, async (t) => {
  const [broken, held, other] = [await world(1), await world(1), await world(1)]
  await rotate(broken)
  const signIns = async (one: Caller) => (await eventsOf(one)).filter(({ action }) => action === 'session.create').length
  await tampered([`DELETE FROM chain_keys WHERE organization_id = '${broken.organization}'`], async () => {
    const second = await process()
    const failed: unknown[] = []
    const worker = createLateEventWorker({
      db: second.database.db,
      log: { info: () => {}, warn: (details) => { failed.push((details as { organization?: string }).organization) } }
    })
    try {
      await holding(held, async () => {
        t.ok(await signIn(second.database, broken, held))
        worker.wake()
        await until(() => failed.includes(broken.organization))
        await holding(other, async () => t.ok(await signIn(second.database, other)))
        worker.wake()
        await until(async () => await signIns(other) === 1)
        t.equal(await signIns(held), 0)
      })
      await until(async () => await signIns(held) === 1)
      t.equal(failed.filter((id) => id === broken.organization).length, 1, 'what failed is left to a later look')
      await t.rejects(recordLate(second.database.db, broken.organization), { name: 'TamperedRow' })
    } finally {
      await worker.stop()
      await second.close()
    }
  })
})

/**
 * A worker that numbers late events, and its log: the number of recorded events of each organization, and its failures.
 */
function lateEvents ({ db }: Database, retryDelay?: number) {
  const said: { organization: string, events: number | undefined }[] = []
  const say = (details: object) => { said.push({ events: undefined, ...details as { organization: string } }) }
  return { said, ...createLateEventWorker({ db, log: { info: say, warn: say }, retryDelay }) }
}

/** Wakes a worker until a condition holds. */
async function wakeUntil (one: ReturnType<typeof lateEvents>, condition: () => boolean | Promise<boolean>) {
  one.wake()
  await until(condition, { every: 20, again: () => one.wake() })
}

t.test('an organization whose key is gone is retried after a delay or a start, however often others wake it', severalProcesses, async (t) => {
  const [broken, ...others] = [await world(1), await world(1), await world(1), await world(1)] as const
  await rotate(broken)
  const second = await process()
  const started: ReturnType<typeof lateEvents>[] = []
  const start = (retryDelay: number) => {
    const one = lateEvents(second.database, retryDelay)
    started.push(one)
    return one
  }
  const failures = ({ said }: ReturnType<typeof lateEvents>) =>
    said.filter(({ organization, events }) => organization === broken.organization && events === undefined).length
  try {
    await tampered([`DELETE FROM chain_keys WHERE organization_id = '${broken.organization}'`], async () => {
      t.ok(await signIn(second.database, broken))
      const one = start(600_000)
      await wakeUntil(one, () => failures(one) > 0)
      for (const other of others) {
        await holding(other, async () => t.ok(await signIn(second.database, other)))
        await wakeUntil(one, () => one.said.some(({ organization }) => organization === other.organization))
      }
      t.equal(failures(one), 1)
      const restarted = start(600_000)
      await wakeUntil(restarted, () => failures(restarted) === 1)
      const soon = start(1)
      await wakeUntil(soon, () => failures(soon) >= 3)
    })
    const mended = start(1)
    // The worker of the service also records late events, and can be faster.
    const isNumbered = async () => (await eventsOf(broken)).some(({ action }) => action === 'session.create')
    await wakeUntil(mended, isNumbered)
  } finally {
    await Promise.all(started.map((one) => one.stop()))
    await second.close()
  }
})

t.test('late events of organizations are numbered by turns, and looked up some at a time', severalProcesses, async (t) => {
  const all = [await world(1), await world(1), await world(1)]
  const ids = all.map(({ organization }) => organization)
  for (const one of all) await holding(one, async () => t.ok(await signIn(database, one)))
  const page = await listLate(database.db, '', 2)
  t.strictSame([page, await listLate(database.db, page[1], 2)], [ids.slice(0, 2), ids.slice(2)])
  // Copies of a late event that the service did not write. The worker checks each copy and records none.
  await service.sql(`INSERT INTO late_events (organization_id, occurred_at, event, mac)
    SELECT organization_id, occurred_at, event, mac FROM late_events, generate_series(1, 600)
    WHERE organization_id = '${ids[0]}'`)
  const worker = lateEvents(database)
  await wakeUntil(worker, async () => (await listLate(database.db)).length === 0)
  await worker.stop()
  const order = worker.said.map(({ organization }) => ids.indexOf(organization))
  t.strictSame(order, [0, 1, 2, 0, 0, 0])
})

t.test('the command rotates one chain or all of them', async (t) => {
  const dir = scratchDirectory(t)
  const env = { ...await emptyPlace(t), MASTER_KEY: generateMasterKey().text }
  t.equal((await command(['init', '--organization', 'Nimbus', '--email', 'owner@nimbus.example'], env)).code, 0)
  const said = /^(\w{26}: events from \d+ on use the key \w{26}\n)+$/
  t.match(await command(['audit', 'rotate-key', '--organization', 'nimbus'], env), { code: 0, stdout: said, stderr: '' })
  t.match(await command(['audit', 'rotate-key', '--all'], env), { code: 0, stdout: said, stderr: '' })
  const file = join(dir, 'export.jsonl')
  writeFileSync(file, (await command(['audit', 'export'], env)).stdout)
  for (const more of [[], ['--file', file]]) {
    t.match(await command(['audit', 'verify', ...more], env), { code: 0, stdout: /events verified/ })
  }
  // A new organization replaces the first key at once, because the handover of the chains may follow a leak of that
  // key.
  t.equal((await command(['organization', 'add', '--name', 'Cirrus'], env)).code, 0)
  const events = (await command(['audit', 'export', '--organization', 'cirrus'], env)).stdout.split('\n')
    .filter((line) => line.includes('"seq"')).map((line) => JSON.parse(line))
  t.match(events, [{ action: 'chain-key.rotate', chain_kid: 'events' }, { action: 'organization.create', chain_kid: /^\w{26}$/ }])
  t.match(await command(['audit', 'verify', '--organization', 'cirrus'], env), { code: 0 })
  for (const args of [[], ['--all', '--organization', 'nimbus']]) {
    t.match(await command(['audit', 'rotate-key', ...args], env), { code: 2, stderr: /--organization ID, or --all/ })
  }
  t.match(await command(['audit', 'rotate-key', '--organization', 'nobody'], env), { code: 1, stderr: /no organization/ })
})

t.test('one chain that cannot be handed over keeps no other from it, and what is gone is told', async (t) => {
  const place = await emptyPlace(t)
  const env = { ...place, MASTER_KEY: generateMasterKey().text }
  const inside = async (statement: SQL) => {
    const { DATABASE_URL: url, DATA_DIR: dir = '' } = place
    const its = await connect(url === undefined ? { dir: join(dir, 'postgres'), pool: 1 } : { url, pool: 1 })
    try {
      return await beside(async () => its.db.execute(statement)) as unknown as { id: string }[]
    } finally {
      await its.close()
    }
  }
  t.equal((await command(['init', '--organization', 'Nimbus', '--email', 'owner@nimbus.example'], env)).code, 0)
  for (const name of ['Cirrus', 'Stratus']) t.equal((await command(['organization', 'add', '--name', name], env)).code, 0)
  const rotateAll = () => command(['audit', 'rotate-key', '--all'], env)
  t.match(await rotateAll(), { code: 0, stdout: /^(.*\n){3}$/, stderr: '' })
  const [broken] = await inside(sql`WITH first AS (SELECT min(organization_id) AS id FROM chain_keys)
    DELETE FROM chain_keys USING first WHERE organization_id = first.id RETURNING organization_id AS id`)
  const after = await rotateAll()
  t.match(after, { code: 1, stdout: /^(.*\n){2}$/, stderr: `${broken!.id}: a row is not what the service wrote\n` })
  t.notMatch(after.stdout, broken!.id)
  t.match(await command(['audit', 'rotate-key', '--organization', broken!.id], env), { code: 1, stdout: '', stderr: after.stderr })

  await inside(sql`DELETE FROM organization_counters WHERE organization_id = ${broken!.id}`)
  t.match(await command(['audit', 'rotate-key', '--organization', broken!.id], env), {
    code: 1, stdout: '', stderr: `${broken!.id}: the organization is deleted, so its chain is closed\n`
  })
  t.match(await rotateAll(), { code: 0, stdout: /^(.*\n){2}$/, stderr: '' }, 'of all, those that are')
})

t.test('an organization that is made while all are handed over is one of them', async (t) => {
  const one = await freshDatabase()
  t.teardown(async () => {
    await one.database.close()
    await one.drop()
  })
  await openRows(one.database, keyring)
  const make = async () => makeOrganization(one.database.db, keyring)
  const expected = [await make(), await make()]
  const handedOver: string[] = []
  for await (const { line, isDone } of rotateChainKeys({ database: one.database, keyring }, undefined)) {
    t.ok(isDone)
    handedOver.push(line.slice(0, 26))
    if (expected.length === 2) expected.push(await make())
  }
  t.strictSame(handedOver, expected)
})

t.test('CR-14: a re-wrap puts the keys of chains under the newest master key', async (t) => {
  const one = await freshDatabase()
  t.teardown(async () => {
    await one.database.close()
    await one.drop()
  })
  const [old, renewed] = [generateMasterKey(), generateMasterKey()].map(({ text }) => parseMasterKey(text))
  const before = createKeyring([old!])
  await openRows(one.database, before)
  const { db } = one.database
  const organization = await makeOrganization(db, before)
  for (let i = 0; i < 2; i++) t.ok(await rotateChainKey(db, before, organization))
  const both = { database: one.database, keyring: createKeyring([renewed!, old!]) }
  const move = (from: bigint, to: bigint) => beside(async () => db.execute(
    sql`UPDATE chain_keys SET from_seq = ${String(to)} WHERE organization_id = ${organization} AND from_seq = ${String(from)}`
  ))
  await move(2n, 2n ** 60n)
  t.match(await rewrap(both), {
    rewrapped: 4, failures: [/^chain_keys \w{26}: .* fails authentication/], older: [{ id: old!.id, values: 1 }]
  }, 'the storage key, rows, events, and the key that was left alone')
  await move(2n ** 60n, 2n)
  t.match(await rewrap(both), { rewrapped: 1, failures: [], older: [{ id: old!.id, values: 0 }] })
  const after = { database: one.database, keyring: createKeyring([renewed!]) }
  t.match((await collect(verifyDatabase(after, {}, new Anchors())))[organization], { events: 2, broken: null })
})

t.test('a process that knows the former key goes on under the next one at once, with writes and reads', severalProcesses, async (t) => {
  const caller = await world(1)
  const second = await process()
  t.teardown(second.close)
  const there = second.through(caller)
  for (const action of [() => store(there, 1), () => read(there)]) {
    t.equal((await action()).status, 200)
    const { kid } = await rotate(caller)
    t.equal((await action()).status, 200)
    t.equal((await eventsOf(caller)).at(-1)!.chain_kid, kid)
  }
  t.match((await inDatabase())[caller.organization], { broken: null })
})

t.test('an event that waited for its number across a rotation gets it under the next key', severalProcesses, async (t) => {
  const caller = await world(1)
  const { organization } = caller
  await holding(caller, async () => { t.ok(await signIn(database, caller), 'it is late') })
  const { kid } = await rotate(caller)
  await until(async () => await recordLate(database.db, organization) === 0)
  t.match((await eventsOf(caller)).filter(({ action }) => action === 'session.create'), [{ chain_kid: kid }])
  t.match((await inDatabase())[organization], { broken: null })
})

t.test('AU-03: with twenty clients of two processes, key changes refuse, lose and break nothing', severalProcesses, async (t) => {
  const caller = await world(1)
  const { organization } = caller
  const second = await process()
  t.teardown(second.close)
  const before = (await eventsOf(caller)).length
  const ROTATIONS = LONG ? 4 : 2
  let rotations = 0
  const clients = Array.from({ length: 20 }, async (_, i) => {
    const own = i % 2 === 0 ? caller : second.through(caller)
    const statuses: number[] = []
    // Each client has a running request during each rotation, and a request after the last rotation.
    for (let isLast = false; !isLast;) {
      isLast = rotations === ROTATIONS
      statuses.push((await (i % 4 < 2 ? store(own, i) : read(own))).status)
    }
    return statuses
  })
  const kids = ['events']
  try {
    for (; rotations < ROTATIONS; rotations++) {
      for await (const { line } of rotateChainKeys({ database: second.database, keyring }, organization)) {
        kids.push(/(\w{26})$/.exec(line)![1]!)
      }
    }
  } finally {
    rotations = ROTATIONS
  }
  const statuses = (await Promise.all(clients)).flat()
  t.strictSame([...new Set(statuses)], [200])
  const events = await eventsOf(caller)
  t.equal(events.length, before + statuses.length + ROTATIONS)
  t.same([...new Set(events.map(({ chain_kid }) => chain_kid))], kids, 'one after the other')
  t.match((await inDatabase())[organization], { events: events.length, broken: null })
  t.match((await inFile(await exported()))[organization], { events: events.length, broken: null })
})
