// runs: one database
import t, { type Test } from 'tap'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import type { Role } from '../../schemas/users.ts'
import type { Slice } from '../../src/rules/slices.ts'
import { startApp, type Caller } from '../helpers/app.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'
import { miscounted } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// Lists of projects, targets and environments show the newest version to callers who may list the versions there.

const service = await startApp(t)

type Change = { version: string, created_at: string, created_by: { id: number, name: string } } | null
type Call = Caller['call']

interface Item { id: string, attributes: { slug: string, last_change: Change } }

/** The last changes in a list, by slug. */
async function listed (call: Call, path: string): Promise<Record<string, Change>> {
  const { status, body, text } = await call('GET', path)
  if (status !== 200) throw new Error(text)
  return Object.fromEntries((body.data as Item[]).map(({ attributes: { slug, last_change } }) => [slug, last_change]))
}

const numberOf = (change: Change | undefined) => change === null || change === undefined ? null : Number(change.version)

async function world () {
  const caller = await service.organization()
  const o = caller.organization
  const ids: Record<string, string> = {}
  const make = async (path: string, name: string, more: object = {}) => {
    const { status, body, text } = await caller.call('POST', `/${o}/${path}`, { name, slug: name, ...more })
    if (status !== 201) throw new Error(text)
    ids[name] = body.data.id
  }
  for (const project of ['orbit', 'other']) await make('projects', project)
  for (const target of ['api', 'web']) await make('orbit/targets', target)
  for (const [name, status] of [['live', 'production'], ['test', 'staging']] as const) {
    await make('orbit/api/environments', name, { status })
  }
  const store = async (level: object, more: object = {}) => {
    const { status, body, text } = await caller.call('POST', `/${o}/secrets/store`, {
      project: 'orbit', plaintext: `A=${Math.random()}`, ...level, ...more
    })
    if (status !== 200 && status !== 201) throw new Error(text)
    return body.data.version === null ? null : Number(body.data.version)
  }
  return { caller, o, ids, store }
}

const LIVE = { target: 'api', environment: 'live' }
const TEST = { target: 'api', environment: 'test' }

t.test('the last change is the newest version: of a level its own, of a project of all its levels', async (t) => {
  const { caller, o, store } = await world()
  const all = async () => ({
    projects: await listed(caller.call, `/${o}/projects`),
    targets: await listed(caller.call, `/${o}/orbit/targets`),
    environments: await listed(caller.call, `/${o}/orbit/api/environments`)
  })
  const none = await all()
  t.strictSame(none, {
    projects: { orbit: null, other: null }, targets: { api: null, web: null }, environments: { live: null, test: null }
  })
  const seen = async (
    t: Test, project: number | null, api: number | null, live: number | null, test: number | null
  ) => {
    const { projects, targets, environments } = await all()
    t.strictSame(
      [projects.orbit, targets.api, environments.live, environments.test].map(numberOf), [project, api, live, test]
    )
    t.strictSame([projects.other, targets.web], [null, null])
    t.strictSame(await miscounted(service.sql, service.organizations), [], 'the stored one is the newest that there is')
  }
  const first = await store(LIVE)
  await seen(t, first, null, first, null)
  const { data: [version] } = (await caller.call('POST', `/${o}/secrets/versions`, { project: 'orbit', ...LIVE })).body
  const { projects, environments } = await all()
  t.strictSame(environments.live, {
    version: version.id, created_at: version.attributes.created_at, created_by: version.attributes.created_by
  }, 'as in the list of versions')
  t.strictSame(projects.orbit, environments.live)
  const second = await store(TEST)
  await seen(t, second, null, first, second)
  const third = await store({ target: 'api' })
  await seen(t, third, third, first, second)

  t.equal(await store(TEST, { no_backup: true }), null)
  await seen(t, third, third, first, second)

  const remove = async (id: number | null) => {
    const { status, text } = await caller.call('DELETE', `/${o}/secrets/versions/${id}`)
    t.equal(status, 204, text)
  }
  await remove(third)
  await seen(t, second, null, first, second)
  await remove(first)
  await seen(t, second, null, null, second)

  const deleted = await caller.call('POST', `/${o}/secrets/delete`, { project: 'orbit', ...TEST })
  t.equal(deleted.status, 204, deleted.text)
  const fourth = second! + 2
  await seen(t, fourth, null, null, fourth)

  const fifth = await store(LIVE)
  const sixth = await store({})
  await seen(t, sixth, null, fifth, fourth)
  const purge = async (body: object) => {
    const { status, text } = await caller.call('POST', `/${o}/secrets/versions/purge`, {
      project: 'orbit', confirmed: true, ...body
    })
    t.equal(status, 200, text)
  }
  await purge({ level: 'project' })
  await seen(t, fifth, null, fifth, fourth)
  t.equal((await caller.call('POST', `/${o}/orbit/encryption-key/rotate`, {})).status, 200)
  const rotated = numberOf((await all()).projects.orbit)!
  t.ok(rotated > sixth!, 'a rotation makes versions')
  t.strictSame(await miscounted(service.sql, service.organizations), [])

  t.equal((await caller.call('DELETE', `/${o}/orbit/api/live`)).status, 204)
  t.strictSame(await miscounted(service.sql, service.organizations), [], 'after the deletion of a level')
  t.equal((await caller.call('DELETE', `/${o}/orbit/api`)).status, 204)
  t.strictSame(await miscounted(service.sql, service.organizations), [], 'after the deletion of all levels below')
  await purge({ scope: 'project' })
  t.strictSame((await all().catch(() => undefined)) ?? await listed(caller.call, `/${o}/projects`), { orbit: null, other: null })
})

