// runs: one database
import t from 'tap'
import { MAX_OWNED } from '../../schemas/organizations.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { buildApp } from '../../src/app.ts'
import { makeLevel, startIsolatedApp, type Answer, type Caller } from '../helpers/app.ts'
import { issuePair, makePerson } from '../helpers/people.ts'
import { TENANT_TABLES } from '../helpers/statements.ts'
import { until } from '../helpers/until.ts'

// This file has its own database, because it counts all organizations.
const service = await startIsolatedApp(t)

/** A person with an application that has these scopes. */
async function personWith (granted: Parameters<typeof issuePair>[2], roles: Parameters<typeof makePerson>[1] = {}) {
  const person = await makePerson(service, roles)
  const { access } = await issuePair(service, person, granted)
  const call = async (method: string, path: string, body?: unknown): Promise<Answer> => service.inject({
    method: method as 'GET',
    url: `/api/v1${path}`,
    headers: { authorization: `Bearer ${access}` },
    ...(body !== undefined && { payload: body as object })
  })
  return { ...person, call }
}

const failing = (answer: Answer) => [answer.status, answer.body.error, Object.keys(answer.body.errors ?? {})]
const organizationOf = async (id: string) =>
  JSON.stringify(await service.sql(`SELECT o.*, c.name, c.require_second_factor, c.updated_at
    FROM organizations o JOIN organization_counters c ON c.organization_id = o.id WHERE o.id = '${id}'`))
const eventsOf = async (id: string) =>
  (await service.sql(`SELECT action FROM audit_events WHERE organization_id = '${id}' ORDER BY seq`))
    .map(({ action }) => action as string)

/** Tables that keep the rows of a deleted organization: its audit log, its slugs and its bills. */
const KEPT = ['audit_events', 'former_slugs', 'organization_counters', 'invoices', 'charges', 'refunds']
async function leftOf (id: string): Promise<Record<string, number>> {
  const counts = TENANT_TABLES.filter((table) => !KEPT.includes(table)).map((table) =>
    `SELECT '${table}' AS name, count(*)::int AS rows FROM ${table} WHERE organization_id = '${id}'`)
  const rows = await service.sql(
    `${counts.join(' UNION ALL ')} UNION ALL SELECT 'organizations', count(*)::int FROM organizations WHERE id = '${id}'`
  ) as { name: string, rows: number }[]
  return Object.fromEntries(rows.filter(({ rows }) => rows > 0).map(({ name, rows }) => [name, rows]))
}

const untilGone = (id: string) =>
  until(async () => Object.keys(await leftOf(id)).length === 0, { every: 20, within: 120_000 })

t.test('a person creates an organization, owns it, and works in it at once', async (t) => {
  const person = await personWith(SCOPE_NAMES)
  const created = await person.call('POST', '/organizations', { name: 'Nimbus Weather' })
  t.equal(created.status, 201, created.text)
  const { id, attributes } = created.body.data
  t.strictSame(created.body, {
    data: {
      type: 'organizations',
      id,
      name: 'Nimbus Weather',
      slug: 'nimbus-weather',
      status: 'active',
      attributes: {
        ulid: id,
        name: 'Nimbus Weather',
        slug: 'nimbus-weather',
        status: 'active',
        plan_name: service.config.defaultPlan,
        require_second_factor: false,
        created_at: attributes.created_at,
        updated_at: attributes.created_at
      }
    }
  })
  t.strictSame((await person.call('GET', '/organizations/nimbus-weather')).body, created.body)
  t.strictSame((await person.call('GET', '/organizations')).body.data, [created.body.data])
  t.match((await person.call('GET', '/user')).body.included, [{ id, attributes: { role: 'owner' } }])
  t.equal((await person.call('POST', `/${id}/projects`, { name: 'Orbit' })).status, 201)
  t.strictSame(await eventsOf(id), ['organization.create', 'project.create'])
  const second = await person.call('POST', '/organizations', { name: 'Nimbus Weather' })
  t.equal(second.body.data.slug, 'nimbus-weather-2', 'a slug is made from the name, with a number where it is taken')
  const third = await person.call('POST', '/organizations', { name: 'Plans' })
  t.equal(third.body.data.slug, 'plans-2', 'and never a reserved word')
  const fourth = await person.call('POST', '/organizations', { name: 'Nimbus', slug: 'nimbus-of-mine' })
  t.equal(fourth.body.data.slug, 'nimbus-of-mine')
})

