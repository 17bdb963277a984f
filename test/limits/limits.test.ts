// runs: one database
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import Fastify from 'fastify'
import t, { type Test } from 'tap'
import { ERRORS, messageOf } from '../../schemas/errors.ts'
import { loadConfig } from '../../src/config.ts'
import { mintApiToken } from '../../src/crypto/bearer.ts'
import { addressKey } from '../../src/http/routes/addresses.ts'
import { createCounters, type Counted, type Counting } from '../../src/http/limits/counters.ts'
import { LIMITS, installLimits, type LimitGroup } from '../../src/http/limits/limits.ts'
import { ApiError } from '../../src/rules/api-error.ts'
import { makeLevel, startIsolatedApp, type Answer, type Caller, type TestApp } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { LONG, sample } from '../helpers/long.ts'
import { until } from '../helpers/until.ts'

const now = () => Date.now() / 1000
const limitOf = ({ headers }: Answer) => Number(headers['x-ratelimit-limit'])
const remainingOf = ({ headers }: Answer) => Number(headers['x-ratelimit-remaining'])
const resetOf = ({ headers }: Answer) => Number(headers['x-ratelimit-reset'])

// Two services serve all tests. Each test uses its own organizations and addresses.
let hundred: TestApp
let three: TestApp

t.before(async () => {
  // Databases of their own: these services count, from nothing, what organizations, addresses and pages get.
  hundred = await startIsolatedApp({ teardown: (fn) => t.teardown(fn) }, { RATE_LIMIT_API: '100', BODY_LIMIT: '16KiB' })
  three = await startIsolatedApp({ teardown: (fn) => t.teardown(fn) }, { RATE_LIMIT_API: '3', TRUST_PROXY: '10.0.0.0/8' })
})

const LIMITED = ['x-ratelimit-limit', 'x-ratelimit-remaining', 'x-ratelimit-reset', 'retry-after']

const VARIABLES: Record<LimitGroup, string> = {
  api: 'RATE_LIMIT_API',
  docs: 'RATE_LIMIT_API',
  memberships: 'RATE_LIMIT_API',
  oauth_token: 'RATE_LIMIT_OAUTH',
  oauth_revoke: 'RATE_LIMIT_OAUTH',
  sign_in: 'RATE_LIMIT_OAUTH',
  key_rotation: 'RATE_LIMIT_KEY_ROTATION',
  key_custody: 'RATE_LIMIT_LONG_OPERATIONS',
  client_key_rotation: 'RATE_LIMIT_LONG_OPERATIONS',
  project_restore: 'RATE_LIMIT_LONG_OPERATIONS',
  project_restore_dry_run: 'RATE_LIMIT_LONG_OPERATIONS',
  level_deletion: 'RATE_LIMIT_LONG_OPERATIONS',
  billing: 'RATE_LIMIT_BILLING',
  invoice_files: 'RATE_LIMIT_BILLING'
}

/** A request without a token, which counts only for its address. */
function anonymous (service: TestApp, remoteAddress: string, headers: Record<string, string> = {}) {
  return service.inject({ method: 'GET', url: '/api/v1/organization', remoteAddress, headers })
}

/** Asserts the 429 of S-14.1: Retry-After is in whole seconds and also in the body, and Reset is at the same time. */
function isExceeded (test: Test, answer: Answer, limit: number, window = 60, isOfPlan = false) {
  test.equal(answer.status, 429)
  test.match(answer.headers['retry-after'], /^[1-9]\d*$/)
  const retryAfter = Number(answer.headers['retry-after'])
  test.ok(retryAfter <= window)
  const { group, variable, ...details } = answer.body.details
  test.strictSame(details, { retry_after: retryAfter, limit, window })
  test.equal(variable, isOfPlan ? undefined : VARIABLES[group as LimitGroup], `${group}: the variable`)
  test.strictSame(answer.body, {
    error: 'rate_limit_exceeded',
    message: `Too many requests: the limit \`${group}\` is ${limit} ${window === 60 ? 'a minute' : 'an hour'}. ` +
      `Try again in ${retryAfter} s. ${isOfPlan ? 'It is the limit of the plan.' : `The operator of the service can change it with ${variable}.`}`,
    details: { retry_after: retryAfter, group, limit, window, ...(!isOfPlan && { variable }) }
  })
  test.equal(limitOf(answer), limit)
  test.equal(remainingOf(answer), 0)
  test.ok(
    Math.abs(resetOf(answer) - now() - retryAfter) <= 1.5,
    `Reset is Retry-After away: ${resetOf(answer) - now()} and ${retryAfter}`
  )
}

