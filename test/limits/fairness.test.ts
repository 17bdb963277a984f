// runs: both databases; 15 s
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { makeProof } from '../../src/crypto/key-proof.ts'
import { MAX_LEVELS_OF_SHORT_DELETION } from '../../src/vault/operations/long-operations.ts'
import { queueOf } from '../../src/changes/queue.ts'
import { readDocument } from '../../src/rules/documents/read.ts'
import { startIsolatedApp, type Answer, type Caller, type TestApp } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { LONG } from '../helpers/long.ts'
import { ON_POSTGRES } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// A tenant cannot slow down other tenants. Long operations of an organization run one after the other on all instances,
// and leave capacity for other organizations.

t.setTimeout(120_000)

// This file has its own database, because it measures how long requests wait, so no other work may run.
const service = await startIsolatedApp(t)
// The limits are counted in the process, so npm test looks at them on the embedded database alone.
const onceInTest = { skip: ON_POSTGRES && !LONG && 'on the embedded database, and in npm run test:proofs' }
const failing = ({ status, body }: Answer) => [status, body?.error]

/**
 * A project with this number of documents in environments of one target, each stored twice. Returns a time between the
 * two stores.
 */
async function fill ({ call, organization: o }: Caller, slug: string, documents: number): Promise<string> {
  const made = await call('POST', `/${o}/projects`, { name: slug, slug })
  if (made.status !== 201) throw new Error(made.text)
  await call('POST', `/${o}/${slug}/targets`, { name: 'Backend' })
  const levels = Array.from({ length: documents }, (_, n) => ({
    project: slug, target: 'backend', environment: `level-${n}`
  }))
  for (const level of levels) {
    await call('POST', `/${o}/${slug}/backend/environments`, { name: level.environment })
    await call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' })
  }
  const [{ attributes }] = (await call('POST', `/${o}/secrets/versions`, levels.at(-1)!)).body.data
  for (const level of levels) await call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=2' })
  return attributes.created_at
}

/** Creates more levels below a new target than a short deletion removes. */
async function makeManyLevels (on: TestApp, { call, organization: o }: Caller, slug: string) {
  await call('POST', `/${o}/projects`, { name: slug, slug })
  await call('POST', `/${o}/${slug}/targets`, { name: 'Many' })
  await on.write(`INSERT INTO environments (id, organization_id, project_id, target_id, name, slug, status, is_production)
    SELECT lpad(n::text, 10, '0') || right(t.id, 16), t.organization_id, t.project_id, t.id, 'E', 'e-' || n,
      'development', false
    FROM targets t JOIN projects p ON p.organization_id = t.organization_id AND p.id = t.project_id
    CROSS JOIN generate_series(1, ${MAX_LEVELS_OF_SHORT_DELETION}) n
    WHERE t.organization_id = '${o}' AND p.slug = '${slug}'`)
  await on.sql(`UPDATE project_counts c SET environment_count = ${MAX_LEVELS_OF_SHORT_DELETION} FROM projects p
    WHERE p.organization_id = c.organization_id AND p.id = c.project_id AND p.organization_id = '${o}'
      AND p.slug = '${slug}'`)
  await on.sql(`UPDATE targets t SET environment_count = ${MAX_LEVELS_OF_SHORT_DELETION} FROM projects p
    WHERE p.organization_id = t.organization_id AND p.id = t.project_id AND t.organization_id = '${o}'
      AND p.slug = '${slug}'`)
}

