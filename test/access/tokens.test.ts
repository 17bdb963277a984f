// runs: one database; 30 s
import { createHash } from 'node:crypto'
import { crc32 } from 'node:zlib'
import t from 'tap'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { buildApp } from '../../src/app.ts'
import { TOKEN_PATTERN, mintApiToken } from '../../src/crypto/bearer.ts'
import { connect, type Database } from '../../src/db/database.ts'
import { listTokens } from '../../src/repositories/people/tokens.ts'
import { scopesOfRole } from '../../src/rules/roles.ts'
import { coversAll, type Slice } from '../../src/rules/slices.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { freshDatabase, makeLevel, startIsolatedApp, type Answer, type Caller } from '../helpers/app.ts'
import { LONG, sample } from '../helpers/long.ts'
import { issuePair, makePerson, type Person } from '../helpers/people.ts'
import { waitsForTurn } from '../helpers/turns.ts'
import { until } from '../helpers/until.ts'
import { visitor } from '../helpers/visitor.ts'

// This file has its own database, because it takes the database away and looks at all events.
const service = await startIsolatedApp(t)

const keysOf = (caller: Caller) => `/organizations/${caller.organization}/api-keys`
const create = (caller: Caller, body: object) => caller.call('POST', keysOf(caller), { name: 'CI', ...body })
const failing = (answer: Answer) => [answer.status, answer.body.error, Object.keys(answer.body.errors ?? {})]
const count = async (caller: Caller) => (await caller.call('GET', keysOf(caller))).body.meta.total as number

/** The same caller with another `token`. */
function holder (caller: Caller, token: string): Caller {
  return {
    ...caller,
    token,
    call: (method, path, body, headers) =>
      caller.call(method, path, body, { ...headers, authorization: `Bearer ${token}` })
  }
}