t.test('concurrent writes leave the newest version, also if the last one has none', async (t) => {
  const { caller, o, store } = await world()
  for (let i = 0; i < 5; i++) {
    await Promise.all(Array.from({ length: 8 }, (_, n) => store(n % 2 === 0 ? LIVE : TEST, { no_backup: n % 3 === 2 })))
    t.strictSame(await miscounted(service.sql, service.organizations), [])
  }
  t.not((await listed(caller.call, `/${o}/projects`)).orbit, null)
})

t.test('a page, a selection and the old paths show the same', async (t) => {
  const { caller, o, store } = await world()
  const version = await store(LIVE)
  for (const path of [
    `/${o}/projects?page=1&per_page=1`, `/${o}/projects?search=orb&sort=-name`, `/organizations/${o}/projects`
  ]) t.equal(numberOf((await listed(caller.call, path)).orbit), version, path)
  for (const path of [
    `/${o}/orbit/api/environments?sort=-created_at`, `/${o}/orbit/api/environments?filter[name]=liv`,
    `/organizations/${o}/projects/orbit/targets/api/environments?page=1&per_page=1`
  ]) t.equal(numberOf((await listed(caller.call, path)).live), version, path)
  const before = await caller.call('GET', `/${o}/orbit`)
  t.notOk('last_change' in before.body.data.attributes)
  await store(LIVE)
  t.equal((await caller.call('GET', `/${o}/orbit`)).headers.etag, before.headers.etag, 'a write is no change of the project')
})

