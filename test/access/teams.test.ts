// runs: one database
import t from 'tap'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { TEAM_LIMITS } from '../../schemas/teams.ts'
import { ROLES, type Role } from '../../schemas/users.ts'
import { effectiveScopes, holds, scopesInProject } from '../../src/rules/roles.ts'
import { makeLevel, startIsolatedApp, type Answer } from '../helpers/app.ts'
import { issuePair, makePerson, makeTeam, type Person } from '../helpers/people.ts'

// This file has its own database, because it creates so many projects with SQL that other tests would become slow.
const service = await startIsolatedApp(t)
const owner = await service.organization()
const o = owner.organization
for (const slug of ['orbit', 'comet', 'quasar']) {
  const level = await makeLevel(owner, { slug })
  await owner.call('POST', `/${o}/secrets/store`, { ...level, plaintext: `FROM=${slug}` })
}
const at = (project: string) => ({ project, target: 'backend', environment: 'live' })

/** Sends requests of a person through an application with these scopes. */
async function as (person: Person, scopes: readonly Scope[] = SCOPE_NAMES) {
  const { access } = await issuePair(service, person, scopes)
  return bearer(access)
}
const bearer = (token: string) => (method: string, path: string, payload?: object): Promise<Answer> => service.inject({
  method: method as 'GET',
  url: `/api/v1${path}`,
  headers: { authorization: `Bearer ${token}` },
  ...(payload !== undefined && { payload })
})

/** All kinds of requests that name a project, each with the required scope. */
const WAYS: [scope: Scope, act: (call: Awaited<ReturnType<typeof as>>, project: string) => Promise<Answer>][] = [
  ['project:read', (call, project) => call('GET', `/${o}/${project}`)],
  ['target:read', (call, project) => call('GET', `/${o}/${project}/targets`)],
  ['environment:read', (call, project) => call('GET', `/${o}/${project}/backend/live`)],
  ['secret:read', (call, project) => call('GET', `/${o}/${project}/backend/live/secrets`)],
  ['secret:decrypt', (call, project) => call('POST', `/${o}/secrets/retrieve`, { ...at(project), action: 'decrypt' })],
  ['secret:history', (call, project) => call('POST', `/${o}/secrets/versions`, at(project))],
  ['secret:write', (call, project) => call('POST', `/${o}/secrets/store`, { ...at(project), plaintext: 'A=1' })],
  ['project:update', (call, project) => call('PATCH', `/${o}/${project}`, { description: 'Other' })],
  ['target:create', (call, project) => call('POST', `/${o}/${project}/targets`, { name: 'More' })],
  ['key:retrieve', (call, project) => call('GET', `/${o}/${project}/encryption-key`)],
  ['key:rotate', (call, project) => call('POST', `/${o}/${project}/encryption-key/rotate`, {})]
]
const byWays = (a: Scope, b: Scope) =>
  WAYS.findIndex(([scope]) => scope === a) - WAYS.findIndex(([scope]) => scope === b)
const plain = ({ status, text }: Answer) => `${status} ${text}`

const OF_MEMBER: Scope[] = [
  'project:read', 'target:read', 'environment:read', 'secret:read', 'secret:decrypt', 'secret:history', 'secret:write',
  'key:retrieve'
]

t.test('scopes in a project are the union of the member’s role and the roles of the teams that hold it', async (t) => {
  const people: [name: string, role: Role, teams: Record<string, Role>[], expected: Record<string, Scope[]>][] = [
    [
      'a role that sees no project, and a team', 'billing_manager', [{ orbit: 'developer' }],
      { orbit: [...OF_MEMBER, 'project:update', 'target:create'], comet: [], quasar: [] }
    ],
    [
      'a role and two teams', 'api_user', [{ orbit: 'auditor' }, { orbit: 'administrator', comet: 'member' }], {
        orbit: WAYS.map(([scope]) => scope),
        comet: OF_MEMBER,
        quasar: ['project:read', 'target:read', 'environment:read', 'secret:read']
      }
    ],
    [
      'a role that is stronger than the team', 'member', [{ quasar: 'api_user' }],
      { orbit: OF_MEMBER, comet: OF_MEMBER, quasar: OF_MEMBER }
    ]
  ]
  for (const [name, role, teams, expected] of people) {
    const person = await makePerson(service, { [o]: role })
    for (const roles of teams) await makeTeam(service, o, [person], roles)
    const call = await as(person)
    for (const [project, scopes] of Object.entries(expected)) {
      for (const [scope, act] of WAYS) {
        const answer = await act(call, project)
        t.match(
          answer, scopes.includes(scope)
            ? { status: /^20[01]$/ }
            : {
                status: 403,
                headers: { 'www-authenticate': `Bearer realm="strongroom", error="insufficient_scope", scope="${scope}"` },
                body: { details: { required_scope: scope } }
              },
          `${name}: ${scope} in ${project}: ${plain(answer).slice(0, 200)}`
        )
      }
    }
  }
})