t.test('a token is created once, with the members that the list shows, and works at once', async (t) => {
  const owner = await service.organization()
  const expires_at = '2099-01-02T03:04:05.000Z'
  const created = await create(
    owner, { name: 'CI', abilities: ['secret:read', 'project:read'], expires_at: '2099-01-02T04:04:05+01:00' }
  )
  t.equal(created.status, 201)
  const { token, message, api_key } = created.body
  t.strictSame(created.body, {
    success: true,
    message,
    token,
    api_key: {
      id: api_key.id,
      name: 'CI',
      description: null,
      token_prefix: token.slice(0, 12),
      token_suffix: token.slice(-4),
      abilities: ['secret:read', 'project:read'],
      restrictions: [],
      expires_at,
      last_used_at: null,
      created_by: { type: 'api_token', id: api_key.created_by.id, name: 'Test token' },
      owner: 'organization',
      created_at: api_key.created_at,
      updated_at: api_key.created_at,
      restriction_names: []
    }
  })
  t.match(api_key.id, /^[1-9]\d*$/)
  t.match(api_key.created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
  t.equal(created.headers['cache-control'], 'no-store')
  const list = await owner.call('GET', keysOf(owner))
  t.strictSame(list.body.data[0], api_key, 'newest first, in the same shape')
  t.strictSame(list.body.meta, { current_page: 1, per_page: 1000, total: 2, last_page: 1, from: 1, to: 2 })
  t.strictSame(
    (await owner.call('GET', `${keysOf(owner)}?per_page=1&page=2`)).body.meta,
    { current_page: 2, per_page: 1, total: 2, last_page: 2, from: 2, to: 2 }
  )
  t.equal((await holder(owner, token).call('GET', `/${owner.organization}/projects`)).status, 200)
  const forever = await create(owner, { abilities: ['*'], expires_at: null })
  t.strictSame([forever.status, forever.body.api_key.expires_at, forever.body.api_key.abilities], [201, null, ['*']])
})

t.test('CR-30: a token is dotenv_<ULID>_<40 base62><6 base62 of CRC-32>, as secret scanners are told', async (t) => {
  const owner = await service.organization()
  const tokens: string[] = []
  for (let i = 0; i < 20; i++) tokens.push((await create(owner, { abilities: ['secret:read'] })).body.token)
  t.equal(new Set(tokens).size, 20)
  for (const token of tokens) {
    const [
      , organization, checksum
    ] = /^dotenv_([0-9A-HJKMNP-TV-Z]{26})_[0-9A-Za-z]{40}([0-9A-Za-z]{6})$/.exec(token) ?? []
    t.equal(organization, owner.organization)
    let value = 0
    for (const digit of checksum ?? '') {
      value = value * 62 + '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'.indexOf(digit)
    }
    t.equal(value, crc32(token.slice(0, -6)), 'the checksum is over everything before it')
    t.match(token, TOKEN_PATTERN)
  }
})

t.test('CR-30: a token whose form or checksum is wrong is refused without a query', async (t) => {
  // Each query of a closed database ends in 503, so a 401 shows that there was no query.
  const gone = await freshDatabase()
  await gone.database.close()
  t.teardown(gone.drop)
  const app = await buildApp({
    config: service.config,
    database: gone.database,
    keyring: service.keyring,
    costs: service.app.costs,
    logStream: { write: () => {} }
  })
  t.teardown(() => app.close())
  const owner = await service.organization()
  const ask = async (authorization: string) =>
    (await app.inject({ url: `/api/v1/${owner.organization}/projects`, headers: { authorization } })).statusCode
  t.equal(await ask(`Bearer ${mintApiToken(owner.organization)}`), 503, 'a well-formed one is looked up')
  const good = mintApiToken(owner.organization)
  const garbage = [
    'x', good.slice(0, -1), `${good}0`, good.toLowerCase(), good.replace(
      'dotenv_', 'dotenv-'
    ), `${good} ${good}`, good.replace(/^dotenv/, 'dotenv_at'),
    'a'.repeat(600), `dotenv_${'I'.repeat(26)}_${'a'.repeat(46)}`
  ]
  for (let i = 0; i < good.length; i++) {
    garbage.push(good.slice(0, i) + (good[i] === '2' ? '3' : '2') + good.slice(i + 1))
  }
  for (let i = 0; i < (LONG ? 1000 : 100); i++) garbage.push(`dotenv_${owner.organization}_${i.toString(36).padStart(46, 'A')}`)
  const statuses = new Set<number>()
  for (const token of garbage) statuses.add(await ask(`Bearer ${token}`))
  t.strictSame([...statuses], [401])
})

t.test('CR-31, CR-32: of a token only its SHA-256 is stored, and only its creation returns the value', async (t) => {
  const owner = await service.organization()
  const { token, api_key } = (await create(owner, { abilities: ['*'] })).body
  const secret = token.slice(-46)
  const [row] = await service.sql(`SELECT encode(token_hash, 'hex') AS hash FROM api_tokens WHERE id = ${api_key.id}`)
  t.equal(row?.hash, createHash('sha256').update(token).digest('hex'))

  const user = holder(owner, token)
  const answers = [
    await user.call('GET', keysOf(owner)),
    await user.call('GET', '/organization'),
    await user.call('GET', `/${owner.organization}/none`),
    await user.call('POST', `/${owner.organization}/projects`, { name: 5 }),
    await owner.call('DELETE', `${keysOf(owner)}/${api_key.id}`),
    await user.call('GET', '/organization')
  ]
  t.strictSame(answers.map(({ status }) => status), [200, 200, 404, 422, 204, 401])
  for (const { text, headers } of answers) t.notMatch(text + JSON.stringify(headers), secret)
  t.ok(service.logs.length > 0)
  t.notMatch(service.logs.join(''), secret, 'no log line has it')
  const tables = await service.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
  t.ok(tables.length > 10)
  for (const { tablename } of tables) {
    const found = await service.sql(
      `SELECT 1 FROM ${tablename} t WHERE t::text LIKE '%${secret}%' OR t::text LIKE '%${Buffer.from(secret).toString('hex')}%'`
    )
    t.equal(found.length, 0, `no row of ${tablename} has it`)
  }
})

t.test('CR-33: a deleted or expired token is dead at once, on every instance', async (t) => {
  const owner = await service.organization()
  const other = await anotherInstance(t)
  const statuses = async (token: string) => [
    (await holder(owner, token).call('GET', '/organization')).status,
    (await other.inject({ url: '/api/v1/organization', headers: { authorization: `Bearer ${token}` } })).statusCode
  ]
  const [gone, expiring] = [
    (await create(owner, { abilities: ['*'] })).body,
    (await create(owner, { abilities: ['*'], expires_at: '2099-01-01T00:00:00Z' })).body
  ]
  t.strictSame(await statuses(gone.token), [200, 200])
  t.strictSame(await statuses(expiring.token), [200, 200])
  const deleted = await owner.call('DELETE', `${keysOf(owner)}/${gone.api_key.id}`)
  t.strictSame([deleted.status, deleted.text], [204, ''])
  t.strictSame(await statuses(gone.token), [401, 401])
  await service.write(`UPDATE api_tokens SET expires_at = now() WHERE id = ${expiring.api_key.id}`)
  t.strictSame(await statuses(expiring.token), [401, 401], 'the database’s clock decides')
  t.equal((await owner.call('DELETE', `${keysOf(owner)}/${gone.api_key.id}`)).status, 404, 'it is gone')
  t.strictSame(
    (await owner.call('GET', keysOf(owner))).body.data.map(({ id }: { id: string }) => id).includes(gone.api_key.id),
    false
  )
  const own = (await owner.call('GET', keysOf(owner))).body.data.at(-1).id
  t.equal((await owner.call('DELETE', `${keysOf(owner)}/${own}`)).status, 204, 'a token may end itself')
  t.equal((await owner.call('GET', '/organization')).status, 401)
})

async function anotherInstance (t: { teardown (fn: () => unknown): void }) {
  let database: Database = service.database
  if (process.env.TEST_DATABASE_URL !== undefined) {
    const url = new URL(process.env.TEST_DATABASE_URL)
    const [row] = await service.sql('SELECT current_database() AS name')
    url.pathname = `/${String(row?.name)}`
    database = await connect({ url: url.href, pool: 2 })
    await openRows(database, service.keyring)
    t.teardown(() => database.close())
  }
  const app = await buildApp({
    config: service.config, database, keyring: service.keyring, costs: service.app.costs, logStream: { write: () => {} }
  })
  t.teardown(() => app.close())
  return app
}

t.test('what is no token’s id, or another organization’s, is 404 on delete and ends nothing', async (t) => {
  const [owner, stranger] = [await service.organization(), await service.organization()]
  const [theirs] = (await stranger.call('GET', keysOf(stranger))).body.data
  for (const id of [
    theirs.id, '0', '-1', '1e3', '0x1', '00001', ' 1', '1 ', '9007199254740993', '9223372036854775808', 'x', '１'
  ]) {
    t.strictSame(
      failing(await owner.call('DELETE', `${keysOf(owner)}/${encodeURIComponent(id)}`)), [404, 'not_found', []], id
    )
  }
  t.equal((await stranger.call('GET', '/organization')).status, 200)
})

t.test('every scope can be granted alone, and older spellings are stored in the canonical form', async (t) => {
  const owner = await service.organization()
  const writes = (noun: string) => [`${noun}:create`, `${noun}:update`, `${noun}:delete`]
  const rows: [spelling: string, stored: string[]][] = [
    ...SCOPE_NAMES.map((scope): [string, string[]] => [scope, [scope]]),
    ...sample(SCOPE_NAMES.filter((scope) => scope !== 'secret:write'), 3).map((scope): [string, string[]] =>
      [scope.replace(':', 's:'), [scope]]),
    ['secrets:write', ['secret:write']],
    ['encryption:read', ['key:retrieve']],
    ['encryption:write', ['key:rotate']],
    ...[
      'project', 'target', 'environment', 'team', 'organization', 'member', 'api-token'
    ].flatMap((noun): [string, string[]][] => [
      [`${noun}:write`, writes(noun)], [`${noun}s:write`, writes(noun)]
    ]),
    ...['create', 'read', 'update', 'delete'].flatMap((verb): [string, string[]][] =>
      [[`apikeys:${verb}`, [`api-token:${verb}`]], [`env:${verb}`, [`environment:${verb}`]]]),
    ['apikeys:write', writes('api-token')],
    ['env:write', writes('environment')],
    ['*', ['*']]
  ]
  t.ok(SCOPE_NAMES.length >= 38, 'a published scope stays')
  for (const [spelling, stored] of rows) {
    const { status, body } = await create(owner, { abilities: [spelling] })
    t.strictSame([status, body.api_key?.abilities], [201, stored], spelling)
  }
  const mixed = await create(owner, { abilities: ['project:write', 'project:create', 'projects:read', 'env:read'] })
  t.strictSame(
    mixed.body.api_key.abilities,
    ['project:create', 'project:update', 'project:delete', 'project:read', 'environment:read'], 'each is stored once'
  )
})

t.test('TI-34: unknown, mixed-case, padded, patterned and repeated abilities are refused, and none is made', async (t) => {
  const owner = await service.organization()
  const bad: unknown[] = [
    [], ['Secret:Read'], ['SECRET:READ'], ['secret:*'], ['*:read'], ['secret:read '], [' secret:read'], [
      'secret:read\n'
    ], ['secret'], ['secret:'], [':read'], [''],
    ['secret:read:all'], ['secret/read'], ['secret.read'], ['secrets:'], ['secret:+'], ['all'], ['admin'], ['**'], [
      '*', 'secret:read'
    ], ['secret:read', '*'], ['*', '*'],
    ['secret:read', 'secret:read'], [
      'secret:read', 'nothing:read'
    ], ['encryption:rotate'], ['apikeys:*'], ['env:*'], ['constructor'], ['__proto__'], ['hasOwnProperty'],
    Array.from(
      { length: 10_000 }, () => 'secret:read'
    ), ['a'.repeat(65)], 'secret:read', { 0: 'secret:read' }, null, [5], [null], [['secret:read']], undefined
  ]
  for (const abilities of bad) {
    const answer = await create(owner, { abilities })
    t.equal(answer.status, 422, JSON.stringify(abilities)?.slice(0, 80))
    t.equal(answer.body.error, 'validation_failed')
    t.ok(
      Object.keys(answer.body.errors).every((member) => /^(?:abilities(?:\.\d+)?|body)$/.test(member)),
      Object.keys(answer.body.errors).join()
    )
  }
  t.equal(await count(owner), 1)
})

t.test('a name, an expiry, restrictions and unknown members are judged, and none is made', async (t) => {
  const owner = await service.organization()
  await makeLevel(owner, { slug: 'orbit' })
  // Resources of another organization are not found (TI-11).
  const theirs = await service.organization()
  const { project } = await makeLevel(theirs, { slug: 'comet' })
  const own = Array.from({ length: 49 }, () => ({ project: 'orbit' }))
  const rows: [members: object, named: string[]][] = [
    [{ restrictions: [...own.slice(0, 20), { project }, ...own.slice(20)] }, ['restrictions.20.project']],
    ...['', ' ', 'a'.repeat(256), 5, null, undefined].map((name): [object, string[]] => [{ name }, ['name']]),
    ...[
      '2001-01-01T00:00:00Z', new Date().toISOString(), 'tomorrow', '', '2099-01-01', '2099-01-01T00:00:00',
      '2099-13-01T00:00:00Z', 4102444800, true, {}
    ].map((expires_at): [object, string[]] => [{ expires_at }, ['expires_at']]),
    [{ restrictions: [{ project: 'none' }] }, ['restrictions.0.project']],
    [{ restrictions: [{ project: 'orbit' }, { project: 'orbit', target: 'none' }] }, ['restrictions.1.target']],
    [{ restrictions: [{ project: 'orbit', target: 'backend', environment: 'none' }] }, ['restrictions.0.environment']],
    [{ restrictions: [{ project: 'orbit', environment: 'live' }] }, ['restrictions.0.target']],
    [{ restrictions: [{}] }, ['restrictions.0.project']],
    [{ restrictions: [{ project: 'orbit', team: 'x' }] }, ['restrictions.0.team']],
    [{ restrictions: [{ project: 'Orbit' }] }, ['restrictions.0.project']],
    [{ restrictions: ['orbit'] }, ['restrictions.0']],
    [{ restrictions: 'orbit' }, ['restrictions']],
    [{ restrictions: null }, ['restrictions']],
    [{ restrictions: Array.from({ length: 101 }, () => ({ project: 'orbit' })) }, ['restrictions']],
    [{ token: 'x' }, ['token']],
    [{ scopes: ['*'] }, ['scopes']]
  ]
  for (const [members, named] of rows) {
    t.strictSame(
      failing(await create(owner, { abilities: ['secret:read'], ...members })), [422, 'validation_failed', named],
      JSON.stringify(members).slice(0, 100)
    )
  }
  for (const level of ['project', 'target', 'environment']) {
    const restriction = { project: 'orbit', target: 'backend', environment: 'live', [level]: 'none' }
    const { body } = await create(owner, { abilities: ['secret:read'], restrictions: [restriction] })
    t.equal(body.message, `The request does not match its schema. restrictions.0.${level}: There is no such ${level}.`)
  }
  t.equal(await count(owner), 1)
})

t.test('RL-15: the database decides whether an expiry lies in the future, whatever the clock of the service', async (t) => {
  const owner = await service.organization()
  const { now } = Date
  t.teardown(() => { Date.now = now })
  const later = (minutes: number) => new Date(now() + minutes * 60_000).toISOString()
  for (const hours of [-1, 1]) {
    Date.now = () => now() + hours * 3_600_000
    const made = await create(owner, { abilities: ['project:read'], expires_at: later(10) })
    t.equal(made.status, 201, `${hours} h`)
    t.strictSame(
      failing(await create(owner, { abilities: ['project:read'], expires_at: later(-10) })),
      [422, 'validation_failed', ['expires_at']], `${hours} h`
    )
    const path = `${keysOf(owner)}/${made.body.api_key.id}`
    t.equal((await owner.call('PUT', path, { expires_at: later(20) })).status, 200, `${hours} h`)
    t.equal((await owner.call('PUT', path, { expires_at: later(-20) })).status, 422, `${hours} h`)
  }
})

t.test('TI-30: no token makes one that holds more than it does itself', async (t) => {
  const owner = await service.organization()
  await makeLevel(owner, { slug: 'orbit' })
  await makeLevel(owner, {
    slug: 'comet',
    storage_mode: 'client',
    key_check: Buffer.alloc(32).toString('base64'),
    key_check_salt: Buffer.alloc(16).toString('base64'),
    key_check_iterations: 600_000
  })
  const soon = '2098-01-01T00:00:00.000Z'
  const base = ['api-token:create', 'secret:read', 'project:read']
  const orbit = { project: 'orbit' }
  const backend = { project: 'orbit', target: 'backend' }
  const live = { project: 'orbit', target: 'backend', environment: 'live' }
  const makers = {
    plain: { abilities: base },
    all: { abilities: ['*'] },
    ending: { abilities: base, expires_at: soon },
    narrow: { abilities: base, restrictions: [backend] },
    allNarrow: { abilities: ['*'], restrictions: [backend, { project: 'comet' }] }
  }
  const rows: [maker: keyof typeof makers, made: object, allowed: boolean, missing?: string][] = [
    ['plain', { abilities: ['secret:read'] }, true],
    ['plain', { abilities: base }, true],
    ['plain', { abilities: ['*'] }, false, '*'],
    ['plain', { abilities: ['secret:write'] }, false, 'secret:write'],
    ['plain', { abilities: ['secret:read', 'secret:decrypt'] }, false, 'secret:decrypt'],
    ['plain', { abilities: ['project:write'] }, false, 'project:create'],
    ['plain', { abilities: ['secret:read'], expires_at: soon, restrictions: [live] }, true],
    ['all', { abilities: ['*'] }, true],
    ['all', { abilities: ['billing:write', 'secret:purge'] }, true],
    ['ending', { abilities: ['secret:read'] }, true],
    ['ending', { abilities: ['secret:read'], expires_at: null }, false],
    ['ending', { abilities: ['secret:read'], expires_at: '2098-01-01T00:00:00.001Z' }, false],
    ['ending', { abilities: ['secret:read'], expires_at: soon }, true],
    ['ending', { abilities: ['secret:read'], expires_at: '2097-12-31T23:59:59Z' }, true],
    ['narrow', { abilities: ['secret:read'] }, false],
    ['narrow', { abilities: ['secret:read'], restrictions: [] }, false],
    ['narrow', { abilities: ['secret:read'], restrictions: [orbit] }, false],
    ['narrow', { abilities: ['secret:read'], restrictions: [{ project: 'comet' }] }, false],
    ['narrow', { abilities: ['secret:read'], restrictions: [live, { project: 'comet' }] }, false],
    ['narrow', { abilities: ['secret:read'], restrictions: [backend] }, true],
    ['narrow', { abilities: ['secret:read'], restrictions: [live] }, true],
    ['allNarrow', { abilities: ['*'], restrictions: [live, { project: 'comet', target: 'backend' }] }, true],
    ['allNarrow', { abilities: ['*'], restrictions: [live, orbit] }, false],
    ['allNarrow', { abilities: ['*'] }, false]
  ]
  const holders = new Map<string, Caller>()
  for (const [name, body] of Object.entries(makers)) {
    holders.set(name, holder(owner, (await create(owner, body)).body.token))
  }
  for (const [name, body, allowed, missing] of rows) {
    const before = await count(owner)
    const { status, body: answer } = await create(holders.get(name)!, body)
    t.equal(status, allowed ? 201 : 403, `${name} makes ${JSON.stringify(body)}`)
    t.equal(await count(owner), before + (allowed ? 1 : 0))
    if (allowed) continue
    t.equal(answer.error, 'insufficient_permissions')
    t.strictSame(answer.details.granted_scopes, makers[name].abilities)
    if (missing !== undefined) t.equal(answer.details.required_scope, missing)
  }
})

t.test('TI-35: a narrowed token acts in its part of the hierarchy; levels beside, above or elsewhere are 404', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  for (const slug of ['orbit', 'comet']) {
    await makeLevel(owner, { slug })
    await owner.call('POST', `/${o}/${slug}/targets`, { name: 'Worker' })
    await owner.call('POST', `/${o}/${slug}/backend/environments`, { name: 'Stage' })
    for (const level of [
      {}, { target: 'backend' }, { target: 'backend', environment: 'live' }, { target: 'backend', environment: 'stage' }
    ]) {
      const stored = await owner.call(
        'POST', `/${o}/secrets/store`,
        { project: slug, ...level, plaintext: `WHERE=${slug}-${Object.values(level).join('-')}` }
      )
      t.equal(stored.status, 200)
    }
  }
  const narrow = async (restriction: object) =>
    holder(owner, (await create(owner, { abilities: ['*'], restrictions: [restriction] })).body.token)
  const [project, target, environment] = [
    await narrow({ project: 'orbit' }), await narrow({ project: 'orbit', target: 'backend' }), await narrow({
      project: 'orbit', target: 'backend', environment: 'live'
    })
  ]
  const paths: [path: string, project: number, target: number, environment: number][] = [
    ['orbit', 200, 404, 404],
    ['orbit/targets', 200, 404, 404],
    ['orbit/encryption-key', 200, 404, 404],
    ['orbit/encryption-key/history', 200, 404, 404],
    ['orbit/secrets', 200, 404, 404],
    ['orbit/backend', 200, 200, 404],
    ['orbit/backend/environments', 200, 200, 404],
    ['orbit/backend/secrets', 200, 200, 404],
    ['orbit/backend/live', 200, 200, 200],
    ['orbit/backend/live/secrets', 200, 200, 200],
    ['orbit/backend/stage', 200, 200, 404],
    ['orbit/backend/stage/secrets', 200, 200, 404],
    ['orbit/worker', 200, 404, 404],
    ['comet', 404, 404, 404],
    ['comet/backend/live', 404, 404, 404],
    ['comet/backend/live/secrets', 404, 404, 404]
  ]
  for (const [path, ...expected] of paths) {
    const statuses = [project, target, environment].map(async (caller) =>
      (await caller.call('GET', `/${o}/${path}`)).status)
    t.strictSame(await Promise.all(statuses), expected, path)
  }
  const levels = async (caller: Caller) =>
    Object.keys((await caller.call('GET', `/${o}/orbit/backend/live/secrets?decrypt=true`)).body.data.attributes.levels)
  t.strictSame(
    [await levels(project), await levels(target), await levels(environment)],
    [['project', 'target', 'environment'], ['target', 'environment'], ['environment']], 'merging brings in no more'
  )
  const raw = await environment.call('GET', `/${o}/orbit/backend/live/secrets?decrypt=true&raw=true&merge=true`)
  t.strictSame(raw.body, { WHERE: 'orbit-backend-live' })
  t.strictSame((await project.call('GET', `/${o}/projects`)).body.data.map(({ id }: { id: string }) => id).length, 1)
  t.strictSame(
    (await environment.call('GET', `/${o}/projects`)).body,
    { data: [], meta: { current_page: 1, per_page: 1000, total: 0, last_page: 1, from: null, to: null } }
  )

  const theirs = { project: 'orbit', target: 'backend', environment: 'live' }
  const beside = { ...theirs, environment: 'stage' }
  const versionOf = async (level: object) =>
    (await owner.call('POST', `/${o}/secrets/versions`, level)).body.data[0].id as string
  const writes: [method: string, path: string, body: object][] = [
    ['POST', 'secrets/store', { ...beside, plaintext: 'A=1' }],
    ['POST', 'secrets/store', { project: 'orbit', plaintext: 'A=1' }],
    ['POST', 'secrets/delete', beside],
    ['POST', 'secrets/delete', { ...beside, no_backup: true, confirmed: true }],
    ['POST', 'secrets/retrieve', beside],
    ['POST', 'secrets/retrieve', { ...theirs, action: 'key:retrieve' }],
    ['POST', 'secrets/versions', beside],
    ['POST', 'secrets/versions/purge', { ...beside, confirmed: true }],
    ['POST', 'secrets/versions/purge', { ...theirs, scope: 'project', confirmed: true }],
    ['GET', `secrets/versions/${await versionOf(beside)}`, {}],
    ['POST', `secrets/versions/${await versionOf(beside)}/restore`, {}],
    ['DELETE', `secrets/versions/${await versionOf(beside)}`, {}],
    ['POST', 'projects', { name: 'New' }],
    ['POST', 'orbit/targets', { name: 'New' }],
    ['POST', 'orbit/backend/environments', { name: 'New' }],
    ['PATCH', 'orbit', { name: 'New' }],
    ['PATCH', 'orbit/backend', { name: 'New' }],
    ['PATCH', 'orbit/backend/stage', { name: 'New' }],
    ['DELETE', 'orbit/backend/stage', {}],
    ['DELETE', 'orbit/backend', {}],
    ['DELETE', 'orbit', {}]
  ]
  const before = await service.sql(
    `SELECT count(*)::int AS n, max(updated_at) AS at FROM secrets WHERE organization_id = '${o}'`
  )
  for (const [method, path, body] of writes) {
    t.strictSame(
      failing(await environment.call(method, `/${o}/${path}`, body)), [404, 'not_found', []],
      `${method} ${path} ${JSON.stringify(body)}`
    )
  }
  t.same([
    ...await service.sql(`SELECT count(*)::int AS n, max(updated_at) AS at FROM secrets WHERE organization_id = '${o}'`)
  ], [...before], 'nothing was written')
  t.equal(
    (await environment.call('POST', `/${o}/secrets/store`, { ...theirs, plaintext: 'A=1' })).status, 200,
    'its own level it may write'
  )

  // A restriction names levels by ids, so a rename does not change the restriction.
  t.equal((await owner.call('PATCH', `/${o}/orbit/backend/live`, { slug: 'old-live' })).status, 200)
  t.equal((await owner.call('PATCH', `/${o}/orbit/backend/stage`, { slug: 'live' })).status, 200)
  t.equal((await environment.call('GET', `/${o}/orbit/backend/old-live/secrets`)).status, 200)
  t.equal((await environment.call('GET', `/${o}/orbit/backend/live/secrets`)).status, 404)
  const shown = (await owner.call('GET', keysOf(owner))).body.data[0]
  t.strictSame(shown.restrictions, [{ project: 'orbit', target: 'backend', environment: 'old-live' }])
  t.equal((await owner.call('DELETE', `/${o}/orbit/backend/old-live`)).status, 204)
  t.equal((await environment.call('GET', `/${o}/orbit/backend/live`)).status, 401, 'with its part deleted it ends')
})

