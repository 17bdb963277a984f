// runs: one database, embedded; 10 s
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t from 'tap'
import { startApp, type Caller } from '../helpers/app.ts'
import { MAX_SHOWN_NAMES } from '../../schemas/tokens.ts'
import { callAs, makePerson, type Person } from '../helpers/people.ts'

// Answers with places have the names of the levels beside their slugs.

const service = await startApp(t)

/** A project "Web shop" with the slug `shop`; its levels have other names than slugs, too. */
async function nimbus () {
  const owner = await service.organization()
  const { organization: o, call } = owner
  const made = async (path: string, body: object) => {
    const { status, body: answer, text } = await call('POST', path, body)
    if (status >= 300) throw new Error(text)
    return answer.data
  }
  await made(`/${o}/projects`, { name: 'Web shop', slug: 'shop' })
  await made(`/${o}/shop/targets`, { name: 'The backend', slug: 'backend' })
  for (const [name, slug] of [['Live for all', 'live'], ['Test', 'test']]) {
    await made(`/${o}/shop/backend/environments`, { name, slug })
  }
  await made(`/organizations/${o}/teams`, { name: 'Team' })
  const team = `/organizations/${o}/teams/team`
  const person = await makePerson(service, { [o]: 'guest' })
  await call('PUT', `${team}/members/${person.id}`, {})
  return { ...owner, o, made, team, person }
}

const LIVE = { project: 'shop', target: 'backend', environment: 'live' }
const TARGET = { project: 'shop', target: 'backend' }
const NAMES = { project: 'Web shop', target: 'The backend', environment: 'Live for all' }
const OF_TARGET = { ...NAMES, environment: null }
const OF_PROJECT = { ...OF_TARGET, target: null }

type Parts = Record<'restrictions' | 'restriction_names', unknown[]>
const partsOf = ({ restrictions, restriction_names }: Parts) => [restrictions, restriction_names]
const accessIn = async ({ call }: Pick<Caller, 'call'>, o: string, { id }: Person) =>
  (await call('GET', `/organizations/${o}/members/${id}/access`)).body.data.attributes.projects[0]

t.test('the access of a member and a team have the names of restrictions, in their order', async (t) => {
  const { o, call, team, person } = await nimbus()
  const owner = { call }
  const both = [{ ...LIVE, inherited: true }, TARGET]
  await call('PUT', `${team}/projects/shop`, { role: 'member', restrictions: both })
  const access = await accessIn(owner, o, person)
  const byPart = new Map<string, object>([[JSON.stringify(both[0]), NAMES], [JSON.stringify(TARGET), OF_TARGET]])
  for (const parts of [...access.teams, ...access.rights] as Parts[]) {
    t.strictSame(parts.restriction_names, parts.restrictions.map((part) => byPart.get(JSON.stringify(part))))
    t.equal(parts.restrictions.length, 2)
  }
  t.strictSame(await accessIn({ call: await callAs(service, person) }, o, person), access, 'the person sees the same')
  const [shown] = (await call('GET', team)).body.data.attributes.projects
  t.strictSame(shown.restriction_names, shown.restrictions.map((part: object) => byPart.get(JSON.stringify(part))))

  await call('PUT', `${team}/projects/shop`, { role: 'member', restrictions: [{ except_status: 'production' }] })
  t.match(await accessIn(owner, o, person), { teams: [{ restriction_names: [OF_PROJECT] }] })
  await call('PUT', `${team}/projects/shop`, { role: 'member', restrictions: [] })
  t.match(await accessIn(owner, o, person), { teams: [{ restrictions: [], restriction_names: [] }] })
})

t.test('a renamed level has its new name, and a deleted one is left out of both lists', async (t) => {
  const { o, call, team, person } = await nimbus()
  const test = { ...TARGET, environment: 'test' }
  await call('PUT', `${team}/projects/shop`, { role: 'member', restrictions: [LIVE, test] })
  await call('PATCH', `/${o}/shop/backend/live`, { name: 'Production' })
  await call('DELETE', `/${o}/shop/backend/test`)
  const access = await accessIn({ call }, o, person)
  t.strictSame(partsOf(access.teams[0]), [[LIVE], [{ ...NAMES, environment: 'Production' }]])
})

