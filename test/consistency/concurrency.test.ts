// runs: one database; 25 s
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { sql, type SQL } from 'drizzle-orm'
import t, { type Test } from 'tap'
import { transaction } from '../../src/changes/transaction.ts'
import type { Db } from '../../src/db/database.ts'
import { recordLate } from '../../src/changes/late.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { hashToken } from '../../src/crypto/bearer.ts'
import { codeAt, stepAt } from '../../src/crypto/second-factor.ts'
import { beginFactor } from '../../src/vault/keys/second-factor.ts'
import { revokeToken } from '../../src/commands/people/tokens.ts'
import { switchUser } from '../../src/commands/people/users.ts'
import { createClient } from '../../src/repositories/people/oauth.ts'
import { ACTIVITY, ON_CITUS, startIsolatedApp, type Caller, type TestApp } from '../helpers/app.ts'
import { deadlocksOnCitus } from '../helpers/citus.ts'
import { LONG } from '../helpers/long.ts'
import { issuePair, makePerson, post, type Person } from '../helpers/people.ts'
import {
  client, failedInside, look, makeLevels, mix, ON_POSTGRES, opener, patient, patiently, random, replay, scale,
  startInstances, statuses, store, times, untilDone,
  type Level, type Operation, type Reply, type Send
} from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// A commit on several nodes takes longer.
t.setTimeout(ON_CITUS ? 500_000 : 120_000)

const instances = await startInstances(t)
/** The two instances, and a new organization for the test. */
const startTenant = async () => ({ ...instances, ...await instances.tenant() })

/** Checks that every reader's view equals the model that the audit events describe. */
async function agree (
  t: Test, { service, send, organization }: { service: TestApp, send: Send, organization: string }, levels: Level[],
  operations: Operation[]
) {
  const { problems, secrets, gone } = await replay((query) => service.sql(query), organization, operations)
  t.same(problems, [])
  const open = await opener(send, levels[0]!.project, operations)
  for (const level of levels) {
    const { current, history } = await look(send, level)
    const listed = await Promise.all(history.map(({ id }) => send('GET', `/secrets/versions/${id}`)))
    const contents = listed.map(({ body }) => open(body.data.content, body.data.key.version))
    if (level.environment === undefined) continue
    const secret = current === undefined ? undefined : secrets.get(current.id)
    t.equal(current?.content, secret?.plaintext, 'the document is that of the last write')
    if (secret === undefined) continue
    t.same(
      history.map(({ id }) => Number(id)), [...secret.versions.keys()].sort((a, b) => b - a),
      'newest first, all of them'
    )
    t.same(contents, history.map(({ id }) =>
      secret.versions.get(Number(id))!.plaintext), 'each version holds what was written')
    t.same(history.map(({ attributes }) => attributes.action), history.map(({ id }) =>
      secret.versions.get(Number(id))!.action))
    if (current!.version !== null && current!.version === history[0]?.id) {
      t.equal(contents[0], current!.content, 'the newest version is the document')
    }
  }
  t.same(
    statuses(await Promise.all([...gone].slice(0, 10).map((id) => send('GET', `/secrets/versions/${id}`)))),
    gone.size === 0 ? [] : [404], 'what went stays away'
  )
  t.same(failedInside(service), [], 'nothing failed inside')
}

t.test('S-6.2 S-6.4 S-6.9 AU-12 fifty writers on one level: a version for each write, ids in commit order', async (t) => {
  const running = await startTenant()
  const { send, service, organization } = running
  const [level] = await makeLevels(send, 'orbit', ['live'])
  const each = LONG ? scale(4, 2) : 2
  const operations = (await Promise.all(times(50, async (writer) => {
    const mine: Operation[] = []
    for (let write = 0; write < each; write++) mine.push(await store(send, level!, `WRITER=${writer}-${write}`))
    return mine
  }))).flat()
  t.same(statuses(operations.map(({ reply }) => reply)), [200])
  const ids = operations.map(({ reply }) => Number(reply!.body.data.version)).sort((a, b) => a - b)
  t.same(ids, times(50 * each, (index) => index + 1), 'no id is missing, none is used twice')
  const { history } = await look(send, level!)
  t.equal(history.length, 50 * each)
  t.same([...new Set(history.slice(0, -1).map(({ attributes }) => attributes.action))], ['update'])
  t.equal(history.at(-1)!.attributes.action, 'create')
  const events = await service.sql(
    `SELECT count(*)::int AS count FROM audit_events WHERE action = 'secret.store' AND organization_id = '${organization}'`
  )
  t.equal(events[0]!.count, 50 * each)
  await agree(t, running, [level!], operations)
})

for (const seed of LONG ? [1, 20260301] : [1]) {
  t.test(`S-6.1 to S-6.9 AU-12 RL-09 random write, restore, delete, purge, rotate, no_backup (seed ${seed})`, async (t) => {
    const running = await startTenant()
    const { send } = running
    const levels = await makeLevels(send, 'orbit', ['live', 'test', 'local'])
    const seen: number[] = []
    const operations: Operation[] = []
    await Promise.all(times(LONG ? scale(16, 8) : 8, async (worker) => {
      const next = random(seed * 1000 + worker)
      for (let turn = 0; turn < scale(25, 20); turn++) {
        const operation = await mix(send, levels, next, seen)
        operations.push(operation)
        const version = Number(operation.reply?.body?.data?.version)
        if (version > 0) seen.push(version)
      }
    }))
    const allowed: Record<Operation['kind'], number[]> = {
      store: [200],
      restore: [200, 404],
      delete: [204, 404],
      purge: [200, 422],
      version: [204, 404, 422],
      rotate: [200, 409]
    }
    t.same(operations.filter(({ kind, reply }) =>
      !allowed[kind].includes(reply?.status ?? 0)).map(({ kind, reply }) => [kind, reply?.status, reply?.body]), [])
    for (const kind of Object.keys(allowed)) {
      t.ok(operations.some((one) => one.kind === kind && one.reply!.status < 300), `${kind} was done at least once`)
    }
    await agree(t, running, levels, operations)
  })
}