t.test('a token that expired a month ago, or whose grant did, leaves with the next look, its events stay', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const expired = async (days: number) => service.token(o, ['project:read'], {
    expires_at: new Date(Date.now() - days * 24 * 3_600_000)
  })
  for (const days of [29, 31, 300]) await expired(days)
  const rosa = await makePerson(service, { [o]: 'owner' })
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const [kept, over] = [await issuePair(service, rosa, SCOPE_NAMES), await issuePair(service, rosa, SCOPE_NAMES)]
  for (const [{ access, grant }, days] of [[kept, 29], [over, 31]] as const) {
    const made = await create(holder(owner, access), { abilities: ['project:read'], expires_at })
    t.equal(made.status, 201)
    // A token of a former version, which allowed tokens without an expiry.
    await service.write(`UPDATE api_tokens SET expires_at = NULL WHERE organization_id = '${o}' AND grant_id = ${grant}`)
    await service.write(`UPDATE oauth_grants SET expires_at = now() - interval '${days} days' WHERE id = ${grant}`)
  }
  const left = async () => (await service.sql(`SELECT FROM api_tokens WHERE organization_id = '${o}'
    AND (expires_at IS NOT NULL OR grant_id IS NOT NULL)`)).length
  const events = () => service.sql(`SELECT count(*) FROM audit_events WHERE organization_id = '${o}'`)
  const before = await events()
  service.app.removals.wake()
  await until(async () => await left() <= 2)
  service.app.removals.wake()
  t.equal(await left(), 2, 'one that may be given another life stays, and is shown with a grant for as long')
  t.same(await events(), before)
  for (let made = 0; made < 2; made++) await issuePair(service, rosa, SCOPE_NAMES)
  t.same(
    await service.sql(`SELECT id::float8 FROM oauth_grants WHERE id IN (${kept.grant}, ${over.grant})`),
    [{ id: kept.grant }], 'after its last token a grant goes, too'
  )
})