t.test('tokens and trust rules have the names of their restrictions, and accept the answer again', async (t) => {
  const { o, call, made } = await nimbus()
  const restrictions = [LIVE, TARGET, { project: 'shop' }]
  const names = [NAMES, OF_TARGET, OF_PROJECT]
  const keys = `/organizations/${o}/api-keys`
  const { id } = (await call('POST', keys, { name: 'Limited', abilities: ['secret:read'], restrictions })).body.api_key
  const read = async () => (await call('GET', `${keys}/${id}`)).body.data
  t.strictSame(partsOf(await read()), [restrictions, names])
  const listed = (await call('GET', keys)).body.data as (Parts & { id: string })[]
  t.strictSame(listed.find((one) => one.id === id)?.restriction_names, names)
  const again = await call('PATCH', `${keys}/${id}`, { restrictions: (await read()).restrictions })
  t.strictSame([again.status, partsOf(again.body.data)], [200, [restrictions, names]])

  const { attributes } = await made(`/organizations/${o}/workloads`, {
    name: 'Deployment',
    preset: 'github-actions',
    issuer: 'https://token.actions.githubusercontent.com',
    claims: { repository_id: '74' },
    scopes: ['secret:read'],
    restrictions: [LIVE],
    jwks: null
  })
  t.strictSame(partsOf(attributes), [[LIVE], [NAMES]])
})

t.test('the names beside restrictions have a bound in each response, and restrictions do not', async (t) => {
  const { o, call, made } = await nimbus()
  const longName = (start: string) => start.padEnd(255, 'x')
  await made(`/${o}/projects`, { name: longName('Shop'), slug: 'long' })
  await made(`/${o}/long/targets`, { name: longName('Backend'), slug: 'backend' })
  const parts = Array.from({ length: 100 }, (_, i) => ({ project: 'long', target: 'backend', environment: `e${i}` }))
  for (const { environment: slug } of parts) {
    await made(`/${o}/long/backend/environments`, { name: longName(slug), slug })
  }
  const namesOf = ({ environment }: typeof parts[number]) =>
    ({ project: longName('Shop'), target: longName('Backend'), environment: longName(environment) })
  const lists = Math.ceil(MAX_SHOWN_NAMES / (100 * 3 * 255)) + 1
  const workload = { issuer: 'https://issuer.example', claims: { sub: 'deploy' }, scopes: ['secret:read'] }
  for (const name of Array.from({ length: lists }, (_, i) => `Limited ${i}`)) {
    const token = await call('POST', `/organizations/${o}/api-keys`, { name, abilities: ['secret:read'], restrictions: parts })
    t.equal(token.status, 201)
    await made(`/organizations/${o}/workloads`, { ...workload, name, restrictions: parts })
  }
  const withParts = (all: Parts[]) => all.filter(({ restrictions }) => restrictions.length > 0)
  const one = { project: null, target: null, environment: null }
  const requireBound = (all: Parts[]) => {
    t.equal(all.length, lists)
    for (const { restrictions } of all) t.strictSame(restrictions, parts)
    const names = all.flatMap(({ restriction_names }) => restriction_names)
    const shown = Math.floor(MAX_SHOWN_NAMES / (3 * 255))
    t.strictSame(names.slice(0, shown), Array.from({ length: shown }, (_, i) => namesOf(parts[i % 100]!)))
    t.strictSame(names.slice(shown), names.slice(shown).map(() => one), 'no name after the bound')
  }
  const tokens = (await call('GET', `/organizations/${o}/api-keys`)).body.data as (Parts & { id: string })[]
  requireBound(withParts(tokens))
  requireBound(withParts((await call('GET', `/organizations/${o}/api-keys?per_page=100`)).body.data))
  const rules = (await call('GET', `/organizations/${o}/workloads`)).body.data as { attributes: Parts }[]
  requireBound(rules.map(({ attributes }) => attributes))
  for (const { id } of tokens.filter(({ restrictions }) => restrictions.length > 0)) {
    const single = (await call('GET', `/organizations/${o}/api-keys/${id}`)).body.data
    t.strictSame(single.restriction_names, parts.map(namesOf), 'each token by itself has all names')
  }
})