t.test('S-6.10: a list of a history shows one moment while other clients write and remove versions', async (t) => {
  const { send, sends } = await startTenant()
  const [level] = await makeLevels(send, 'orbit', ['live'])
  const first = (await store(send, level!, 'VALUE=first')).reply!.body.data.version
  const lists: Reply[] = []
  const load = { running: true }
  const listing = Promise.all(sends.map(async (mine) => {
    while (load.running) lists.push(await mine('POST', '/secrets/versions', { ...level, per_page: 100 }))
  }))
  for (const turn of times(LONG ? scale(25, 10) : 10, (turn) => turn)) {
    const { version } = (await store(send, level!, `VALUE=${turn}`)).reply!.body.data
    // The history contains the first version, and at most one other version.
    await store(send, level!, `VALUE=unrecorded-${turn}`, { no_backup: true })
    await send('DELETE', `/secrets/versions/${version}`)
  }
  load.running = false
  await listing
  t.same(statuses(lists), [200])
  t.same(lists.filter(({ body: { data, meta } }) =>
    data.at(-1).id !== first || data.length !== meta.total).map(({ body }) => body), [])
})

t.test('the first store of a level, raced: one secret, one create', async (t) => {
  const running = await startTenant()
  const { send, service } = running
  const [level, other] = await makeLevels(send, 'orbit', ['live', 'test'])
  const writes = await Promise.all(times(20, (writer) =>
    store(send, level!, `WRITER=${writer}`, { no_backup: writer % 5 === 0 })))
  t.same(statuses(writes.map(({ reply }) => reply)), [200])
  t.equal(new Set(writes.map(({ reply }) => reply!.body.data.secret_id)).size, 1)
  const conditional = await Promise.all(times(20, (writer) =>
    send('POST', '/secrets/store', { ...other, plaintext: `WRITER=${writer}` }, { 'if-none-match': '*' })))
  t.equal(conditional.filter(({ status }) => status === 200).length, 1)
  t.same(statuses(conditional), [200, 412])
  t.equal((await service.sql(`SELECT id FROM secrets WHERE organization_id = '${running.organization}'`)).length, 2)
  const { problems } = await replay((query) => service.sql(query), running.organization, writes)
  t.same(
    problems.filter((text) => !/^(secrets|versions):|next version/.test(text)), [],
    'the conditional writes, which the replay was not told of, aside'
  )
})

t.test('writers who all hold one ETag: one of them wins, the others are told', async (t) => {
  const { send } = await startTenant()
  const [level] = await makeLevels(send, 'orbit', ['live'])
  const { reply } = await store(send, level!, 'ROUND=0')
  let etag = reply!.headers.get('etag')!
  for (let round = 1; round <= 5; round++) {
    const answers = await Promise.all(times(10, () =>
      send('POST', '/secrets/store', { ...level, plaintext: `ROUND=${round}` }, { 'if-match': etag })))
    t.same(answers.map(({ status }) => status).sort(), [200, ...Array(9).fill(412)])
    etag = answers.find(({ status }) => status === 200)!.headers.get('etag')!
  }
})

t.test('races for a slug: one 201, the others 422 slug_taken; made slugs all differ', async (t) => {
  const { send, service, organization } = await startTenant()
  const keys = {
    storage_mode: 'client',
    key_check: Buffer.alloc(32, 1).toString('base64'),
    key_check_salt: Buffer.alloc(16, 2).toString('base64'),
    key_check_iterations: 600_000
  }
  const race = async (path: string, body: Record<string, unknown>) => {
    const answers = await Promise.all(times(12, () => send('POST', path, body)))
    t.same(answers.map(({ status }) => status).sort(), [201, ...Array(11).fill(422)], path)
    t.same([...new Set(answers.filter(({ status }) => status === 422).map(({ body }) => body.error))], ['slug_taken'])
  }
  await race('/projects', { name: 'Orbit', slug: 'orbit', ...keys })
  await race('/orbit/targets', { name: 'Backend', slug: 'backend' })
  await race('/orbit/backend/environments', { name: 'Live', slug: 'live' })
  for (const [path, more] of [
    ['/projects', keys], ['/orbit/targets', {}], ['/orbit/backend/environments', {}]
  ] as const) {
    const answers = await Promise.all(times(8, () => send('POST', path, { name: 'Same name', ...more })))
    t.same(statuses(answers), [201])
    t.same(
      answers.map(({ body }) => body.data.attributes.slug).sort(),
      ['same-name', ...times(7, (index) => `same-name-${index + 2}`)]
    )
  }
  const renamed = await Promise.all(times(8, (index) =>
    send('PATCH', `/orbit/same-name${index === 0 ? '' : `-${index + 1}`}`, { slug: 'renamed' })))
  t.same(renamed.map(({ status }) => status).sort(), [200, ...Array(7).fill(422)])
  const where = `WHERE organization_id = '${organization}'`
  const [counts] = await service.sql(`SELECT (SELECT count(*) FROM projects ${where})::int AS projects,
    (SELECT count(*) FROM targets ${where})::int AS targets,
    (SELECT count(*) FROM environments ${where})::int AS environments,
    (SELECT count(*) FROM encryption_keys ${where})::int AS keys`)
  t.same(counts, { projects: 9, targets: 9, environments: 9, keys: 9 })
})

