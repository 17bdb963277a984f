// runs: one database
import { randomBytes } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { queueOf } from '../../src/changes/queue.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { MAX_WAITING } from '../../src/db/postgres/guard.ts'
import { createRefusals, measureDatabase } from '../../src/http/observability/metrics.ts'
import { noteBackup } from '../../src/repositories/operations/backlog.ts'
import { createChannel, type Channel } from '../../src/telemetry/channel.ts'
import { collectMetrics, createCommonMetrics, metricsHandlers } from '../../src/telemetry/worker-metrics.ts'
import { createMetrics, render } from '../../src/telemetry/metrics.ts'
import { makeLevel, startIsolatedApp, type Caller, type TestApp } from '../helpers/app.ts'
import { samplesOf, valueOf } from '../helpers/metrics.ts'

const METRICS_TOKEN = randomBytes(24).toString('base64url')

let service: TestApp
let owner: Caller
t.before(async () => {
  // This test has its own database, because the metrics count the requests and rows of all organizations.
  service = await startIsolatedApp({ teardown: (fn) => t.teardown(fn) }, { METRICS_TOKEN, LOG_LEVEL: 'warn' })
  owner = await service.organization()
})

const scrape = (from = service, authorization = `Bearer ${METRICS_TOKEN}`) =>
  from.inject({ method: 'GET', url: '/metrics', headers: { authorization } })
const read = async (from = service) => samplesOf((await scrape(from)).text)

t.test('without METRICS_TOKEN there is no such path', async (t) => {
  const plain = await startIsolatedApp(t)
  for (const method of ['GET', 'HEAD', 'POST', 'OPTIONS'] as const) {
    const [there, nowhere] = await Promise.all(['/metrics', '/nowhere'].map((url) => plain.inject({
      method, url, headers: { authorization: `Bearer ${METRICS_TOKEN}` }
    })))
    t.equal(there!.status, 404, method)
    t.strictSame(there!.text, nowhere!.text, method)
    t.strictSame(Object.keys(there!.headers), Object.keys(nowhere!.headers), method)
  }
})

t.test('metrics are for the bearer of METRICS_TOKEN alone', async (t) => {
  const wrong = [
    '', METRICS_TOKEN, 'Bearer', `Bearer ${METRICS_TOKEN.slice(0, -1)}`, `Bearer ${METRICS_TOKEN}x`,
    `Basic ${METRICS_TOKEN}`, `Bearer\t${METRICS_TOKEN}`, `Bearer ${owner.token}`, `Bearer ${'x'.repeat(600)}`
  ]
  for (const authorization of wrong) {
    const answer = await scrape(service, authorization)
    t.equal(answer.status, 401, authorization.slice(0, 20))
    t.equal(answer.body.error, 'unauthenticated')
    t.match(answer.headers['www-authenticate'], /^Bearer /)
    const hasToken = /^Bearer\s/.test(authorization)
    t.equal(answer.headers['www-authenticate']!.includes('error='), hasToken, authorization.slice(0, 20))
    t.equal(answer.body.details === undefined, hasToken, authorization.slice(0, 20))
  }
  t.equal((await scrape(service, `Bearer  ${METRICS_TOKEN}`)).status, 200, 'two blanks')
  const answer = await scrape()
  t.equal(answer.status, 200)
  t.equal(answer.headers['content-type'], 'text/plain; version=0.0.4; charset=utf-8')
  t.equal(answer.headers['cache-control'], 'no-store')
  t.notOk('x-ratelimit-limit' in answer.headers, 'no limit counts it')
  t.equal((await owner.call('GET', '//metrics')).status, 401, 'a token of everything in an organization does not read it')
})