t.test('the use of a token is remembered', async (t) => {
  const owner = await service.organization()
  const [{ id }] = (await owner.call('GET', keysOf(owner))).body.data
  // The request does not wait for this write, so the test polls for it.
  const used = async () => (await service.sql(`SELECT last_used_at FROM api_tokens WHERE id = ${id}`))[0]?.last_used_at
  await until(async () => await used() !== null)
  const [key] = (await owner.call('GET', keysOf(owner))).body.data
  t.match(key.last_used_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
})

t.test('creating and deleting a token are audited, without its value', async (t) => {
  const owner = await service.organization()
  const { api_key } = (await create(owner, { abilities: ['secret:read'] })).body
  await owner.call('DELETE', `${keysOf(owner)}/${api_key.id}`)
  t.same([...await service.sql(
    `SELECT action, resource_id FROM audit_events WHERE organization_id = '${owner.organization}' ORDER BY seq`
  )], [
    { action: 'api-token.create', resource_id: api_key.id }, { action: 'api-token.delete', resource_id: api_key.id }
  ])
})

t.test('a token whose whole part of the hierarchy was deleted ends with it', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  await makeLevel(owner)
  await owner.call('POST', `/${o}/projects`, { name: 'Comet' })
  const narrow = async (...restrictions: object[]) =>
    (await create(owner, { abilities: ['*'], restrictions })).body as { token: string, api_key: { id: string } }
  const live = { project: 'orbit', target: 'backend', environment: 'live' }
  const environment = await narrow(live)
  const target = await narrow({ project: 'orbit', target: 'backend' })
  const project = await narrow({ project: 'orbit' })
  const both = await narrow(live, { project: 'comet' })
  const statuses = async () => Promise.all([environment, target, project, both].map(async ({ token }) =>
    (await holder(owner, token).call('GET', '/user')).status))
  const restrictions = async (id: string) =>
    (await owner.call('GET', keysOf(owner))).body.data.find((token: { id: string }) => token.id === id)?.restrictions

  t.equal((await owner.call('DELETE', `/${o}/orbit/backend/live`)).status, 204)
  t.strictSame(await statuses(), [401, 200, 200, 200])
  t.strictSame(
    await restrictions(environment.api_key.id), undefined, 'it does not read as one of the whole organization'
  )
  t.strictSame(await restrictions(both.api_key.id), [{ project: 'comet' }], 'what is left of another one stays')
  t.equal(
    (await holder(owner, target.token).call('DELETE', `/${o}/orbit/backend`)).status, 204,
    'a token may delete its own part'
  )
  t.strictSame(await statuses(), [401, 401, 200, 200])
  t.equal((await owner.call('DELETE', `/${o}/orbit`)).status, 204)
  t.strictSame(await statuses(), [401, 401, 401, 200])
  await makeLevel(owner)
  t.strictSame(await statuses(), [401, 401, 401, 200], 'a new place of that name is another one')
  t.equal((await owner.call('DELETE', `/${o}/comet`)).status, 204)
  t.strictSame(await statuses(), [401, 401, 401, 401])
  const events = await service.sql(
    `SELECT resource_id, details FROM audit_events WHERE organization_id = '${o}' AND action = 'api-token.delete' ORDER BY seq`
  )
  t.same(events, [
    [environment, 'environment'], [target, 'target'], [project, 'project'], [both, 'project']
  ].map(([token, kind]) =>
    ({ resource_id: (token as typeof both).api_key.id, details: { with: kind } })))
})

