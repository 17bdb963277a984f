// runs: one database
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { FORMER_SLUG_DAYS, MAX_FORMER_SLUGS } from '../../schemas/organizations.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { verifyDatabase } from '../../src/commands/audit/audit.ts'
import { initialize } from '../../src/commands/people/initialize.ts'
import { addOrganization, releaseFormerSlug } from '../../src/commands/people/organizations.ts'
import { transaction } from '../../src/changes/transaction.ts'
import type { Db } from '../../src/db/database.ts'
import { MEMBERSHIP_LIMITS } from '../../src/repositories/people/users.ts'
import { deleteOrganization, lockEverybody, updateOrganization } from '../../src/repositories/levels/organizations.ts'
import { Anchors } from '../../src/vault/audit/verification.ts'
import { ACTIVITY, startIsolatedApp, type Answer, type Caller } from '../helpers/app.ts'
import { issuePair, makePerson } from '../helpers/people.ts'
import { ON_POSTGRES } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// This file has its own database, because it looks at all slugs, and verifies all chains.
const service = await startIsolatedApp(t)

/** A person with an application that has all scopes. */
async function person (roles: Parameters<typeof makePerson>[1] = {}) {
  const { access } = await issuePair(service, await makePerson(service, roles), SCOPE_NAMES)
  const call: Caller['call'] = (method, path, body) => service.inject({
    method: method as 'GET',
    url: `/api/v1${path}`,
    headers: { authorization: `Bearer ${access}` },
    ...(body !== undefined && { payload: body as object })
  })
  return { call, create: (body: object) => call('POST', '/organizations', body) }
}

const rename = ({ call, organization }: Caller, slug: string) =>
  call('PATCH', `/organizations/${organization}`, { slug })
const remove = ({ call, organization }: Caller) =>
  call('DELETE', `/organizations/${organization}`, { confirmed: true })
/** The stored former slugs of an organization. */
const reservedFor = async ({ organization }: Pick<Caller, 'organization'>) => (await service.sql(
  `SELECT slug FROM former_slugs WHERE organization_id = '${organization}' ORDER BY slug`
)).map(({ slug }) => slug)
const slugOf = ({ body }: Answer) => body.data?.slug as string | undefined
const operator = { database: service.database, keyring: service.keyring }
const isTaken = (t: Test, answer: Answer, what: string) => t.match(
  answer, { status: 422, body: { error: 'slug_taken', errors: { slug: ['This slug is taken'] } } }, what
)

/** Every operation with an organization in its path. */
const operationsOf = (slug: string) => Object.entries(service.app.swagger().paths ?? {}).flatMap(([path, item]) =>
  path.includes('{organization}')
    ? Object.keys(item as object).map((method) => ({
      method: method.toUpperCase(), path: path.replace('{organization}', slug).replace(/{\w+}/g, '1')
    }))
    : [])

t.test('a request that uses a former slug is 404 on every operation, as if the slug had never been', async (t) => {
  const renamed = await service.organization({ slug: 'renamed' })
  const deleted = await service.organization({ slug: 'deleted' })
  const member = await person({ [renamed.organization]: 'owner', [deleted.organization]: 'owner' })
  t.equal((await rename(renamed, 'renamed-now')).status, 200)
  t.equal((await remove(deleted)).status, 204)
  for (const [slug, callers] of [['renamed', [renamed, member]], ['deleted', [member]]] as const) {
    const never = operationsOf('never-was-there')
    const operations = operationsOf(slug)
    t.ok(operations.length > 80, `${operations.length} operations`)
    for (const { call } of callers) {
      for (const [i, { method, path }] of operations.entries()) {
        const answer = await call(method, path.replace('/api/v1', ''))
        const other = await call(method, never[i]!.path.replace('/api/v1', ''))
        t.strictSame([answer.status, answer.text], [404, other.text], `${method} ${path}`)
      }
    }
  }
  t.equal((await member.call('GET', '/renamed-now/projects')).status, 200)
})