t.test('every line is in the text format, and what is of one metric stands together', async (t) => {
  await owner.call('GET', '/organization')
  const lines = (await scrape()).text.split('\n')
  t.equal(lines.pop(), '', 'the last line ends')
  let family = ''
  const families = new Set<string>()
  for (const line of lines) {
    const [, name] = /^# HELP (\w+) \S/.exec(line) ?? []
    if (name !== undefined) {
      t.notOk(families.has(name), `${name} stands once`)
      families.add(family = name)
    } else if (!line.startsWith('# TYPE ')) {
      const sample = /^(\w+?)(_bucket|_sum|_count)?(\{(?:\w+="(?:[^"\\]|\\.)*",?)+\})? -?[\d.]+(?:e[+-]?\d+)?$/.exec(line)
      t.ok(sample && `${sample[1]}${sample[2] ?? ''}`.startsWith(family), line)
    } else t.match(line, new RegExp(`^# TYPE ${family} (counter|gauge|histogram)$`))
  }
  t.ok(families.size > 25)
})

t.test('requests are counted by route, method and status, refusals by code, and each is in one bucket', async (t) => {
  const level = await makeLevel(owner, { slug: 'counted' })
  const route = { route: '/api/v1/:organization/secrets/store', method: 'POST' }
  const before = await read()
  for (let i = 0; i < 3; i++) {
    await owner.call('POST', `/${owner.organization}/secrets/store`, { ...level, plaintext: `A=${i}` })
  }
  await owner.call('POST', `/${owner.organization}/secrets/store`, { ...level, plaintext: 7 })
  await owner.call('POST', `/${owner.organization}/secrets/store`, '{', { 'content-type': 'application/json' })
  const after = await read()
  const grown = (name: string, labels: Record<string, string>) =>
    valueOf(after, name, labels) - valueOf(before, name, labels)
  t.equal(grown('strongroom_requests_total', { ...route, status: '200' }), 3)
  t.equal(grown('strongroom_requests_total', { ...route, status: '422' }), 1)
  t.equal(grown('strongroom_requests_total', { ...route, status: '400' }), 1)
  t.equal(grown('strongroom_refusals_total', { code: 'validation_failed' }), 1)
  t.equal(grown('strongroom_refusals_total', { code: 'malformed_json' }), 1)
  t.equal(grown('strongroom_request_duration_seconds_count', route), 5)
  t.equal(grown('strongroom_request_duration_seconds_bucket', { ...route, le: '+Inf' }), 5)
  t.ok(grown('strongroom_request_duration_seconds_sum', route) > 0)
  t.equal(valueOf(after, 'strongroom_requests_under_way', {}), 1, 'the one that asks')
  t.equal(valueOf(after, 'strongroom_database_pool_waiting', { pool: 'db' }), 0)
  t.ok(valueOf(after, 'strongroom_audit_last_event_time_seconds', {}) > Date.now() / 1000 - 60)
  t.equal(valueOf(after, 'strongroom_audit_unanchored_organizations', {}), 1)
})

t.test('every refusal of what was changed outside the service is counted, from 0 on', async (t) => {
  const other = await service.organization()
  const level = await makeLevel(other, { slug: 'changed' })
  const own = (path: string) => `/${other.organization}${path}`
  await other.call('POST', own('/secrets/store'), { ...level, plaintext: 'A=1' })
  const before = await read()
  // The first sample must exist before the increase, so that Prometheus can compute the increase.
  t.ok(before.some(({ name }) => name === 'strongroom_integrity_violations_total'))
  t.ok(before.some(({ name, labels: { code } }) => name === 'strongroom_refusals_total' && code === 'integrity_error'))
  t.equal(valueOf(before, 'strongroom_integrity_violations_total', {}), 0)
  await service.sql(`UPDATE secrets SET sealed = set_byte(sealed, 60, get_byte(sealed, 60) # 1) WHERE organization_id = '${other.organization}'`)
  for (let i = 1; i <= 2; i++) {
    t.equal((await other.call('GET', own('/changed/backend/live/secrets'))).body.error, 'integrity_error')
    t.equal(valueOf(await read(), 'strongroom_integrity_violations_total', {}), i, 'a document')
  }
  await service.sql(`UPDATE api_tokens SET name = 'Another' WHERE organization_id = '${other.organization}'`)
  t.equal((await other.call('GET', '/organization')).status, 401)
  t.equal(valueOf(await read(), 'strongroom_integrity_violations_total', {}), 3, 'a row that counts as not there')
})

t.test('a client cannot add labels: a thousand paths, methods and hosts add at most one series per metric', async (t) => {
  const count = async () => (await scrape()).text.split('\n').length
  await service.inject({ method: 'GET', url: '/nowhere' })
  await service.inject({ method: 'PURGE' as 'GET', url: '/nowhere' })
  const before = await count()
  for (let i = 0; i < 1000; i++) {
    const random = randomBytes(8).toString('hex')
    await service.inject({
      method: (i % 10 === 0 ? 'PROPFIND' : 'GET') as 'GET',
      url: [`/${random}`, `/api/v1/${random}/projects`, `/api/v1/${owner.organization}/${random}`, `/%ff${random}`][i % 4]!,
      headers: { host: `${random}.example`, 'user-agent': random, 'x-request-id': random }
    })
  }
  const after = await scrape()
  t.ok(valueOf(samplesOf(after.text), 'strongroom_requests_total', { route: 'none', method: 'GET', status: '404' }) > 400)
  // The maximum growth: two new routes with status 401, each with a histogram, and one new error code.
  t.ok(after.text.split('\n').length - before < 50, `${after.text.split('\n').length - before} more lines`)
})

t.test('RL-40: nothing of a tenant is in the metrics: no id, slug, name, address, token or content', async (t) => {
  const canaries = {
    slug: `slug-${randomBytes(6).toString('hex')}`,
    content: randomBytes(12).toString('hex'),
    query: randomBytes(12).toString('hex'),
    header: randomBytes(12).toString('hex')
  }
  const level = await makeLevel(owner, { slug: canaries.slug })
  await owner.call('POST', `/${owner.organization}/secrets/store`, { ...level, plaintext: `A=${canaries.content}` })
  await owner.call('GET', `/${owner.organization}/${canaries.slug}/backend/live/secrets?decrypt=true`)
  await owner.call('GET', `/${owner.organization}/${canaries.slug}/none?q=${canaries.query}`)
  await owner.call('GET', `/${canaries.query}/projects`, undefined, { 'user-agent': canaries.header })
  const { text } = await scrape()
  for (const [name, canary] of Object.entries({
    ...canaries, organization: owner.organization, token: owner.token.slice(-20), metricsToken: METRICS_TOKEN
  })) {
    t.notOk(text.includes(canary), name)
  }
})

t.test('what waits is counted over all organizations', async (t) => {
  const [one, other] = [await service.organization(), await service.organization()]
  const before = await read()
  for (const { organization } of [one, other]) {
    await service.sql(`INSERT INTO organization_removals (organization_id) VALUES ('${organization}')`)
    await service.sql(`INSERT INTO token_removals (organization_id, ended, ended_id) VALUES ('${organization}', 'level', 0)`)
    await service.sql(`INSERT INTO histories (organization_id, id, removed_at) VALUES ('${organization}', '${organization}', now())`)
    await service.sql(`INSERT INTO late_events (organization_id, occurred_at, event) VALUES ('${organization}', now() - interval '90 s', '{}')`)
    await makeLevel(await service.token(organization, ['*']), { slug: 'moving' })
    await service.sql(`INSERT INTO re_encryptions (organization_id, project_id, total, moved) SELECT organization_id, id, 10, 3 FROM projects WHERE organization_id = '${organization}'`)
  }
  const after = await read()
  for (const [name, by] of Object.entries({
    removal_organizations: 2,
    removal_tokens: 2,
    removal_histories: 2,
    late_events: 2,
    reencryption_projects: 2,
    reencryption_versions_left: 14
  })) {
    t.equal(valueOf(after, `strongroom_${name}`, {}) - valueOf(before, `strongroom_${name}`, {}), by, name)
  }
  const oldest = valueOf(after, 'strongroom_late_events_oldest_seconds', {})
  t.ok(oldest >= 90, `the first of them waits for ${oldest} s`)
  t.equal(valueOf(after, 'strongroom_database_up', {}), 1)
})

t.test('the newest backup is told, and nothing where there is none', async (t) => {
  t.notMatch((await scrape()).text, /^strongroom_last_backup_\w+ /m)
  await noteBackup(service.database.db, { made_at: '2026-03-01T00:00:00.500Z', bytes: 7 })
  const after = await read()
  t.equal(valueOf(after, 'strongroom_last_backup_time_seconds', {}), Date.UTC(2026, 2, 1) / 1000 + 0.5)
  t.equal(valueOf(after, 'strongroom_last_backup_bytes', {}), 7)
})

t.test('uses of the database are counted where they are, and where they wait', async (t) => {
  const { database } = service
  const metrics = await createMetrics()
  measureDatabase(metrics, database, queueOf(database.db).figures, createRefusals())
  const now = async (...names: string[]) => {
    const samples = samplesOf(await render([await metrics.read()]))
    return names.map((name) => valueOf(samples, `strongroom_database_pool_${name}`, { pool: 'db' }))
  }
  const [idle, used] = await now('idle', 'in_use') as [number, number]
  let release = () => {}
  const released = new Promise<void>((resolve) => { release = resolve })
  const holding = Array.from({ length: idle }, () => transaction(database.db, async () => released))
  const waiting = transaction(database.db, async () => {})
  t.same(await now('in_use', 'idle', 'waiting'), [used + idle, 0, 1])
  release()
  await Promise.all([...holding, waiting])
  t.same(await now('in_use', 'idle', 'waiting'), [used, idle, 0])
  t.same(await now('timeouts_total', 'refused_total'), [0, 0])

  const { running, free } = database.pools.db!
  const full = new Promise<void>((resolve) => { release = resolve })
  const busy = Array.from({ length: running + free + MAX_WAITING }, () => transaction(database.db, async () => full))
  await t.rejects(transaction(database.db, async () => {}), /Too many are waiting/)
  t.same(await now('refused_total'), [1])
  release()
  await Promise.all(busy)
})

t.test('without its database the service still tells of itself', async (t) => {
  const alone = await startIsolatedApp(t, { METRICS_TOKEN, LOG_LEVEL: 'silent' })
  await alone.database.close()
  const samples = await read(alone)
  t.equal(valueOf(samples, 'strongroom_database_up', {}), 0)
  t.notOk(samples.some(({ name }) => name === 'strongroom_late_events'), 'what is not known is left out')
  t.ok(valueOf(samples, 'process_resident_memory_bytes', {}) > 0)
})

t.test('labels are escaped, and a name stands once', async (t) => {
  const metrics = await createMetrics()
  metrics.counter('lines_total', 'Lines', ['text']).inc({ text: 'a"b\\c\nd' }, 2)
  t.match(await render([await metrics.read()]), 'lines_total{text="a\\"b\\\\c\\nd"} 2\n')
  t.throws(() => metrics.watch('gauge', 'lines_total', 'Again', () => 1), /name lines_total has already been registered/)
})

t.test('any of several processes answers for all; one that is stuck is told of and waited for no longer', async (t) => {
  const common = createCommonMetrics(await createMetrics())
  // Copies a message like the transfer between two processes.
  const copy = (message: object): object => JSON.parse(JSON.stringify(message))
  const stuck = new Set<string>()
  const member = async (name: string) => {
    const own = await createMetrics()
    own.counter('done_total', 'Done', ['by']).inc({ by: name }, Number(name))
    const seat: Channel = createChannel((message) => {
      if (!stuck.has(name)) setImmediate(() => one.receive(copy(message)))
      return true
    }, common.handlers)
    const one: Channel = createChannel((message) => seat.receive(copy(message)), metricsHandlers(own))
    return { readAll: () => collectMetrics(own, one), leave: common.join(name, seat) }
  }
  const [first, second] = [await member('1'), await member('2')]
  const both = samplesOf(await render(await first.readAll()))
  t.strictSame(both, samplesOf(await render(await second.readAll())), 'the same from each worker')
  t.equal(valueOf(both, 'done_total', { by: '1', worker: '1' }), 1)
  t.equal(valueOf(both, 'done_total', { by: '2', worker: '2' }), 2)
  stuck.add('2')
  const rest = samplesOf(await render(await first.readAll()))
  t.equal(valueOf(rest, 'strongroom_worker_up', { worker: '1' }), 1)
  t.equal(valueOf(rest, 'strongroom_worker_up', { worker: '2' }), 0)
  t.notOk(rest.some(({ name, labels }) => name === 'done_total' && labels.worker === '2'))
  second.leave()
  t.notOk(samplesOf(await render(await first.readAll())).some(({ labels }) => labels.worker === '2'), 'and who has gone is not')
  const alone = await createMetrics()
  alone.counter('done_total', 'Done').inc(3)
  const orphan = createChannel(() => false, metricsHandlers(alone))
  t.equal(valueOf(samplesOf(await render(await collectMetrics(alone, orphan))), 'done_total', {}), 3, 'without a supervisor, its own')
  await pause(0)
})
