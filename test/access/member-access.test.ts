// runs: one database, embedded; 6 s
import t from 'tap'
import { isScopeOfProject, SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { MAX_ACCESS_PAGE } from '../../schemas/member-access.ts'
import type { TeamRestriction } from '../../schemas/teams.ts'
import { ROLES, type Role } from '../../schemas/users.ts'
import { effectiveScopes, partsWith, rightsIn, type TeamRole } from '../../src/rules/roles.ts'
import { isWholeProject, textOf, type Slice } from '../../src/rules/slices.ts'
import { startApp, type Answer, type Caller } from '../helpers/app.ts'
import { LONG, sample } from '../helpers/long.ts'
import { callAs, makePerson, makeTeam, type Person } from '../helpers/people.ts'

// The access of a member, as an organization reads it, must equal the decisions of the guard for requests of this
// member.

const service = await startApp(t)
const owner = await service.organization()
const o = owner.organization
const pathOf = (person: Pick<Person, 'id'>) => `/organizations/${o}/members/${person.id}/access`

const as = (person: Person, scopes?: readonly Scope[]) => callAs(service, person, scopes)

const make = async (path: string, name: string, more: object = {}): Promise<string> => {
  const { status, body, text } = await owner.call('POST', `/${o}/${path}`, { name, slug: name, ...more })
  if (status !== 201) throw new Error(text)
  return body.data.id
}

interface Level { project: string, target?: string, environment?: string }
interface Right { scopes: Scope[], restrictions: TeamRestriction[] }
interface Access {
  role: Role
  scopes: Scope[]
  projects: { slug: string, teams: { role: Role, restrictions: TeamRestriction[] }[], rights: Right[] }[]
}

const PROJECTS = ['alpha', 'beta']
const STATUS: Record<string, string> = { live: 'production', test: 'staging' }
const ids = new Map<string, string>()
const levels: Level[] = []
for (const project of PROJECTS) {
  ids.set(project, await make('projects', project))
  levels.push({ project })
  for (const target of ['api', 'web']) {
    ids.set(`${project}/${target}`, await make(`${project}/targets`, target))
    levels.push({ project, target })
    for (const environment of ['live', 'test']) {
      ids.set(`${project}/${target}/${environment}`,
        await make(`${project}/${target}/environments`, environment, { status: STATUS[environment] }))
      levels.push({ project, target, environment })
    }
  }
}
const sliceOf = (project: string, target?: string, environment?: string, more: Partial<Slice> = {}): Slice => ({
  project_id: ids.get(project)!,
  target_id: target === undefined ? null : ids.get(`${project}/${target}`)!,
  environment_id: environment === undefined ? null : ids.get(`${project}/${target}/${environment}`)!,
  ...more
})
const notProduction = { except_status: 'production' as const }

/** Requests with the required scopes, and with the kind of level. */
const REQUESTS: { scopes: Scope[], at?: number, ask: (level: Level, path: string) => Parameters<Caller['call']> }[] = [
  { scopes: ['project:read'], at: 1, ask: (_, path) => ['GET', path] },
  { scopes: ['target:read'], at: 1, ask: (_, path) => ['GET', `${path}/targets`] },
  { scopes: ['target:read'], at: 2, ask: (_, path) => ['GET', path] },
  { scopes: ['environment:read'], at: 2, ask: (_, path) => ['GET', `${path}/environments`] },
  { scopes: ['environment:read'], at: 3, ask: (_, path) => ['GET', path] },
  { scopes: ['environment:update'], at: 3, ask: (_, path) => ['PATCH', path, { description: 'Seen' }] },
  { scopes: ['key:retrieve'], at: 1, ask: (_, path) => ['GET', `${path}/encryption-key`] },
  { scopes: ['secret:read'], ask: (_, path) => ['GET', `${path}/secrets`] },
  { scopes: ['secret:read', 'secret:decrypt'], ask: (_, path) => ['GET', `${path}/secrets/names`] },
  {
    scopes: ['secret:history'],
    ask: (level) => ['POST', `/${o}/secrets/versions`, {
      ...level, level: level.environment !== undefined ? 'environment' : level.target !== undefined ? 'target' : 'project'
    }]
  },
  { scopes: ['secret:write'], ask: (level) => ['POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' }] }
]