t.test('a narrowed caller lists exactly the tokens that reach no further than it does', async (t) => {
  const { organization } = await service.organization()
  const id = (letter: string) => letter.repeat(26)
  const slices: Slice[] = ['A', 'B'].flatMap((project) => [
    { project_id: id(project), target_id: null, environment_id: null },
    { project_id: id(project), target_id: id('T'), environment_id: null },
    { project_id: id(project), target_id: id('T'), environment_id: id('E') },
    { project_id: id(project), target_id: id('T'), environment_id: id('F') },
    ...project === 'B'
      ? []
      : [
          { project_id: id(project), target_id: id('T'), environment_id: null, inherited: true as const },
          { project_id: id(project), target_id: id('T'), environment_id: id('E'), inherited: true as const }
        ]
  ])
  const sets = [
    [], ...slices.map((one) => [one]), ...slices.flatMap((one, i) => slices.slice(i + 1).map((other) => [one, other]))
  ]
  for (const some of sets) await service.token(organization, ['api-token:read'], { slices: some })
  const { rows, total } = await listTokens(service.database.db, organization, [], {}, { page: 1, per_page: 100 })
  t.equal(total, sets.length + 1)
  const ids = rows.map((row) => row.id).reverse().slice(1)
  for (const [i, outer] of sets.entries()) {
    const inside = await listTokens(service.database.db, organization, outer, {}, { page: 1, per_page: 100 })
    const wanted = ids.filter((_id, j) => coversAll(outer, sets[j]!))
    t.strictSame(
      inside.rows.map((row) => row.id).reverse().filter((one) => ids.includes(one)), wanted, JSON.stringify(outer)
    )
    t.equal(inside.total, wanted.length + (i === 0 ? 1 : 0))
    const inSteps = await listTokens(
      service.database.db, organization, outer, {}, { page: 1, per_page: 100 }, async () => {}
    )
    t.strictSame(inSteps, inside, 'in steps')
  }
})

const idOf = async (caller: Caller) => (await caller.call('GET', '/user')).body.data.id as string
const stateOf = async (caller: Caller) => JSON.stringify(await service.sql(
  `SELECT to_jsonb(t) - 'last_used_at' AS token FROM api_tokens t WHERE organization_id = '${caller.organization}' ORDER BY id`
)) + JSON.stringify(await service.sql(
  `SELECT * FROM former_token_hashes WHERE organization_id = '${caller.organization}' ORDER BY token_id`
))
const isAlive = async (caller: Caller, token: string) =>
  (await holder(caller, token).call('GET', '/user')).status === 200

t.test('a list of all tokens with many restrictions has the rows of its pages, and waits for its turn', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  await owner.call('POST', `/${o}/projects`, { name: 'Orbit' })
  const restrictions: object[] = []
  const targets = LONG ? 100 : 10
  for (let i = 0; i < targets; i++) {
    const { body } = await owner.call('POST', `/${o}/orbit/targets`, { name: `t${i}` })
    restrictions.push({ project: 'orbit', target: body.data.attributes.slug })
  }
  const list = (query = '', caller = owner) => caller.call('GET', `${keysOf(owner)}${query}`)
  const isHeld = (query = '', caller = owner) => waitsForTurn(owner, () => list(query, caller))
  t.notOk(await isHeld(), 'few tokens do not wait')
  const { id } = (await create(owner, { abilities: ['secret:read'], restrictions })).body.api_key
  await service.write(`INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities, slices)
    SELECT organization_id, name, sha256(token_hash || n::text::bytea), token_prefix, token_suffix, abilities, slices
    FROM api_tokens, generate_series(1, 279) n WHERE organization_id = '${o}' AND id = ${id}`)
  const whole = await list()
  const pages: unknown[] = []
  for (const page of [1, 2, 3]) pages.push(...(await list(`?per_page=100&page=${page}`)).body.data)
  t.strictSame([whole.body.data, whole.body.meta.total, whole.body.data[0].restrictions.length], [pages, 281, targets])
  t.equal(whole.headers['content-type'], 'application/json; charset=utf-8')
  t.ok(await isHeld(), 'many restrictions wait')
  t.notOk(await isHeld('?per_page=25'), 'a page does not')

  // For a restricted caller, a page needs the restrictions of all tokens.
  const { token } = (await create(owner, { abilities: ['api-token:read'], restrictions: [{ project: 'orbit' }] })).body
  const restricted = holder(owner, token)
  const listed = await restricted.call('GET', `${keysOf(owner)}?per_page=25&page=2&sort=name`)
  t.strictSame([listed.body.data.length, listed.body.meta.total], [25, 281], 'all but the token of the owner')
  const idsOf = (data: { id: string }[]) => data.map((row) => row.id)
  const all = (await list()).body.data.filter((row: { restrictions: object[] }) => row.restrictions.length > 0)
  const found = await restricted.call('GET', `${keysOf(owner)}?per_page=100`)
  t.strictSame(idsOf(found.body.data), idsOf(all).slice(0, 100), 'the same rows in the same order')
  const one = { project: 'orbit', target: 't7' }
  const narrow = (await create(owner, { abilities: ['api-token:read'], restrictions: [one] })).body
  const own = await holder(owner, narrow.token).call('GET', keysOf(owner))
  t.strictSame([idsOf(own.body.data), own.body.meta.total], [[narrow.api_key.id], 1])
  t.ok(await isHeld('?per_page=25', restricted), 'a page of a restricted caller waits')
})

t.test('a token is read, renamed and given another expiry, a member at a time', async (t) => {
  const owner = await service.organization()
  await makeLevel(owner, { slug: 'orbit' })
  const { token, api_key } = (await create(
    owner, { abilities: ['secret:read', 'project:read'], restrictions: [{ project: 'orbit', target: 'backend' }] }
  )).body
  const path = `${keysOf(owner)}/${api_key.id}`
  t.strictSame((await owner.call('GET', path)).body, { data: api_key })
  const changes: [body: object, expected: object][] = [
    [{}, {}],
    [{ name: 'Renamed' }, { name: 'Renamed' }],
    [{ expires_at: '2099-01-02T04:04:05+01:00' }, { expires_at: '2099-01-02T03:04:05.000Z' }],
    [{ name: 'Both', expires_at: null }, { name: 'Both', expires_at: null }],
    [{ abilities: ['projects:read', 'secret:read'] }, {}],
    [{ restrictions: [{ project: 'orbit', target: 'backend' }] }, {}]
  ]
  let now = api_key
  for (const [body, expected] of changes) {
    const { status, body: { data } } = await owner.call('PUT', path, body)
    t.equal(status, 200, JSON.stringify(body))
    now = { ...now, ...expected, updated_at: data.updated_at }
    t.strictSame(data, now)
    t.strictSame((await owner.call('GET', path)).body.data, { ...now, last_used_at: null })
  }
  t.ok(await isAlive(owner, token))
  t.equal((await owner.call('PUT', path, { expires_at: new Date(Date.now() + 3000).toISOString() })).status, 200)
  await until(async () => !await isAlive(owner, token), { every: 50 })
  t.equal((await owner.call('GET', path)).status, 200, 'one that has expired is still there')
})

t.test('no token is given a longer life than the grant has that it was made through', async (t) => {
  const owner = await service.organization()
  const rosa = await makePerson(service, { [owner.organization]: 'owner' })
  const { access, grant } = await issuePair(service, rosa, SCOPE_NAMES)
  const { api_key } = (await create(holder(owner, access), {
    abilities: ['project:read'], expires_at: new Date(Date.now() + 3_600_000).toISOString()
  })).body
  const [{ ends }] = await service.sql(
    `SELECT (extract(epoch FROM expires_at) * 1000)::float8 AS ends FROM oauth_grants WHERE id = ${grant}`
  ) as [{ ends: number }]
  const endAt = (moment: number | null) => owner.call('PUT', `${keysOf(owner)}/${api_key.id}`, {
    expires_at: moment === null ? null : new Date(moment).toISOString()
  })
  for (const longer of [null, ends + 1]) {
    t.strictSame(failing(await endAt(longer)), [422, 'validation_failed', ['expires_at']], String(longer))
  }
  const longest = await endAt(ends)
  t.equal(longest.status, 200, longest.text)
  t.equal(Date.parse(longest.body.data.expires_at), ends)
  const asLong = await create(holder(owner, access), { abilities: ['project:read', 'api-token:create'] })
  t.equal(Date.parse(asLong.body.api_key.expires_at), ends, 'said nothing: as long as the grant')
  const its = await create(holder(owner, asLong.body.token), { abilities: ['project:read'] })
  t.equal(Date.parse(its.body.api_key.expires_at), ends, 'and no longer through a token')
  await service.sql(`UPDATE oauth_grants SET revoked_at = now(), mac = NULL WHERE id = ${grant}`)
  t.strictSame(failing(await endAt(ends - 1)), [404, 'not_found', []], 'with the grant it is over')
})