for (const [what, path, remaining] of [
  ['an environment', '/orbit/backend/live', 1], ['a target', '/orbit/backend', 1], ['a project', '/orbit', 0]
] as const) {
  t.test(`${what} deleted under writes leaves no orphan, and later writes are 404`, async (t) => {
    const { send, service, organization } = await startTenant()
    const levels = await makeLevels(send, 'orbit', ['live'])
    await store(send, levels[0]!, 'A=1')
    let deleted: Promise<Reply> | undefined
    let acknowledged = 0
    const writers = times(10, async (writer) => {
      for (let turn = 0; ; turn++) {
        const { reply } = await store(send, levels[0]!, `A=${writer}-${turn}`)
        if (reply?.status === 200 && ++acknowledged === 15) {
          deleted = send('DELETE', path)
          await send('POST', '/orbit/backend/environments', { name: `Late ${writer}` })
        }
        if (reply?.status !== 200 || turn === 200) return reply
      }
    })
    t.same(statuses(await Promise.all(writers)), [404])
    t.equal((await deleted)!.status, 204)
    const where = `WHERE organization_id = '${organization}'`
    const [left] = await service.sql(`SELECT (SELECT count(*) FROM projects ${where})::int AS projects,
      (SELECT count(*) FROM encryption_keys ${where})::int AS keys,
      (SELECT count(*) FROM environments ${where} AND slug = 'live')::int AS environments,
      (SELECT count(*) FROM secrets ${where})::int AS secrets,
      (SELECT count(*) FROM secret_versions ${where})::int AS versions`)
    t.same(left, { projects: remaining, keys: remaining, environments: 0, secrets: 0, versions: 0 })
    const events = await service.sql(
      `SELECT seq, action, details FROM audit_events WHERE organization_id = '${organization}' ORDER BY seq`
    )
    t.same(events.map(({ seq }) => Number(seq)), events.map((_, index) => index + 1))
    const last = events.findLast(({ action }) => /^(project|target|environment)\.delete$/.test(action as string))!
    t.equal(
      (last.details as { versions: number }).versions, events.filter(({ action }) => action === 'secret.store').length,
      'the event tells what went along'
    )
  })
}

t.test('creating a project, target, environment or token waits for a first write, which never waits for it', {
  skip: !ON_POSTGRES && 'one session: no request waits for another'
}, async (t) => {
  const { send, service, organization } = await startTenant()
  await makeLevels(send, 'orbit', ['live'])
  const keys = {
    storage_mode: 'client',
    key_check: Buffer.alloc(32, 1).toString('base64'),
    key_check_salt: Buffer.alloc(16, 2).toString('base64'),
    key_check_iterations: 600_000
  }
  for (const [path, body] of [
    ['/projects', { name: 'Other', ...keys }], ['/orbit/targets', { name: 'Other' }], [
      '/orbit/backend/environments', { name: 'Other' }
    ],
    [`//api/v1/organizations/${organization}/api-keys`, { name: 'Other', abilities: ['secret:read'] }]
  ] as const) {
    let made: Promise<Reply> | undefined
    await service.database.db.transaction(async (db) => {
      // Locks the rows in the order of a write: first the counter, then the rows to which its rows refer. Waiting for
      // the second lock would be a deadlock, so it uses NOWAIT.
      await db.execute(sql`SELECT FROM organization_counters WHERE organization_id = ${organization} FOR NO KEY UPDATE`)
      const asks = nextStatement(/FROM organization_counters[^]*FOR NO KEY UPDATE/)
      made = send('POST', path, body)
      await asks
      await db.execute(sql`SELECT FROM organizations WHERE id = ${organization} FOR KEY SHARE NOWAIT`)
    })
    t.equal((await made)!.status, 201, path)
  }
})

t.test('a rotation judges its caller under the counter: a token that is revoked meanwhile changes nothing', {
  skip: !ON_POSTGRES && 'one session: no request waits for another'
}, async (t) => {
  const { send, service, organization } = await startTenant()
  const [level] = await makeLevels(send, 'orbit', ['live'])
  await store(send, level!, 'A=1')
  let rotated: Promise<Reply> | undefined
  await service.database.longTransactions.transaction(async (db) => {
    await db.execute(sql`SELECT FROM organization_counters WHERE organization_id = ${organization} FOR NO KEY UPDATE`)
    const asks = nextStatement(/FROM organization_counters WHERE organization_id = .* FOR NO KEY UPDATE/)
    rotated = send('POST', '/orbit/encryption-key/rotate', {})
    await asks
    await db.execute(sql`DELETE FROM api_tokens WHERE organization_id = ${organization}`)
  })
  t.equal((await rotated!).status, 401)
  t.same(await service.sql(`SELECT key_version FROM projects WHERE organization_id = '${organization}'`), [
    { key_version: 1 }
  ])
})

t.test('a change obeys the status and the plan that its organization has when it commits', {
  skip: !ON_POSTGRES && 'one session: no request waits for another'
}, async (t) => {
  const { send, service, organization } = await startTenant()
  const [level] = await makeLevels(send, 'orbit', ['live'])
  await store(send, level!, 'A=1')
  await service.sql("INSERT INTO plans (name, api_per_minute, max_bytes) VALUES ('full', 100000, 1)")
  const changes = {
    store: () => send('POST', '/secrets/store', { ...level, plaintext: 'A=2' }),
    'store with a stored response': () =>
      send('POST', '/secrets/store', { ...level, plaintext: 'A=3' }, { 'idempotency-key': 'K1' }),
    rename: () => send('PATCH', '/orbit', { name: 'Other' })
  }
  const during = async (change: () => Promise<Reply>, set: string) => {
    let answer: Promise<Reply> | undefined
    await service.database.db.transaction(async (db) => {
      await db.execute(sql`SELECT FROM organization_counters WHERE organization_id = ${organization} FOR NO KEY UPDATE`)
      const asks = nextStatement(/FROM organization_counters[^]*FOR NO KEY UPDATE/)
      answer = change()
      await asks
      await db.execute(sql`UPDATE organization_counters SET ${sql.raw(set)} WHERE organization_id = ${organization}`)
    })
    return answer!
  }
  for (const [name, change] of Object.entries(changes)) {
    const { status, body } = await during(change, "status = 'suspended'")
    t.match({ status, body }, { status: 403, body: { error: 'organization_inactive', details: { status: 'suspended' } } }, name)
    await service.sql(`UPDATE organization_counters SET status = 'active' WHERE organization_id = '${organization}'`)
  }
  const { status, body } = await during(changes.store, "plan = 'full'")
  t.match({ status, body }, { status: 422, body: { error: 'plan_limit_reached', details: { limit: 1, plan: 'full' } } })
  t.same(await service.sql(`SELECT revision FROM secrets WHERE organization_id = '${organization}'`), [{ revision: 1 }])
})