/** Whether the response grants the member a scope at a level, following the rules in the OpenAPI document. */
function says ({ scopes, projects }: Access, scope: Scope, { project, target, environment }: Level): boolean {
  const its = projects.find(({ slug }) => slug === project)
  if (its === undefined) return scopes.includes(scope)
  const right = its.rights.find((right) => right.scopes.includes(scope))
  return right !== undefined && (right.restrictions.length === 0 || right.restrictions.some((one) =>
    (one.target === undefined || one.target === target) &&
    (one.environment === undefined || one.environment === environment) &&
    (one.except_status === undefined || (environment !== undefined && STATUS[environment] !== one.except_status))))
}

/** Teams with roles in projects and restrictions. `roles` are the roles of their members in the organization. */
type Teams = [role: Role, project: string, slices: Slice[] | null][]
const SETS: [roles: readonly Role[], teams: Teams][] = [
  [ROLES, []],
  [['api_user'], [['developer', 'alpha', null]]],
  [['billing_manager', 'api_user'], [
    ['member', 'alpha', [sliceOf('alpha', 'api')]], ['auditor', 'alpha', [sliceOf('alpha', 'web', 'live')]]
  ]],
  [['billing_manager', 'auditor', 'member'], [
    ['api_user', 'alpha', null], ['member', 'alpha', [sliceOf('alpha', undefined, undefined, notProduction)]],
    ['owner', 'beta', [sliceOf('beta', 'api', 'test'), sliceOf('beta', 'web', undefined, notProduction)]]
  ]],
  [['billing_manager', 'owner'], [
    ['administrator', 'beta', null], ['member', 'beta', [sliceOf('beta', 'api')]], ['auditor', 'alpha', null]
  ]]
]

t.test('each request of a member is allowed exactly where the access of the member says so', async (t) => {
  let allowed = 0
  let refused = 0
  for (const [roles, teams] of SETS) {
    for (const role of sample(roles, 3)) {
      const person = await makePerson(service, { [o]: role })
      for (const [of, project, slices] of teams) await makeTeam(service, o, [person], { [project]: of }, slices)
      const read = await owner.call('GET', pathOf(person))
      t.equal(read.status, 200, read.text)
      const access = read.body.data.attributes as Access
      t.equal(access.role, role)
      t.strictSame(access.projects.map(({ slug }) => slug), [...new Set(teams.map(([, project]) => project))].sort())
      for (const { slug, rights } of access.projects) {
        const all = rights.flatMap(({ scopes }) => scopes)
        t.equal(new Set(all).size, all.length, `${slug}: each scope once`)
      }
      const call = await as(person)
      const wrong: string[] = []
      for (const level of levels) {
        const parts = Object.values(level) as string[]
        for (const { scopes, at, ask } of REQUESTS.filter(({ at = parts.length }) => at === parts.length)) {
          const answer = await call(...ask(level, ['', o, ...parts].join('/')))
          const isSaid = scopes.every((scope) => says(access, scope, level))
          if (isSaid) allowed++
          else refused++
          if (isSaid ? answer.status >= 300 : ![403, 404].includes(answer.status)) {
            wrong.push(`${scopes.join()} at ${parts.join('/')} (${at}): said ${isSaid}, answered ${answer.status}`)
          }
        }
      }
      t.strictSame(wrong, [], `${role} with ${JSON.stringify(teams)}`)
    }
  }
  const least = LONG ? 300 : 100
  t.ok(allowed > least && refused > least, `${allowed} allowed, ${refused} refused`)
})