t.test('a token can be sent back as read, with a past expiry or null under a grant, also by a narrowed token', async (t) => {
  const owner = await service.organization()
  await makeLevel(owner, { slug: 'orbit' })
  const [{ id: project_id }] = await service.sql(
    `SELECT id FROM projects WHERE organization_id = '${owner.organization}'`
  ) as [{ id: string }]
  const slices = [{ project_id, target_id: null, environment_id: null }]
  const narrowed = await service.token(owner.organization, ['api-token:read', 'api-token:update', 'project:read'], { slices })
  const rosa = await makePerson(service, { [owner.organization]: 'owner' })
  const { access, grant } = await issuePair(service, rosa, SCOPE_NAMES)
  const { token, api_key } = (await create(holder(owner, access), {
    abilities: ['project:read'], restrictions: [{ project: 'orbit' }], expires_at: new Date(Date.now() + 3_600_000).toISOString()
  })).body
  const path = `${keysOf(owner)}/${api_key.id}`
  for (const expires_at of ['NULL', "'2026-01-02T03:04:05.678Z'"]) {
    await service.write(`UPDATE api_tokens SET expires_at = ${expires_at} WHERE organization_id = '${owner.organization}' AND id = ${api_key.id}`)
    for (const caller of [owner, narrowed]) {
      const read = (await caller.call('GET', path)).body.data
      const { abilities, restrictions } = read
      const sent = await caller.call('PUT', path, {
        name: `Sent ${expires_at}`, expires_at: read.expires_at, abilities, restrictions
      })
      t.match(sent, { status: 200, body: { data: { name: `Sent ${expires_at}`, expires_at: read.expires_at } } }, sent.text)
    }
    t.equal(await isAlive(owner, token), expires_at === 'NULL')
  }
  await service.write(`UPDATE api_tokens SET expires_at = NULL WHERE organization_id = '${owner.organization}' AND id = ${api_key.id}`)
  await service.sql(`UPDATE oauth_grants SET revoked_at = now(), mac = NULL WHERE id = ${grant}`)
  t.notOk(await isAlive(owner, token), 'none is no longer than the grant')
})

t.test('a token whose person or grant has ended gets no new value and no later expiry, from any caller', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const oda = await makePerson(service, { [o]: 'owner' })
  const hers = holder(owner, (await issuePair(service, oda, SCOPE_NAMES)).access)
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const client = (disabled_at: string) =>
    service.write(`UPDATE oauth_clients SET disabled_at = ${disabled_at} WHERE id = 'dotenv-cli'`)
  const ways: Record<string, (of: { grant: number, member: string }) => Promise<unknown>> = {
    'a grant that was revoked': ({ grant }) =>
      service.sql(`UPDATE oauth_grants SET revoked_at = now(), mac = NULL WHERE id = ${grant}`),
    'a grant that expired': ({ grant }) =>
      service.write(`UPDATE oauth_grants SET expires_at = now() - interval '1 minute' WHERE id = ${grant}`),
    'a grant that was changed by SQL': ({ grant }) =>
      service.sql(`UPDATE oauth_grants SET expires_at = now() + interval '100 days' WHERE id = ${grant}`),
    'a client that is shut out': () => client('now()'),
    'a membership that ended': ({ member }) => service.sql(`DELETE FROM members WHERE ${member}`),
    'a membership that is no more than an invitation': ({ member }) =>
      service.write(`UPDATE members SET status = 'invited' WHERE ${member}`)
  }
  for (const [what, end] of Object.entries(ways)) {
    const rosa = await makePerson(service, { [o]: 'owner' })
    const { access, grant } = await issuePair(service, rosa, SCOPE_NAMES)
    const { token, api_key } = (await create(holder(owner, access), { abilities: ['project:read'], expires_at })).body
    await end({ grant, member: `organization_id = '${o}' AND user_id = ${rosa.id}` })
    const before = await stateOf(owner)
    const path = `${keysOf(owner)}/${api_key.id}`
    // Disabling a client also disables a caller who uses this client.
    for (const caller of what.startsWith('a client') ? [owner] : [owner, hers]) {
      for (const [method, at, body] of [
        ['POST', `${path}/rotate`, {}], ['PUT', path, { expires_at: new Date(Date.now() + 60_000).toISOString() }]
      ] as const) {
        t.strictSame(failing(await caller.call(method, at, body)), [404, 'not_found', []], `${what}: ${method}`)
      }
    }
    t.equal(await stateOf(owner), before, what)
    t.notOk(await isAlive(owner, token), what)
    await client('NULL')
    t.equal((await owner.call('DELETE', path)).status, 204, 'and can be ended')
  }
})

t.test('TI-32: the abilities and the restrictions of a token are fixed, and what is wrong changes nothing', async (t) => {
  const owner = await service.organization()
  await makeLevel(owner, { slug: 'orbit' })
  const { api_key } = (await create(
    owner, { abilities: ['secret:read', 'project:read'], restrictions: [{ project: 'orbit' }] }
  )).body
  const path = `${keysOf(owner)}/${api_key.id}`
  const before = await stateOf(owner)
  const rows: [body: object, error: string, named: string][] = [
    [{ abilities: ['secret:read'] }, 'abilities_are_fixed', 'abilities'],
    [{ name: 'Other', abilities: ['*'] }, 'abilities_are_fixed', 'abilities'],
    [{ abilities: ['secret:read', 'project:read', 'team:read'] }, 'abilities_are_fixed', 'abilities'],
    [{ abilities: ['Secret:Read', 'project:read'] }, 'validation_failed', 'abilities.0'],
    [{ abilities: [] }, 'validation_failed', 'abilities'],
    [{ restrictions: [] }, 'restrictions_are_fixed', 'restrictions'],
    [{ restrictions: [{ project: 'comet' }] }, 'restrictions_are_fixed', 'restrictions'],
    [{ restrictions: [{ project: 'orbit', target: 'backend' }] }, 'restrictions_are_fixed', 'restrictions'],
    [{ name: '' }, 'validation_failed', 'name'],
    [{ name: 5 }, 'validation_failed', 'name'],
    [{ name: 'a'.repeat(256) }, 'validation_failed', 'name'],
    [{ expires_at: '2001-01-01T00:00:00Z' }, 'validation_failed', 'expires_at'],
    [{ expires_at: 'tomorrow' }, 'validation_failed', 'expires_at'],
    [{ expires_at: 4102444800 }, 'validation_failed', 'expires_at'],
    [{ token: 'x' }, 'validation_failed', 'token'],
    [{ id: '7' }, 'validation_failed', 'id']
  ]
  for (const [body, error, named] of rows) {
    t.strictSame(failing(await owner.call('PUT', path, body)), [422, error, [named]], JSON.stringify(body).slice(0, 80))
  }
  for (const overlap_seconds of [-1, 604_801, 1.5, '60', null, true]) {
    t.strictSame(
      failing(await owner.call('POST', `${path}/rotate`, { overlap_seconds })),
      [422, 'validation_failed', ['overlap_seconds']], String(overlap_seconds)
    )
  }
  for (const id of ['0', '-1', '1e3', '007', 'x', '9007199254740993', String(Number(api_key.id) + 1)]) {
    for (const [method, rest] of [['GET', ''], ['PUT', ''], ['POST', '/rotate']] as const) {
      const answer = await owner.call(method, `${keysOf(owner)}/${id}${rest}`, method === 'GET' ? undefined : {})
      t.strictSame(failing(answer), [404, 'not_found', []], `${method} ${id}${rest}`)
    }
  }
  t.equal(await stateOf(owner), before)
})