t.test('while a project is locked, a refusal does not wait, and a token for another project learns nothing', {
  skip: !ON_POSTGRES && 'one session: no request waits for another'
}, async (t) => {
  const { send, service, addresses, organization } = await startTenant()
  const [level] = await makeLevels(send, 'orbit', ['live'])
  await makeLevels(send, 'comet', ['live'])
  await store(send, level!, 'A=1')
  const { status, body } = await send('POST', `//api/v1/organizations/${organization}/api-keys`, {
    name: 'Comet', abilities: ['secret:read', 'secret:write'], restrictions: [{ project: 'comet' }]
  })
  t.equal(status, 201)
  const narrowed = client(addresses, { organization, token: body.token } as Caller)
  const changes = [['/secrets/store', { plaintext: 'A=2' }], ['/secrets/delete', {}]] as const
  await service.database.longTransactions.transaction(async (db) => {
    await db.execute(sql`SELECT FROM projects WHERE organization_id = ${organization} FOR NO KEY UPDATE`)
    for (const [path, more] of changes) {
      for (const project of ['orbit', 'nowhere']) {
        t.equal((await narrowed('POST', path, { ...level, project, ...more })).status, 404, `${path} in ${project}`)
      }
      const old = await send('POST', path, { ...level, ...more }, { 'if-match': '"old"' })
      t.equal(old.status, 412, `${path} of another revision`)
    }
  })
})

/** Resolves when the service sends the next statement that matches the pattern. */
async function nextStatement (pattern: RegExp) {
  return new Promise<void>((resolve) => {
    const look = (message: unknown) => {
      const { phase, text } = message as { phase: string, text: string }
      if (phase !== 'before' || !pattern.test(text)) return
      unsubscribe('strongroom:statement', look)
      resolve()
    }
    subscribe('strongroom:statement', look)
  })
}

t.test('tokens, members, grants and accounts that change at once from many clients never lock each other out', {
  skip: !ON_POSTGRES && 'one session: no request waits for another'
}, async (t) => {
  // This test has its own database, because it counts the deadlocks of the database.
  const { send, service, addresses, organization } = await startInstances(t)
  const [level] = await makeLevels(send, 'orbit', ['live'])
  const people = await Promise.all(times(4, async (i) => {
    const person = await untilDone(() => makePerson(service, { [organization]: 'owner' }))
    const pair = await untilDone(() => issuePair(service, person, SCOPE_NAMES))
    return { person, ...pair, tokens: [] as string[], key: `P${i}` }
  }))
  const ids: string[] = []
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const path = `//api/v1/organizations/${organization}`
  const narrow = ['secret:read', 'secret:write', 'api-token:create', 'api-token:delete', 'api-token:update', 'project:read']
  const as = (token: string) => patient(client(addresses, { organization, token } as Caller))
  const next = random(7)
  const pick = <T>(all: readonly T[]): T => all[Math.floor(next() * all.length)]!
  const renew = async (one: typeof people[number]) =>
    Object.assign(one, await untilDone(() => issuePair(service, one.person, SCOPE_NAMES)), { tokens: [] })
  const newest = () => pick(ids.slice(-6))
  const acts: [weight: number, act: (one: typeof people[number]) => Promise<Reply | undefined>][] = [
    [6, async (one) => {
      const made = await as(pick([one.access, ...one.tokens.slice(-2)]))('POST', `${path}/api-keys`, {
        name: 'Made', abilities: narrow, expires_at, ...(next() < 0.3 && { restrictions: [{ project: 'short' }] })
      })
      if (made.status !== 201) return made
      ids.push(made.body.api_key.id)
      one.tokens.push(made.body.token)
      return made
    }],
    [5, async (one) => {
      const call = as(pick([one.access, ...one.tokens.slice(-2)]))
      const rotated = await call('POST', `${path}/api-keys/${newest()}/rotate`, {})
      if (rotated.status === 200) one.tokens.push(rotated.body.token)
      return rotated
    }],
    [3, (one) => as(pick([one.access, ...one.tokens.slice(-1)]))(
      'PUT', `${path}/api-keys/${newest()}`, { name: 'Other' }
    )],
    [2, (one) => as(one.access)('DELETE', `${path}/api-keys/${newest()}`)],
    [6, (one) => as(pick(one.tokens.slice(-3).concat(one.access)))(
      'POST', '/secrets/store', { ...level, plaintext: `A=${next()}` }
    )],
    [3, async (one) => {
      // Another owner removes the person, or the person leaves.
      await as(pick(people).access)('DELETE', `${path}/members/${one.person.id}`)
      const invited = await send('POST', `${path}/members`, { email: one.person.email, role: 'owner' })
      if (invited.status !== 201) return invited
      const { access } = await untilDone(() => issuePair(service, one.person, ['organization:create']))
      return as(access)('POST', `//api/v1/user/invitations/${invited.body.data.id}/accept`)
    }],
    [2, async (one) => {
      await patiently(() =>
        post(pick(addresses), '/api/oauth/revoke', { token: one.access, client_id: 'dotenv-cli' }))
      await renew(one)
      return undefined
    }],
    [2, async (one) => {
      const answer = await patiently(() => post(
        pick(addresses), '/api/oauth/token',
        { grant_type: 'refresh_token', refresh_token: one.refresh, client_id: 'dotenv-cli' }
      ))
      const { access_token: access, refresh_token: refresh } = answer.body
      if (answer.status === 200) Object.assign(one, { access, refresh })
      return { ...answer, headers: new Headers() }
    }],
    [1, async (one) => {
      // Ends everything of the account, like the page that changes a password.
      await untilDone(() => switchUser(service.database, one.person.email, false))
      await renew(one)
      return undefined
    }],
    [2, async (one) => {
      await as(one.access)('POST', '/projects', { name: 'Short', slug: 'short' })
      return as(one.access)('DELETE', '/short')
    }]
  ]
  const weighted = acts.flatMap(([weight, act]) => times(weight, () => act))
  const found = new Map<number, number>()
  const hasEffects = () => (found.get(200) ?? 0) > 10 && (found.get(201) ?? 0) > 10
  await Promise.all(times(20, async () => {
    // The number of operations that find a member with a live token depends on their order.
    for (let i = 0; i < (LONG ? 25 : 10) || (!hasEffects() && i < 250); i++) {
      const status = (await pick(weighted)(pick(people)))?.status ?? 0
      found.set(status, (found.get(status) ?? 0) + 1)
    }
  }))
  t.same([...found.keys()].filter((status) => status >= 500), [], JSON.stringify([...found]))
  t.ok(hasEffects(), `much of it took effect: ${JSON.stringify([...found])}`)
  if (ON_CITUS) {
    // Citus can report a deadlock that does not exist (citusdata/citus#1803), and the service repeats the
    // transaction. A wrong order of locks gives far more reports.
    const deadlocks = await deadlocksOnCitus(service.sql)
    t.ok(deadlocks.length <= 3, JSON.stringify(deadlocks))
    return
  }
  // A session reports its statistics when it ends.
  const others = 'FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()'
  await untilDone(() => service.database.background.transaction(async (db) => {
    await db.execute(sql.raw(`SELECT pg_terminate_backend(pid) ${others}`))
    for (let left = 1; left > 0;) {
      await db.execute(sql`SELECT pg_stat_clear_snapshot()`)
      left = Number((await db.execute(sql.raw(`SELECT count(*) AS n ${others}`)) as unknown as { n: string }[])[0]!.n)
    }
    t.same(await db.execute(sql`SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()`), [
      { deadlocks: 0 }
    ])
  }))
})

