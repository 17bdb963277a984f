import t from 'tap'
import { SCOPE_NAMES, type Scope } from '../schemas/scopes.ts'
import type { Role } from '../schemas/users.ts'
import { makeLevel, startApp, type Answer } from './helpers/app.ts'
import { issuePair, makePerson, makeTeam, type Person } from './helpers/people.ts'

const service = await startApp(t)
const owner = await service.organization()
const o = owner.organization
for (const slug of ['orbit', 'comet', 'quasar']) {
  const level = await makeLevel(owner, { slug })
  await owner.call('POST', `/${o}/secrets/store`, { ...level, plaintext: `FROM=${slug}` })
}
const at = (project: string) => ({ project, target: 'backend', environment: 'live' })

/** What somebody does through an application that was granted these scopes. */
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

/** Each way to name a project, as what somebody does in it, with the scope that it needs. */
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

t.test('what somebody may do in a project is the union of their role and of the roles of the teams that hold it', async (t) => {
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
  await service.sql(`DELETE FROM team_members WHERE organization_id = '${o}' AND team_id = '${team}'`)
  t.strictSame(await allowed(whole, 'orbit'), [], 'out of the team')
  for (const status of ['invited', 'active']) {
    await service.write(
      `UPDATE members SET status = '${status}' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
    t.equal((await whole('GET', '/user')).status, status === 'active' ? 200 : 401, status)
  }
  await service.sql(`DELETE FROM members WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  t.equal((await whole('GET', '/user')).status, 401, 'of somebody who is no member any more, a token is none')
})

t.test('whoever holds a project by a team alone may delete it, and it goes from the team', async (t) => {
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