t.test('by default the groups allow what S-14.2 says: 100 and 10 a minute, 10 an hour', async (t) => {
  t.strictSame(loadConfig({}).rateLimits, { api: 100, oauth: 10, keyRotation: 10, billing: 10, longOperations: 60 })
  const app = Fastify()
  t.teardown(() => app.close())
  app.decorate('config', loadConfig({}))
  const consume = await installLimits(app, createCounters())
  app.setErrorHandler(async (error: ApiError, _request, reply) =>
    reply.code(ERRORS[error.code].status).send({
      error: error.code, message: messageOf(error.code, error.details), details: error.details
    }))
  app.get('/:group/:key', async (request, reply) => {
    const { group, key } = request.params as { group: LimitGroup, key: string }
    await consume(group, key, 0, request, reply)
    return {}
  })
  const call = async (group: string, key = 'org:A'): Promise<Answer> => {
    const response = await app.inject(`/${group}/${key}`)
    return { status: response.statusCode, headers: response.headers, body: response.json(), text: response.payload }
  }
  for (const [group, limit, window] of [
    ['api', 100, 60], ['oauth_token', 10, 60], ['oauth_revoke', 10, 60], ['key_rotation', 10, 3600],
    ['key_custody', 60, 3600], ['client_key_rotation', 60, 3600], ['project_restore', 60, 3600],
    ['project_restore_dry_run', 600, 3600],
    ['level_deletion', 60, 3600], ['billing', 10, 60], ['invoice_files', 30, 60], ['sign_in', 20, 60], ['docs', 100, 60],
    ['memberships', 100, 3600]
  ] as const) {
    for (let n = 1; n <= limit; n++) {
      const answer = await call(group)
      if (answer.status !== 200 || limitOf(answer) !== limit || remainingOf(answer) !== limit - n) {
        t.fail(`${group}, call ${n}: ${answer.status} ${JSON.stringify(answer.headers)}`)
      }
      if (n === 1) t.ok(Math.abs(resetOf(answer) - now() - window) <= 2, `${group}: a window of ${window} seconds`)
    }
    const exceeded = await call(group)
    isExceeded(t, exceeded, limit, window)
    t.equal(exceeded.body.details.group, group)
    t.equal((await call(group, 'org:B')).status, 200, `${group}: another key has a count of its own`)
  }
  t.same(Object.keys(LIMITS).length, 14)
})

t.test('the 101st call of a minute is 429, with Retry-After there and nowhere else', async (t) => {
  const service = hundred
  const caller = await service.organization()
  const other = await service.organization()
  const started = now()
  const resets = new Set<number>()
  for (let n = 1; n <= 100; n++) {
    const answer = await caller.call(
      n % 2 ? 'GET' : 'HEAD', n % 3 ? '/organization' : `/${caller.organization}/projects`
    )
    resets.add(resetOf(answer))
    if (answer.status !== 200 || limitOf(answer) !== 100 || remainingOf(answer) !== 100 - n ||
      answer.headers['retry-after'] !== undefined) {
      t.fail(`call ${n}: ${answer.status} ${JSON.stringify(answer.headers)}`)
    }
  }
  t.equal(resets.size, 1, 'Reset is one moment for a window')
  const [reset = 0] = resets
  t.ok(
    Number.isInteger(reset) && reset >= started + 59 && reset <= now() + 61,
    'and a Unix time a minute from its first call'
  )
  const exceeded = await caller.call('GET', '/organization')
  isExceeded(t, exceeded, 100)
  t.equal(resetOf(exceeded), reset)
  const head = await caller.call('HEAD', '/organization')
  t.equal(head.status, 429, 'HEAD counts and is refused like GET')
  t.equal(head.text, '')
  isExceeded(t, await caller.call('POST', `/${caller.organization}/projects`, { name: 'x' }), 100)
  isExceeded(t, await (await service.token(caller.organization, ['project:read'])).call('GET', '/organization'), 100)
  t.equal((await other.call('GET', '/organization')).status, 200, 'another organization goes on')
  t.equal((await service.sql(
    `SELECT count(*)::int AS n FROM projects WHERE organization_id = '${caller.organization}'`
  ))[0]?.n, 0, 'and nothing was done')
})