t.test('what is no organization is refused, and nothing is made', async (t) => {
  const person = await personWith(['organization:create'])
  const { organization } = await service.organization({ slug: 'stratus' })
  const count = async () => (await service.sql('SELECT count(*)::int AS n FROM organizations'))[0]!.n
  const before = await count()
  const rows: [body: unknown, error: string, named: string[]][] = [
    [{}, 'validation_failed', ['name']],
    [{ name: '' }, 'validation_failed', ['name']],
    [{ name: 5 }, 'validation_failed', ['name']],
    [{ name: 'a'.repeat(256) }, 'validation_failed', ['name']],
    [{ name: 'X', slug: 'Upper' }, 'validation_failed', ['slug']],
    [{ name: 'X', slug: 'a'.repeat(65) }, 'validation_failed', ['slug']],
    [{ name: 'X', slug: 'organizations' }, 'validation_failed', ['slug']],
    [{ name: 'X', slug: 'user' }, 'validation_failed', ['slug']],
    [{ name: 'X', slug: organization.toLowerCase() }, 'validation_failed', ['slug']],
    [{ name: 'X', slug: 'stratus' }, 'slug_taken', ['slug']],
    [{ name: 'X', plan: 'enterprise' }, 'validation_failed', ['plan']],
    [{ name: 'X', status: 'active' }, 'validation_failed', ['status']],
    [{ name: 'X', id: organization }, 'validation_failed', ['id']]
  ]
  for (const [body, error, named] of rows) {
    t.strictSame(
      failing(await person.call('POST', '/organizations', body)), [422, error, named], JSON.stringify(body).slice(0, 60)
    )
  }
  const token = await service.organization()
  t.strictSame(
    failing(await token.call('POST', '/organizations', { name: 'X' })), [422, 'user_required', []],
    'an API token belongs to one organization'
  )
  const weak = await personWith(['organization:read', 'organization:update'])
  const refused = await weak.call('POST', '/organizations', { name: 'X' })
  t.match(refused, {
    status: 403,
    headers: { 'www-authenticate': /error="insufficient_scope", scope="organization:create"/ },
    body: {
      details: { required_scope: 'organization:create', granted_scopes: ['organization:read', 'organization:update'] }
    }
  })
  t.equal(await count(), before as number + 1, 'but for the one that the token belongs to')
})

t.test('no person owns more organizations than the limit, also when two are created at once', async (t) => {
  const person = await personWith(['organization:create'])
  await service.sql(`
    WITH made AS (
      INSERT INTO organizations (id, slug, storage_key)
      SELECT '01' || lpad(n::text, 24, '0'), 'many-' || n, '' FROM generate_series(1, ${MAX_OWNED - 1}) n
      RETURNING id
    ) INSERT INTO members (organization_id, user_id, role) SELECT id, ${person.id}, 'owner' FROM made`)
  const answers = await Promise.all(['One', 'Other'].map((name) => person.call('POST', '/organizations', { name })))
  t.strictSame(answers.map(({ status }) => status).sort(), [201, 422])
  t.match(answers.find(({ status }) => status === 422)!.body, {
    error: 'organization_limit_reached', details: { limit: MAX_OWNED }
  })
  await service.sql("DELETE FROM organizations WHERE slug LIKE 'many-%'")
  t.equal((await person.call('POST', '/organizations', { name: 'Again' })).status, 201)
})