let projects = 0
/** Each kind of long operation on a new project: prepares its data, and returns a function that sends the request. */
const KINDS: Record<string, (on: TestApp, caller: Caller) => Promise<() => Promise<Answer>>> = {
  'a rotation by the server': async (_on, { call, organization: o }) => {
    const slug = `rotated-${++projects}`
    await call('POST', `/${o}/projects`, { name: slug, slug })
    return () => call('POST', `/${o}/${slug}/encryption-key/rotate`, {})
  },
  'a change of custody': async (_on, { call, organization: o }) => {
    const slug = `custody-${++projects}`
    await call('POST', `/${o}/projects`, { name: slug, slug, encryption_key: 'a key string of the client' })
    const { key_check_salt, key_check_iterations } = (await call('GET', `/${o}/${slug}/encryption-key`)).body.data.attributes
    const proof = await makeProof(
      'a key string of the client', Buffer.from(key_check_salt, 'base64'), key_check_iterations
    )
    return () => call('PATCH', `/${o}/${slug}`, {
      storage_mode: 'client', key_check: proof, key_check_salt, key_check_iterations, key_proof: proof
    })
  },
  'a rotation by the client': async (_on, { call, organization: o }) => {
    const slug = `client-${++projects}`
    const { registration } = await clientKey('first key string')
    await call('POST', `/${o}/projects`, { name: slug, slug, ...registration })
    const { storage_mode: _, ...next } = (await clientKey(`another key string ${projects}`)).registration
    return () => call('POST', `/${o}/${slug}/secrets/rotate-client-keys`, { secrets: [], ...next })
  },
  'restore-to': async (_on, caller) => {
    const slug = `restored-${++projects}`
    const at = await fill(caller, slug, 1)
    return () => caller.call('POST', `/${caller.organization}/${slug}/restore-to`, { at, confirmed: true })
  },
  'a deletion of more than 1,000 levels': async (on, caller) => {
    const slug = `deleted-${++projects}`
    await makeManyLevels(on, caller, slug)
    return () => caller.call('DELETE', `/${caller.organization}/${slug}/many`)
  }
}

/** A connection of another instance, on the same PostgreSQL. */
function otherInstance (t: Test) {
  const client = postgres(service.env.DATABASE_URL!, { max: 1, onnotice: () => {} })
  t.teardown(() => client.end({ timeout: 1 }))
  /** Locks a row until the returned function is called. */
  const lock = async (statement: string): Promise<() => Promise<void>> => {
    let release = () => {}
    const isReleased = new Promise<void>((resolve) => { release = resolve })
    let ended: Promise<unknown> = Promise.resolve()
    await new Promise<void>((resolve, reject) => {
      ended = client.begin(async (tx) => {
        await tx.unsafe(statement)
        resolve()
        await isReleased
      }).catch(reject)
    })
    return async () => {
      release()
      await ended
    }
  }
  return { client, lock }
}

t.test('an organization runs one long operation at a time, of whatever kind, over all instances', {
  skip: !ON_POSTGRES && 'one instance alone has the embedded database'
}, async (t) => {
  const { client, lock } = otherInstance(t)
  const other = postgres(service.env.DATABASE_URL!, { max: 1, onnotice: () => {} })
  t.teardown(() => other.end({ timeout: 1 }))
  const isRunning = async (o: string) => {
    const error = await other.unsafe(`SELECT FROM long_operations WHERE organization_id = '${o}' FOR UPDATE NOWAIT`)
      .then(() => undefined, (error: { code?: string }) => error.code)
    return error === '55P03'
  }
  for (const [kind, prepare] of Object.entries(KINDS)) {
    const caller = await service.organization()
    const o = caller.organization
    const begin = await prepare(service, caller)
    const release = await lock(`INSERT INTO long_operations VALUES ('${o}')
      ON CONFLICT (organization_id) DO UPDATE SET began_at = excluded.began_at`)
    const refused = await begin()
    t.equal(refused.status, 409, `${kind}: while another instance runs one (${refused.text.slice(0, 100)})`)
    const stranger = await service.organization()
    const theirs = await KINDS['a rotation by the server']!(service, stranger)
    t.equal((await theirs()).status, 200, `${kind}: another organization runs its own`)
    await release()

    const [{ next_event }] = await service.sql(
      `SELECT next_event::int FROM organization_counters WHERE organization_id = '${o}'`
    ) as [{ next_event: number }]
    const unblock = await lock(`SELECT FROM organization_counters WHERE organization_id = '${o}' FOR UPDATE`)
    const running = begin()
    await until(() => isRunning(o), { every: 2 })
    t.pass(`${kind}: locks the organization's turn while it runs`)
    await unblock()
    const done = await running
    t.ok(done.status < 300, `${kind}: ${done.text.slice(0, 200)}`)
    t.notOk(await isRunning(o), `${kind}: and gives it back`)
    t.same(await service.sql(`SELECT next_event::int FROM organization_counters WHERE organization_id = '${o}'`),
      [{ next_event: next_event + 1 }], `${kind}: with one event`)
  }
  t.ok(client)
})