t.test('two transactions that lock each other out are both done, one of them again', async (t) => {
  // This test has its own database, because it looks at the rows of all organizations.
  const service = await startIsolatedApp(t)
  const [one, other] = [(await service.organization()).organization, (await service.organization()).organization]
  const tried: string[] = []
  // The embedded database has only one session, so the transactions run one after the other.
  const sessions = service.database.kind === 'embedded' ? 1 : 2
  let holding = 0
  let met = () => {}
  const meeting = new Promise<void>((resolve) => { met = resolve })
  const cross = (first: string, second: string) => transaction(service.database.db, async (db) => {
    tried.push(first)
    for (const id of [first, second]) {
      await db.execute(sql`UPDATE organization_counters SET next_event = next_event + 1 WHERE organization_id = ${id}`)
      if (id !== first) continue
      // Each transaction locks its first row before either transaction requests the row of the other.
      if (++holding === sessions) met()
      await meeting
    }
  })
  await Promise.all([cross(one, other), cross(other, one)])
  // PostgreSQL aborts one of the two transactions, which then starts again. The repeated transaction can lock its first
  // row before the other one continues, and be aborted again.
  if (sessions === 1) t.equal(tried.length, 2)
  else t.ok(tried.length > 2)
  t.same(
    (await service.sql('SELECT next_event::int AS next FROM organization_counters')).map(({ next }) => next), [3, 3]
  )
})

// Pairs of changes with a fixed order. The test holds the next row of the first change until both changes wait.

const ONE_SESSION = !ON_POSTGRES && 'one session: no request waits for another'

type Instances = Pick<Awaited<ReturnType<typeof startInstances>>, 'service' | 'waiting'>

/** The statements of the sessions that wait for a lock. */
const lockWaits = async ({ sql: query }: TestApp) => (await query(`SELECT query FROM ${ACTIVITY}
  WHERE datname = current_database() AND wait_event_type = 'Lock'`)).map((row) => row.query as string)

/**
 * Starts work, and returns when the work waits for a lock, in the queue of the organization, or for a row that it
 * repeatedly tries to lock.
 */
async function begin<T> ({ service, waiting }: Instances, work: () => Promise<T>): Promise<{ running: Promise<T> }> {
  const [locks, queued] = [(await lockWaits(service)).length, waiting()]
  const tries = new Map<string, number>()
  const look = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (phase === 'before' && /for (?:no key )?(?:update|share)/i.test(text)) tries.set(text, (tries.get(text) ?? 0) + 1)
  }
  const isTriedAgain = () => [...tries.values()].some((count) => count > 2)
  subscribe('strongroom:statement', look)
  try {
    let isOver = false
    const ended = () => { isOver = true }
    const running = work()
    running.then(ended, ended)
    // Checks twice, because each change is in the queue for a moment.
    let seen = 0
    await until(async () => {
      if (isOver) throw new Error('it did not wait')
      const isWaiting = (await lockWaits(service)).length > locks || waiting() > queued || isTriedAgain()
      seen = isWaiting ? seen + 1 : 0
      return seen === 2
    }, { every: 5 })
    return { running }
  } finally {
    unsubscribe('strongroom:statement', look)
  }
}

/**
 * Holds a row until both changes wait, the second behind the first or in parallel. Returns both results.
 *
 * @param gate a row that only the second change needs. Given if the second change retries instead of waiting behind the
 *   first; it is then locked until the first has ended, so that the second cannot overtake the first
 */