t.test('a former slug is taken for all other organizations, after a rename and after a deletion', async (t) => {
  const renamed = await service.organization({ slug: 'cumulus' })
  const deleted = await service.organization({ slug: 'nimbo' })
  const other = await service.organization({ slug: 'altus' })
  const owner = await person({ [renamed.organization]: 'owner', [deleted.organization]: 'owner' })
  const stranger = await person()
  t.equal((await rename(renamed, 'cumulonimbus')).status, 200)
  t.equal((await rename(deleted, 'stratus')).status, 200)
  t.equal((await remove(deleted)).status, 204)
  const organizations = async () => (await service.sql('SELECT id, slug FROM organizations ORDER BY id'))
  const before = await organizations()
  const inUse = await stranger.create({ name: 'X', slug: 'altus' })
  for (const slug of ['cumulus', 'nimbo', 'stratus']) {
    for (const { create } of [owner, stranger]) {
      const refused = await create({ name: 'X', slug })
      isTaken(t, refused, `${slug}: create`)
      t.equal(refused.text, inUse.text, 'and nothing tells it from a slug in use')
    }
    isTaken(t, await rename(other, slug), `${slug}: rename`)
  }
  t.strictSame(await organizations(), before, 'nothing was made or changed')
  t.strictSame(await reservedFor(other), [], 'and nothing reserved')

  t.equal(slugOf(await stranger.create({ name: 'Cumulus' })), 'cumulus-2', 'a slug made from a name skips it')
  t.equal((await addOrganization(operator, { name: 'Stratus', plan: 'free' })).slug, 'stratus-2', 'an operator too')
  t.equal((await rename(renamed, 'cumulus')).status, 200, 'the organization takes it back')
  t.strictSame(await reservedFor(deleted), ['nimbo', 'stratus'])
})

t.test('the first start skips a slug that is reserved, and of two at once only one creates anything', async (t) => {
  const empty = await startIsolatedApp(t)
  const first = await empty.organization({ slug: 'nimbus' })
  t.equal((await remove(first)).status, 204)
  const start = () => initialize({ database: empty.database, keyring: empty.keyring }, {
    organization: 'Nimbus', email: 'rosa@nimbus.example', password: 'correct horse', plan: 'free'
  })
  const made = await Promise.all([start(), start()])
  t.strictSame(made.flatMap((one) => one?.organization.slug ?? []), ['nimbus-2'])
})

t.test('an organization takes its own former slug back, which ends the reservation: a, b, a, c', async (t) => {
  const caller = await service.organization({ slug: 'one-a' })
  const { create } = await person()
  for (const [slug, reserved] of [
    ['one-b', ['one-a']], ['one-a', ['one-b']], ['one-a', ['one-b']], ['one-c', ['one-a', 'one-b']]
  ] as const) {
    const answer = await rename(caller, slug)
    t.equal(slugOf(answer), slug, answer.text)
    t.strictSame(await reservedFor(caller), reserved)
  }
  for (const slug of ['one-a', 'one-b', 'one-c']) isTaken(t, await create({ name: 'X', slug }), slug)
})

t.test('of renames at once each slug but the last is reserved', async (t) => {
  const caller = await service.organization({ slug: 'at-once' })
  const slugs = Array.from({ length: 6 }, (_, i) => `at-once-${i}`)
  const answers = await Promise.all(slugs.map((slug) => rename(caller, slug)))
  for (const { status, text } of answers) t.equal(status, 200, text)
  const last = slugOf(await caller.call('GET', '/organization'))
  t.strictSame(await reservedFor(caller), ['at-once', ...slugs].filter((slug) => slug !== last))
})

t.test('a change that is refused reserves nothing', async (t) => {
  const caller = await service.organization({ slug: 'steady' })
  await service.organization({ slug: 'occupied' })
  isTaken(t, await rename(caller, 'occupied'), 'taken')
  const { call, organization } = caller
  const stale = { 'if-match': '"other"' }
  for (const [method, body] of [['PATCH', { slug: 'else' }], ['DELETE', { confirmed: true }]] as const) {
    t.equal((await call(method, `/organizations/${organization}`, body, stale)).status, 412)
  }
  t.equal((await call('PATCH', `/organizations/${organization}`, { name: 'Else' })).status, 200)
  t.strictSame(await reservedFor(caller), [])
})

