// runs: one database
import { createHash, createSecretKey, randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { and, asc, eq, gte, sql } from 'drizzle-orm'
import t from 'tap'
import { describeVerified, readAnchors, verifyDatabase, verifyFile } from '../../src/commands/audit/audit.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { random, takeKey } from '../../src/crypto/primitives.ts'
import { chainOf } from '../../src/db/rows/authority.ts'
import { connect } from '../../src/db/database.ts'
import { audit_events } from '../../src/db/tables.ts'
import { createChain, eventMac, type ChainedColumn } from '../../src/vault/audit/chain.ts'
import { Anchors, type Verified } from '../../src/vault/audit/verification.ts'
import { makeLevel, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { chainsOf, collect } from '../helpers/chains.ts'
import { command, scratchDirectory } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'

// An attacker with the database can change the audit log in any way. Verification detects each change, in the database
// and in an export.

// This file has its own database, because it forges events, and verifies all chains.
const service = await startIsolatedApp(t)
const { database, keyring } = service
const scratch = scratchDirectory(t)
const { inDatabase, exported, inFile, tampered, anchorsOf } = chainsOf(service, scratch)
const STORED = 8

/** Creates an organization with some events. */
async function world (): Promise<Caller> {
  const caller = await service.organization()
  const level = await makeLevel(caller, { slug: 'orbit' })
  for (let i = 0; i < STORED; i++) {
    await caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: `TOKEN=${i}` })
  }
  await caller.call('GET', `/${caller.organization}/orbit/backend/live/secrets?decrypt=true`)
  return caller
}

const [own, other] = [await world(), await world()]
const [mine, theirs] = [`organization_id = '${own.organization}'`, `organization_id = '${other.organization}'`]
const [{ last }] = await service.sql(`SELECT max(seq)::int AS last FROM audit_events WHERE ${mine}`) as [{ last: number }]
const COLUMNS = 'occurred_at, action, actor_type, actor_id, resource_type, resource_id, request_id, ip, user_agent, details, chain_kid, mac'
const endAt = (seq: number) => `UPDATE organization_counters SET next_event = ${seq} + 1,
  event_head = (SELECT mac FROM audit_events WHERE ${mine} AND seq = ${seq}) WHERE ${mine}`

t.test('what was recorded verifies, in the database and in an export of all or of the last part', async (t) => {
  const all = await inDatabase()
  t.match(all[own.organization], { events: last, broken: null })
  t.match(all[other.organization], { broken: null })
  t.strictSame(await inFile(await exported()), all)
  t.strictSame(await inDatabase(await anchorsOf()), all, 'anchors agree')
  const [{ at }] = await service.sql(
    `SELECT occurred_at::text AS at FROM audit_events WHERE ${mine} AND seq = ${last - 2}`
  ) as [{ at: string }]
  const part = await inFile(await exported(new Date(at)), await anchorsOf())
  t.match(part[own.organization], { broken: null, head: all[own.organization]!.head })
  const { after, events } = part[own.organization]!
  t.ok(after !== null && after > 0 && after < last - 2)
  t.equal(after! + events, last)
  t.match(describeVerified(part[own.organization]!), `after ${after} up to ${last}; earlier events were not checked`)
})