t.test('each kind of long operation has an hourly limit of its own, counted before its effect', onceInTest, async (t) => {
  const limited = await startIsolatedApp(t, { RATE_LIMIT_LONG_OPERATIONS: '2', RATE_LIMIT_KEY_ROTATION: '1' })
  const caller = await limited.organization()
  for (const [kind, prepare] of Object.entries(KINDS)) {
    const most = kind === 'a rotation by the server' ? 1 : 2
    for (let n = 0; n < most; n++) {
      const answer = await (await prepare(limited, caller))()
      t.ok(answer.status < 300, `${kind}: ${answer.text.slice(0, 200)}`)
    }
    const begin = await prepare(limited, caller)
    const refused = await begin()
    t.strictSame(failing(refused), [429, 'rate_limit_exceeded'], kind)
    t.ok(Number(refused.headers['retry-after']) > 60, `${kind}: within the hour`)
    if (!LONG && kind !== 'restore-to') continue
    const elsewhere = await (await prepare(limited, await limited.organization()))()
    t.ok(elsewhere.status < 300, `${kind}: another organization has its own limit`)
  }
  await makeManyLevels(limited, caller, 'short')
  await limited.sql(`UPDATE targets SET environment_count = 5 WHERE organization_id = '${caller.organization}'`)
  t.equal((await caller.call('DELETE', `/${caller.organization}/short/many`)).status, 204, 'a short deletion is no long operation')
})

t.test('a long deletion that a precondition or a change of the project refuses does not count', onceInTest, async (t) => {
  const limited = await startIsolatedApp(t, { RATE_LIMIT_LONG_OPERATIONS: '1' })
  const caller = await limited.organization()
  const { call, organization: o } = caller
  await makeManyLevels(limited, caller, 'kept')
  const remove = (path: string, headers = {}) => call('DELETE', `/${o}/${path}`, undefined, headers)
  for (const path of ['kept/many', 'kept', 'kept/many']) {
    t.strictSame(failing(await remove(path, { 'if-match': '"other"' })), [412, 'precondition_failed'], path)
  }
  t.equal((await remove('kept/many')).status, 204)
  await makeManyLevels(limited, caller, 'second')
  t.strictSame(failing(await remove('second/many')), [429, 'rate_limit_exceeded'], 'the first deletion counted')
})