t.test('TI-02: who acts by a team learns nothing of projects that the team does not hold', async (t) => {
  const person = await makePerson(service, { [o]: 'billing_manager' })
  await makeTeam(service, o, [person], { orbit: 'administrator' })
  const call = await as(person)
  for (const [scope, act] of WAYS) {
    const [there, missing] = [await act(call, 'comet'), await act(call, 'never')]
    t.equal(there.status, 403, scope)
    t.equal(plain(there), plain(missing), `${scope}: one that exists and one that does not`)
  }
  t.equal((await call('GET', `/${o}/orbit/never`)).status, 404, 'inside of what the team holds, what is not there is 404')
  t.equal((await call('POST', `/${o}/secrets/versions`, { ...at('orbit'), target: 'never' })).status, 404)

  const versionOf = async (project: string) =>
    (await owner.call('POST', `/${o}/secrets/versions`, at(project))).body.data[0].id as string
  const version = (id: string) => `/${o}/secrets/versions/${id}`
  const [ours, theirs] = [await versionOf('orbit'), await versionOf('comet')]
  t.equal((await call('GET', version(ours))).status, 200)
  t.equal((await call('POST', `${version(ours)}/restore`, {})).status, 200)
  for (const [method, path] of [['GET', ''], ['POST', '/restore'], ['DELETE', '']] as const) {
    const [there, missing] = [
      await call(method, version(theirs) + path), await call(method, version('9007199254740991') + path)
    ]
    t.equal(there.status, 404, `${method}${path}`)
    t.equal(plain(there), plain(missing))
  }
  t.equal((await call('DELETE', version(ours))).status, 204)
})

t.test('a team gives nothing outside of projects, whatever its role', async (t) => {
  const person = await makePerson(service, { [o]: 'billing_manager' })
  await makeTeam(service, o, [person], { orbit: 'owner' })
  const call = await as(person)
  for (const [method, path, payload] of [
    ['POST', `/${o}/projects`, { name: 'New' }],
    ['GET', `/organizations/${o}/api-keys`],
    ['POST', `/organizations/${o}/api-keys`, { name: 'Key', abilities: ['secret:read'] }]
  ] as const) t.equal((await call(method, path, payload)).status, 403, `${method} ${path}`)
})

t.test('a list of projects shows those in which projects may be read', async (t) => {
  const slugs = async (call: Awaited<ReturnType<typeof as>>) => {
    const { status, body } = await call('GET', `/${o}/projects`)
    return status === 200
      ? [...body.data.map(({ attributes }: { attributes: { slug: string } }) => attributes.slug), body.meta.total]
      : status
  }
  const person = await makePerson(service, { [o]: 'billing_manager' })
  const call = await as(person)
  t.equal(await slugs(call), 403, 'without a team there is nothing to list')
  await makeTeam(service, o, [person], { orbit: 'member' })
  await makeTeam(service, o, [person], { comet: 'api_user', orbit: 'auditor' })
  t.strictSame(await slugs(call), ['comet', 'orbit', 2])
  t.equal(await slugs(await as(person, ['secret:read'])), 403, 'what was not granted, no team gives')
})