t.test('an organization gets another name and slug, and no other member of it can be set', async (t) => {
  const owner = await service.organization({ slug: 'cirrus' })
  const other = await service.organization({ slug: 'cumulus' })
  const path = `/organizations/${owner.organization}`
  await makeLevel(owner)
  for (const method of ['PATCH', 'PUT']) {
    const name = `By ${method}`
    t.match((await owner.call(method, path, { name })).body.data, { name, slug: 'cirrus', attributes: { name } })
  }
  const before = await organizationOf(owner.organization)
  const bad: [body: object, error: string, named: string][] = [
    [{ slug: 'cumulus' }, 'slug_taken', 'slug'],
    [{ slug: 'plans' }, 'validation_failed', 'slug'],
    [{ slug: other.organization.toLowerCase() }, 'validation_failed', 'slug'],
    [{ slug: null }, 'validation_failed', 'slug'],
    [{ name: ' ' }, 'validation_failed', 'name'],
    ...['id', 'ulid', 'plan', 'plan_name', 'status', 'storage_key', 'created_at'].map((member): [object, string, string] =>
      [{ name: 'X', [member]: 'enterprise' }, 'validation_failed', member])
  ]
  for (const [body, error, named] of bad) {
    t.strictSame(failing(await owner.call('PATCH', path, body)), [422, error, [named]], JSON.stringify(body))
  }
  t.equal(await organizationOf(owner.organization), before)
  t.equal((await owner.call('PATCH', path, { slug: 'altocumulus' })).status, 200)
  t.equal((await owner.call('GET', '/altocumulus/orbit')).status, 200)
  t.equal((await owner.call('GET', `/${owner.organization}/orbit`)).status, 200, 'its id names it as before')
  t.equal((await owner.call('GET', '/cirrus/orbit')).status, 404)
  t.strictSame(
    failing(await other.call('PATCH', `/organizations/${other.organization}`, { slug: 'cirrus' })),
    [422, 'slug_taken', ['slug']], 'reserved'
  )
  const changes = (await eventsOf(owner.organization)).filter((action) => action === 'organization.update')
  t.equal(changes.length, 3)
  const slices = [{ project_id: (await owner.call('GET', `/${owner.organization}/orbit`)).body.data.id as string, target_id: null, environment_id: null }]
  const narrowed = await service.token(owner.organization, ['*'], { slices })
  t.equal((await narrowed.call('PATCH', path, { name: 'X' })).status, 404, 'it lies outside every part of it')
  t.equal((await narrowed.call('DELETE', path, { confirmed: true })).status, 404)
})

t.test('a deletion has to be confirmed, by the JSON value true', async (t) => {
  const owner = await service.organization()
  const path = `/organizations/${owner.organization}`
  for (const body of [undefined, {}, { confirmed: false }, { confirmed: 1 }, { confirmed: 'true' }, { confirmed: [true] }]) {
    t.match(await owner.call('DELETE', path, body), { status: 422, body: { error: 'confirmation_required' } })
  }
  for (const body of [[], 'true', { confirmed: true, force: true }]) {
    t.match(await owner.call('DELETE', path, JSON.stringify(body), { 'content-type': 'application/json' }), {
      status: 422, body: { error: 'validation_failed' }
    })
  }
  t.equal((await owner.call('GET', path)).status, 200)
  t.strictSame(await eventsOf(owner.organization), [])
})

t.test('TI-17, AU-11: a deletion of an organization counts at once on every instance; its audit stays', async (t) => {
  const owner = await service.organization({ slug: 'fractus' })
  const o = owner.organization
  const elsewhere = await service.organization()
  const member = await personWith(SCOPE_NAMES, { [o]: 'owner', [elsewhere.organization]: 'auditor' })
  const level = await makeLevel(owner)
  for (const plaintext of ['A=1', 'A=2']) await owner.call('POST', `/${o}/secrets/store`, { ...level, plaintext })
  await owner.call('POST', `/${o}/orbit/encryption-key/rotate`, {})
  const rotated = await service.token(o, ['*'])
  const newer = await service.rotate(rotated.token, 3600)
  const other = await buildApp({
    config: service.config,
    database: service.database,
    keyring: service.keyring,
    costs: service.app.costs,
    logStream: { write: () => {} }
  })
  t.teardown(() => other.close())
  const before = await eventsOf(o)
  const head = `SELECT next_event FROM organization_counters WHERE organization_id = '${o}'`

  t.equal((await member.call('DELETE', `/organizations/${o}`, { confirmed: true })).status, 204)
  for (const token of [owner.token, rotated.token, newer]) {
    for (const app of [service.app, other]) {
      const answer = await app.inject({
        url: `/api/v1/${o}/orbit/backend/live/secrets`, headers: { authorization: `Bearer ${token}` }
      })
      t.equal(answer.statusCode, 401)
    }
  }
  const never = `/${o.slice(0, -2)}ZZ/projects`
  for (const path of [`/${o}/projects`, '/fractus/projects', `/organizations/${o}`]) {
    const { status, text } = await member.call('GET', path)
    t.strictSame([status, text], [404, (await member.call('GET', never)).text])
  }
  t.strictSame(
    (await member.call('GET', '/organizations')).body.data.map(({ id }: { id: string }) => id), [elsewhere.organization]
  )
  t.equal((await elsewhere.call('GET', '/organization')).status, 200)
  t.strictSame(await eventsOf(o), [...before, 'organization.delete'])
  t.same(
    await service.sql(`SELECT stored_bytes::int FROM organization_counters WHERE organization_id = '${o}'`),
    [{ stored_bytes: 0 }]
  )
  t.same(
    (await service.sql(`SELECT details FROM audit_events WHERE organization_id = '${o}' ORDER BY seq DESC LIMIT 1`))[0],
    { details: { members: 1, tokens: 2 } }
  )
  const again = await member.call('POST', '/organizations', { name: 'Fractus' })
  t.equal(again.body.data.slug, 'fractus-2', 'its slug is reserved')
  await untilGone(o)
  t.strictSame(await leftOf(o), {}, 'nothing is left of it')
  t.strictSame(await eventsOf(o), [...before, 'organization.delete'], 'but its audit')
  const [counter] = await service.sql(head)
  t.equal(Number(counter!.next_event), before.length + 2)
  await t.rejects(
    service.sql(`INSERT INTO organization_counters (organization_id, name, plan) VALUES ('${o}', 'X', 'self-hosted')`), { cause: { code: '23505' } },
    'and no other one gets its id'
  )
  t.notMatch(service.logs.join(''), /"level":[56]0/)
})