t.test('HT-20 every answer of a limited route carries the headers, whatever its status; other routes do not', async (t) => {
  const service = hundred
  const caller = await service.organization()
  const other = await service.organization()
  const narrow = await service.token(caller.organization, ['target:read'])
  await makeLevel(caller)
  const own = `/${caller.organization}`
  const etag = (await caller.call('GET', `${own}/orbit/secrets`)).headers.etag as string
  const answers: [number, Answer][] = [
    [200, await caller.call('GET', '/organization')],
    [204, await caller.call('DELETE', `${own}/orbit/backend/live`)],
    [304, await caller.call('GET', `${own}/orbit/secrets`, undefined, { 'if-none-match': etag })],
    [400, await caller.call('GET', '/organization', undefined, { 'x-api-version': '2' })],
    [400, await caller.call('POST', `${own}/projects`, '{', { 'content-type': 'application/json' })],
    [401, await anonymous(service, '198.51.100.20')],
    [401, await anonymous(service, '198.51.100.20', { authorization: 'Bearer x' })],
    [401, await anonymous(service, '198.51.100.20', { authorization: `Bearer ${caller.token}x` })],
    [403, await narrow.call('GET', `${own}/orbit`)],
    [404, await caller.call('GET', `${own}/nope`)],
    [404, await caller.call('GET', `/${other.organization}/projects`)],
    [404, await caller.call('GET', `${own}/a%00b`)],
    [404, await caller.call('GET', '/nowhere')],
    [405, await caller.call('PUT', `${own}/projects`)],
    [405, await caller.call('GET', `${own}/secrets/store`)],
    [413, await caller.call('POST', `${own}/projects`, { name: 'x', description: 'y'.repeat(20_000) })],
    [415, await caller.call('POST', `${own}/projects`, 'x', { 'content-type': 'text/plain' })],
    [422, await caller.call('POST', `${own}/projects`, {})]
  ]
  for (const [status, answer] of answers) {
    t.equal(answer.status, status, answer.text)
    for (const header of LIMITED.slice(0, 3)) t.match(String(answer.headers[header]), /^\d+$/, `${status}: ${header}`)
    t.equal(limitOf(answer), 100, `${status}: Limit`)
    t.ok(resetOf(answer) > now() && resetOf(answer) <= now() + 61, `${status}: Reset`)
    t.notOk(answer.headers['retry-after'], `${status}: no Retry-After`)
  }
  for (const url of ['/healthz', '/readyz']) {
    const { headers, status } = await service.inject({ method: 'GET', url })
    t.equal(status, 200, url)
    t.strictSame(LIMITED.filter((name) => name in headers), [], `${url} is not limited`)
  }
})

t.test('TI-16 foreign and anonymous calls count against their address, never against the named organization', async (t) => {
  const service = hundred
  const victim = await service.organization()
  const other = await service.organization()
  const first = await victim.call('GET', '/organization')
  t.equal(remainingOf(first), 99)
  const path = `/${victim.organization}/projects`
  let foreign: Answer | undefined
  for (let n = 1; n <= 110; n++) {
    foreign = await service.inject({
      method: 'GET',
      url: `/api/v1${path}`,
      remoteAddress: '198.51.100.16',
      headers: { authorization: `Bearer ${other.token}` }
    })
    if (foreign.status !== (n <= 100 ? 404 : 429)) t.fail(`foreign call ${n}: ${foreign.status}`)
  }
  isExceeded(t, foreign!, 100)
  for (let n = 1; n <= 110; n++) {
    const headers: Record<string, string> = n % 2 ? {} : { authorization: `Bearer ${victim.token.slice(0, -1)}` }
    const answer = await service.inject({
      method: 'GET', url: `/api/v1${path}`, remoteAddress: '198.51.100.17', headers
    })
    if (answer.status !== (n <= 100 ? 401 : 429)) t.fail(`anonymous call ${n}: ${answer.status}`)
  }
  const after = await victim.call('GET', '/organization')
  t.equal(after.status, 200, 'not even from an address that is used up')
  t.equal(remainingOf(after), 98, 'the count of the organization went on by its own call alone')
  t.equal(
    remainingOf(await other.call('GET', '/organization')), 99,
    'nor did the foreign calls count against the caller\'s own organization'
  )
  t.equal((await victim.call('GET', `/${victim.organization}/nope`)).status, 404)
  t.equal(remainingOf(await victim.call('GET', '/organization')), 96, 'what it asks for in vain counts')
})