t.test('the scopes in the organization are those that its operations accept', async (t) => {
  for (const role of ROLES) {
    const person = await makePerson(service, { [o]: role })
    const { scopes } = (await owner.call('GET', pathOf(person))).body.data.attributes as Access
    const call = await as(person)
    for (const [scope, path] of [
      ['member:read', `/organizations/${o}/members`], ['team:read', `/organizations/${o}/teams`],
      ['api-token:read', `/organizations/${o}/api-keys`], ['billing:read', `/organizations/${o}/usage`],
      ['project:read', `/${o}/projects`], ['organization:read', `/organizations/${o}`]
    ] as const) t.equal((await call('GET', path)).status, scopes.includes(scope) ? 200 : 403, `${role}: ${scope}`)
  }
})

t.test('who manages members and teams reads the access of all; others only their own; restricted tokens none', async (t) => {
  const person = await makePerson(service, { [o]: 'billing_manager' })
  const other = await makePerson(service, { [o]: 'api_user' })
  await makeTeam(service, o, [person], { alpha: 'member' }, [sliceOf('alpha', 'api', 'live')])
  const its = await owner.call('GET', pathOf(person))
  t.match(its.body, {
    data: { type: 'member-access', id: String(person.id) }, meta: { total: 1, per_page: MAX_ACCESS_PAGE, last_page: 1 }
  })
  const [project] = its.body.data.attributes.projects
  t.match(project, { id: ids.get('alpha'), slug: 'alpha', name: 'alpha' })
  t.match(project.teams, [{
    name: 'Team', role: 'member', restrictions: [{ project: 'alpha', target: 'api', environment: 'live' }]
  }])
  const own = await as(person)
  t.strictSame((await own('GET', pathOf(person))).body, its.body, 'the person reads the same')
  const refused = (answer: Answer, scope: Scope) =>
    t.match(answer, { status: 403, body: { details: { required_scope: scope } } }, scope)
  refused(await own('GET', pathOf(other)), 'member:read')
  refused(await (await as(other))('GET', pathOf(person)), 'member:read')
  t.equal((await (await as(person, ['organization:read']))('GET', pathOf(person))).status, 200)
  refused(await (await as(person, ['secret:read']))('GET', pathOf(person)), 'organization:read')
  for (const role of ['administrator', 'developer', 'member', 'auditor'] as const) {
    const reader = await makePerson(service, { [o]: role })
    t.equal((await (await as(reader))('GET', pathOf(person))).status, 200, role)
    refused(await (await as(reader, ['organization:read', 'member:read']))('GET', pathOf(person)), 'team:read')
  }
  const made = await own('POST', `/organizations/${o}/api-keys`, { name: 'Mine', abilities: ['organization:read'] })
  t.equal(made.status, 403, 'this person makes no tokens')
  const narrowed = await service.token(o, ['*'], { slices: [sliceOf('alpha')] })
  t.equal((await narrowed.call('GET', pathOf(person))).status, 404)

  const stranger = await makePerson(service)
  for (const id of [String(stranger.id), '0', 'x', '999999999']) {
    t.equal((await owner.call('GET', `/organizations/${o}/members/${id}/access`)).status, 404, id)
  }
  const elsewhere = await service.organization()
  t.equal((await elsewhere.call('GET', `/organizations/${elsewhere.organization}/members/${person.id}/access`)).status, 404)
  await owner.call('DELETE', `/organizations/${o}/members/${person.id}`)
  t.equal((await owner.call('GET', pathOf(person))).status, 404, 'after the membership')
})