t.test('changes that are under way while it is deleted come before or not at all, and leave nothing', async (t) => {
  for (let round = 0; round < 5; round++) {
    const owner = await service.organization()
    const o = owner.organization
    const level = await makeLevel(owner)
    const person = await personWith(SCOPE_NAMES, { [o]: 'administrator' })
    const before = (await eventsOf(o)).length
    const callers: Pick<Caller, 'call'>[] = [owner, person, await service.token(o, ['*'])]
    const changes = Array.from({ length: 18 }, (_, i) => {
      const { call } = callers[i % 3]!
      return i % 2 === 0
        ? call('POST', `/${o}/projects`, { name: `Project ${i}` })
        : call('POST', `/${o}/secrets/store`, { ...level, plaintext: `A=${i}` })
    })
    const deleted = owner.call('DELETE', `/organizations/${o}`, { confirmed: true })
    const answers = await Promise.all(changes)
    t.equal((await deleted).status, 204)
    const statuses = answers.map(({ status }) => status)
    t.strictSame(statuses.filter((status) => ![200, 201, 401, 404].includes(status)), [])
    const events = await eventsOf(o)
    t.equal(events.length, before + statuses.filter((status) => status < 300).length + 1, 'one for each that took effect')
    t.equal(events.at(-1), 'organization.delete')
    await untilGone(o)
    t.strictSame(await leftOf(o), {})
  }
})

t.test('the rows of a deleted organization are removed in pieces, continued at the next start', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const level = await makeLevel(owner)
  await owner.call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' })
  await service.sql(`
    WITH place AS (SELECT t.project_id, t.id AS target_id FROM targets t WHERE t.organization_id = '${o}'),
    environment AS (
      INSERT INTO environments (id, organization_id, project_id, target_id, name, slug, status, is_production)
      SELECT '02' || lpad(n::text, 24, '0'), '${o}', project_id, target_id, 'Many', 'many-' || n, 'development', false
      FROM place, generate_series(1, 10000) n RETURNING id, project_id, target_id
    ), history AS (
      INSERT INTO histories (organization_id, id) SELECT '${o}', id FROM environment RETURNING id
    ) INSERT INTO secrets (id, organization_id, project_id, target_id, environment_id, level, level_id, revision,
        key_version, size_bytes, history_id)
      SELECT id, '${o}', project_id, target_id, id, 'environment', id, 1, 1, 0, id FROM environment`)
  await service.sql(`INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities)
    SELECT '${o}', 'Many', sha256(('${o}' || n)::bytea), 'drs_many', '', '{secret:read}' FROM generate_series(1, 10000) n`)
  const build = () => buildApp({
    config: service.config,
    database: service.database,
    keyring: service.keyring,
    costs: service.app.costs,
    logStream: { write: () => {} }
  })
  const first = await build()
  const answer = await first.inject({
    method: 'DELETE',
    url: `/api/v1/organizations/${o}`,
    headers: { authorization: `Bearer ${owner.token}` },
    payload: { confirmed: true }
  })
  t.equal(answer.statusCode, 204)
  await first.close()
  const left = await leftOf(o)
  t.ok(left.environments === 10_001 && left.secrets! >= 8_000, `${JSON.stringify(left)} when it was stopped`)
  t.equal(left.organizations, undefined)
  t.equal(left.api_tokens, 10_001, 'no token went in the request')
  t.equal((await owner.call('GET', '/organization')).status, 401, 'but none of them is one')
  const second = await build()
  t.teardown(() => second.close())
  second.removals.start()
  await untilGone(o)
  t.strictSame(await leftOf(o), {})
})