t.test('a rotation changes only the value of a token; the former value ends at once or after its overlap', async (t) => {
  const owner = await service.organization()
  const { token: first, api_key } = (await create(owner, { abilities: ['secret:read'] })).body
  const path = `${keysOf(owner)}/${api_key.id}`
  const rotate = async (body?: object) => (await owner.call('POST', `${path}/rotate`, body)).body
  const second = await rotate()
  t.match(second.token, TOKEN_PATTERN)
  t.strictSame(second, {
    success: true,
    message: second.message,
    token: second.token,
    api_key: second.api_key,
    data: { token: second.token, api_key: second.api_key }
  })
  t.strictSame(
    { ...second.api_key, updated_at: api_key.updated_at, last_used_at: null },
    { ...api_key, token_suffix: second.token.slice(-4) }, 'the same token, by id and all'
  )
  t.strictSame([await isAlive(owner, first), await isAlive(owner, second.token)], [false, true])

  const { token: third } = await rotate({ overlap_seconds: 3600 })
  t.strictSame([await isAlive(owner, second.token), await isAlive(owner, third)], [true, true])
  const [row] = await service.sql(
    `SELECT extract(epoch FROM expires_at - now())::int AS left FROM former_token_hashes WHERE token_id = ${api_key.id}`
  )
  t.ok(row!.left as number > 3500 && row!.left as number <= 3600, 'by the clock of the database')
  const { token: fourth } = await rotate({ overlap_seconds: 604_800 })
  t.strictSame(
    await Promise.all([first, second.token, third, fourth].map((one) => isAlive(owner, one))),
    [false, false, true, true], 'the next rotation ends what the one before had left: two values at most'
  )
  await service.write(`UPDATE former_token_hashes SET expires_at = now() WHERE token_id = ${api_key.id}`)
  t.strictSame([await isAlive(owner, third), await isAlive(owner, fourth)], [false, true], 'its time is over')

  const { token: fifth } = await rotate({ overlap_seconds: 60 })
  const soon = new Date(Date.now() + 3000).toISOString()
  t.equal((await owner.call('PUT', path, { expires_at: soon })).status, 200)
  await until(async () => !await isAlive(owner, fifth), { every: 50 })
  t.notOk(await isAlive(owner, fourth), 'the expiry of the token is that of both')
  t.equal((await owner.call('PUT', path, { expires_at: null })).status, 200)
  t.strictSame([await isAlive(owner, fourth), await isAlive(owner, fifth)], [true, true])
  t.equal((await owner.call('DELETE', path)).status, 204)
  t.strictSame([await isAlive(owner, fourth), await isAlive(owner, fifth)], [false, false], 'revoked, both end at once')
  const events = await service.sql(
    `SELECT action, details FROM audit_events WHERE resource_id = '${api_key.id}' AND action = 'api-token.rotate' ORDER BY seq`
  )
  t.same(events.map(({ details }) => details), [0, 3600, 604_800, 60].map((overlap_seconds) => ({ overlap_seconds })))
  const shown = JSON.stringify(await service.sql('SELECT * FROM audit_events')) + service.logs.join('')
  for (const token of [first, second.token, third, fourth, fifth]) t.notMatch(shown, token.slice(-46))
})

t.test('TI-30, TI-31: whatever a token holds, it changes and rotates exactly those that hold no more', async (t) => {
  const owner = await service.organization()
  await makeLevel(owner, { slug: 'orbit' })
  const base = ['api-token:create', 'api-token:update', 'api-token:delete']
  const abilities = [['secret:read'], ['secret:read', 'secret:decrypt'], ['*']]
  const restrictions = [[], [{ project: 'orbit' }], [{ project: 'orbit', target: 'backend' }]]
  const expiries = [null, '2098-01-01T00:00:00.000Z', '2097-01-01T00:00:00.000Z']
  const kinds = abilities.flatMap((some, a) => restrictions.flatMap((part, r) => expiries.map((expires_at, e) => ({
    a, r, e, body: { abilities: some[0] === '*' ? some : [...base, ...some], restrictions: part, expires_at }
  }))))
  const all: (typeof kinds[number] & { caller: Caller, path: string })[] = []
  for (const kind of kinds) {
    const { token, api_key } = (await create(owner, kind.body)).body as { token: string, api_key: { id: string } }
    all.push({ ...kind, caller: holder(owner, token), path: `${keysOf(owner)}/${api_key.id}` })
  }
  const wrong: string[] = []
  for (const [i, holds] of all.entries()) {
    for (const [j, held] of all.entries()) {
      // Without LONG, a fifth of the pairs. It contains each pair of abilities, of restrictions and of expiries.
      if (held === holds || (!LONG && (i * all.length + j) % 5 !== 0)) continue
      const isSeen = held.r >= holds.r
      const isMore = held.a > holds.a || held.e < holds.e
      // Sets the same values, so that the token stays unchanged for the next pair.
      const change = (i + j) % 2 === 0 ? { name: 'Same' } : { expires_at: held.body.expires_at }
      const answers = [
        await holds.caller.call('PUT', held.path, change),
        ...(isSeen && !isMore ? [] : [await holds.caller.call('POST', `${held.path}/rotate`, {})])
      ]
      const expected = !isSeen ? 404 : isMore ? 403 : 200
      if (answers.some(({ status }) => status !== expected)) {
        wrong.push(`${JSON.stringify(holds.body)} ${JSON.stringify(held.body)}: ${answers.map(({ status }) => status)}`)
      }
      if (isSeen && !isMore && holds.e > 0) {
        const { status } = await holds.caller.call('PUT', held.path, { expires_at: '2098-06-01T00:00:00.000Z' })
        if (status !== 403) wrong.push(`${JSON.stringify(holds.body)} prolongs ${JSON.stringify(held.body)}: ${status}`)
      }
    }
  }
  t.strictSame(wrong, [])

  // The token can create exactly the same kinds of tokens.
  const before = await count(owner)
  let made = 0
  for (const [i, holds] of all.entries()) {
    // Every fourth or seventh of all pairs. Each token creates other kinds than the token before.
    for (const held of all.filter((_, j) => (i * all.length + j) % (LONG ? 4 : 7) === 0)) {
      const isMore = held.r < holds.r || held.a > holds.a || held.e < holds.e
      const { status } = await create(holds.caller, held.body)
      if (!isMore) made++
      if (status !== (isMore ? 403 : 201)) {
        wrong.push(`${JSON.stringify(holds.body)} makes ${JSON.stringify(held.body)}: ${status}`)
      }
    }
  }
  t.strictSame(wrong, [])
  t.equal(await count(owner), before + made, 'and of what was refused, none')
  const [most, least] = [all.find(({ a, r, e }) => a === 2 && r === 0 && e === 0)!, all.at(-1)!]
  t.equal((await most.caller.call('POST', `${all[0]!.path}/rotate`, {})).status, 200)
  t.notOk(await isAlive(owner, all[0]!.caller.token))
  t.equal((await least.caller.call('POST', `${most.path}/rotate`, {})).status, 404)
  t.ok(await isAlive(owner, most.caller.token))
})

t.test('TI-30: a token that a person makes, directly or by an own token, is bounded by the role at that time', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const [rosa] = [await makePerson(service, { [o]: 'owner' }), await makePerson(service, { [o]: 'owner' })]
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const person = holder(owner, (await issuePair(service, rosa, SCOPE_NAMES)).access)
  const { token } = (await create(person, { abilities: ['*'], expires_at })).body
  const makers: [who: string, maker: Caller][] = [['a person', person], ['a token of theirs', holder(owner, token)]]
  for (const role of ['owner', 'administrator', 'developer', 'administrator', 'owner'] as const) {
    const changed = await owner.call('PATCH', `/organizations/${o}/members/${rosa.id}`, { role })
    t.equal(changed.status, 200, changed.text)
    const held: readonly string[] = scopesOfRole(role)
    for (const [who, maker] of makers) {
      for (const abilities of [['secret:read'], ['secret:read', 'billing:read'], ['organization:delete'], ['*']]) {
        const isHeld = ['api-token:create', ...abilities].every((one) =>
          one === '*' ? role === 'owner' : held.includes(one))
        const before = await count(owner)
        const { status, text } = await create(maker, { abilities, expires_at })
        t.equal(status, isHeld ? 201 : 403, `${who}, as ${role}: ${abilities.join()}: ${text}`)
        t.equal(await count(owner), before + (isHeld ? 1 : 0))
      }
    }
  }
})

t.test('TI-31: a token does not change itself; it may rotate itself, which gives it nothing', async (t) => {
  const owner = await service.organization()
  await makeLevel(owner, { slug: 'orbit' })
  for (const more of [{}, { restrictions: [{ project: 'orbit' }] }]) {
    const { token } = (await create(owner, { abilities: ['*'], expires_at: '2098-01-01T00:00:00Z', ...more })).body
    const caller = holder(owner, token)
    const path = `${keysOf(owner)}/${await idOf(caller)}`
    const before = await stateOf(owner)
    for (const body of [{}, { name: 'Other' }, { expires_at: null }, { expires_at: '2097-01-01T00:00:00Z' }]) {
      t.strictSame(failing(await caller.call('PUT', path, body)), [403, 'insufficient_permissions', []])
    }
    t.equal(await stateOf(owner), before)
    const rotated = await caller.call('POST', `${path}/rotate`, { overlap_seconds: 60 })
    t.equal(rotated.status, 200)
    t.equal((await caller.call('POST', `${path}/rotate`, {})).status, 200, 'also by the value that lives on')
    t.strictSame([await isAlive(owner, token), await isAlive(owner, rotated.body.token)], [false, false])
  }
})