t.test('AU-06: each of nine manipulations is found at the right event, in the database and in exports', async (t) => {
  const anchors = await anchorsOf()
  const cases: [what: string, sequence: number, statements: string[], needsAnchors?: boolean][] = [
    ['one character', 5, [`UPDATE audit_events SET resource_id = 'Z' || substr(resource_id, 2) WHERE ${mine} AND seq = 5`]],
    ['one byte of a MAC', 5, [`UPDATE audit_events SET mac = set_byte(mac, 7, get_byte(mac, 7) # 1) WHERE ${mine} AND seq = 5`]],
    ['no MAC', 5, [`UPDATE audit_events SET mac = NULL WHERE ${mine} AND seq = 5`]],
    ['a member of the details', 6, [`UPDATE audit_events SET details = details || '{"revision": 99}' WHERE ${mine} AND seq = 6`]],
    ['the middle deleted', 6, [`DELETE FROM audit_events WHERE ${mine} AND seq = 6`]],
    ['the middle deleted, the rest moved up', 6, [
      `DELETE FROM audit_events WHERE ${mine} AND seq = 6`,
      `UPDATE audit_events SET seq = -seq WHERE ${mine} AND seq > 6`,
      `UPDATE audit_events SET seq = -seq - 1 WHERE ${mine} AND seq < 0`,
      endAt(last - 1)
    ]],
    ['the tail deleted', last - 1, [`DELETE FROM audit_events WHERE ${mine} AND seq > ${last - 2}`]],
    ['the tail deleted, and the counter put back', last - 1, [
      `DELETE FROM audit_events WHERE ${mine} AND seq > ${last - 2}`, endAt(last - 2)
    ], true],
    ['two swapped', 4, [
      `UPDATE audit_events SET seq = -1 WHERE ${mine} AND seq = 4`,
      `UPDATE audit_events SET seq = 4 WHERE ${mine} AND seq = 7`,
      `UPDATE audit_events SET seq = 7 WHERE ${mine} AND seq = -1`
    ]],
    ['one inserted', last + 1, [
      `INSERT INTO audit_events (organization_id, seq, ${COLUMNS}) SELECT organization_id, ${last + 1}, ${COLUMNS} FROM audit_events WHERE ${mine} AND seq = ${last}`
    ]],
    ['one inserted, and the counter moved', last + 1, [
      `INSERT INTO audit_events (organization_id, seq, ${COLUMNS}) SELECT organization_id, ${last + 1}, ${COLUMNS} FROM audit_events WHERE ${mine} AND seq = ${last}`,
      endAt(last + 1)
    ]],
    ...[0, -1].map((seq): [string, number, string[]] => [`one inserted as ${seq}`, seq, [
      `INSERT INTO audit_events (organization_id, seq, ${COLUMNS}) SELECT organization_id, ${seq}, ${COLUMNS} FROM audit_events WHERE ${mine} AND seq = ${last}`
    ]]),
    ['one inserted as the last number that there is', last + 1, [
      `INSERT INTO audit_events (organization_id, seq, ${COLUMNS}) SELECT organization_id, 9223372036854775807, ${COLUMNS} FROM audit_events WHERE ${mine} AND seq = ${last}`
    ]],
    ['the table truncated', 1, ['TRUNCATE audit_events']],
    ['table and counters truncated', 1, ['TRUNCATE audit_events', 'DELETE FROM organization_counters'], true],
    ['one copied from another organization', 5, [
      `DELETE FROM audit_events WHERE ${mine} AND seq = 5`,
      `INSERT INTO audit_events (organization_id, seq, ${COLUMNS}) SELECT '${own.organization}', seq, ${COLUMNS} FROM audit_events WHERE ${theirs} AND seq = 5`
    ]],
    ['all copied from another organization', 1, [
      `DELETE FROM audit_events WHERE ${mine}`,
      `INSERT INTO audit_events (organization_id, seq, ${COLUMNS}) SELECT '${own.organization}', seq, ${COLUMNS} FROM audit_events WHERE ${theirs}`
    ]],
    ['the head put back', 6, [endAt(5)]],
    ['the head changed', last, [`UPDATE organization_counters SET event_head = '\\x00' WHERE ${mine}`]],
    ['the clock changed', 8, [`UPDATE audit_events SET occurred_at = (SELECT occurred_at - interval '1 hour') WHERE ${mine} AND seq = 8`]]
  ]
  for (const [what, sequence, statements, needsAnchors = false] of cases) {
    await tampered(statements, async () => {
      const text = await exported()
      const sources: [string, (anchors?: Anchors) => Promise<Record<string, Verified>>][] = [
        ['in the database', inDatabase], ['in the export', (given) => inFile(text, given)]
      ]
      for (const [where, verify] of sources) {
        t.equal((await verify(anchors))[own.organization]!.broken?.sequence, sequence, `${what}, ${where}, with anchors`)
        const alone = (await verify())[own.organization]?.broken?.sequence
        t.equal(alone, needsAnchors ? undefined : sequence, `${what}, ${where}, without`)
      }
    })
  }
  t.match((await inDatabase(anchors))[own.organization], { broken: null })
})