t.test('a forged role in a team gives nothing and hides nothing, however the project is named', async (t) => {
  const person = await makePerson(service, { [o]: 'billing_manager' })
  const call = await as(person)
  const listed = async () => {
    const { status, body } = await call('GET', `/${o}/projects`)
    if (status !== 200) return status
    return body.data.map(({ attributes }: { attributes: { slug: string } }) => attributes.slug)
  }
  const join = (team: string, slug: string) => service.sql(`
    INSERT INTO team_projects (organization_id, team_id, project_id, role) SELECT organization_id, '${team}', id, 'owner'
    FROM projects WHERE organization_id = '${o}' AND slug = '${slug}'`)
  // This id is the smallest, so the service finds its rows first.
  const forged = '00000000000000000000000000'
  await service.sql(`INSERT INTO teams (id, organization_id, name, slug) VALUES ('${forged}', '${o}', 'F', 'forged')`)
  await service.sql(`INSERT INTO team_members (organization_id, team_id, user_id)
    VALUES ('${o}', '${forged}', ${person.id})`)
  for (const slug of ['orbit', 'comet']) await join(forged, slug)
  t.strictSame(await listed(), [], 'no project is listed')
  for (const [scope, act] of WAYS) t.equal((await act(call, 'orbit')).status, 403, `${scope} in orbit`)
  const team = await makeTeam(service, o, [person], { orbit: 'member' })
  await join(team, 'quasar')
  t.strictSame(await listed(), ['orbit'], 'the project of a team that counts is listed')
  for (const [scope, act] of WAYS) {
    for (const project of ['orbit', 'comet', 'quasar']) {
      const isAllowed = project === 'orbit' && OF_MEMBER.includes(scope)
      t.equal((await act(call, project)).status, isAllowed ? 200 : 403, `${scope} in ${project}`)
    }
  }
  const { id } = (await owner.call('POST', `/${o}/secrets/versions`, at('comet'))).body.data[0]
  t.equal((await call('GET', `/${o}/secrets/versions/${id}`)).status, 404, 'nor is one found by its id')
  await service.sql(`DELETE FROM teams WHERE organization_id = '${o}' AND id = '${forged}'`)
})

t.test('pages of projects held by teams are in the order of slugs, even far behind other projects', async (t) => {
  const large = await service.organization()
  const its = large.organization
  const many = 2_100
  await service.write(`INSERT INTO projects (id, organization_id, name, slug, secret_format, encryption_type,
      history_policy, key_version)
    SELECT lpad(n::text, 26, '0'), '${its}', 'P', 'p-' || lpad(n::text, 5, '0'), 'env', 'server', 'keep', 1
    FROM generate_series(1, ${many}) n`)
  await service.sql(`INSERT INTO project_counts (organization_id, project_id)
    SELECT organization_id, id FROM projects WHERE organization_id = '${its}'`)
  const person = await makePerson(service, { [its]: 'billing_manager' })
  const slugs = ['p-00001', 'p-00002', 'p-00003', 'p-02098', 'p-02099', 'p-02100']
  await makeTeam(service, its, [person], Object.fromEntries(slugs.map((slug) => [slug, 'member' as const])))
  // A project that belongs to two teams counts once.
  await makeTeam(service, its, [person], { 'p-00001': 'auditor', 'p-02100': 'auditor' })
  const call = await as(person)
  const page = async (query: string) => {
    const { body } = await call('GET', `/${its}/projects${query}`)
    return [body.data.map(({ attributes }: { attributes: { slug: string } }) => attributes.slug), body.meta.total]
  }
  t.strictSame(await page(''), [slugs, 6])
  for (const [at, shown] of [[1, slugs.slice(0, 2)], [2, slugs.slice(2, 4)], [3, slugs.slice(4)], [4, []]] as const) {
    t.strictSame(await page(`?page=${at}&per_page=2`), [shown, 6], `page ${at}`)
  }
})

t.test('who may change teams holds every scope that a role in a team can give', async (t) => {
  for (const role of ROLES) {
    const powers = { scopes: effectiveScopes(['*'], role), granted: ['*' as const] }
    if (!holds(powers, 'team:update')) continue
    for (const given of ROLES) {
      for (const scope of scopesInProject(given)) t.ok(holds(powers, scope), `${role} holds ${scope}`)
    }
  }
  for (const role of ROLES) {
    const scopes = scopesInProject(role)
    t.ok(scopes.size === 0 || scopes.has('project:read'), `${role} in a team reads projects`)
  }
})