t.test('a change of a role or a team is in the next answer, and a role that does not verify gives nothing', async (t) => {
  const person = await makePerson(service, { [o]: 'billing_manager' })
  const team = await makeTeam(service, o, [person], { alpha: 'api_user' })
  const read = async () => (await owner.call('GET', pathOf(person))).body.data.attributes as Access
  const decrypts = async () => (await read()).projects.some(({ rights }) =>
    rights.some(({ scopes }) => scopes.includes('secret:decrypt')))
  t.equal(await decrypts(), false)
  const set = { role: 'member', restrictions: [{ except_status: 'production' }] }
  t.equal((await owner.call('PUT', `/organizations/${o}/teams/${team}/projects/alpha`, set)).status, 200)
  t.equal(await decrypts(), true)
  t.strictSame((await read()).projects[0]!.teams.map(({ restrictions }) => restrictions), [
    [{ project: 'alpha', except_status: 'production' }]
  ])
  await service.sql(`UPDATE team_projects SET role = 'owner' WHERE organization_id = '${o}' AND team_id = '${team}'`)
  t.strictSame((await read()).projects, [], 'nor does the guard accept it')
  t.equal((await (await as(person))('GET', `/${o}/alpha/api/test/secrets`)).status, 403)
})

t.test('the rights of a member with many teams are the parts of each scope', async (t) => {
  const one = <T>(values: readonly T[]): T => values[Math.floor(Math.random() * values.length)]!
  const parts = levels.filter(({ project }) => project === 'alpha').map(({ project, target, environment }) =>
    sliceOf(project, target, environment))
  const setOf = (slices: readonly Slice[]) => [...new Set(slices.map(textOf))].sort()
  for (let n = 0; n < 200; n++) {
    const granted = one([['*'], ['secret:read', 'target:read'], ['project:update', 'secret:decrypt']] as const)
    const powers = { scopes: effectiveScopes(granted, one(ROLES)), granted }
    const teams = Array.from({ length: n % 6 }, (_, i): TeamRole => ({
      team_id: String(i),
      project_id: ids.get('alpha')!,
      project: 'alpha',
      role: one(ROLES),
      slices: one([null, [one(parts)], [one(parts), one(parts)], [{ ...one(parts), ...notProduction }]])
    }))
    const expected = new Map(SCOPE_NAMES.filter(isScopeOfProject).flatMap((scope) => {
      const its = partsWith(powers, teams, scope)
      if (its?.length === 0) return []
      return [[scope, its === null || its.some(isWholeProject) ? null : setOf(its)] as const]
    }))
    const rights = rightsIn(powers, teams)
    const found = new Map(rights.flatMap(({ scopes, slices }) =>
      scopes.map((scope) => [scope, slices === null ? null : setOf(slices)] as const)))
    t.strictSame(found, expected)
    t.equal(new Set(rights.map(({ slices }) => JSON.stringify(slices && setOf(slices)))).size, rights.length)
  }
})

t.test('the projects are in pages', async (t) => {
  const person = await makePerson(service, { [o]: 'billing_manager' })
  const many = MAX_ACCESS_PAGE + 2
  const slugs = Array.from({ length: many }, (_, i) => `page-${String(i).padStart(2, '0')}`)
  for (const slug of slugs) await make('projects', slug)
  await makeTeam(service, o, [person], Object.fromEntries(slugs.map((slug) => [slug, 'member' as const])))
  const page = async (query: string) => {
    const { body } = await owner.call('GET', `${pathOf(person)}?${query}`)
    const { data: { attributes: { projects } }, meta: { total, last_page } } = body
    return [projects.map(({ slug }: { slug: string }) => slug), total, last_page]
  }
  t.strictSame(await page(''), [slugs.slice(0, MAX_ACCESS_PAGE), many, 2])
  t.strictSame(await page('page=2'), [slugs.slice(MAX_ACCESS_PAGE), many, 2])
  t.strictSame(await page('page=3&per_page=10'), [slugs.slice(20), many, 3])
  t.strictSame(await page('page=9&per_page=10'), [[], many, 3])
  t.equal((await owner.call('GET', `${pathOf(person)}?per_page=${MAX_ACCESS_PAGE + 1}`)).status, 422)
})