t.test('AU-06: an event with a number below 1 is refused, also from a role that may only add events', async (t) => {
  for (const seq of [0, -1]) {
    await t.rejects(service.sql(`INSERT INTO audit_events (organization_id, seq, ${COLUMNS})
      SELECT organization_id, ${seq}, ${COLUMNS} FROM audit_events WHERE ${mine} AND seq = 1`), { cause: { code: '23514' } })
  }
})

t.test('AU-06: a part is verified from a moment on, and says so', async (t) => {
  const [{ at }] = await service.sql(
    `SELECT occurred_at::text AS at FROM audit_events WHERE ${mine} AND seq = ${last - 2}`
  ) as [{ at: string }]
  const since = new Date(at)
  const verify = async (organization?: string, anchors = new Anchors()) =>
    (await collect(verifyDatabase({ database, keyring }, { organization, since }, anchors)))[own.organization]!
  const { after, events, broken } = await verify()
  t.ok(after !== null && after > 0 && after < last - 2)
  t.same([after! + events, broken], [last, null])
  await tampered([`DELETE FROM audit_events WHERE ${mine} AND seq IN (2, ${last})`], async () => {
    t.equal((await verify()).broken?.sequence, last, 'what is before was not looked at')
    t.equal((await inDatabase())[own.organization]!.broken?.sequence, 2)
  })
  const future = new Date(Date.now() + 3_600_000)
  const none = await collect(verifyDatabase({ database, keyring }, { since: future }, new Anchors()))
  t.match(none[own.organization], { after: last, events: 0, broken: null })
})

t.test('verification of one organization that only an anchor names reports that all its events are missing', async (t) => {
  const anchors = await anchorsOf()
  const organization = own.organization.toLowerCase()
  const alone = () => collect(verifyDatabase({ database, keyring }, { organization }, anchors))
  t.match(await alone(), { [own.organization]: { broken: null } })
  const gone = ['audit_events', 'organization_counters'].map((table) => `DELETE FROM ${table} WHERE ${mine}`)
  await tampered([
    ...gone, 'ALTER TABLE organizations RENAME TO kept_organizations',
    `CREATE VIEW organizations AS SELECT * FROM kept_organizations WHERE id <> '${own.organization}'`
  ], async () => {
    try {
      t.match(await alone(), { [own.organization]: { broken: { sequence: 1, reason: /anchor/ } } })
      await t.rejects(
        collect(verifyDatabase({ database, keyring }, { organization }, new Anchors())), /no organization/
      )
      const file = join(scratch, 'without.jsonl')
      writeFileSync(file, await exported())
      t.match(
        await collect(verifyFile(keyring, file, { organization }, anchors)),
        { [own.organization]: { broken: { sequence: 1, reason: /anchor/ } } }
      )
      await t.rejects(collect(verifyFile(keyring, file, { organization }, new Anchors())), /no events/)
    } finally {
      await service.sql('DROP VIEW organizations')
      await service.sql('ALTER TABLE kept_organizations RENAME TO organizations')
    }
  })
})

t.test('AU-03: a change of any column of an event is found', async (t) => {
  const changed: Record<Exclude<ChainedColumn, 'organization_id' | 'seq'>, string> = {
    occurred_at: "(SELECT occurred_at + interval '1 millisecond')",
    action: "action || 'x'",
    actor_type: "'user'",
    actor_id: 'actor_id + 1',
    resource_type: "resource_type || 'x'",
    resource_id: 'NULL',
    request_id: "coalesce(request_id, '') || 'x'",
    ip: "coalesce(ip, '') || 'x'",
    user_agent: "coalesce(user_agent, '') || 'x'",
    details: "coalesce(details, '{}') || '{\"forced\": true}'",
    chain_kid: "chain_kid || 'x'"
  }
  const columns = await service.sql(
    "SELECT column_name AS name FROM information_schema.columns WHERE table_name = 'audit_events'"
  )
  t.strictSame(
    [...Object.keys(changed), 'organization_id', 'seq', 'mac'].sort(), columns.map(({ name }) => name).sort(), 'all of them'
  )
  for (const [column, value] of Object.entries(changed)) {
    await tampered([`UPDATE audit_events SET ${column} = ${value} WHERE ${mine} AND seq = 5`], async () => {
      t.equal((await inDatabase())[own.organization]!.broken?.sequence, 5, column)
    })
  }
})