async function inTurn<A, B> (
  instances: Instances, row: SQL, first: () => Promise<A>, second: () => Promise<B>, gate?: SQL
): Promise<[PromiseSettledResult<A>, PromiseSettledResult<B>]> {
  const { service } = instances
  const { longTransactions } = service.database
  const both = await (gate === undefined ? passTurns() : longTransactions.transaction(passTurns))
  return Promise.allSettled(both)

  async function passTurns (gated?: Db) {
    const begun = await longTransactions.transaction(async (db) => {
      await db.execute(row)
      const { running: one } = await begin(instances, first)
      const wanted = await until(async () => (await lockWaits(service))[0], { every: 5 })
      const { running: other } = await begin(instances, second)
      await gated?.execute(gate!)
      // A change that waits long for a lock ends and starts again, so the second change could briefly be ahead of the
      // first.
      await until(async () => (await lockWaits(service)).includes(wanted), { every: 5 })
      return [one, other] as const
    })
    if (gated !== undefined) await begun[0].catch(() => {})
    return begun
  }
}

/** Gives a person two API tokens without requests. Returns the ids in the order in which the tokens end. */
async function twoTokens ({ write }: TestApp, organization: string, person: Pick<Person, 'id'>): Promise<number[]> {
  await write(`INSERT INTO api_tokens (id, organization_id, name, token_hash, token_prefix, token_suffix, abilities, user_id)
    OVERRIDING SYSTEM VALUE SELECT ${person.id} + n, '${organization}', 'Theirs',
      decode(md5(random()::text) || md5(random()::text), 'hex'), 'srm_', '', '{secret:read}', ${person.id}
    FROM generate_series(1, 2) n`)
  return [person.id + 1, person.id + 2]
}

const valueOf = (settled: PromiseSettledResult<unknown>) =>
  settled.status === 'fulfilled' ? settled.value : (settled.reason as Error).message
const statusOf = (settled: PromiseSettledResult<Reply>) =>
  settled.status === 'fulfilled' ? settled.value.status : settled.reason
const tokenOf = (organization: string, id: number | string) =>
  sql`SELECT FROM api_tokens WHERE organization_id = ${organization} AND id = ${String(id)}::bigint FOR UPDATE`
/** The recorded events since `after`: the action, and the details about tokens. */
async function recordedIn ({ sql: query, database }: TestApp, organization: string, after: number) {
  // Numbers late events like the background worker. A person's event becomes late if a change has locked the counter.
  const late = () => query(`SELECT FROM late_events WHERE organization_id = '${organization}'`)
  await until(async () => (await late()).length === 0, {
    every: 0, again: () => recordLate(database.background, organization)
  })
  return await query(`SELECT action, resource_id, details FROM audit_events
    WHERE organization_id = '${organization}' AND seq > ${after} ORDER BY seq`
  ) as { action: string, resource_id: string, details: Record<string, unknown> | null }[]
}
const lastOf = async ({ sql: query }: TestApp, organization: string) => Number((await query(
  `SELECT max(seq) AS last FROM audit_events WHERE organization_id = '${organization}'`
))[0]!.last)

t.test('a level is deleted, a token narrowed to it changed: one after the other', { skip: ONE_SESSION }, async (t) => {
  const { send, service, organization } = await startTenant()
  await makeLevels(send, 'orbit', ['first', 'second'])
  const path = `//api/v1/organizations/${organization}/api-keys`
  const narrowed = async (environment: string) => {
    const { status, body } = await send('POST', path, {
      name: 'Narrowed', abilities: ['secret:read'], restrictions: [{ project: 'orbit', target: 'backend', environment }]
    })
    t.equal(status, 201)
    const { id } = body.api_key
    return {
      id: String(id),
      last: await lastOf(service, organization),
      change: () => send('PUT', `${path}/${id}`, { name: 'Changed' }),
      remove: () => send('DELETE', `/orbit/backend/${environment}`)
    }
  }
  const recorded = async (last: number, id: string) =>
    (await recordedIn(service, organization, last)).map(({ action, resource_id, details }) =>
      resource_id === id ? [action, details?.with ?? null] : [action])

  const first = await narrowed('first')
  const [removed, late] = await inTurn(instances, tokenOf(organization, first.id), first.remove, first.change)
  t.same([removed, late].map(statusOf), [204, 404], 'the delete was first')
  t.same(await recorded(first.last, first.id), [['environment.delete'], ['api-token.delete', 'environment']])

  const second = await narrowed('second')
  const [changed, after] = await inTurn(instances, tokenOf(organization, second.id), second.change, second.remove)
  t.same([changed, after].map(statusOf), [200, 204], 'the change was first')
  t.same(
    await recorded(second.last, second.id),
    [['api-token.update', null], ['environment.delete'], ['api-token.delete', 'environment']]
  )
  t.same(await service.sql(`SELECT id FROM api_tokens WHERE organization_id = '${organization}' AND id IN (
    ${first.id}, ${second.id})`), [])
})

t.test('the operator revokes a token while all of its person’s end: each token ends once', {
  skip: ONE_SESSION
}, async (t) => {
  const { send, service, organization } = await startTenant()
  const somebody = async () => {
    const person = await makePerson(service, { [organization]: 'developer' })
    const ids = await twoTokens(service, organization, person)
    const endings: Record<'user.disable' | 'member.delete', () => Promise<unknown>> = {
      'user.disable': () => switchUser(service.database, person.email, true),
      'member.delete': async () => {
        const { status } = await send('DELETE', `//api/v1/organizations/${organization}/members/${person.id}`)
        if (status !== 204) throw new Error(String(status))
      }
    }
    return {
      ids,
      endings,
      last: await lastOf(service, organization),
      revoke: () => revokeToken(service.database, ids[0]!)
    }
  }
  const ended = async (last: number) => (await recordedIn(service, organization, last))
    .map(({ action, resource_id, details }) =>
      action === 'api-token.delete' ? [action, resource_id] : [action, details?.token_ids ?? null])

  for (const ending of ['user.disable', 'member.delete'] as const) {
    const one = await somebody()
    const revokedFirst = await inTurn(instances, tokenOf(organization, one.ids[0]!), one.revoke, one.endings[ending])
    t.same(revokedFirst.map(({ status }) => status), ['fulfilled', 'fulfilled'], `revoked before ${ending}`)
    t.same(await ended(one.last), [['api-token.delete', String(one.ids[0])], [ending, String(one.ids[1])]])

    const other = await somebody()
    const revokedLast = await inTurn(
      instances, tokenOf(organization, other.ids[1]!), other.endings[ending], other.revoke
    )
    t.equal(revokedLast[0].status, 'fulfilled', `revoked after ${ending}`)
    t.equal(valueOf(revokedLast[1]), `There is no token ${other.ids[0]}`)
    t.same(await ended(other.last), [[ending, other.ids.join(' ')]])
    t.same(await service.sql(`SELECT id FROM api_tokens WHERE organization_id = '${organization}'
      AND id IN (${[...one.ids, ...other.ids].join()})`), [])
  }
})