t.test('a plan can raise the limit of S-14.2 but not lower it, and 0 turns the limit off', async (t) => {
  const service = three
  await service.sql("UPDATE plans SET api_per_minute = 120 WHERE name = 'team'")
  await service.sql("UPDATE plans SET api_per_minute = 1 WHERE name = 'free'")
  for (const [plan, limit] of [['team', 120], ['free', 3], ['self-hosted', 3]] as const) {
    const caller = await service.organization({ plan })
    for (let n = 1; n <= limit; n++) {
      const answer = await caller.call('GET', '/organization')
      if (answer.status !== 200 || limitOf(answer) !== limit || remainingOf(answer) !== limit - n) {
        t.fail(`${plan}, call ${n}: ${answer.status} ${JSON.stringify(answer.headers)}`)
      }
    }
    isExceeded(t, await caller.call('GET', '/organization'), limit, 60, plan === 'team')
    const shown = (await service.organization({ plan })).call
    const { id } = (await shown('GET', '/organization')).body.data
    const usage = await shown('GET', `/organizations/${id}/usage`)
    t.equal(usage.body.data.attributes.api_calls.limit_per_minute, limit, 'the usage shows what is in force')
  }
  const stranger = await anonymous(service, '198.51.100.18')
  t.equal(limitOf(stranger), 3, 'an address has no plan')

  const off = await startIsolatedApp(t, { RATE_LIMIT_API: '0' })
  const caller = await off.organization({ plan: 'free' })
  const answers = await Promise.all(Array.from({ length: LONG ? 200 : 50 }, () => caller.call('GET', '/organization')))
  t.ok(answers.every(({ status }) => status === 200))
  t.strictSame(LIMITED.filter((name) => name in answers[0]!.headers), [], 'and there is nothing to say')
})

const AT_ONCE = LONG ? 1000 : 300
t.test('RL-24: of many calls at once exactly as many come through as the limit allows', async (t) => {
  const service = hundred
  const caller = await service.organization()
  const all = await Promise.all(Array.from({ length: AT_ONCE }, (_, i) =>
    caller.call(i % 2 ? 'GET' : 'HEAD', '/organization')))
  // Refusals because of the full database queue come before the count.
  const answers = all.filter(({ status }) => status !== 503)
  const allowed = Math.min(100, answers.length)
  t.equal(answers.filter(({ status }) => status === 200).length, allowed)
  t.equal(answers.filter(({ status }) => status === 429).length, answers.length - allowed)
  const remaining = answers.filter(({ status }) => status === 200).map(remainingOf).sort((a, b) => a - b)
  t.strictSame(
    remaining, Array.from({ length: allowed }, (_, i) => 100 - allowed + i), 'each of them is told another number'
  )
  t.equal(new Set(answers.map(resetOf)).size, 1)
  const strangers = await Promise.all(Array.from({ length: 300 }, () => anonymous(service, '198.51.100.24')))
  t.equal(strangers.filter(({ status }) => status === 401).length, 100)
  t.equal(strangers.filter(({ status }) => status === 429).length, 200)
})

t.test('RL-15 a clock that is set back or forth locks no caller out for longer than a window', async (t) => {
  const { now } = Date
  t.teardown(() => { Date.now = now })
  const asked = async () => {
    const answers = []
    for (let n = 0; n < 4; n++) answers.push(await anonymous(three, '203.0.113.15'))
    for (const answer of answers) t.ok(Math.abs(resetOf(answer) - Date.now() / 1000 - 60) <= 1.5)
    return answers.map(({ status }) => status)
  }
  t.strictSame(await asked(), [401, 401, 401, 429])
  for (const hours of [-1, -25, 1, 0]) {
    Date.now = () => now() + hours * 3_600_000
    t.strictSame(await asked(), [401, 401, 401, 429], `${hours} h`)
  }
})