t.test('an application does by a team no more than it was granted', async (t) => {
  const person = await makePerson(service, { [o]: 'billing_manager' })
  await makeTeam(service, o, [person], { orbit: 'administrator' })
  const call = await as(person, ['secret:read'])
  for (const [scope, act] of WAYS) {
    t.equal((await act(call, 'orbit')).status, scope === 'secret:read' ? 200 : 403, scope)
  }
})

t.test('a token that a person made never holds more than the person at the moment of its use', async (t) => {
  const person = await makePerson(service, { [o]: 'administrator' })
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const make = async (more: object) => {
    const { status, text, body } = await (await as(person))('POST', `/organizations/${o}/api-keys`, {
      name: 'Theirs', abilities: SCOPE_NAMES.filter((scope) => !/^billing|^organization:delete/.test(scope)), expires_at, ...more
    })
    t.equal(status, 201, text)
    return bearer(body.token)
  }
  const [whole, narrow] = [await make({}), await make({ restrictions: [{ project: 'orbit', target: 'backend' }] })]
  const ofProject = await make({ restrictions: [{ project: 'orbit' }] })
  const setRole = (role: Role) => service.write(
    `UPDATE members SET role = '${role}' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  const allowed = async (call: typeof whole, project: string) => {
    const scopes: Scope[] = []
    for (const [scope, act] of WAYS) if (/^20/.test(String((await act(call, project)).status))) scopes.push(scope)
    return scopes
  }
  const all = WAYS.map(([scope]) => scope)
  t.strictSame(await allowed(whole, 'comet'), all)
  await setRole('member')
  t.strictSame(await allowed(whole, 'comet'), OF_MEMBER.filter((scope) => all.includes(scope)).sort(byWays), 'demoted')
  await setRole('billing_manager')
  t.strictSame(await allowed(whole, 'orbit'), [], 'and again')
  const team = await makeTeam(service, o, [person], { orbit: 'administrator' })
  t.strictSame(await allowed(whole, 'orbit'), all, 'what a team gives, a token of theirs may do there')
  t.strictSame(await allowed(whole, 'comet'), [], 'and nowhere else')
  t.strictSame(
    await allowed(narrow, 'orbit'),
    ['environment:read', 'secret:read', 'secret:decrypt', 'secret:history', 'secret:write'],
    'a narrowed one stays in its part besides'
  )
  await makeTeam(service, o, [person], { comet: 'member' })
  const listed = async (call: typeof whole) => {
    const { data, meta } = (await call('GET', `/${o}/projects`)).body
    return [data.map(({ attributes }: { attributes: { slug: string } }) => attributes.slug), meta.total]
  }
  t.strictSame(await listed(whole), [['comet', 'orbit'], 2])
  t.strictSame(await listed(ofProject), [['orbit'], 1], 'a list has the projects of teams inside of the part')
  t.strictSame(await listed(narrow), [[], 0])
  await service.sql(`DELETE FROM team_members WHERE organization_id = '${o}' AND team_id = '${team}'`)
  t.strictSame(await allowed(whole, 'orbit'), [], 'out of the team')
  for (const status of ['invited', 'active']) {
    await service.write(
      `UPDATE members SET status = '${status}' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
    t.equal((await whole('GET', '/user')).status, status === 'active' ? 200 : 401, status)
  }
  await service.sql(`DELETE FROM members WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  t.equal((await whole('GET', '/user')).status, 401, 'a token of a removed member is refused')
})

t.test('a person with a project only through a team may delete it, and the team then no longer has it', async (t) => {
  const { slug } = (await owner.call('POST', `/${o}/projects`, { name: 'Short' })).body.data.attributes
  const person = await makePerson(service, { [o]: 'billing_manager' })
  const team = await makeTeam(service, o, [person], { [slug]: 'administrator' })
  const call = await as(person)
  t.equal((await call('DELETE', `/${o}/${slug}`)).status, 204)
  t.strictSame(
    [...await service.sql(`SELECT 1 FROM team_projects WHERE organization_id = '${o}' AND team_id = '${team}'`)], []
  )
  t.equal((await call('GET', `/${o}/${slug}`)).status, 403)
})

t.test('teams are created, found by id and slug, changed and deleted, with who is in them and what they hold', async (t) => {
  const path = `/organizations/${o}/teams`
  const created = await owner.call('POST', path, { name: 'Ops & Tools', description: 'On call' })
  t.match(created, {
    status: 201,
    body: {
      data: {
        type: 'teams',
        id: /^[0-9A-Z]{26}$/,
        attributes: { name: 'Ops & Tools', slug: 'ops-tools', description: 'On call', member_count: 0, project_count: 0 }
      }
    }
  })
  const { id } = created.body.data
  t.equal((await owner.call('POST', path, { name: 'Ops & Tools' })).body.data.attributes.slug, 'ops-tools-2')
  t.match(await owner.call('POST', path, { name: 'X', slug: 'ops-tools' }), { status: 422, body: { error: 'slug_taken' } })
  const rosa = await makePerson(service, { [o]: 'member' })
  t.equal((await owner.call('PUT', `${path}/ops-tools/projects/orbit`, {})).body.data.attributes.projects[0].role, 'member')
  t.match((await owner.call('PUT', `${path}/${id}/projects/comet`, { role: 'admin' })).body.data.attributes.projects, [
    { slug: 'comet', role: 'administrator' }, { slug: 'orbit', role: 'member' }
  ])
  for (const time of ['first', 'second']) {
    t.match((await owner.call('PUT', `${path}/${id}/members/${rosa.id}`, {})).body.data.attributes, {
      member_count: 1, project_count: 2, members: [{ id: String(rosa.id), name: rosa.name, email: rosa.email }]
    }, `put into it a ${time} time`)
  }
  const seen = await owner.call('GET', `${path}/ops-tools`)
  t.strictSame(seen.body, (await owner.call('GET', `${path}/${id.toLowerCase()}`)).body)
  t.equal((await owner.call('PUT', `${path}/${id}/projects/orbit`, { role: 'auditor' })).status, 200)
  t.match((await owner.call('PATCH', `${path}/${id}`, { name: 'Ops', slug: 'ops' })).body.data.attributes, {
    name: 'Ops', slug: 'ops', description: 'On call'
  })
  t.match((await owner.call('GET', `${path}?per_page=1&page=1`)).body, { data: { length: 1 }, meta: { per_page: 1 } })
  t.ok((await owner.call('GET', path)).body.data.some(({ attributes }: { attributes: { slug: string } }) =>
    attributes.slug === 'ops'))
  t.match(await owner.call('GET', `${path}?page=99`), { status: 200, body: { data: [], meta: { from: null } } })

  const call = await as(rosa)
  t.equal((await call('PATCH', `/${o}/comet`, { description: 'By a team' })).status, 200)
  t.equal((await owner.call('DELETE', `${path}/ops/projects/comet`)).status, 204)
  t.equal((await call('PATCH', `/${o}/comet`, { description: 'By none' })).status, 403)
  t.equal((await owner.call('DELETE', `${path}/ops/members/${rosa.id}`)).status, 204)
  for (const gone of [`ops/members/${rosa.id}`, 'ops/projects/comet']) {
    t.equal((await owner.call('DELETE', `${path}/${gone}`)).status, 404, gone)
  }
  t.equal((await owner.call('DELETE', `${path}/ops`)).status, 204)
  t.equal((await owner.call('GET', `${path}/ops`)).status, 404)
  t.strictSame((await service.sql(
    `SELECT action FROM audit_events WHERE organization_id = '${o}' AND resource_id = '${id}' ORDER BY seq`
  )).map(({ action }) => action), [
    'team.create', 'team-project.update', 'team-project.update', 'team-member.create', 'team-member.create',
    'team-project.update', 'team.update', 'team-project.delete', 'team-member.delete', 'team.delete'
  ])
})

t.test('what a team cannot hold is refused, and nothing is changed', async (t) => {
  const path = `/organizations/${o}/teams`
  const { id } = (await owner.call('POST', path, { name: 'Bad input' })).body.data
  const other = await service.organization()
  await makeLevel(other, { slug: 'elsewhere' })
  const foreign = (await other.call('POST', `/organizations/${other.organization}/teams`, { name: 'Theirs' })).body.data.id
  const [stranger, rosa] = [await makePerson(service, { [other.organization]: 'owner' }), await makePerson(service, { [o]: 'member' })]
  const cases: [method: string, path: string, body: unknown, status: number, error: string][] = [
    ['PUT', `${path}/${id}/projects/elsewhere`, { role: 'member' }, 404, 'not_found'],
    ['PUT', `${path}/${id}/projects/never`, { role: 'member' }, 404, 'not_found'],
    ['DELETE', `${path}/${id}/projects/elsewhere`, undefined, 404, 'not_found'],
    ['PUT', `${path}/${foreign}/projects/orbit`, { role: 'member' }, 404, 'not_found'],
    ['PUT', `${path}/${foreign}/members/${rosa.id}`, {}, 404, 'not_found'],
    ['GET', `${path}/${foreign}`, undefined, 404, 'not_found'],
    ['PATCH', `${path}/${foreign}`, { name: 'Ours' }, 404, 'not_found'],
    ['DELETE', `${path}/${foreign}`, undefined, 404, 'not_found'],
    ['PUT', `${path}/${id}/members/${stranger.id}`, {}, 404, 'not_found'],
    ['PUT', `${path}/${id}/members/0`, {}, 404, 'not_found'],
    ['PUT', `${path}/${id}/members/${rosa.id}`, { role: 'owner' }, 422, 'validation_failed'],
    ['PUT', `${path}/${id}/projects/orbit`, { role: 'billing_manager' }, 422, 'validation_failed'],
    ['PUT', `${path}/${id}/projects/orbit`, { role: 'root' }, 422, 'validation_failed'],
    ['POST', path, { name: '' }, 422, 'validation_failed'],
    ['POST', path, { name: 'x'.repeat(256) }, 422, 'validation_failed'],
    ['POST', path, { name: 'X', slug: 'Not A Slug' }, 422, 'validation_failed'],
    ['POST', path, { name: 'X', members: [rosa.id] }, 422, 'validation_failed'],
    ['PATCH', `${path}/${id}`, { organization_id: other.organization }, 422, 'validation_failed']
  ]
  const tables = () => Promise.all(['teams', 'team_members', 'team_projects'].map((table) =>
    service.sql(`SELECT md5(string_agg(x::text, '' ORDER BY x::text)) AS sum FROM ${table} x`)))
  const before = await tables()
  for (const [method, url, body, status, error] of cases) {
    const answer = await owner.call(method, url, body)
    t.strictSame([answer.status, answer.body?.error], [status, error], `${method} ${url} ${JSON.stringify(body)}`)
  }
  t.same(await tables(), before)
})

t.test('TI-33: no caller gives by a team what the caller does not hold in the project', async (t) => {
  const path = `/organizations/${o}/teams`
  const some: Scope[] = ['team:update', 'team:create', 'team:delete', 'secret:read', 'project:read', 'target:read', 'environment:read']
  const weak = await service.token(o, some)
  const rosa = await makePerson(service, { [o]: 'member' })
  const { id } = (await weak.call('POST', path, { name: 'Weak' })).body.data
  t.equal((await weak.call('PUT', `${path}/${id}/projects/orbit`, { role: 'api_user' })).status, 200)
  t.equal((await weak.call('PUT', `${path}/${id}/members/${rosa.id}`, {})).status, 200)
  for (const role of ['member', 'developer', 'auditor', 'administrator', 'owner']) {
    t.match(await weak.call('PUT', `${path}/${id}/projects/orbit`, { role }), {
      status: 422, body: { error: 'role_not_held', details: { role } }
    })
  }
  await owner.call('PUT', `${path}/${id}/projects/comet`, { role: 'developer' })
  t.match(await weak.call('PUT', `${path}/${id}/members/${rosa.id}`, {}), {
    status: 422, body: { error: 'role_not_held', details: { role: 'developer' } }
  })
  for (const [method, at, body] of [
    ['DELETE', `/${id}/members/${rosa.id}`], ['DELETE', `/${id}/projects/comet`], ['DELETE', `/${id}`],
    ['PUT', `/${id}/projects/comet`, { role: 'api_user' }]
  ] as const) {
    t.match(await weak.call(method, path + at, body), {
      status: 422, body: { error: 'role_not_held', details: { role: 'developer' } }
    }, `${method} ${at} takes more away than they hold`)
  }
  t.equal((await owner.call('DELETE', `${path}/${id}/projects/comet`)).status, 204)
  t.equal((await weak.call('DELETE', `${path}/${id}/members/${rosa.id}`)).status, 204, 'and not where they hold as much')
  t.equal((await weak.call('PUT', `${path}/${id}/members/${rosa.id}`, {})).status, 200)
  const [row] = await service.sql(`SELECT id FROM projects WHERE organization_id = '${o}' AND slug = 'orbit'`)
  const narrowed = await service.token(o, ['*'], {
    slices: [{ project_id: row!.id as string, target_id: null, environment_id: null }]
  })
  for (const [method, at, body] of [
    ['POST', '', { name: 'X' }], ['PATCH', `/${id}`, { name: 'X' }], ['DELETE', `/${id}`],
    ['PUT', `/${id}/members/${rosa.id}`, {}], ['PUT', `/${id}/projects/orbit`, { role: 'member' }],
    ['DELETE', `/${id}/projects/orbit`]
  ] as const) t.equal((await narrowed.call(method, path + at, body)).status, 404, `${method} ${at}: a team is everywhere`)
})

t.test('the number of teams of a member, and of projects of a team, is bounded', async (t) => {
  const rosa = await makePerson(service, { [o]: 'member' })
  for (let i = 0; i < TEAM_LIMITS.teamsOfMember; i++) await makeTeam(service, o, [rosa], {})
  const [crowded, laden] = [await makeTeam(service, o, [], {}), await makeTeam(service, o, [], {})]
  const path = `/organizations/${o}/teams`
  t.match(await owner.call('PUT', `${path}/${crowded}/members/${rosa.id}`, {}), {
    status: 422, body: { error: 'limit_reached', details: { limit: TEAM_LIMITS.teamsOfMember } }
  })
  await service.write(`INSERT INTO projects (id, organization_id, name, slug, secret_format, encryption_type,
    history_policy, key_version) SELECT lpad(n::text, 26, '0'), '${o}', 'x', 'x-' || n, 'env', 'server', 'keep', 1
    FROM generate_series(1, ${TEAM_LIMITS.projects}) n`)
  await service.write(`INSERT INTO team_projects (organization_id, team_id, project_id, role)
    SELECT organization_id, '${laden}', id, 'member' FROM projects WHERE organization_id = '${o}' AND slug LIKE 'x-%'`)
  t.match(await owner.call('PUT', `${path}/${laden}/projects/orbit`, {}), {
    status: 422, body: { error: 'limit_reached', details: { limit: TEAM_LIMITS.projects } }
  })
  t.equal((await owner.call('GET', `${path}/${laden}`)).body.data.attributes.projects.length, TEAM_LIMITS.projects)
  await service.sql(`DELETE FROM projects WHERE organization_id = '${o}' AND slug LIKE 'x-%'`)
})

t.test('a 403 shows no role of a team whose row was changed by SQL, on every way to name a project', async (t) => {
  const person = await makePerson(service, { [o]: 'billing_manager' })
  const team = await makeTeam(service, o, [person], { orbit: 'auditor' })
  await service.sql(`UPDATE team_projects SET role = 'developer' WHERE organization_id = '${o}' AND team_id = '${team}'`)
  const call = await as(person)
  for (const [scope, act] of WAYS) {
    const { status, body } = await act(call, 'orbit')
    t.equal(status, 403, scope)
    t.notOk(body.details.granted_scopes.includes('secret:read'), `${scope}: ${body.details.granted_scopes}`)
  }
})