t.test('a person cannot end a token on /account that a concurrent rotation gives to another person', {
  skip: ONE_SESSION
}, async (t) => {
  const { service, organization, addresses } = await startTenant()
  const [rosa, oda] = [
    await makePerson(service, { [organization]: 'owner' }), await makePerson(service, { [organization]: 'owner' })
  ]
  const send = client(addresses, { token: (await issuePair(service, oda, SCOPE_NAMES)).access, organization })
  const [id] = await twoTokens(service, organization, rosa)
  await service.write(`UPDATE api_tokens SET expires_at = now() + interval '1 hour'
    WHERE organization_id = '${organization}' AND id = ${id}`)
  const browser = visitor(addresses[0]!)
  const account = await browser.signIn(await browser.open('/account'), rosa.email, rosa.password)
  const last = await lastOf(service, organization)
  const [rotated, ended] = await inTurn(
    instances, tokenOf(organization, id!),
    () => send('POST', `//api/v1/organizations/${organization}/api-keys/${id}/rotate`, {}),
    () => browser.send({ ...formIn(account), action: '/account/tokens/end' }, { id: String(id) })
  )
  t.equal(statusOf(rotated), 200)
  t.equal(ended.status, 'fulfilled')
  t.same((await recordedIn(service, organization, last)).map(({ action }) => action), ['api-token.rotate'])
  t.same(
    await service.sql(`SELECT user_id::float8 FROM api_tokens WHERE organization_id = '${organization}' AND id = ${id}`),
    [{ user_id: oda.id }]
  )
})

t.test('a grant ends while its token is changed: one after the other, and nothing of it is left', {
  skip: ONE_SESSION
}, async (t) => {
  const { send, service, organization, addresses } = await startTenant()
  const keys = `//api/v1/organizations/${organization}/api-keys`
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const changes = { rotate: ['POST', '/rotate', {}], update: ['PUT', '', { expires_at }] } as const
  for (const [what, [method, path, body]] of Object.entries(changes)) {
    for (const isFirst of [false, true]) {
      const rosa = await makePerson(service, { [organization]: 'owner' })
      const { access, grant } = await issuePair(service, rosa, SCOPE_NAMES)
      const hers = client(addresses, { token: access, organization })
      const { id } = (await hers('POST', keys, { name: 'Hers', abilities: ['project:read'], expires_at })).body.api_key
      const last = await lastOf(service, organization)
      const end = () => send('POST', '//api/oauth/revoke', { token: access, client_id: 'dotenv-cli' })
      const change = () => send(method, `${keys}/${id}${path}`, body)
      const token = tokenOf(organization, id)
      const counter = sql`SELECT FROM organization_counters WHERE organization_id = ${organization} FOR NO KEY UPDATE`
      // On Citus, this statement takes its lock on one node, where the change does not look for locks.
      const first = ON_CITUS ? token : sql`SELECT FROM oauth_grants WHERE id = ${String(grant)}::bigint FOR UPDATE`
      const [one, other] = isFirst
        ? await inTurn(instances, token, change, end)
        : await inTurn(instances, first, end, change, counter)
      t.same([one, other].map(statusOf), [200, isFirst ? 200 : 404], `${what}, ${isFirst ? 'first' : 'last'}`)
      t.same(
        (await recordedIn(service, organization, last)).map(({ action }) => action),
        isFirst ? [`api-token.${what}`, 'oauth.revoke'] : ['oauth.revoke']
      )
      t.same(await service.sql(`SELECT id FROM api_tokens WHERE organization_id = '${organization}' AND id = ${id}`), [])
    }
  }
})