t.test('the limit of an effect is counted right before it: a refusal with 403, 404 or 422 does not count', async (t) => {
  const service = await startIsolatedApp(t, {
    RATE_LIMIT_API: '1000', RATE_LIMIT_KEY_ROTATION: '2', RATE_LIMIT_LONG_OPERATIONS: '2'
  })
  const caller = await service.organization()
  const client = await clientKey('a key of the client')
  const at = await makeLevel(caller, { name: 'Servers' })
  const kept = await makeLevel(caller, { name: 'Clients', ...client.registration })
  const outside = await service.token(caller.organization, ['*'], {
    slices: [{
      project_id: (await caller.call('GET', `/${caller.organization}/${kept.project}`)).body.data.id,
      target_id: null,
      environment_id: null
    }]
  })
  const nextKeys = await Promise.all(Array.from({ length: LONG ? 40 : 20 }, async (_, n) => {
    const { storage_mode: _mode, ...triple } = (await clientKey(`key ${n} of the client`)).registration
    return triple
  }))
  // For each route with such a limit: a project, a body whose effect counts, and bodies that the service refuses before
  // that.
  const custody = {
    project: kept.project,
    body: { storage_mode: 'server', encryption_key: 'not the right one' },
    bad: [
      { storage_mode: 'server' }, { storage_mode: 'server', nmae: 1 }, { storage_mode: 'client', encryption_key: 'x' }
    ]
  }
  const cases: Record<string, { project: string, body: object, bad: object[] }> = {
    'POST /api/v1/:organization/:project/encryption-key/rotate': {
      project: at.project, body: {}, bad: [{ history_policy: 'other' }]
    },
    'PUT /api/v1/:organization/:project': custody,
    'PATCH /api/v1/:organization/:project': custody,
    'POST /api/v1/:organization/:project/restore-to': {
      project: at.project,
      body: { at: new Date().toISOString(), confirmed: true },
      bad: [{ at: 'yesterday', confirmed: true }, { at: new Date().toISOString() }]
    },
    'POST /api/v1/:organization/:project/secrets/rotate-client-keys': {
      project: kept.project,
      // Each request needs another key.
      get body () { return { secrets: [], ...nextKeys.shift() } },
      bad: [{ secrets: [] }, { secrets: [{ id: 'x', content: 'x' }], ...client.registration, storage_mode: undefined }]
    }
  }
  const found: Record<string, LimitGroup> = {}
  for (const [path, item] of Object.entries(service.app.swagger().paths ?? {})) {
    for (const [method, operation] of Object.entries(item as Record<string, { 'x-limit-of-effect'?: LimitGroup }>)) {
      const group = operation['x-limit-of-effect']
      // The limits of billing, members and large deletions have tests in billing, members and fairness.test.ts.
      if (group === undefined) continue
      if (['billing', 'invoice_files', 'memberships', 'level_deletion'].includes(group)) continue
      found[`${method.toUpperCase()} ${path.replace(/{(\w+)}/g, ':$1')}`] = group
    }
  }
  t.strictSame(Object.keys(found).sort(), Object.keys(cases).sort(), 'every route with such a limit is looked at here')

  for (const [route, sent] of Object.entries(cases)) {
    const { project, bad } = sent
    const [method = '', path = ''] = route.split(' /api/v1')
    const other = await service.organization()
    const weak = await service.token(caller.organization, ['project:read'])
    const ask = (who: Caller, to: string, what = sent.body) =>
      who.call(method, path.replace(':organization', caller.organization).replace(':project', to), what)
    const refused: [number, () => Promise<Answer>][] = [
      [403, () => ask(weak, project)],
      [404, () => ask(other, project)],
      [404, () => ask(caller, 'nowhere')],
      [404, () => ask(project === at.project ? outside : other, project)],
      ...bad.map((one): [number, () => Promise<Answer>] => [422, () => ask(caller, project, one)])
    ]
    for (let round = 0; round < (LONG ? 3 : 1); round++) {
      for (const [status, call] of refused) {
        const answer = await call()
        t.equal(answer.status, status, `${route}: ${answer.text}`)
        t.equal(limitOf(answer), 1000, `${route} ${status}: the general count goes on, and is what the headers tell`)
      }
    }
    if (route.startsWith('PUT')) continue // one count with PATCH
    for (const left of [1, 0]) {
      const answer = await ask(caller, project)
      t.not(answer.status, 429, `${route}: ${answer.text}`)
      t.match(
        [limitOf(answer), remainingOf(answer)], [2, left],
        `${route}: the effect counts, whatever comes of it, and the headers tell of its limit`
      )
    }
    isExceeded(t, await ask(caller, project), 2, 3600)
    for (const [status, call] of refused) {
      t.equal((await call()).status, status, `${route}: what is refused before is told why`)
    }
  }
})

t.test('the documentation is kept in memory with strong ETags, and counted by address beside the API', async (t) => {
  const service = three
  const get = (
    url: string, remoteAddress: string, headers: Record<string, string> = {}, method: 'GET' | 'HEAD' = 'GET'
  ) => service.inject({ method, url, remoteAddress, headers })
  for (const [i, url] of sample([
    '/openapi.json', '/openapi.yaml', '/docs', '/docs/', '/docs/json', '/docs/yaml', '/docs/static/swagger-ui.css',
    '/docs/static/swagger-ui-bundle.js', '/docs/static/swagger-initializer.js'
  ], 2).entries()) {
    const first = await get(url, `192.0.2.${100 + i}`)
    t.equal(first.status, 200, url)
    const etag = String(first.headers.etag)
    t.match(etag, /^"[\w-]{43}"$/, `${url}: strong, of the bytes`)
    const again = await get(url, `192.0.2.${100 + i}`, { 'if-none-match': etag })
    t.match(
      [again.status, again.text, again.headers.etag, again.headers['cache-control']], [304, '', etag, 'no-cache'], url
    )
    const kept = await get(url, `192.0.2.${100 + i}`, { 'if-none-match': '"another"' })
    t.match([
      kept.status, kept.headers.etag, kept.headers['content-type'], kept.headers['content-security-policy'],
      kept.text === first.text
    ],
    [200, etag, first.headers['content-type'], first.headers['content-security-policy'], true], url)
    t.equal(kept.headers['content-length'], String(Buffer.byteLength(first.text)), `${url}: whole, from memory`)
    const head = await get(url, `192.0.3.${100 + i}`, {}, 'HEAD')
    t.match([head.status, head.text, head.headers.etag], [200, '', etag])
    isExceeded(t, await get(url, `192.0.2.${100 + i}`), 3)
  }
  t.equal((await anonymous(service, '192.0.2.100')).status, 401, 'the API has a count of its own')
  t.equal((await get('/docs/static/oauth2-redirect.html?code=x', '192.0.2.90')).status, 200)
})