t.test('an organization has a limited number of former slugs reserved', async (t) => {
  const caller = await service.organization({ slug: 'many-0' })
  for (let n = 1; n <= MAX_FORMER_SLUGS; n++) t.equal((await rename(caller, `many-${n}`)).status, 200)
  t.match(await rename(caller, 'many-more'), {
    status: 422, body: { error: 'limit_reached', details: { limit: MAX_FORMER_SLUGS } }
  })
  t.equal((await reservedFor(caller)).length, MAX_FORMER_SLUGS)
  t.equal((await rename(caller, 'many-0')).status, 200, 'it may take one of its own back')
  await service.sql("UPDATE former_slugs SET reserved_until = now() WHERE slug = 'many-1'")
  t.equal((await rename(caller, 'many-more')).status, 200, 'reservations that are over do not count')
  t.equal((await remove(caller)).status, 204, 'and it can be deleted')
})

t.test('a person who makes and deletes organizations reserves names within the limit of owned organizations', async (t) => {
  const founder = await person()
  for (const n of [1, 2]) {
    const { body } = await founder.create({ name: 'Held', slug: `held-${n}` })
    t.equal((await founder.call('DELETE', `/organizations/${body.data.id}`, { confirmed: true })).status, 204)
  }
  const [{ owner_id }] = await service.sql("SELECT owner_id FROM former_slugs WHERE slug = 'held-1'") as [{ owner_id: string }]
  await service.sql(`INSERT INTO former_slugs (organization_id, slug, reserved_until, owner_id)
    SELECT lpad(n::text, 26, '0'), 'held-more-' || n, now() + interval '1 day', ${owner_id}
    FROM generate_series(1, ${MEMBERSHIP_LIMITS.owned - 2}) n`)
  t.match(await founder.create({ name: 'One more' }), {
    status: 422, body: { error: 'organization_limit_reached', details: { limit: MEMBERSHIP_LIMITS.owned } }
  })
  await service.sql("UPDATE former_slugs SET reserved_until = now() WHERE slug = 'held-1'")
  t.equal((await founder.create({ name: 'One more' })).status, 201, 'a reservation that is over counts no longer')
})

t.test('a reservation lasts 90 days by the clock of the database, and goes when another one is made', async (t) => {
  const { now } = Date
  t.teardown(() => { Date.now = now })
  t.equal(FORMER_SLUG_DAYS, 90)
  const caller = await service.organization({ slug: 'old-times' })
  const heir = await service.organization({ slug: 'heir' })
  t.equal((await rename(caller, 'new-times')).status, 200)
  t.match(await service.sql(`SELECT reserved_until - now() BETWEEN interval '89 days 23 hours' AND interval '90 days' AS lasts
    FROM former_slugs WHERE slug = 'old-times'`), [{ lasts: true }])
  Date.now = () => now() + 400 * 86_400_000
  isTaken(t, await rename(heir, 'old-times'), 'whatever the clock of the service says')
  Date.now = now
  await service.sql("UPDATE former_slugs SET reserved_until = now() + interval '1 minute' WHERE slug = 'old-times'")
  isTaken(t, await rename(heir, 'old-times'), 'to its last minute')
  await service.sql("UPDATE former_slugs SET reserved_until = now() WHERE slug = 'old-times'")
  t.equal(slugOf(await (await person()).create({ name: 'Old times' })), 'old-times', 'then a name makes it')
  await service.sql("UPDATE organizations SET slug = 'moved-away' WHERE slug = 'old-times'")
  t.equal((await rename(heir, 'old-times')).status, 200, 'and it can be asked for')
  t.equal((await rename(heir, 'heir')).status, 200)
  t.strictSame([await reservedFor(caller), await reservedFor(heir)], [[], ['old-times']], 'it is the next holder’s now')
  isTaken(t, await rename(caller, 'old-times'), 'and no longer that of the first one')

  await service.sql("UPDATE former_slugs SET reserved_until = now() - interval '1 second' WHERE slug = 'old-times'")
  const last = await service.organization({ slug: 'last' })
  t.equal((await rename(last, 'very-last')).status, 200)
  t.strictSame([await reservedFor(heir), await reservedFor(last)], [[], ['last']], 'what is over is removed')
})