t.test('hidden levels do not show: a caller sees the last change only where the caller may list the versions', async (t) => {
  const { o, ids, store } = await world()
  const own = await store({ target: 'api' })
  const live = await store(LIVE)
  const test = await store(TEST)
  const newest = await store({})
  const bearer = (token: string): Call => (method, path) => service.inject({
    method: method as 'GET', url: `/api/v1${path}`, headers: { authorization: `Bearer ${token}` }
  })
  const person = async (role: Role, teams: [Role, Slice[] | null][] = [], scopes: readonly Scope[] = SCOPE_NAMES) => {
    const one = await makePerson(service, { [o]: role })
    for (const [of, slices] of teams) await makeTeam(service, o, [one], { orbit: of }, slices)
    return bearer((await issuePair(service, one, scopes)).access)
  }
  const token = async (abilities: Scope[], slices: Slice[] = []) => (await service.token(o, abilities, { slices })).call
  const slice = (more: Partial<Slice> = {}): Slice =>
    ({ project_id: ids.orbit!, target_id: null, environment_id: null, ...more })
  const target = slice({ target_id: ids.api! })
  const environment = { ...target, environment_id: ids.test! }
  const READS: Scope[] = ['project:read', 'target:read', 'environment:read']
  /**
   * The versions that each caller sees at the project, the target and the environments. Undefined if the service
   * refuses the list.
   */
  const expected: [who: string, call: Call, sees: (number | null | undefined)[]][] = [
    ['an owner', await person('owner'), [newest, own, live, test]],
    ['an auditor', await person('auditor'), [newest, own, live, test]],
    ['who reads no history', await person('api_user'), [null, null, null, null]],
    ['an application without it', await person('owner', [], READS), [null, null, null, null]],
    ['a token with it', await token([...READS, 'secret:history']), [newest, own, live, test]],
    ['a token without it', await token([...READS, 'secret:read', 'secret:decrypt']), [null, null, null, null]],
    ['a token of the project', await token([...READS, 'secret:history'], [slice()]), [newest, own, live, test]],
    ['a token of a target', await token([...READS, 'secret:history'], [target]), [undefined, undefined, live, test]],
    ['a team of the whole project', await person('billing_manager', [['member', null]]), [newest, own, live, test]],
    ['a team without history', await person('billing_manager', [['api_user', null]]), [null, null, null, null]],
    [
      'history of a target', await person('billing_manager', [['api_user', null], ['auditor', [target]]]),
      [null, own, live, test]
    ],
    ['history of an environment', await person('api_user', [['member', [environment]]]), [null, null, null, test]],
    [
      'history outside of production', await person('api_user', [['member', [slice({ except_status: 'production' })]]]),
      [null, null, null, test]
    ],
    [
      'an application without history',
      await person('billing_manager', [['member', null]], SCOPE_NAMES.filter((scope) => scope !== 'secret:history')),
      [null, null, null, null]
    ]
  ]
  for (const [who, call, sees] of expected) {
    const lists = await Promise.all([
      [`/${o}/projects`, 'orbit'], [`/${o}/orbit/targets`, 'api'], [`/${o}/orbit/api/environments`, 'live'],
      [`/${o}/orbit/api/environments`, 'test']
    ].map(async ([path, slug]) => {
      const changes = await listed(call, path!).catch(() => undefined)
      return changes === undefined || !(slug! in changes) ? undefined : numberOf(changes[slug!])
    }))
    t.strictSame(lists, sees, who)
  }
})

t.test('a list of projects does not load restricted roles, of which a member can have very many', async (t) => {
  const { o, ids, store } = await world()
  await store({})
  const person = await makePerson(service, { [o]: 'api_user' })
  const { access } = await issuePair(service, person, SCOPE_NAMES)
  const call: Call = (method, path) => service.inject({
    method: method as 'GET', url: `/api/v1${path}`, headers: { authorization: `Bearer ${access}` }
  })
  const slice: Slice = { project_id: ids.orbit!, target_id: ids.api!, environment_id: null }
  const restricted = await makeTeam(service, o, [person], { orbit: 'member' }, [slice])
  // The service reports a row with a wrong MAC when it loads the row.
  const reports = () => service.sql(`SELECT FROM audit_events WHERE organization_id = '${o}'
    AND action = 'integrity.violation'`).then(({ length }) => length)
  const breakRole = (team: string) => service.sql(`UPDATE team_projects SET mac = NULL WHERE team_id = '${team}'`)
  await breakRole(restricted)
  t.match(await listed(call, `/${o}/projects`), { orbit: null, other: null })
  t.equal(await reports(), 0)
  const whole = await makeTeam(service, o, [person], { orbit: 'member' })
  t.not((await listed(call, `/${o}/projects`)).orbit, null)
  t.equal(await reports(), 0)
  await breakRole(whole)
  t.equal((await listed(call, `/${o}/projects`)).orbit, null)
  await until(async () => await reports() === 1)
})