t.test('forged tokens from an address past its limit are looked up one at a time, and few of them wait', async (t) => {
  const service = three
  const victim = await service.organization()
  const remoteAddress = '198.51.100.60'
  const ask = (token: string) => service.inject({
    method: 'GET', url: '/api/v1/organization', remoteAddress, headers: { authorization: `Bearer ${token}` }
  })
  for (let n = 0; n < 4; n++) await ask(mintApiToken(victim.organization))
  let [now, most, all] = [0, 0, 0]
  const onStatement = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (!text.includes('api_tokens')) return
    if (phase === 'before') {
      all++
      most = Math.max(most, ++now)
    } else now--
  }
  subscribe('strongroom:statement', onStatement)
  t.teardown(() => unsubscribe('strongroom:statement', onStatement))
  const answers = await Promise.all(Array.from({ length: 200 }, () => ask(mintApiToken(victim.organization))))
  t.ok(answers.every(({ status }) => status === 429))
  t.equal(most, 1, 'one at a time')
  // A look-up first searches the tokens of organizations, and then the tokens of persons.
  const statements = 2
  t.ok(all <= 21 * statements, `${all / statements} of 200 were looked up at all`)
  const [good] = await Promise.all([
    ask(victim.token), ...Array.from({ length: 10 }, () => ask(mintApiToken(victim.organization)))
  ])
  t.equal(good.status, 200, 'a good token goes on from there, in its turn')
})

t.test('addresses count by subscriber: IPv4 in any spelling, IPv6 by its /64', async (t) => {
  for (const [address, key] of [
    ['192.0.2.1', 'ip:192.0.2.1'],
    ['::ffff:192.0.2.1', 'ip:192.0.2.1'],
    ['::FFFF:192.0.2.1', 'ip:192.0.2.1'],
    ['2001:db8:1:2:3:4:5:6', 'ip:2001:db8:1:2::/64'],
    ['2001:0db8:0001:0002::1', 'ip:2001:db8:1:2::/64'],
    ['2001:DB8:1:2:ffff:ffff:ffff:ffff', 'ip:2001:db8:1:2::/64'],
    ['2001:db8::1', 'ip:2001:db8:0:0::/64'],
    ['2001:db8:0:0:1::', 'ip:2001:db8:0:0::/64'],
    ['::1', 'ip:0:0:0:0::/64'],
    ['::', 'ip:0:0:0:0::/64'],
    ['fe80::1%eth0', 'ip:fe80:0:0:0::/64'],
    ['64:ff9b::192.0.2.33', 'ip:64:ff9b:0:0::/64'],
    ['garbage', 'ip:garbage']
  ] as const) t.equal(addressKey(address), key, address)

  const service = three
  for (const address of ['2001:db8:1:2::1', '2001:db8:1:2::2', '2001:db8:1:2:ffff::3']) {
    t.equal((await anonymous(service, address)).status, 401)
  }
  isExceeded(t, await anonymous(service, '2001:db8:1:2::4'), 3)
  t.equal((await anonymous(service, '2001:db8:1:3::1')).status, 401, 'the next /64 is another subscriber')
  for (const address of ['192.0.2.1', '::ffff:192.0.2.1', '192.0.2.1']) {
    t.equal((await anonymous(service, address)).status, 401)
  }
  isExceeded(t, await anonymous(service, '::ffff:192.0.2.1'), 3)
})

