// runs: one database; 15 s
import t from 'tap'
import { isScopeOfProject, SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { TEAM_LIMITS, type TeamRestriction } from '../../schemas/teams.ts'
import type { Role } from '../../schemas/users.ts'
import { scopesInProject, scopesOfRole } from '../../src/rules/roles.ts'
import type { Slice } from '../../src/rules/slices.ts'
import { callWith, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { byTurns, LONG, sample } from '../helpers/long.ts'
import { furtherScopes, isGivenByTeams, OPERATIONS, prepare, send, settle, type Row, type World } from '../helpers/operations.ts'
import { callAs, issuePair, makePerson, makeTeam, type Person } from '../helpers/people.ts'

// A role of a team can be restricted to a part of a project. A person with such a role has exactly the access of a
// token with the same restriction.

const service = await startApp(t)

const as = (person: Person, scopes?: readonly Scope[]) => callAs(service, person, scopes)

// The whole route table

/** The status of each operation, and of its further requests, in the order in which the test data still exists. */
async function outcomes (
  world: World, tokenOf: string | ((id: string) => string), isWanted: (row: Row, id: string) => boolean
): Promise<Record<string, string>> {
  const found: Record<string, string> = {}
  for (const [id, row] of Object.entries(OPERATIONS)) {
    if (!isWanted(row, id)) continue
    const token = typeof tokenOf === 'string' ? tokenOf : tokenOf(id)
    for (const [i, more] of [{}, ...row.reveals ?? []].entries()) {
      await prepare(service, row, world.ids)
      const { status, body } = await send(service, { ...row, ...more }, world.ids, token)
      found[i === 0 ? id : `${id} ${i}`] = `${status} ${body?.error ?? ''} ${body?.details?.required_scope ?? ''}`
    }
  }
  return found
}

// Whether roles of teams can include all scopes that the operation needs.
const isOfTeams = (row: Row) => isGivenByTeams(row) && furtherScopes(row).every(isScopeOfProject)
const IDS = Object.keys(OPERATIONS)
/** Selects all operations in the proofs, and otherwise every third operation. */
const isSampled = (id: string) => LONG || IDS.indexOf(id) % 3 === 0

const OWN_ROLE = 'billing_manager'
const ABILITIES = [...new Set([...scopesInProject('owner'), ...scopesOfRole(OWN_ROLE)])]

/** A person whose only access to projects is the role of a team with these restrictions. */
async function restricted ({ caller, ids }: World, slices: readonly Slice[]): Promise<Person> {
  const person = await makePerson(service, { [caller.organization]: OWN_ROLE })
  const projects = [ids.project!, ids.client!, ids.otherProject!]
  await makeTeam(service, caller.organization, [person], Object.fromEntries(projects.map((slug) =>
    [slug, 'owner' as const])), slices)
  return person
}

const same = (...slices: Slice[]) => ({ person: slices, token: slices })
const levelsOf = (slices: readonly Slice[]): Slice[] => slices.map(({ except_status: _, ...slice }) => slice)

// Each restriction also includes a target that no operation names. Otherwise a deletion could end the last level of a
// restriction, which has different effects for tokens and for roles.
const RESTRICTIONS: Record<string, (world: World) => { person: readonly Slice[], token: readonly Slice[] }> = {
  'to an environment': ({ sliceOf }) => same(sliceOf(), sliceOf('target')),
  'to another environment': ({ sliceOf }) => same(sliceOf('environment'), sliceOf('target')),
  'to an environment and what it inherits': ({ sliceOf }) => same({ ...sliceOf(), inherited: true }, sliceOf('target')),
  'to a target': ({ sliceOf }) => same({ ...sliceOf(), environment_id: null }, sliceOf('target')),
  // The environments of the test data are not in production.
  'by status': ({ sliceOf }) => ({
    person: [{ ...sliceOf(), target_id: null, environment_id: null, except_status: 'production' }],
    token: [sliceOf(), sliceOf('environment')]
  }),
  'to an environment by status': ({ sliceOf }) => {
    const slices = [{ ...sliceOf(), except_status: 'production' as const }, sliceOf('target')]
    return { person: slices, token: levelsOf(slices) }
  }
}

t.test('TI-40: a restricted role gives exactly the access of an equally restricted token, in every operation', async (t) => {
  const wholeTable = Object.values(OPERATIONS).filter(isOfTeams).length
  t.ok(wholeTable > 60, `${wholeTable} operations`)
  const HIDDEN = [
    'getEncryptionKey', 'listEncryptionKeys', 'rotateEncryptionKey', 'rotateClientKeys', 'restoreProject',
    'updateProject', 'deleteProject', 'getProject', 'listTargets', 'readProjectSecrets', 'changeProjectSecrets'
  ]
  const ids = IDS.filter((id) => isOfTeams(OPERATIONS[id]!))
  const names = Object.keys(RESTRICTIONS)
  // Without LONG, the restrictions share two worlds, and each operation runs with only one of the restrictions.
  for (const group of LONG ? names.map((name) => [name]) : [names]) {
    const [mine, theirs] = [await settle(service, 'matrix'), await settle(service, 'matrix')]
    const [roles, tokens]: Record<string, string>[] = [{}, {}]
    for (const name of group) {
      const slicesOf = RESTRICTIONS[name]!
      const person = await restricted(mine, slicesOf(mine).person)
      roles![name] = (await issuePair(service, person, SCOPE_NAMES)).access
      const { token } = await service.token(theirs.caller.organization, ABILITIES, {
        slices: [...slicesOf(theirs).token]
      })
      tokens![name] = token
    }
    const nameOf = (id: string) => group[ids.indexOf(id) % group.length]!
    const [ofRoles, ofTokens] = [
      await outcomes(mine, (id) => roles![nameOf(id)]!, isOfTeams),
      await outcomes(theirs, (id) => tokens![nameOf(id)]!, isOfTeams)
    ]
    for (const name of group) {
      const isOfName = ([id]: [string, string]) => nameOf(id.split(' ')[0]!) === name
      const [byRole, byToken] = [ofRoles, ofTokens].map((all) =>
        Object.fromEntries(Object.entries(all).filter(isOfName))) as [Record<string, string>, Record<string, string>]
      t.strictSame(byRole, byToken, `restricted ${name}`)
      if (name === 'to another environment') continue
      t.ok(Object.values(byRole).some((outcome) => outcome.startsWith('20')), `${name}: something is allowed`)
      for (const id of HIDDEN.filter((id) => nameOf(id) === name)) t.match(byRole[id], /^404/, `${name}: ${id}`)
    }
  }
})

t.test('a token that the person made before is restricted as the person is', async (t) => {
  const [mine, theirs] = [await settle(service, 'own'), await settle(service, 'own')]
  const o = mine.caller.organization
  const person = await makePerson(service, { [o]: 'owner' })
  const made = await (await as(person))('POST', `/organizations/${o}/api-keys`, {
    name: 'Theirs', abilities: SCOPE_NAMES, expires_at: new Date(Date.now() + 600_000).toISOString()
  })
  t.equal(made.status, 201, made.text)
  const read = () => callWith(service, made.body.token)('GET', `/${o}/own-project/own-target/own-other/secrets`)
  t.equal((await read()).status, 200)
  await service.write(`UPDATE members SET role = '${OWN_ROLE}' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  t.equal((await read()).status, 403)
  const slices = [mine.sliceOf(), mine.sliceOf('target')]
  await makeTeam(service, o, [person], { [mine.ids.project!]: 'owner', [mine.ids.client!]: 'owner', [mine.ids.otherProject!]: 'owner' }, slices)
  t.equal((await read()).status, 404)
  const { token } = await service.token(theirs.caller.organization, ABILITIES, {
    slices: [theirs.sliceOf(), theirs.sliceOf('target')]
  })
  const isWanted = (row: Row, id: string) => isOfTeams(row) && isSampled(id)
  t.strictSame(await outcomes(mine, made.body.token, isWanted), await outcomes(theirs, token, isWanted))
})

t.test('a restricted role gives nothing for the operations that teams give nothing for', async (t) => {
  const [mine, theirs] = [await settle(service, 'beside'), await settle(service, 'beside')]
  const person = await restricted(mine, [mine.sliceOf()])
  const alone = await makePerson(service, { [theirs.caller.organization]: OWN_ROLE })
  // Without operations on the person instead of the organization.
  const isOfOrganization = (row: Row, id: string) => isSampled(id) && !isOfTeams(row) && row.access !== 'public' && row.access !== 'authenticated' &&
    row.byPerson !== true
  const [one, other] = [
    await outcomes(mine, (await issuePair(service, person, SCOPE_NAMES)).access, isOfOrganization),
    await outcomes(theirs, (await issuePair(service, alone, SCOPE_NAMES)).access, isOfOrganization)
  ]
  t.strictSame(one, other)
})

// One organization for the special cases

const owner = await service.organization()
const o = owner.organization
const teams = `/organizations/${o}/teams`

const addPlace = async (path: string, name: string, more: object = {}) => {
  const { status, text, body } = await owner.call('POST', `/${o}/${path}`, { name, ...more })
  if (status !== 201) throw new Error(text)
  return body.data.id as string
}

/**
 * A project with the environments backend/live (in production), backend/stage and worker/test. All levels have
 * documents.
 */
async function project (slug: string) {
  await owner.call('POST', `/${o}/projects`, { name: slug, slug })
  const ids = {
    backend: await addPlace(`${slug}/targets`, 'Backend'),
    live: await addPlace(`${slug}/backend/environments`, 'Live', { status: 'production' }),
    stage: await addPlace(`${slug}/backend/environments`, 'Stage', { status: 'staging' }),
    worker: await addPlace(`${slug}/targets`, 'Worker'),
    test: await addPlace(`${slug}/worker/environments`, 'Test')
  }
  const versions: Record<string, string> = {}
  for (const path of ['', 'backend', 'backend/live', 'backend/stage', 'worker', 'worker/test']) {
    const [target, environment] = path.split('/').filter((part) => part !== '')
    const { status, text, body } = await owner.call('POST', `/${o}/secrets/store`, {
      project: slug, target, environment, plaintext: `${path.replace('/', '_').toUpperCase() || 'PROJECT'}=1`
    })
    if (status !== 200) throw new Error(text)
    versions[path] = body.data.version
  }
  return { ids, versions }
}

/** Creates a person without another role and adds the person to a new team, through the API. */
async function member (
  slug: string, role: Role, restrictions?: readonly TeamRestriction[], own: Role = OWN_ROLE
) {
  const person = await makePerson(service, { [o]: own })
  const team = await makeTeam(service, o, [person], {})
  const set = await owner.call('PUT', `${teams}/${team}/projects/${slug}`, { role, restrictions })
  if (set.status !== 200) throw new Error(set.text)
  return { person, team, call: await as(person), set }
}

const statusOf = async (call: Caller['call'], path: string, query = '') =>
  (await call('GET', `/${o}/${path}/secrets${query}`)).status
const levelsIn = ({ body }: Answer) => Object.keys(body.data.attributes.levels)

await project('orbit')

t.test('restrictions are set, shown with present slugs, kept when omitted, and recorded', async (t) => {
  await project('shown')
  const restrictions = [{ target: 'backend', environment: 'stage' }, { target: 'worker', except_status: 'production' as const }]
  const { team, set } = await member('shown', 'developer', [...restrictions, restrictions[0]!])
  const shown = restrictions.map((one) => ({ project: 'shown', ...one }))
  const projectsOf = (answer: Answer) => answer.body.data.attributes.projects
  t.match(projectsOf(set), [{ slug: 'shown', role: 'developer', restrictions: shown }])
  t.equal(projectsOf(set)[0].restrictions.length, 2, 'one of each')
  const get = () => owner.call('GET', `${teams}/${team}`)
  t.match(projectsOf(await get()), [{ restrictions: shown }])
  const put = (body: object) => owner.call('PUT', `${teams}/${team}/projects/shown`, body)
  t.match(projectsOf(await put({ role: 'member' })), [{ role: 'member', restrictions: shown }], 'the role alone')
  t.match(projectsOf(await put({ restrictions: shown })), [{ role: 'member', restrictions: shown }], 'as they were read')
  t.equal((await owner.call('PATCH', `/${o}/shown/backend`, { slug: 'server' })).status, 200)
  t.equal((await owner.call('PATCH', `/${o}/shown`, { slug: 'renamed' })).status, 200)
  const renamed = [{ ...shown[0]!, project: 'renamed', target: 'server' }, { ...shown[1]!, project: 'renamed' }]
  t.strictSame(projectsOf(await get())[0].restrictions, renamed, 'under their present names')
  const none = await owner.call('PUT', `${teams}/${team}/projects/renamed`, { restrictions: [] })
  t.match(projectsOf(none), [{ role: 'member', restrictions: [] }])
  const { body } = await owner.call('GET', `/${o}/audit-events?action=team-project.update&resource=team:${team}`)
  const details = body.data.map(({ attributes }: any) => attributes.details)
  t.match(details[0], { role: 'member', restrictions: undefined })
  t.match(details.at(-1), { role: 'developer', restrictions: /^\S{26}\/\S{26}\/\S{26} \S{26}\/\S{26}!production$/ })
})

t.test('what is no restriction inside of the project is refused, and nothing is changed', async (t) => {
  await project('other')
  const { team, call } = await member('orbit', 'member', [{ target: 'backend', environment: 'stage' }])
  const stage = { target: 'backend', environment: 'stage' }
  for (const restrictions of [
    [{}], [{ project: 'orbit' }], [{ environment: 'stage' }], [{ target: 'never' }], [{ target: 'backend', environment: 'test' }],
    [{ project: 'other', ...stage }], [{ project: 'never', ...stage }], [stage, { target: 'Not A Slug' }],
    [{ except_status: 'staging' }], [{ except_status: true }], [{ ...stage, more: 1 }], 'all', null,
    Array.from({ length: TEAM_LIMITS.restrictions + 1 }, () => stage)
  ]) {
    const answer = await owner.call('PUT', `${teams}/${team}/projects/orbit`, { role: 'owner', restrictions })
    t.strictSame([answer.status, answer.body.error], [422, 'validation_failed'], JSON.stringify(restrictions).slice(0, 100))
  }
  for (const [missing, restriction] of [
    ['target', { target: 'never', environment: 'stage' }], ['environment', { target: 'backend', environment: 'never' }]
  ] as const) {
    const { body } = await owner.call('PUT', `${teams}/${team}/projects/orbit`, { restrictions: [restriction] })
    t.strictSame(body.errors, { [`restrictions.0.${missing}`]: [`There is no such ${missing}`] })
  }
  t.strictSame([await statusOf(call, 'orbit/backend/stage'), await statusOf(call, 'orbit/backend/live')], [200, 404])
  t.match(await owner.call('GET', `${teams}/${team}`), {
    body: { data: { attributes: { projects: [{ role: 'member', restrictions: [stage] }] } } }
  })
})

t.test('a restricted role shows shared documents only inside of its part, in every way to read them', async (t) => {
  const { ids } = await project('shared')
  const rows: [restriction: TeamRestriction, path: string, levels: string[]][] = [
    [{ target: 'backend', environment: 'stage' }, 'backend/stage', ['environment']],
    [{ target: 'backend' }, 'backend/stage', ['target', 'environment']],
    [{ except_status: 'production' }, 'backend/stage', ['environment']],
    [{ target: 'worker', except_status: 'production' }, 'worker/test', ['environment']]
  ]
  for (const [restriction, path, levels] of sample(rows, 2)) {
    const name = JSON.stringify(restriction)
    const { call } = await member('shared', 'developer', [restriction])
    const at = `/${o}/shared/${path}/secrets`
    const [now] = await service.sql('SELECT now() AS at')
    const [target, environment] = path.split('/')
    t.strictSame(levelsIn(await call('GET', at)), levels, name)
    t.strictSame(levelsIn(await call('GET', `${at}?decrypt=true`)), levels, name)
    t.strictSame(levelsIn(await call('GET', `${at}?at=${new Date(String(now!.at)).toISOString()}`)), levels, `${name} at a moment`)
    const retrieved = await call('POST', `/${o}/secrets/retrieve`, { project: 'shared', target, environment, action: 'decrypt' })
    t.strictSame(levelsIn(retrieved), levels, `${name} by retrieve`)
    t.equal(Object.keys((await call('GET', `${at}/values`)).body).length, levels.length, `${name}: values`)
    t.equal((await call('GET', `${at}/names?merge=true`)).body.data.length, levels.length, `${name}: names`)
    t.strictSame((await call('GET', `${at}/diff?from=${levels.at(-1)}&to=project`)).status, 404, `${name}: differences`)
    const found = (await call('GET', `/${o}/secrets/names?search=_`)).body.data
      .map(({ attributes }: any) => [attributes.target, attributes.environment].join('/'))
    const expected = restriction.except_status === undefined
      ? restriction.environment === undefined ? ['backend/live', 'backend/stage'] : ['backend/stage']
      : restriction.target === undefined ? ['backend/stage', 'worker/test'] : ['worker/test']
    t.strictSame(found.sort(), expected, `${name}: the search for names`)
    t.match((await call('GET', `/${o}/projects`)).body, { data: [], meta: { total: 0 } }, `${name}: the list of projects`)
  }
  t.ok(ids)
})

t.test('a restricted role learns nothing about hidden levels from the audit log or a refused slug', async (t) => {
  const { ids } = await project('quiet')
  const { call } = await member('quiet', 'administrator', [{ target: 'backend', environment: 'stage' }])
  t.match((await call('GET', `/${o}/audit-events`)).body, { data: [], meta: { total: 0 } })
  const rename = async (slug: string) => (await call('PATCH', `/${o}/quiet/backend/stage`, { slug })).text
  t.equal(await rename('live'), await rename('none'), 'a slug that is taken, and one that is free')
  t.match(await rename('none'), 'not_found')
  t.equal((await call('PATCH', `/${o}/quiet/backend/stage`, { name: 'Other' })).status, 200)
  const ofTarget = await member('quiet', 'administrator', [{ target: 'backend' }])
  const taken = await ofTarget.call('PATCH', `/${o}/quiet/backend/stage`, { slug: 'live' })
  t.equal(taken.body.error, 'slug_taken', 'with access to the target')
  t.ok(ids)
})

// The slugs of organizations are public within an installation.
const SLUG_SETTERS = Object.keys(OPERATIONS).filter((id) => setsSlug(id) && !id.endsWith('Organization'))

function setsSlug (id: string): boolean {
  const [method, path] = OPERATIONS[id]!.at.split(' ')
  const { paths, components } = service.app.swagger() as any
  const [media] = Object.values<any>(paths[path!][method!.toLowerCase()].requestBody?.content ?? {})
  const name = media?.schema.$ref?.split('/').at(-1)
  return (components.schemas[name] ?? media?.schema)?.properties?.slug !== undefined
}

t.test('a caller learns no hidden slug by setting a slug, for every operation that sets one', async (t) => {
  t.match(SLUG_SETTERS.join(), /createProject.*updateProject/)
  t.ok(SLUG_SETTERS.length >= 8, SLUG_SETTERS.join())
  const world = await settle(service, 'slugs')
  const { caller: { organization }, ids, sliceOf } = world
  const whole = { ...sliceOf(), target_id: null, environment_id: null }
  const parts: Record<string, Slice[]> = {
    project: [whole],
    target: [{ ...sliceOf(), environment_id: null }],
    environment: [sliceOf()],
    status: [{ ...whole, except_status: 'production' }]
  }
  const callers: Record<string, string> = {}
  for (const [name, slices] of Object.entries(parts)) {
    const person = await makePerson(service, { [organization]: OWN_ROLE })
    await makeTeam(service, organization, [person], { [ids.project!]: 'owner' }, slices)
    callers[`person of the ${name}`] = (await issuePair(service, person, SCOPE_NAMES)).access
    if (name === 'status') continue
    callers[`token of the ${name}`] = (await service.token(organization, ['*'], { slices })).token
  }
  const person = await makePerson(service, { [organization]: OWN_ROLE })
  await makeTeam(service, organization, [person], { [ids.project!]: 'owner' })
  callers['person of a team'] = (await issuePair(service, person, SCOPE_NAMES)).access
  t.equal((await world.caller.call('POST', `/organizations/${organization}/teams`, { name: 'slugs-other', slug: 'slugs-other' })).status, 201)

  let [refused, hidden] = [0, 0]
  for (const [which, id] of SLUG_SETTERS.entries()) {
    const row = OPERATIONS[id]!
    // The sibling levels of the test data have this slug.
    const set = (slug: string, token: string) => send(service, { ...row, body: { name: 'Any', slug } }, ids, token)
    const [noun] = /project|target|environment|team/i.exec(id)!
    const sibling = {
      project: '/slugs-other',
      target: `/${ids.project}/slugs-other`,
      environment: `/${ids.project}/${ids.target}/slugs-other`
    }[noun.toLowerCase()]
    for (const [name, token] of byTurns(Object.entries(callers), which, 3)) {
      const taken = await set('slugs-other', token)
      if (taken.body.error === 'slug_taken') {
        refused += 1
        t.equal((await callWith(service, token)('GET', `/${organization}${sibling}`)).status, 200, `${id} by ${name} sees the sibling`)
        continue
      }
      hidden += 1
      const free = await set('slugs-free', token)
      t.strictSame([taken.status, taken.body.error], [free.status, free.body.error], `${id} by ${name}`)
      t.match(taken.status, /^40[34]$/, `${id} by ${name}`)
    }
  }
  t.ok(refused >= (LONG ? 10 : 3) && hidden >= (LONG ? 20 : 7), `${refused} see the sibling, ${hidden} learn nothing`)
})

t.test('the slug of a project can be changed with access to all projects, and sent back without', async (t) => {
  await project('zeta')
  await project('atlas')
  const [row] = await service.sql(`SELECT id FROM projects WHERE organization_id = '${o}' AND slug = 'zeta'`)
  const slices = [{ project_id: row!.id as string, target_id: null, environment_id: null }]
  const { call: token } = await service.token(o, ['*'], { slices })
  const { call: ofTeam } = await member('zeta', 'administrator')
  const { call: readsAll } = await member('zeta', 'administrator', undefined, 'api_user')
  const rename = (call: Caller['call'], slug: string) => call('PATCH', `/${o}/zeta`, { slug, description: 'Any' })
  for (const call of [token, ofTeam]) {
    t.match(await rename(call, 'atlas'), { status: 404, body: { error: 'not_found', details: undefined } })
    t.equal((await rename(call, 'free')).text.replace(/"request_id":"[^"]*"/, ''),
      (await rename(call, 'atlas')).text.replace(/"request_id":"[^"]*"/, ''))
    t.match(await rename(call, 'zeta'), { status: 200, body: { data: { attributes: { slug: 'zeta' } } } }, 'the present slug')
  }
  t.match(await rename(readsAll, 'atlas'), { status: 422, body: { error: 'slug_taken' } }, 'a role that reads all projects')
  t.match(await owner.call('GET', `/${o}/zeta`), { status: 200 })
})

t.test('the access of a person is the union of the roles, for each scope', async (t) => {
  const { versions } = await project('union')
  const { person, call } = await member('union', 'api_user')
  const all = ['', '/backend', '/backend/live', '/backend/stage', '/worker', '/worker/test'].map((path) => `union${path}`)
  const statuses = async (query: string) => Promise.all(all.map((path) => statusOf(call, path, query)))
  t.strictSame(await statuses(''), [200, 200, 200, 200, 200, 200], 'one role reads the whole project')
  t.strictSame(await statuses('?decrypt=true'), [403, 403, 403, 403, 403, 403])
  const join = async (role: Role, restrictions: TeamRestriction[]) => {
    const team = await makeTeam(service, o, [person], {})
    t.equal((await owner.call('PUT', `${teams}/${team}/projects/union`, { role, restrictions })).status, 200)
    return team
  }
  await join('member', [{ target: 'backend', environment: 'stage' }])
  t.strictSame(await statuses(''), [200, 200, 200, 200, 200, 200])
  t.strictSame(await statuses('?decrypt=true'), [404, 404, 404, 200, 404, 404], 'another one decrypts in a part')
  t.strictSame(levelsIn(await call('GET', `/${o}/union/backend/stage/secrets`)), ['project', 'target', 'environment'])
  t.strictSame(
    levelsIn(await call('GET', `/${o}/union/backend/stage/secrets?decrypt=true`)), ['environment'],
    'documents of the levels above are not decrypted'
  )
  t.equal((await call('GET', `/${o}/projects`)).body.meta.total, 1, 'the role without restrictions lists the project')
  await join('member', [{ target: 'worker' }])
  t.strictSame(await statuses('?decrypt=true'), [404, 404, 404, 200, 200, 200])
  t.equal((await call('GET', `/${o}/union/encryption-key`)).status, 404, 'several parts are not the whole')
  const restore = async (path: string) => (await call('POST', `/${o}/secrets/versions/${versions[path]}/restore`, {})).status
  t.equal(await restore('worker/test'), 403, 'no role restores')
  await join('developer', [{ except_status: 'production' }])
  t.strictSame([await restore('worker/test'), await restore('worker'), await restore('backend/live')], [200, 404, 404])
  const last = await join('member', [{ target: 'backend', environment: 'live' }])
  t.strictSame(await statuses('?decrypt=true'), [404, 404, 200, 200, 200, 200])
  t.equal((await owner.call('PUT', `${teams}/${last}/projects/union`, { restrictions: [] })).status, 200)
  t.strictSame(await statuses('?decrypt=true'), [200, 200, 200, 200, 200, 200], 'a role for the whole project')
  t.equal((await call('GET', `/${o}/union/encryption-key`)).status, 200)
})

t.test('a token of the person is limited by its own restrictions and by those of the role', async (t) => {
  await project('token')
  const { person } = await member('token', 'member', [{ except_status: 'production' }], 'administrator')
  const expires_at = new Date(Date.now() + 600_000).toISOString()
  const make = async (restrictions: object[]) => {
    const { status, text, body } = await (await as(person))('POST', `/organizations/${o}/api-keys`, {
      name: 'Theirs', abilities: ['secret:read', 'secret:decrypt', 'project:read'], expires_at, restrictions
    })
    if (status !== 201) throw new Error(text)
    return callWith(service, body.token)
  }
  const tokens = {
    whole: await make([]),
    target: await make([{ project: 'token', target: 'backend' }]),
    live: await make([{ project: 'token', target: 'backend', environment: 'live' }])
  }
  const paths = ['token', 'token/backend', 'token/backend/live', 'token/backend/stage', 'token/worker/test']
  const allowed = async () => Object.fromEntries(await Promise.all(Object.entries(tokens).map(async ([name, call]) =>
    [name, await Promise.all(paths.map((path) => statusOf(call, path, '?decrypt=true')))])))
  const searched = async (call: Caller['call']) =>
    (await call('GET', `/${o}/secrets/names?search=_`)).body.data.map(({ attributes }: any) => attributes.environment)
  t.strictSame(await allowed(), {
    whole: [200, 200, 200, 200, 200], target: [404, 200, 200, 200, 404], live: [404, 404, 200, 404, 404]
  })
  await service.write(`UPDATE members SET role = '${OWN_ROLE}' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  t.strictSame(await allowed(), {
    whole: [404, 404, 404, 200, 200], target: [404, 404, 404, 200, 404], live: [404, 404, 404, 404, 404]
  }, 'as soon as the person has the restricted role alone')
  t.strictSame((await searched(tokens.whole)).sort(), ['stage', 'test'])
  t.strictSame(await searched(tokens.target), ['stage'])
  t.strictSame(await searched(tokens.live), [])
})

t.test('scopes that no role gives in a common part are given nowhere', async (t) => {
  await project('apart')
  const { person, call } = await member('apart', 'api_user', [{ target: 'worker' }])
  const team = await makeTeam(service, o, [person], {})
  // An auditor can read versions, but not documents.
  await owner.call('PUT', `${teams}/${team}/projects/apart`, { role: 'auditor', restrictions: [{ target: 'backend' }] })
  const at = encodeURIComponent(new Date().toISOString())
  for (const path of ['apart', 'apart/backend/live', 'apart/worker/test']) {
    t.equal(await statusOf(call, path, `?at=${at}`), 404, `${path} at a moment`)
  }
  t.equal(await statusOf(call, 'apart/worker/test'), 200)
  t.match(await call('GET', `/${o}/secrets/names?search=a`), { status: 403 }, 'nor is there anything to search')
})

t.test('an owner, an administrator and a member are as free as before, whatever their teams', async (t) => {
  for (const own of ['owner', 'administrator', 'member'] as const) {
    const { call } = await member('orbit', 'member', [{ target: 'worker' }], own)
    t.strictSame(levelsIn(await call('GET', `/${o}/orbit/backend/live/secrets?decrypt=true`)), ['project', 'target', 'environment'])
    t.equal((await call('GET', `/${o}/orbit/encryption-key`)).status, 200, own)
    t.ok((await call('GET', `/${o}/projects`)).body.meta.total > 1, own)
  }
})

t.test('“not production” follows the present status, also for versions, moments and the search, and at once', async (t) => {
  const { versions } = await project('follows')
  const { call } = await member('follows', 'administrator', [{ except_status: 'production' }])
  const set = async (status: string) => {
    t.equal((await owner.call('PATCH', `/${o}/follows/backend/stage`, { status })).status, 200)
  }
  const stage = { project: 'follows', target: 'backend', environment: 'stage' }
  const moment = encodeURIComponent(new Date().toISOString())
  const ways: Record<string, () => Promise<Answer>> = {
    read: () => call('GET', `/${o}/follows/backend/stage/secrets`),
    decrypt: () => call('POST', `/${o}/secrets/retrieve`, { ...stage, action: 'decrypt' }),
    moment: () => call('GET', `/${o}/follows/backend/stage/secrets?at=${moment}`),
    get: () => call('GET', `/${o}/follows/backend/stage`),
    versions: () => call('POST', `/${o}/secrets/versions`, stage),
    version: () => call('GET', `/${o}/secrets/versions/${versions['backend/stage']}`),
    restore: () => call('POST', `/${o}/secrets/versions/${versions['backend/stage']}/restore`, {}),
    store: () => call('POST', `/${o}/secrets/store`, { ...stage, plaintext: 'BACKEND_STAGE=2' }),
    change: () => call('PATCH', `/${o}/follows/backend/stage/secrets`, { set: { BACKEND_STAGE: '3' } }),
    names: () => call('GET', `/${o}/follows/backend/stage/secrets/names`),
    history: () => call('GET', `/${o}/follows/backend/stage/secrets/names/history?name=BACKEND_STAGE`),
    update: () => call('PATCH', `/${o}/follows/backend/stage`, { description: 'Any' })
  }
  const search = async () =>
    (await call('GET', `/${o}/secrets/names?search=_`)).body.data.map(({ attributes }: any) => attributes.environment)
  const statuses = async () => Promise.all(Object.values(ways).map(async (ask) => (await ask()).status))
  const every = (status: number) => Object.keys(ways).map(() => status)
  t.strictSame(await statuses(), every(200))
  t.strictSame((await search()).sort(), ['stage', 'test'])
  for (const round of [1, 2]) {
    await set('production')
    t.strictSame(await statuses(), every(404), `in production ${round}`)
    t.strictSame(await search(), ['test'])
    t.equal((await call('DELETE', `/${o}/secrets/versions/${versions['backend/stage']}`)).status, 404)
    await set('pre-production')
    t.strictSame(await statuses(), every(200), `no more ${round}`)
  }
  t.equal(
    (await owner.call('PATCH', `/${o}/follows/backend/stage`, { is_production: true })).status, 200
  )
  t.strictSame(await statuses(), every(200), '`is_production` is a hint for tools')
  t.equal((await call('DELETE', `/${o}/secrets/versions/${versions['backend/stage']}`)).status, 204)
})

t.test('for “not production” the status decides, not the name, and a change opens or hides the whole history', async (t) => {
  await project('named')
  const created = await owner.call('POST', `/${o}/named/backend/environments`, { name: 'production' })
  t.match(created, { status: 201, body: { data: { attributes: { slug: 'production', status: 'development' } } } })
  const { call } = await member('named', 'developer', [{ except_status: 'production' }])
  const path = 'named/backend/production'
  const level = { project: 'named', target: 'backend', environment: 'production' }
  const store = async (value: string) =>
    (await owner.call('POST', `/${o}/secrets/store`, { ...level, plaintext: `A=${value}` })).body.data.version as string
  const set = (status: string) => owner.call('PATCH', `/${o}/${path}`, { status })
  const versions = [await store('before')]
  t.equal(await statusOf(call, path, '?decrypt=true'), 200, 'the name decides nothing')
  await set('production')
  versions.push(await store('during'))
  const readable = async () => [
    await statusOf(call, path),
    ...await Promise.all(versions.map(async (id) => (await call('GET', `/${o}/secrets/versions/${id}`)).status))
  ]
  t.strictSame(await readable(), [404, 404, 404], 'also the version from before')
  await set('staging')
  t.strictSame(await readable(), [200, 200, 200], 'also the version from the time in production')
  const said = (service.app.swagger() as any).components.schemas.TeamRestriction.properties.except_status.description
  t.match(said, /The status decides, not the name: a new environment is `development` unless the request sets `status`/)
})

t.test('TI-41: no write of a restricted person is in the history after the change of the status', async (t) => {
  const { ids } = await project('races')
  const { person, call } = await member('races', 'administrator', [{ except_status: 'production' }])
  const stage = { project: 'races', target: 'backend', environment: 'stage' }
  const before = (await owner.call('GET', `/${o}/audit-events?per_page=1`)).body.data[0].attributes.sequence as number
  const ROUNDS = LONG ? 12 : 3
  let written = 0
  for (let round = 0; round < ROUNDS; round++) {
    const store = async (i: number) => {
      if (i % 3 === 2) {
        const listed = await owner.call('POST', `/${o}/secrets/versions`, stage)
        return call('DELETE', `/${o}/secrets/versions/${listed.body.data.at(-1).id}`)
      }
      return i % 3 === 1
        ? call('PATCH', `/${o}/races/backend/stage/secrets`, { set: { A: `${round}-${i}` } })
        : call('POST', `/${o}/secrets/store`, { ...stage, plaintext: `A=${round}-${i}` })
    }
    const stores = (from: number) => Array.from({ length: 6 }, (_, i) => store(from + i))
    const [change, ...answers] = await Promise.all([
      (async () => {
        for (let i = 0; i < round; i++) await new Promise(setImmediate)
        return owner.call('PATCH', `/${o}/races/backend/stage`, { status: 'production' })
      })(),
      ...stores(0)
    ])
    t.equal(change.status, 200)
    const after = await Promise.all(stores(6))
    for (const { status, text } of [...answers, ...after]) {
      if (![200, 204, 404].includes(status)) t.fail(text)
    }
    t.strictSame([...new Set(after.map(({ status }) => status))], [404], 'none begins after it')
    written += answers.filter(({ status }) => status < 300).length
    t.equal((await owner.call('PATCH', `/${o}/races/backend/stage`, { status: 'staging' })).status, 200)
  }
  t.comment(`${written} changes were in time`)
  const events = await service.sql(`SELECT action, actor_type, actor_id::float8 AS actor_id FROM audit_events
    WHERE organization_id = '${o}' AND seq > ${before} AND (actor_type = 'user' OR resource_id = '${ids.stage}')
    ORDER BY seq`)
  let changes = 0
  for (const { action, actor_type, actor_id } of events) {
    if (action === 'environment.update') changes += 1
    else if (actor_type === 'user' && actor_id === person.id && changes % 2 === 1) t.fail(`${action} in production`)
  }
  t.equal(changes, 2 * ROUNDS)
})

t.test('a restricted caller changes no status, and may send the present one back', async (t) => {
  const { ids } = await project('status')
  const [row] = await service.sql(`SELECT id FROM projects WHERE organization_id = '${o}' AND slug = 'status'`)
  const project_id = row!.id as string
  const narrow = await service.token(o, ['*'], { slices: [{ project_id, target_id: ids.backend, environment_id: null }] })
  const wide = await service.token(o, ['*'], { slices: [{ project_id, target_id: null, environment_id: null }] })
  const { call } = await member('status', 'administrator', [{ target: 'backend' }])
  const stage = `/${o}/status/backend/stage`
  for (const [name, ask] of Object.entries({ token: narrow.call, person: call })) {
    t.match(await ask('PATCH', stage, { status: 'production' }), { status: 404, body: { error: 'not_found' } }, name)
    t.match(await ask('PUT', stage, { name: 'Stage', status: 'development' }), { status: 404 }, name)
    t.match(await ask('PATCH', stage, { status: 'staging', description: name }), {
      status: 200, body: { data: { attributes: { status: 'staging', description: name } } }
    }, name)
  }
  for (const ask of [wide.call, (await member('status', 'administrator')).call]) {
    t.equal((await ask('PATCH', stage, { status: 'production' })).status, 200, 'a caller with the whole project may')
    t.equal((await ask('PATCH', stage, { status: 'staging' })).status, 200)
  }
})

t.test('a role ends with the last level to which it is restricted, in the same transaction', async (t) => {
  await project('gone')
  const { team, call } = await member('gone', 'administrator', [
    { target: 'worker', environment: 'test' }, { target: 'backend', environment: 'stage' }
  ])
  const { team: byStatus } = await member('gone', 'member', [{ except_status: 'production' }])
  const { team: ofWorker } = await member('gone', 'member', [{ target: 'worker', except_status: 'production' }])
  const rolesOf = async (id: string) => (await owner.call('GET', `${teams}/${id}`)).body.data.attributes.projects
  t.equal((await owner.call('DELETE', `/${o}/gone/worker/test`)).status, 204)
  t.match(await rolesOf(team), [{ restrictions: [{ target: 'backend', environment: 'stage' }] }], 'one is left')
  await addPlace('gone/worker/environments', 'Test')
  t.equal(await statusOf(call, 'gone/worker/test'), 404, 'another environment of the same name is another one')
  t.equal((await call('DELETE', `/${o}/gone/backend/stage`)).status, 204, 'also by the role itself')
  t.strictSame(await rolesOf(team), [])
  t.equal(await statusOf(call, 'gone/backend/live'), 403)
  t.equal((await rolesOf(ofWorker)).length, 1)
  t.equal((await owner.call('DELETE', `/${o}/gone/worker`)).status, 204)
  t.strictSame(await rolesOf(ofWorker), [])
  t.equal((await owner.call('DELETE', `/${o}/gone/backend`)).status, 204)
  t.match(await rolesOf(byStatus), [{ restrictions: [{ except_status: 'production' }] }], 'by status none is the last')
  const { body } = await owner.call('GET', `/${o}/audit-events?action=team-project.delete`)
  t.match(body.data.slice(0, 2).map(({ attributes }: any) => [attributes.resource.id, attributes.details]), [
    [ofWorker, { with: 'target' }], [team, { with: 'environment' }]
  ])
})

t.test('restrictions that the service did not write give nothing', async (t) => {
  const { team, call } = await member('orbit', 'member', [{ target: 'backend', environment: 'stage' }])
  const its = `organization_id = '${o}' AND team_id = '${team}'`
  const [row] = await service.sql(`SELECT slices::text FROM team_projects WHERE ${its}`)
  const ask = async () => [
    await statusOf(call, 'orbit/backend/stage'), await statusOf(call, 'orbit/backend/live'),
    (await call('GET', `/${o}/projects`)).body.meta?.total, (await call('GET', `/${o}/projects`)).body.data?.length
  ]
  t.strictSame(await ask(), [200, 404, 0, 0])
  for (const slices of ['NULL', "'[]'", "slices || '[{}]'", 'slices - 0', "jsonb_set(slices, '{0,environment_id}', 'null')"]) {
    await service.sql(`UPDATE team_projects SET slices = ${slices} WHERE ${its}`)
    const [stage, live, , listed] = await ask()
    t.strictSame([stage, live, listed], [403, 403, 0], slices)
    await service.sql(`UPDATE team_projects SET slices = '${String(row!.slices)}' WHERE ${its}`)
  }
  t.strictSame(await ask(), [200, 404, 0, 0])
})

t.test('a caller that cannot give a role cannot remove its restrictions', async (t) => {
  const { team } = await member('orbit', 'developer', [{ target: 'worker' }])
  const weak = await service.token(o, [
    'team:update', 'secret:read', 'project:read', 'target:read', 'environment:read', ...scopesInProject('member')
  ])
  for (const body of [{ restrictions: [] }, { role: 'member', restrictions: [] }, { role: 'member' }]) {
    t.match(await weak.call('PUT', `${teams}/${team}/projects/orbit`, body), {
      status: 422, body: { error: 'role_not_held', details: { role: 'developer' } }
    })
  }
})