t.test('many levels of restrictions are looked up in steps, without their descriptions', async (t) => {
  const { o, call, made } = await nimbus()
  await service.write(`INSERT INTO environments (id, organization_id, project_id, target_id, name, slug, status,
      is_production)
    SELECT lpad(n::text, 10, '0') || right(t.id, 16), t.organization_id, t.project_id, t.id, 'E' || n, 'e-' || n,
      'development', false
    FROM targets t CROSS JOIN generate_series(1000, 2199) n WHERE t.organization_id = '${o}'`)
  // Twelve tokens and rules, with a hundred environments each.
  const slicesOf = (table: string) => `(SELECT jsonb_agg(jsonb_build_object(
      'project_id', e.project_id, 'target_id', e.target_id, 'environment_id', e.id) ORDER BY e.slug)
    FROM environments e WHERE e.organization_id = ${table}.organization_id AND e.slug LIKE 'e-' || n || '%')`
  const restrictions = [{ project: 'shop' }]
  const token = { name: 'Limited', abilities: ['secret:read'], restrictions }
  t.equal((await call('POST', `/organizations/${o}/api-keys`, token)).status, 201)
  await service.write(`INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities,
      slices, created_at)
    SELECT organization_id, name, sha256(token_hash || n::text::bytea), token_prefix, token_suffix, abilities,
      ${slicesOf('api_tokens')},
      created_at + n * interval '1 minute'
    FROM api_tokens, generate_series(10, 21) n WHERE organization_id = '${o}' AND name = 'Limited'`)
  await made(`/organizations/${o}/workloads`, {
    name: 'Limited', issuer: 'https://issuer.example', claims: { sub: 'deploy' }, scopes: ['secret:read'], restrictions
  })
  await service.write(`INSERT INTO workload_rules (organization_id, id, name, enabled, issuer, audience, claims, scopes,
      slices, lifetime, single_use, max_assertion_age, revision, created_at)
    SELECT organization_id, id + n, name, enabled, issuer, audience, claims, scopes, ${slicesOf('workload_rules')}, lifetime,
      single_use, max_assertion_age, revision, created_at + n * interval '1 minute'
    FROM workload_rules, generate_series(10, 21) n WHERE organization_id = '${o}'`)
  const lists = Array.from({ length: 12 }, (_, list) =>
    Array.from({ length: 100 }, (_, i) => ({ ...TARGET, environment: `e-${1000 + 100 * list + i}` })))
  const sent: string[] = []
  const onStatement = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: unknown }
    if (phase === 'before' && String(text).includes("'environments' AS name")) sent.push(String(text))
  }
  subscribe('strongroom:statement', onStatement)
  t.teardown(() => unsubscribe('strongroom:statement', onStatement))
  for (const [path, partsOfOne] of [
    [`/organizations/${o}/api-keys?sort=created_at`, (one: Parts) => one.restrictions],
    [`/organizations/${o}/workloads?sort=created_at`, (one: { attributes: Parts }) => one.attributes.restrictions]
  ] as const) {
    sent.length = 0
    const { body } = await call('GET', path)
    const shown = (body.data as never[]).map(partsOfOne).filter((parts) => parts.length > 0)
    t.strictSame(shown, [restrictions, ...lists], 'all restrictions, in their order')
    t.equal(sent.length, 3, `${path}: 1,202 levels in steps of 500`)
    t.notOk(sent.some((text) => /description|to_jsonb\(l\)|\*/.test(text)))
  }
})

t.test('an invitation has the names of its place for both sides, and none after its deletion', async (t) => {
  const { o, call } = await nimbus()
  const guest = await makePerson(service)
  const members = `/organizations/${o}/members`
  const sent = await call('POST', members, { email: guest.email, role: 'guest', place: LIVE, place_role: 'member' })
  t.match(sent.body.data.attributes, { place: LIVE, place_names: NAMES })
  const own = await callAs(service, guest)
  const placesOf = async () => [
    (await call('GET', `/organizations/${o}/invitations`)).body.data[0].attributes.place_names,
    (await own('GET', '/user/invitations')).body.data[0].attributes.place_names
  ]
  t.strictSame(await placesOf(), [NAMES, NAMES])
  await call('DELETE', `/${o}/shop/backend/live`)
  t.strictSame(await placesOf(), [null, null])
})

t.test('a search shows the names of the levels that the person may search, and of no others', async (t) => {
  const { o, call, team, person } = await nimbus()
  for (const place of [{ project: 'shop' }, TARGET, LIVE]) {
    await call('POST', `/${o}/secrets/store`, { ...place, plaintext: 'DB_URL=1\n' })
  }
  const find = async (by: Caller['call']) => {
    const { body } = await by('GET', `/${o}/secrets/names?search=DB`)
    return (body.data as { attributes: Record<string, string | null> }[]).map(({ attributes }) =>
      [attributes.project_name, attributes.target_name, attributes.environment_name])
  }
  t.strictSame(await find(call), [OF_PROJECT, OF_TARGET, NAMES].map((names) => Object.values(names)))
  await call('PUT', `${team}/projects/shop`, { role: 'member', restrictions: [LIVE] })
  const own = await callAs(service, person)
  t.strictSame(await find(own), [Object.values(NAMES)])
  const access = JSON.stringify(await accessIn({ call: own }, o, person))
  t.notMatch(access, /"Test"/, 'no name of an environment without access')
})