t.test('AU-03: without the service’s key no chain can be continued: not with a digest, not with another key', async (t) => {
  const events = await beside(() => database.db.select().from(audit_events)
    .where(and(eq(audit_events.organization_id, own.organization), gte(audit_events.seq, 4)))
    .orderBy(asc(audit_events.seq))) as (Record<ChainedColumn, unknown> & { mac: Buffer })[]
  t.same(chainOf(database.db).mac(events[1] as never, events[0]!.mac), events[1]!.mac, 'the service would')
  const key = createSecretKey(randomBytes(32))
  const ways: [how: string, mac: (event: Record<ChainedColumn, unknown>, previous: Buffer) => Buffer][] = [
    ['a digest', (event, previous) => createHash('sha256').update(JSON.stringify(event)).update(previous).digest()],
    ['another key', (event, previous) => eventMac(key, event, previous)]
  ]
  for (const [how, mac] of ways) {
    let previous = events[0]!.mac
    const statements = events.slice(1).map((event) => {
      const forged = { ...event, ...(event.seq === 5 && { action: 'organization.read' }) }
      previous = mac(forged, previous)
      return `UPDATE audit_events SET action = '${String(forged.action)}', mac = '\\x${previous.toString('hex')}'
        WHERE ${mine} AND seq = ${String(event.seq)}`
    })
    await tampered([...statements, endAt(last)], async () => {
      t.equal((await inDatabase())[own.organization]!.broken?.sequence, 5, how)
      t.equal((await inFile(await exported()))[own.organization]!.broken?.sequence, 5, `${how}, in the export`)
    })
  }
})

t.test('a database that was put back and went on is found by an anchor of what was replaced', async (t) => {
  const anchors = await anchorsOf()
  anchors.add({ organization: own.organization, sequence: last - 1, mac: Buffer.alloc(32, 1) })
  for (const found of [await inDatabase(anchors), await inFile(await exported(), anchors)]) {
    t.match(found[own.organization]!.broken, { sequence: last - 1, expected: '01'.repeat(32) })
  }
})