t.test('OA-63 a form of /account has no effect if its session ended while the form waited', {
  skip: ONE_SESSION
}, async (t) => {
  const { send, service, organization, addresses } = await startTenant()
  const person = await makePerson(service, { [organization]: 'developer' })
  const browser = visitor(addresses[0]!)
  const account = await browser.signIn(await browser.open('/account'), person.email, person.password)
  const { body } = await send('POST', `//api/v1/organizations/${organization}/members`, {
    email: 'other@example.org', role: 'developer'
  })
  await service.write(`UPDATE users SET email = 'other@example.org', email_normalized = 'other@example.org'
    WHERE id = ${person.id}`)
  const state = () => service.sql(`SELECT password_hash, second_factor_id,
    (SELECT jsonb_agg(user_id) FROM members WHERE organization_id = '${organization}') AS members,
    (SELECT jsonb_agg(id) FROM second_factors WHERE user_id = users.id) AS factors,
    (SELECT count(*) FROM sessions WHERE user_id = users.id) AS sessions,
    (SELECT count(*) FROM personal_events WHERE user_id = users.id) AS events,
    (SELECT count(*) FROM oauth_grants WHERE user_id = users.id) AS grants,
    (SELECT coalesce(sum(failures), 0) FROM sign_in_failures) AS attempts FROM users WHERE id = ${person.id}`)

  async function isWithoutEffect (action: string, fields: Record<string, string>, page = account) {
    const before = await state()
    const { sent } = await service.database.longTransactions.transaction(async (db) => {
      await db.execute(sql`SELECT FROM users WHERE id = ${String(person.id)}::bigint FOR NO KEY UPDATE`)
      await db.execute(sql`SELECT FROM sessions WHERE user_id = ${String(person.id)}::bigint FOR UPDATE`)
      let isOver = false
      const { running: sent } = await begin(instances, () =>
        browser.send({ ...formIn(page), action }, fields).finally(() => { isOver = true }))
      t.equal(isOver, false, `${action} waits`)
      await db.execute(sql`UPDATE sessions SET expires_at = now() WHERE user_id = ${String(person.id)}::bigint`)
      return { sent }
    })
    t.equal((await sent).status, page === account ? 303 : 400, action)
    t.same(await state(), before, `${action} changed nothing`)
    await service.write(`UPDATE sessions SET expires_at = now() + interval '1 hour' WHERE user_id = ${person.id}`)
  }

  const current = person.password
  await isWithoutEffect('/account/organizations/leave', { id: organization })
  await isWithoutEffect('/account/invitations/accept', { id: body.data.id as string })
  await isWithoutEffect('/account/password', { current, password: 'another long password' })
  await isWithoutEffect('/account/second-factor', { current })
  await isWithoutEffect('/account/sign-out', { where: 'everywhere' })
  await createClient(service.database.db, { id: 'app', name: 'App', redirect_uris: ['https://app.example.org/'] })
  const consent = await browser.open(`/oauth/authorize?${new URLSearchParams({
    response_type: 'code',
    client_id: 'app',
    redirect_uri: 'https://app.example.org/',
    scope: 'project:read',
    code_challenge: 'A'.repeat(43),
    code_challenge_method: 'S256'
  })}`)
  await isWithoutEffect(formIn(consent).action, { decision: 'allow' }, consent)
  const secret = await transaction(service.database.db, (db) => beginFactor(db, service.keyring, person.id))
  await isWithoutEffect('/account/second-factor/confirm', { code: await codeAt(secret, stepAt(Date.now())) })
})

t.test('a long operation is refused if its token expired while the operation waited', { skip: ONE_SESSION }, async (t) => {
  const { send, service, organization, addresses } = await startTenant()
  await makeLevels(send, 'orbit', ['live'])
  const { token } = await service.token(organization, ['*'])
  const hash = `'\\x${hashToken(token).toString('hex')}'`
  const own = client(addresses, { token, organization } as Caller)
  const { sent } = await service.database.longTransactions.transaction(async (db) => {
    await db.execute(sql`SELECT FROM projects WHERE organization_id = ${organization} FOR NO KEY UPDATE`)
    const { running: sent } = await begin(instances, () => own('POST', '/orbit/encryption-key/rotate', {}))
    await service.write(`UPDATE api_tokens SET expires_at = now() WHERE token_hash = ${hash}`)
    return { sent }
  })
  t.match(await sent, { status: 401, body: { error: 'unauthenticated' } })
})

t.test('an owner leaves while the account of another owner is locked: nothing waits for that lock', {
  skip: ONE_SESSION
}, async (t) => {
  const { send, service, organization, addresses } = await startTenant()
  const [level] = await makeLevels(send, 'orbit', ['live'])
  const [other, leaving] = [
    await makePerson(service, { [organization]: 'owner' }), await makePerson(service, { [organization]: 'owner' })
  ]
  const own = client(addresses, { token: (await issuePair(service, leaving, SCOPE_NAMES)).access, organization })
  // Locks the account like a transaction that closes it. On Citus, an update locks the row on each node.
  const account = sql`UPDATE users SET updated_at = updated_at WHERE id = ${String(other.id)}::bigint`
  const left = await service.database.longTransactions.transaction(async (db) => {
    await db.execute(account)
    let isOver = false
    const { running: leave } = await begin(instances, () =>
      own('DELETE', `//api/v1/organizations/${organization}/members/${leaving.id}`).finally(() => { isOver = true }))
    t.same(await service.sql(`SELECT pid FROM ${ACTIVITY}
      WHERE datname = current_database() AND wait_event_type = 'Lock'`), [], 'no transaction waits for a lock')
    t.equal((await send('POST', '/secrets/store', { ...level, plaintext: 'A=1' })).status, 200, 'a store commits')
    t.equal(isOver, false, 'the owner has not left yet')
    return { leave }
  })
  t.equal((await left.leave).status, 204)
})

t.test('an owner’s account is closed while another owner leaves: one stays, or the operator is told', {
  skip: ONE_SESSION
}, async (t) => {
  const { service, addresses } = await startTenant()
  const twoOwners = async () => {
    const { organization } = await service.organization()
    const [closed, leaving] = [
      await makePerson(service, { [organization]: 'owner' }), await makePerson(service, { [organization]: 'owner' })
    ]
    const send = client(addresses, { token: (await issuePair(service, leaving, SCOPE_NAMES)).access, organization })
    return {
      organization,
      tokens: await twoTokens(service, organization, closed),
      membership: sql`SELECT FROM members
        WHERE organization_id = ${organization} AND user_id = ${String(leaving.id)}::bigint FOR UPDATE`,
      leave: () => send('DELETE', `//api/v1/organizations/${organization}/members/${leaving.id}`),
      disable: () => switchUser(service.database, closed.email, true),
      owners: async () => (await service.sql(`SELECT m.user_id FROM members m JOIN users u ON u.id = m.user_id
        WHERE m.organization_id = '${organization}' AND m.role = 'owner' AND u.disabled_at IS NULL`)).length
    }
  }
  const one = await twoOwners()
  const [closed, refused] = await inTurn(instances, tokenOf(one.organization, one.tokens[1]!), one.disable, one.leave)
  t.same(valueOf(closed), [], 'there is nothing to tell')
  t.match(valueOf(refused), { status: 422, body: { error: 'last_owner' } })
  t.equal(await one.owners(), 1)

  const other = await twoOwners()
  const [left, told] = await inTurn(instances, other.membership, other.leave, other.disable)
  t.equal(statusOf(left), 204)
  t.match(valueOf(told), [/^nimbus-/], 'an operator closes the last one’s account, too, and is told')
})