t.test('HT-41 X-Forwarded-For counts only when a trusted proxy sends it', async (t) => {
  for (let n = 1; n <= 101; n++) {
    const headers = {
      'x-forwarded-for': `203.0.113.${n}`, forwarded: `for=203.0.113.${n}`, 'x-real-ip': `203.0.113.${n}`
    }
    const { status } = await anonymous(hundred, '198.51.100.41', headers)
    if (status !== (n <= 100 ? 401 : 429)) {
      t.fail(`without TRUST_PROXY a made-up address got around the limit: call ${n} was ${status}`)
    }
  }
  const proxied = three
  for (let n = 1; n <= 6; n++) {
    t.equal(
      (await anonymous(proxied, '10.0.0.1', { 'x-forwarded-for': `198.51.100.${n}` })).status, 401,
      'through the proxy each client counts for itself'
    )
  }
  for (let n = 1; n <= 4; n++) {
    const answer = await anonymous(proxied, `10.0.0.${n}`, { 'x-forwarded-for': `203.0.113.${n}, 198.51.100.99` })
    t.equal(answer.status, n <= 3 ? 401 : 429, 'what the client put before its own address counts for nothing')
  }
  for (let n = 1; n <= 4; n++) {
    const answer = await anonymous(proxied, '192.0.2.7', { 'x-forwarded-for': `198.51.100.${100 + n}` })
    t.equal(answer.status, n <= 3 ? 401 : 429, 'from elsewhere than the proxy the header is ignored')
  }
})

// A service with 50 requests a minute and 3 rotations an hour, and a new organization with two projects.
async function rotating (t: Test, plan?: string) {
  const service = await startIsolatedApp(t, { RATE_LIMIT_API: '50', RATE_LIMIT_KEY_ROTATION: '3' })
  if (plan !== undefined) await service.sql(`INSERT INTO plans (name, api_per_minute, max_bytes) VALUES ('${plan}', 50, 500)`)
  const caller = await service.organization({ plan })
  const { project } = await makeLevel(caller, { name: 'Servers' })
  const clients = await makeLevel(caller, { name: 'Clients', ...(await clientKey('a key of the client')).registration })
  const path = (to = project) => `/${caller.organization}/${to}/encryption-key/rotate`
  return {
    service,
    caller,
    project,
    path,
    clients: clients.project,
    rotate: (headers?: Record<string, string>) => caller.call('POST', path(), {}, headers),
    /** The remaining requests of the general group after this request. */
    left: async () => remainingOf(await caller.call('GET', '/organization'))
  }
}

t.test('a rotation that takes effect counts in its own group only', async (t) => {
  const { rotate, left, service } = await rotating(t)
  const before = await left()
  for (const [n, headers] of [[2, undefined], [1, { 'idempotency-key': 'one' }]] as const) {
    const answer = await rotate(headers)
    t.equal(answer.status, 200, answer.text)
    t.strictSame([limitOf(answer), remainingOf(answer)], [3, n], 'the headers describe its own group')
    t.ok(resetOf(answer) > now() + 3500)
  }
  t.equal(await left(), before - 1, 'the general group has one request less: this one')
  const replayed = await rotate({ 'idempotency-key': 'one' })
  t.match(replayed, { status: 200, headers: { 'idempotent-replayed': 'true' } })
  t.strictSame([limitOf(replayed), remainingOf(replayed)], [50, before - 2], 'a replay is no rotation')
  t.equal(remainingOf(await rotate()), 0)
  t.equal(await left(), before - 3)
  for (const [path, item] of Object.entries(service.app.swagger().paths ?? {})) {
    for (const operation of Object.values(item as Record<string, Record<string, unknown>>)) {
      const group = operation['x-limit-of-effect'] as LimitGroup | undefined
      const declared = group && (LIMITS[group] as { insteadOf?: string }).insteadOf
      t.equal(operation['x-limit-instead-of'], declared, `${path}: published as declared`)
    }
  }
  const replacing = Object.entries(LIMITS).filter(([, limit]) => 'insteadOf' in limit).map(([group]) => group)
  t.strictSame(replacing, ['key_rotation'], 'S-14.4 names no other group that counts so')
})

t.test('a dry run of restore-to has a limit of its own, ten times that of the restores', async (t) => {
  const service = await startIsolatedApp(t, { RATE_LIMIT_API: '1000', RATE_LIMIT_LONG_OPERATIONS: '1' })
  const caller = await service.organization()
  const { project } = await makeLevel(caller, { name: 'Previewed' })
  const restore = (query = '') => caller.call(
    'POST', `/${caller.organization}/${project}/restore-to${query}`, { at: new Date().toISOString(), confirmed: true }
  )
  for (let n = 9; n >= 0; n--) {
    const answer = await restore('?dry_run=true')
    t.equal(answer.status, 200, answer.text)
    t.strictSame([limitOf(answer), remainingOf(answer)], [10, n])
  }
  t.match(await restore('?dry_run=true'), { status: 429, body: { error: 'rate_limit_exceeded' } })
  t.equal((await restore()).status, 200, 'a restore counts apart')
  t.equal((await restore()).status, 429)
})