t.test('an export that was edited is reported as broken at the edited event', async (t) => {
  const text = await exported()
  const at = (seq: number) => text.split('\n').find((line) => line.includes(own.organization) && line.includes(`"seq":${seq},`))!
  const edited: [string, string][] = [
    ['a line taken out', text.replace(`${at(5)}\n`, '')],
    ['a line that is none', text.replace(at(5), `${at(5).slice(0, 40)}`)],
    ['a member taken out', text.replace(at(5), at(5).replace(/"action":"[^"]*",/, ''))],
    ['a time that is no RFC 3339', text.replace(at(5), at(5).replace(/("occurred_at":"[^"]*)T/, '$1 '))],
    ['text that has no encoding', text.replace(at(5), at(5).replace(/"action":"[^"]*"/, '"action":"\\ud800"'))]
  ]
  for (const [what, changed] of edited) {
    t.equal((await inFile(changed))[own.organization]!.broken?.sequence, 5, what)
  }
  // Removes the first events, and claims that the chain continues after them.
  const { mac } = JSON.parse(at(3))
  const cut = [1, 2, 3].reduce((rest, seq) => rest.replace(`${at(seq)}\n`, ''), text)
    .replace(new RegExp(`("organization":"${own.organization}",[^\n]*"after":)null`), `$1{"seq":3,"mac":"${mac}"}`)
  t.match(cut, '"after":{"seq":3')
  t.equal((await inFile(cut))[own.organization]!.broken?.sequence, 1, 'the beginning cut off')
  await t.rejects(inFile(text.slice(0, -20)), /is truncated/)
  const lines = text.split('\n')
  const isOwn = (line: string) => line.includes(`"${own.organization}"`)
  const [without, lastOnly] = [lines.filter((line) => !isOwn(line)), [lines[0]!, ...lines.slice(-2)]]
  t.ok(without.length < lines.length - STORED)
  for (const rest of [without, lastOnly]) {
    await t.rejects(inFile(rest.join('\n')), /truncated: its last line states \d+ events of 2 organizations, but it contains/)
  }
  await t.rejects(inFile(text + text), /has trailing data after its last line/)
  await t.rejects(inFile('{"format":"another"}\n'), /is not an audit export/)
  await t.rejects(inFile(''), /empty/)
  const otherKey = text.replace(/"key":"[^"]*"/, `"key":"${Buffer.alloc(80).toString('base64')}"`)
  await t.rejects(inFile(otherKey), /cannot be unwrapped/)
})

t.test('AU-07: while forty write and read, everything verifies, in the database and in each export', {
  skip: database.kind === 'embedded' && 'one connection: the verification uses it'
}, async (t) => {
  const caller = await world()
  const { organization } = caller
  const over = new AbortController()
  const looks: [string, Verified | undefined][] = []
  const look = async (what: string, verify: () => Promise<Record<string, Verified>>) => {
    while (!over.signal.aborted) looks.push([what, (await verify())[organization]])
  }
  const verifying = Promise.all([
    look('in the database', inDatabase),
    look('behind a moment', () =>
      collect(verifyDatabase({ database, keyring }, { organization, since: new Date() }, new Anchors()))),
    look('in the export', async () => inFile(await exported())),
    look('in the export of a part', async () => inFile(await exported(new Date())))
  ])
  const level = { project: 'orbit', target: 'backend', environment: 'live' }
  const answers = await Promise.all(Array.from({ length: 40 }, async (_, i) => {
    const statuses: number[] = []
    for (let round = 0; round < 4; round++) {
      const { status } = i % 2 === 0
        ? await caller.call('POST', `/${organization}/secrets/store`, { ...level, plaintext: `TOKEN=${i}` })
        : await caller.call('GET', `/${organization}/orbit/backend/live/secrets?decrypt=true`)
      statuses.push(status)
    }
    return statuses
  })).finally(() => { over.abort() })
  await verifying
  t.strictSame([...new Set(answers.flat())], [200])
  for (const [what, verified] of looks) t.equal(verified?.broken, null, what)
  t.equal(new Set(looks.map(([what]) => what)).size, 4)
  const { events, broken } = (await inDatabase())[organization]!
  t.equal(broken, null)
  t.match((await inFile(await exported()))[organization], { events, broken: null })
})

t.test('AU-07: an anchor is due a thousand events after the last one, or ten minutes after the first without', async (t) => {
  let now = 0
  const chain = createChain('events', takeKey(random(32)), () => takeKey(random(32)), () => now)
  const record = (id: string, sequence: number) =>
    chain.recorded(id, { next_event: sequence + 1, event_head: Buffer.alloc(32), chain_kid: null })
  t.same(chain.due(), [])
  for (let sequence = 1; sequence <= 1_000; sequence++) record('busy', sequence)
  record('quiet', 1)
  t.same(chain.due(), [])
  record('busy', 1_001)
  t.same(chain.due(), ['busy'])
  chain.anchored('busy', 1_001)
  t.same(chain.due(), [])
  now = 10 * 60_000 - 1
  record('quiet', 2)
  t.same(chain.due(), [])
  now++
  t.same(chain.due(), ['quiet'], 'by the first of them')
  record('quiet', 3)
  chain.anchored('quiet', 2)
  t.same(chain.due(), [], 'what came meanwhile waits for the next one')
  t.same(chain.due(true), ['quiet'], 'or for the end of the service')
  now += 10 * 60_000
  t.same(chain.due(), ['quiet'])
  chain.anchored('quiet', 3)
  t.same(chain.due(true), [])
})

t.test('AU-07: anchors are written at the end of a service for all that had some events', async (t) => {
  const one = await startIsolatedApp(t)
  const caller = await one.organization()
  await makeLevel(caller, { slug: 'orbit' })
  const [head] = await one.sql(`SELECT next_event::int - 1 AS sequence, encode(event_head, 'hex') AS mac
    FROM organization_counters WHERE organization_id = '${caller.organization}'`)
  await one.app.close()
  const lines = one.logs.filter((line) => line.includes('audit anchor'))
  t.match(lines.map((line) => JSON.parse(line)), [{ organization: caller.organization, ...head }])
  const file = join(scratch, 'log.jsonl')
  writeFileSync(file, `not a line\n${one.logs.join('')}{"msg":"audit anchor","organization":7}\n`)
  const anchors = await readAnchors(file)
  t.strictSame(anchors.organizations(), [caller.organization])
  t.strictSame(anchors.last(caller.organization), head)
})

t.test('the command says what is broken with exit status 1, and 2 when it cannot tell', async (t) => {
  const dir = scratchDirectory(t)
  const env = { DATA_DIR: dir, MASTER_KEY: generateMasterKey().text }
  t.equal((await command(['init', '--organization', 'Nimbus', '--email', 'owner@nimbus.example'], env)).code, 0)
  t.match(await command(['audit', 'verify'], env), { code: 0, stdout: /^\w{26}: (\d+) events verified, up to \1\n$/ })
  const { stdout, code } = await command(['audit', 'export', '--organization', 'nimbus'], env)
  t.equal(code, 0)
  const file = join(dir, 'export.jsonl')
  writeFileSync(file, stdout)
  // Verifies an export without a database.
  const alone = { DATA_DIR: join(dir, 'none'), MASTER_KEY: env.MASTER_KEY }
  t.match(await command(['audit', 'verify', '--file', file], alone), { code: 0 })
  t.same(await command(['audit', 'verify', '--file', `${file}.none`], alone), {
    code: 2, stdout: '', stderr: `${file}.none cannot be read (ENOENT)\n`
  })
  writeFileSync(file, stdout.replace('"seq":1,', '"seq":1,"ip":"203.0.113.1",').replace('"ip":null,', ''))
  const broken = await command(['audit', 'verify', '--file', file, '--json'], alone)
  t.equal(broken.code, 1)
  t.match(JSON.parse(broken.stdout), { events: 0, broken: { sequence: 1, expected: /^\w{64}$/, actual: /^\w{64}$/ } })
  const [none, empty] = [join(dir, 'none.jsonl'), join(dir, 'empty.jsonl')]
  writeFileSync(none, '{"level":30,"msg":"another file"}\n')
  writeFileSync(empty, '')
  for (const [args, more, stderr] of [
    [['--file', none], {}, /is not an audit export/],
    [['--file', empty], {}, /is empty/],
    [['--file', dir], {}, /EISDIR/],
    [['--file', file], { MASTER_KEY: generateMasterKey().text }, /is missing/],
    [['--file', join(dir, 'nothing')], {}, /ENOENT/],
    [['--file', file, '--organization', '01ARZ3NDEKTSV4RRFFQ69G5FAV'], {}, /no events of the organization/],
    [['--organization', 'nobody'], {}, /no organization/],
    [['--anchors', join(dir, 'nothing')], {}, /ENOENT/]
  ] as const) {
    t.match(await command(['audit', 'verify', ...args], { ...env, ...more }), { code: 2, stdout: '', stderr })
  }
  t.match(await command(['audit', 'export', '--since', 'yesterday'], env), { code: 2, stderr: /--since/ })
  t.match(await command(['audit', 'verify', '--since', '2026-03-01', '--file', file], env), { code: 2, stderr: /--since/ })
  t.match(await command(['audit', 'verify', '--since', '2099-01-01T00:00:00Z'], env), {
    code: 0, stdout: /^\w{26}: 0 events verified, after (\d+) up to \1; earlier events were not checked\n$/
  })
  const opened = await connect({ dir: join(dir, 'postgres'), pool: 1 })
  for (const one of ['ALTER TABLE audit_events DISABLE TRIGGER USER', "UPDATE audit_events SET ip = '203.0.113.1' WHERE seq = 1"]) {
    await beside(async () => await opened.db.execute(sql.raw(one)))
  }
  await opened.close()
  t.match(await command(['audit', 'verify'], env), { code: 1, stdout: /event 1 is not what was recorded/ })
})