t.test('an operator releases a former slug earlier, and the organization that had it has that in its audit', async (t) => {
  const renamed = await service.organization({ slug: 'wanted' })
  const deleted = await service.organization({ slug: 'wanted-too' })
  t.equal((await rename(renamed, 'given-up')).status, 200)
  t.equal((await remove(deleted)).status, 204)
  const { create } = await person()
  for (const [slug, { organization }] of [['wanted', renamed], ['wanted-too', deleted]] as const) {
    isTaken(t, await create({ name: 'X', slug }), 'before')
    const released = await Promise.allSettled([1, 2].map(() => releaseFormerSlug(service.database, slug)))
    t.strictSame(released.flatMap((one) => one.status === 'rejected' ? [(one.reason as Error).message] : []),
      [`The slug ${slug} is not reserved`], 'of two at once one releases it')
    t.match(await service.sql(`SELECT action, actor_type, resource_type, resource_id, details FROM audit_events
      WHERE organization_id = '${organization}' ORDER BY seq DESC LIMIT 1`), [{
      action: 'organization.update',
      actor_type: 'operator',
      resource_type: 'organization',
      resource_id: organization,
      details: { released_slug: slug }
    }])
    t.equal((await create({ name: 'X', slug })).status, 201, 'after')
  }
  await service.sql(`INSERT INTO former_slugs (organization_id, slug, reserved_until)
    VALUES ('${renamed.organization}', 'over', now())`)
  for (const slug of ['wanted', 'given-up', 'never', 'over']) {
    await t.rejects(releaseFormerSlug(service.database, slug), { message: `The slug ${slug} is not reserved` })
  }
  for await (const { broken } of verifyDatabase(operator, {}, new Anchors())) t.equal(broken, null)
})

t.test('a request that waits for a slug while it is given up sees that the slug is reserved', {
  skip: !ON_POSTGRES && 'needs two connections'
}, async (t) => {
  const giveUp: Record<string, (db: Db, id: string) => Promise<unknown>> = {
    rename: (db, id) => updateOrganization(db, id, { slug: `away-${id.toLowerCase()}` }),
    deletion: async (db, id) => {
      await lockEverybody(db, id)
      await deleteOrganization(db, id)
    }
  }
  // On Citus, a change of a table with a copy on each node waits for a table lock.
  const isWaiting = async () => (await service.sql(`SELECT 1 FROM ${ACTIVITY} WHERE datname = current_database()
    AND wait_event_type = 'Lock' AND query ~* 'organizations|lock_shard_resources'`)).length > 0
  const { create } = await person()
  for (const [how, work] of Object.entries(giveUp)) {
    for (const [taking, take] of Object.entries({
      create: (slug: string) => create({ name: 'X', slug }),
      rename: async (slug: string) => rename(await service.organization(), slug)
    })) {
      for (const isUndone of [false, true]) {
        const slug = `race-${how}-${taking}-${isUndone}`
        const { organization } = await service.organization({ slug })
        let taken: Promise<Answer> | undefined
        const given = transaction(service.database.db, async (db) => {
          await work(db, organization)
          taken = take(slug)
          await until(isWaiting, { every: 5 })
          if (isUndone) throw new Error('undone')
        })
        if (isUndone) await t.rejects(given, { message: 'undone' })
        else await given
        isTaken(t, await taken!, slug)
        t.same(await service.sql(`SELECT id FROM organizations WHERE slug = '${slug}'`), isUndone ? [{ id: organization }] : [])
        t.strictSame(await reservedFor({ organization }), isUndone ? [] : [slug])
      }
    }
  }
})

t.test('organizations are made, renamed and deleted in one place', (t) => {
  const places = readdirSync('src', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'))
    .filter((name) => {
      const text = readFileSync(join('src', name), 'utf8')
      return /\b(?:insert|delete)\(organizations\)|(?:INSERT INTO|DELETE FROM) organizations\b/i.test(text) ||
        [...text.matchAll(/update\(organizations\)\s*\.set\(\{([^}]*)\}/g)].some(([, set]) => /slug|\.\.\./.test(set!)) ||
        /UPDATE organizations\b[^`]*\bslug\b/i.test(text)
    })
  t.strictSame(places, ['repositories/levels/organizations.ts'])
  t.end()
})

t.test('slugs of projects are free at once', async (t) => {
  const caller = await service.organization()
  const path = `/${caller.organization}/projects`
  t.equal((await caller.call('POST', path, { name: 'Orbit' })).status, 201)
  t.equal((await caller.call('PATCH', `/${caller.organization}/orbit`, { slug: 'ellipse' })).status, 200)
  t.equal(((await caller.call('POST', path, { name: 'Orbit' })).body.data.attributes.slug), 'orbit')
})