t.test('a rotation that is refused before it takes effect counts in the general group only', async (t) => {
  const { service, caller, path, project, clients, rotate, left } = await rotating(t, 'tight')
  const weak = await service.token(caller.organization, ['project:read'])
  let general = await left()
  const isGeneral = (answer: Answer, status: number, what: string) => {
    t.equal(answer.status, status, `${what}: ${answer.text}`)
    t.strictSame([limitOf(answer), remainingOf(answer)], [50, --general], `${what}: the headers describe the general group`)
  }
  isGeneral(await weak.call('POST', path(), {}), 403, 'scope')
  isGeneral(await caller.call('POST', path('nowhere'), {}), 404, 'place')
  isGeneral(await caller.call('POST', path(), { history_policy: 'other' }), 422, 'body')
  isGeneral(await caller.call('POST', path(clients), {}), 400, 'custody')
  const content = 'A='.padEnd(200, 'x')
  isGeneral(await caller.call('POST', `/${caller.organization}/secrets/store`, { project, plaintext: content }), 200, 'a document')
  const full = await rotate()
  isGeneral(full, 422, 'refused by the effect itself')
  t.equal(full.body.error, 'plan_limit_reached')
  await service.sql("UPDATE plans SET max_bytes = NULL WHERE name = 'tight'")
  for (const n of [2, 1, 0]) t.equal(remainingOf(await rotate()), n, 'none of them counted in its own group')
  t.equal(await left(), --general)
  for (let n = 0; n < 3; n++) isExceeded(t, await rotate(), 3, 3600)
  general -= 3
  t.equal(await left(), --general, 'past the limit of its own group a rotation takes no effect')
})

t.test('of rotations at once, each counts in exactly one group', async (t) => {
  const { caller, rotate, left } = await rotating(t)
  const before = await left()
  const answers = await Promise.all(Array.from({ length: 8 }, () => rotate()))
  const rotated = answers.filter(({ status }) => status === 200)
  const refused = answers.filter(({ status }) => status !== 200)
  t.ok(rotated.length >= 1 && refused.length >= 1, answers.map(({ status }) => status).join())
  const { body } = await caller.call('GET', `/${caller.organization}/servers/encryption-key/history`)
  t.equal(body.data.length, 1 + rotated.length)
  t.equal(await left(), before - 2 - refused.length)
  t.equal(remainingOf(await rotate()), 3 - rotated.length - 1)
})

t.test('an organization whose general group is used up is refused a rotation before any work', async (t) => {
  const { caller, rotate, left, service } = await rotating(t)
  await rotate()
  await until(async () => await left() === 0, { every: 0 })
  const statements: string[] = []
  const onStatement = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: unknown }
    if (phase === 'before') statements.push(String(text))
  }
  subscribe('strongroom:statement', onStatement)
  t.teardown(() => unsubscribe('strongroom:statement', onStatement))
  // The service may prefetch the level for the first request past the limit. After it, the service knows that the
  // organization is past the limit.
  isExceeded(t, await rotate(), 50)
  statements.length = 0
  for (let n = 0; n < 3; n++) isExceeded(t, await rotate(), 50)
  t.equal(statements.filter((text) => text.includes('api_tokens')).length, 3, 'its token is looked up')
  t.strictSame(statements.filter((text) => !text.includes('api_tokens')), [], 'and nothing else')
  t.match(await service.sql(`SELECT count(*)::int AS keys FROM encryption_keys k
    JOIN projects p ON p.organization_id = k.organization_id AND p.id = k.project_id
    WHERE p.slug = 'servers' AND k.organization_id = '${caller.organization}'`), [{ keys: 2 }])
})

t.test('a request is given back in its own window only, never below zero; a refused one uses nothing up', (t) => {
  const { now } = Date
  t.teardown(() => { Date.now = now })
  const counters = createCounters()
  const counting: Counting = ['api', 'org:a', 60_000, 3]
  const count = (): Counted => counters.count(counting)
  const giveBack = (end: number) => counters.count(['api', 'org:a', 60_000, 3, end])
  const [, end] = count()
  giveBack(end)
  giveBack(end)
  t.strictSame(count(), [1, end], 'never below zero')
  for (let n = 2; n <= 6; n++) t.equal(count()[0], n)
  t.equal(counters.pastUntil('api', 'org:a'), end)
  giveBack(end)
  t.equal(counters.pastUntil('api', 'org:a'), 0)
  t.strictSame([count()[0], count()[0]], [3, 4], 'one more comes through, however many were refused')
  Date.now = () => now() + 61_000
  const [first, later] = count()
  t.equal(first, 1)
  giveBack(end)
  t.strictSame(count(), [2, later], 'a later window stays as it is')
  t.end()
})