t.test('a token belongs to the person who rotated it: it ends with this person, and with no other', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const [rosa, oda] = [await makePerson(service, { [o]: 'owner' }), await makePerson(service, { [o]: 'owner' })]
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const as = async (person: Person) => holder(owner, (await issuePair(service, person, SCOPE_NAMES)).access)
  const [asRosa, asOda] = [await as(rosa), await as(oda)]
  const of = (name: string, person: Person) => ({ type: 'user', id: person.id, name })
  for (const [maker, madeBy] of [[owner, null], [asOda, oda]] as const) {
    const { api_key } = (await create(maker, { abilities: ['organization:read'], expires_at })).body
    const rotate = (by: Caller, body: object = {}) => by.call('POST', `${keysOf(owner)}/${api_key.id}/rotate`, body)
    t.strictSame(failing(await rotate(asRosa, { overlap_seconds: 60 })), [422, 'validation_failed', ['overlap_seconds']])
    const kept = await rotate(maker, { overlap_seconds: 60 })
    t.equal(kept.status, 200, 'rotated by its owner, or by a token without a person, it keeps its owner')
    if (madeBy === null) t.equal(kept.body.api_key.created_by?.type, 'api_token')
    else t.strictSame(kept.body.api_key.created_by, of(oda.name, oda))
    const { token, api_key: rotated } = (await rotate(asRosa)).body
    t.strictSame(rotated.created_by, of(rosa.name, rosa))
    t.strictSame([await isAlive(owner, kept.body.token), await isAlive(owner, token)], [false, true])
    t.strictSame((await rotate(asRosa, { overlap_seconds: 60 })).status, 200, 'hers, by now')
  }
  const another = await as(rosa)
  const { api_key: own } = (await create(asRosa, { abilities: ['organization:read'], expires_at })).body
  const anew = (body: object) => another.call('POST', `${keysOf(owner)}/${own.id}/rotate`, body)
  t.strictSame(
    failing(await anew({ overlap_seconds: 60 })), [422, 'validation_failed', ['overlap_seconds']],
    'of another grant, even of the same person: the value that it knows would not end with it'
  )
  t.equal((await anew({})).status, 200)
  t.equal((await another.call('DELETE', `${keysOf(owner)}/${own.id}`)).status, 204)
  const tokens = (await owner.call('GET', keysOf(owner))).body.data
    .filter(({ created_by }: { created_by: { id: number } | null }) => created_by?.id === rosa.id)
  t.equal(tokens.length, 2)
  const { token } = (await asRosa.call('POST', `${keysOf(owner)}/${tokens[0].id}/rotate`, {})).body
  await service.write(`UPDATE members SET role = 'billing_manager' WHERE user_id = ${oda.id}`)
  t.ok(await isAlive(owner, token), 'it has nothing to do with who had it before')
  await service.write(`UPDATE users SET disabled_at = now() WHERE id = ${rosa.id}`)
  t.notOk(await isAlive(owner, token))
})

t.test('a rotation by the former value, without a key, ends it; the value in between keeps its overlap', async (t) => {
  const owner = await service.organization()
  const former = await service.token(owner.organization, ['*'])
  const { id } = (await former.call('GET', '/user')).body.data
  const rotate = async (caller: typeof former) => {
    const { status, body } = await caller.call(
      'POST', `/organizations/${owner.organization}/api-keys/${id}/rotate`, { overlap_seconds: 3600 }
    )
    t.equal(status, 200)
    return body.token as string
  }
  // Two jobs share one token, and both rotate it.
  const between = await rotate(former)
  const last = await rotate(former)
  t.strictSame(
    await Promise.all([former.token, between, last].map((one) => isAlive(owner, one))), [false, true, true]
  )
})

t.test('a rotation with an overlap interrupts no request, not even one that waits for it', async (t) => {
  const owner = await service.organization()
  const { token, api_key } = (await create(owner, { abilities: ['*'] })).body
  let live: string = token
  const path = `${keysOf(owner)}/${api_key.id}/rotate`
  for (let round = 0; round < 10; round++) {
    const caller = holder(owner, live)
    const changes = Array.from({ length: 6 }, (_, i) =>
      caller.call('POST', `/${owner.organization}/projects`, { name: `Round ${round} ${i}` }))
    const { status, body } = await owner.call('POST', path, { overlap_seconds: 60 })
    t.equal(status, 200)
    t.strictSame((await Promise.all(changes)).map((one) => one.status), changes.map(() => 201))
    live = body.token
  }
})

t.test('the description of a token is set, shown, changed and removed, and is not in the MAC', async (t) => {
  const owner = await service.organization()
  const described = async (id: string) => {
    const { body: { data } } = await owner.call('GET', `${keysOf(owner)}/${id}`)
    const list = await owner.call('GET', keysOf(owner))
    t.strictSame((list.body.data as { id: string }[]).find((one) => one.id === id), data, 'a list shows the same')
    return data.description as string | null
  }
  const long = 'é'.repeat(500)
  for (const description of ['For the website\nAsk Rosa', '', long, null]) {
    const created = await create(owner, { abilities: ['secret:read'], description })
    t.equal(created.status, 201)
    t.equal(created.body.api_key.description, description)
    t.equal(await described(created.body.api_key.id), description)
  }
  const { body: { api_key: { id } } } = await create(owner, { abilities: ['secret:read'] })
  const update = (body: object) => owner.call('PUT', `${keysOf(owner)}/${id}`, body)
  t.equal(await described(id), null, 'null if it was left out')
  t.equal((await update({ description: 'A' })).body.data.description, 'A')
  t.equal((await update({ name: 'Other' })).body.data.description, 'A', 'an update that omits it keeps it')
  t.equal((await owner.call('POST', `${keysOf(owner)}/${id}/rotate`, {})).body.api_key.description, 'A', 'so does a rotation')
  for (const [path, method] of [[keysOf(owner), 'POST'], [`${keysOf(owner)}/${id}`, 'PUT']] as const) {
    for (const description of [`${long}x`, 5, ['A']]) {
      const answer = await owner.call(method, path, { name: 'CI', abilities: ['secret:read'], description })
      t.strictSame(failing(answer), [422, 'validation_failed', ['description']])
    }
  }
  t.equal(await described(id), 'A')
  await service.write(`UPDATE api_tokens SET description = 'Forged' WHERE id = ${id}`)
  t.equal(await described(id), 'Forged')
  t.equal((await update({ description: null })).body.data.description, null)
  t.equal(await described(id), null)
})

t.test('S-9.1: token_suffix is the end of the latest value: at creation and rotation, in lists, on /account', async (t) => {
  const owner = await service.organization()
  const person = await makePerson(service, { [owner.organization]: 'owner' })
  const { access } = await issuePair(service, person, ['api-token:create', 'api-token:read', 'api-token:delete', 'secret:read'])
  const call = async (method: string, path: string, payload?: object) => service.inject({
    method: method as 'GET',
    url: `/api/v1${keysOf(owner)}${path}`,
    headers: { authorization: `Bearer ${access}` },
    ...(payload !== undefined && { payload })
  })
  const { body: made } = await call('POST', '', { name: 'Shown', abilities: ['secret:read'] })
  const listed = async () => (await call('GET', '')).body.data.find(({ id }: { id: string }) => id === made.api_key.id)
  await service.app.listen({ host: '127.0.0.1', port: 0 })
  const browser = visitor(service.app.listeningOrigin)
  await browser.signIn(await browser.open('/account'), person.email, person.password)
  const page = async () => (await browser.open('/account')).text
  t.equal(made.api_key.token_suffix, made.token.slice(-4))
  t.equal((await listed()).token_suffix, made.token.slice(-4))
  t.match(await page(), `, ends in ${made.token.slice(-4)}, created on `)
  const { body: rotated } = await call('POST', `/${made.api_key.id}/rotate`, { overlap_seconds: 60 })
  t.equal(rotated.api_key.token_suffix, rotated.token.slice(-4), 'also while the former value is valid')
  t.equal((await listed()).token_suffix, rotated.token.slice(-4))
  t.match(await page(), `, ends in ${rotated.token.slice(-4)}, created on `)
})