t.test('while an organization runs one long operation after the other, no request of another one is refused', async (t) => {
  const [busy, other] = [await service.organization(), await service.organization()]
  const slugs = ['one', 'two', 'three', 'four']
  const moments: string[] = []
  for (const slug of slugs) moments.push(await fill(busy, slug, LONG ? 25 : 8))
  await fill(other, 'quiet', 2)
  const o = other.organization
  const state = { isOver: false, done: 0 }
  // The maximum number of operations that can wait at the same time without a refusal.
  const operations = Promise.all(slugs.map(async (slug, i) => {
    for (let n = 0; n < 2; n++) {
      const answer = await busy.call('POST', `/${busy.organization}/${slug}/restore-to`, {
        at: moments[i], confirmed: true
      })
      state.done++
      t.equal(answer.status, 200, answer.text)
      await busy.call('POST', `/${busy.organization}/secrets/store`, {
        project: slug, target: 'backend', environment: 'level-0', plaintext: `A=${n}`
      })
    }
  })).finally(() => { state.isOver = true })
  const level = { project: 'quiet', target: 'backend', environment: 'level-0' }
  const requests: [method: string, path: string, body?: object][] = [
    ['GET', `/${o}/quiet/backend/level-0/secrets?decrypt=true`],
    ['POST', `/${o}/secrets/store`, { ...level, plaintext: 'B=1' }], ['GET', `/${o}/projects`],
    ['POST', `/${o}/secrets/versions`, level], ['POST', `/${o}/quiet/encryption-key/rotate`, {}]
  ]
  let asked = 0
  let most = 0
  const ask = async (first: number) => {
    for (let n = first; !state.isOver; n++) {
      const [method, path, body] = requests[n % requests.length]!
      const before = state.done
      const answer = await other.call(method, path, body)
      // Two concurrent rotations of one project conflict with each other.
      const isConflict = answer.status === 409 && path.endsWith('/rotate')
      if (answer.status >= 300 && !isConflict) t.fail(`${method} ${path}: ${answer.status} ${answer.text}`)
      if (!path.endsWith('/rotate')) most = Math.max(most, state.done - before)
      asked++
    }
  }
  await Promise.all([operations, ...requests.map((_, i) => ask(i))])
  t.ok(asked >= requests.length, `${asked} requests meanwhile`)
  t.equal(state.done, 8)
  // A request waits at most for the operation that was already running.
  if (!ON_POSTGRES) t.ok(most <= 1, `waited for ${most} operations`)
})

t.test('changes that wait for a locked project leave database connections to other organizations', {
  skip: !ON_POSTGRES && 'a locked project takes a second session'
}, async (t) => {
  const [busy, other] = [await service.organization(), await service.organization()]
  await busy.call('POST', `/${busy.organization}/projects`, { name: 'Held' })
  await other.call('POST', `/${other.organization}/projects`, { name: 'Free' })
  const sql = postgres(service.env.DATABASE_URL!, { max: 1, onnotice: () => {} })
  t.teardown(() => sql.end())
  let waiting: Promise<Answer>[] = []
  await sql.begin(async (held) => {
    await held`SELECT FROM projects WHERE organization_id = ${busy.organization} FOR UPDATE`
    waiting = Array.from({ length: 40 }, (_, n) =>
      busy.call('PATCH', `/${busy.organization}/held`, { description: String(n) }))
    for (let n = 0; n < 10; n++) {
      const answer = await other.call('PATCH', `/${other.organization}/free`, { description: String(n) })
      t.equal(answer.status, 200, answer.text)
    }
  })
  const statuses = new Set((await Promise.all(waiting)).map(({ status }) => status))
  t.same([...statuses].filter((status) => status !== 200 && status !== 503), [])
  t.equal((await busy.call('PATCH', `/${busy.organization}/held`, { description: 'after' })).status, 200)
})

t.test('places of long transactions are shared out by organizations: of those that wait, each is next once', async (t) => {
  const [many, one, another] = [
    await service.organization(), await service.organization(), await service.organization()
  ]
  const order: string[] = []
  const begin = async (name: string, caller: Caller, n: number) => {
    const prepared: (() => Promise<void>)[] = []
    for (let i = 0; i < n; i++) {
      const operation = await KINDS['a rotation by the server']!(service, caller)
      prepared.push(async () => {
        const { status, text } = await operation()
        t.equal(status, 200, text)
        order.push(name)
      })
    }
    return prepared
  }
  const all = [
    ...await begin('many', many, 6), ...await begin('one', one, 1), ...await begin('another', another, 1)
  ]
  await Promise.all(all.map((operation) => operation()))
  t.ok(order.lastIndexOf('many') > order.indexOf('one'), order.join(' '))
  const before = (name: string) => order.slice(0, order.indexOf(name)).filter((one) => one === 'many').length
  for (const name of ['one', 'another']) t.ok(before(name) <= 3, `${name} waits for few of the others: ${order.join(' ')}`)
})

// A YAML document whose parsing takes tens of milliseconds.
const slow = (n: number) => Array.from({ length: 1_400 }, (_, i) => `P${i}: v${n}`).join('\n')
const AT_ONCE = 12

t.test('documents that take long to parse share no transaction, and each is stored once', async (t) => {
  const busy = await service.organization()
  const o = busy.organization
  await busy.call('POST', `/${o}/projects`, { name: 'Slow', secret_format: 'yaml' })
  await busy.call('POST', `/${o}/slow/targets`, { name: 'T' })
  const names = Array.from({ length: AT_ONCE }, (_, n) => `e${n}`)
  for (const name of names) await busy.call('POST', `/${o}/slow/t/environments`, { name })
  const pathOf = (n: number) => `/${o}/slow/t/${names[n]}/secrets`
  const level = (n: number) => ({ project: 'slow', target: 't', environment: names[n] })
  const kinds: [kind: string, send: (n: number) => Promise<Answer>][] = [
    ['stores', (n) => busy.call('POST', `/${o}/secrets/store`, { ...level(n), plaintext: slow(n) })],
    ['changes of names', (n) => busy.call('PATCH', pathOf(n), { set: { P1: `changed ${n}` } })],
    ['changes with a key', (n) =>
      busy.call('PATCH', pathOf(n), { set: { P2: `changed ${n}` } }, { 'idempotency-key': `k${n}` })]
  ]
  const { figures } = queueOf(service.database.db)
  for (const [kind, send] of kinds) {
    const before = figures.transactions
    const answers = await Promise.all(names.map((_, n) => send(n)))
    t.same(answers.filter(({ status }) => status !== 200).map(failing), [], kind)
    t.ok(figures.transactions - before > 1, `${kind}: ${figures.transactions - before} transactions`)
  }
  const { body } = await busy.call('GET', `${pathOf(3)}/values`)
  t.match(body, { P1: 'changed 3', P2: 'changed 3', P3: 'v3' })
  const versions = await busy.call('POST', `/${o}/secrets/versions`, level(3))
  t.equal(versions.body.data.length, 3)
})

t.test('restore-to parses each document in a turn of its own, so other requests run in between', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  await caller.call('POST', `/${o}/projects`, { name: 'Turns', secret_format: 'yaml' })
  await caller.call('POST', `/${o}/turns/targets`, { name: 'T' })
  const levels = Array.from({ length: 16 }, (_, n) => ({ project: 'turns', target: 't', environment: `e${n}` }))
  for (const { environment: name } of levels) await caller.call('POST', `/${o}/turns/t/environments`, { name })
  const store = async (plaintextOf: (n: number) => string) => {
    for (const [n, level] of levels.entries()) {
      const { status, text } = await caller.call('POST', `/${o}/secrets/store`, { ...level, plaintext: plaintextOf(n) })
      if (status !== 200) throw new Error(text)
    }
  }
  await store(slow)
  const [{ attributes }] = (await caller.call('POST', `/${o}/secrets/versions`, levels.at(-1)!)).body.data
  await store(() => 'A: 1')
  const fastest = Math.min(...levels.map((_, n) => {
    const began = performance.now()
    readDocument('yaml', slow(n))
    return performance.now() - began
  }))
  // The time of a parse, measured here, tells the turns in which a document is parsed from the other ones.
  const state = { longTurns: 0, isOver: false }
  const watch = async () => {
    for (let last = performance.now(); !state.isOver; last = performance.now()) {
      await new Promise((resolve) => { setImmediate(resolve) })
      if (performance.now() - last > fastest / 2) state.longTurns++
    }
  }
  const watching = watch()
  const { status, body } = await caller.call('POST', `/${o}/turns/restore-to`, { at: attributes.created_at, confirmed: true })
  state.isOver = true
  await watching
  t.match([status, body?.data], [200, { restored: levels.length }])
  // All documents in one turn would be one long turn. A document that is parsed faster than the others is not seen.
  t.ok(state.longTurns >= levels.length / 2, `${state.longTurns} turns for ${levels.length} documents`)
})
