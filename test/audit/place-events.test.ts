// runs: one database, embedded
import t from 'tap'
import { makeLevel, startApp, type Answer } from '../helpers/app.ts'
import { callAs, makePerson } from '../helpers/people.ts'

// The levels in events, and the filters by level.

const service = await startApp(t)

interface Event {
  attributes: {
    sequence: number
    action: string
    resource: { type: string, id: string }
    details: Record<string, unknown> | null
  }
}

const must = async (sent: Promise<Answer>): Promise<Answer> => {
  const answer = await sent
  if (answer.status >= 300) throw new Error(answer.text)
  return answer
}

/** Does something in each level of a project, and returns the ids of the levels. */
async function world (slug = 'orbit') {
  const owner = await service.organization()
  const { organization: o, call } = owner
  const level = await makeLevel(owner, { slug })
  const ids = Object.fromEntries(await Promise.all([
    ['project', `/${o}/${slug}`], ['target', `/${o}/${slug}/backend`], ['environment', `/${o}/${slug}/backend/live`]
  ].map(async ([name, path]) => [name, (await must(call('GET', path!))).body.data.id]))) as Record<string, string>
  const list = async (query: string): Promise<Event[]> =>
    (await must(call('GET', `/${o}/audit-events?per_page=100&${query}`))).body.data
  return { owner, o, call, level, ids, list }
}

/** What a place looks like in the details of an event. */
const detailsOf = ({ details }: Event['attributes']) => Object.fromEntries(Object.entries(details ?? {}).filter(([name]) =>
  /^(?:project|target|environment)(?:_id)?$/.test(name)))

t.test('events of levels and documents have the ids and the slugs of the level and those above', async (t) => {
  const { o, call, level, ids, list } = await world()
  const [project, target] = [{ project: 'orbit' }, { project: 'orbit', target: 'backend' }]
  const store = (at: object, plaintext: string) => must(call('POST', `/${o}/secrets/store`, { ...at, plaintext }))
  const { body: { data: { version } } } = await store(level, 'A=1')
  await store(project, 'A=1')
  await store(target, 'A=1')
  const path = `/${o}/orbit/backend/live`
  await must(call('PATCH', `${path}/secrets`, { set: { A: '2' } }))
  await must(call('PATCH', `${path}/secrets`, { set: { A: '2' } }))
  await must(call('GET', `${path}/secrets?decrypt=true`))
  await must(call('GET', `${path}/secrets/names`))
  await must(call('GET', `${path}/secrets/names/history?name=A`))
  await must(call('GET', `${path}/secrets/diff?from=project&to=environment`))
  await must(call('GET', `/${o}/orbit/secrets/matrix`))
  await must(call('POST', `/${o}/secrets/store?dry_run=true`, { ...level, plaintext: 'A=3' }))
  await must(call('GET', `/${o}/secrets/versions/${version}`))
  await must(call('GET', `/${o}/secrets/versions/${version}/names`))
  await must(call('POST', `/${o}/secrets/versions/${version}/restore`, {}))
  await must(call('DELETE', `/${o}/secrets/versions/${version}`))
  await must(call('POST', `/${o}/secrets/versions/purge`, { ...level, confirmed: true }))
  await must(call('POST', `/${o}/secrets/versions/purge`, { project: 'orbit', scope: 'project', confirmed: true }))
  await must(call('GET', `/${o}/orbit/encryption-key`))
  await must(call('GET', `/${o}/orbit/encryption-key/history`))
  await must(call('POST', `/${o}/secrets/retrieve`, { project: 'orbit', action: 'key:retrieve' }))
  await must(call('POST', `/${o}/orbit/encryption-key/rotate`, {}))
  await must(call('POST', `/${o}/orbit/restore-to`, { at: new Date().toISOString(), confirmed: true }))
  await must(call('PATCH', `/${o}/orbit`, { description: 'Seen' }))
  await must(call('PATCH', `/${o}/orbit/backend`, { description: 'Seen' }))
  await must(call('PATCH', path, { slug: 'production' }))
  await must(call('POST', `/${o}/secrets/delete`, { ...level, environment: 'production' }))
  await must(call('POST', `/${o}/secrets/delete`, { ...target, no_backup: true, confirmed: true }))
  await must(call('DELETE', `/${o}/orbit/backend/production`))
  await must(call('DELETE', `/${o}/orbit/backend`))
  await must(call('DELETE', `/${o}/orbit`))

  const its = (await list('')).map(({ attributes }) => attributes)
    .filter(({ action }) => /^(?:project|target|environment|secret|version|key|history)\./.test(action))
  t.ok(its.length > 30, `${its.length} events`)
  const whole = { project_id: ids.project, project: 'orbit' }
  const backend = { ...whole, target_id: ids.target, target: 'backend' }
  const live = (slug: string) => ({ ...backend, environment_id: ids.environment, environment: slug })
  for (const event of its) {
    const { environment_id, target_id, environment = 'live' } = detailsOf(event)
    const expected = environment_id ? live(String(environment)) : target_id ? backend : whole
    t.strictSame(detailsOf(event), expected, `${event.action} of ${event.resource.type}`)
    const { type, id } = event.resource
    if (type in ids) t.equal(expected[`${type}_id` as 'project_id'], id, 'the level of the resource')
  }
  const of = (action: string, type = '') =>
    its.filter((event) => event.action === action && event.resource.type.startsWith(type)).map(detailsOf)
  t.strictSame(of('environment.create'), [live('live')])
  t.strictSame(of('environment.update'), [live('live')], 'the slug at the time, before the change')
  t.strictSame(of('environment.delete'), [live('production')])
  t.strictSame(of('target.delete'), [backend])
  t.strictSame(of('secret.delete'), [backend, live('production')])
  t.strictSame(of('version.read'), [live('live')])
  t.strictSame(of('version.purge'), [whole, live('live')])
  t.strictSame(of('key.rotate'), [whole])
  t.strictSame(of('secret.store').length, 4)
})

t.test('filters by level find the events of the level and below, also after its deletion', async (t) => {
  const { owner, o, call, level, ids, list } = await world()
  const other = await makeLevel(owner, { slug: 'comet' })
  await call('POST', `/${o}/orbit/backend/environments`, { name: 'Test' })
  for (const at of [{ project: 'orbit' }, { ...level, environment: undefined }, level, { ...level, environment: 'test' }, other]) {
    await must(call('POST', `/${o}/secrets/store`, { ...at, plaintext: 'A=1' }))
  }
  const actions = async (query: string) => (await list(query)).map(({ attributes: { action, details } }) =>
    `${action} ${['project', 'target', 'environment'].map((name) => details?.[name]).filter(Boolean).join('/')}`)
  const OF_LIVE = ['secret.store orbit/backend/live', 'environment.create orbit/backend/live']
  const OF_TEST = ['secret.store orbit/backend/test', 'environment.create orbit/backend/test']
  t.strictSame(await actions(`environment=${ids.environment}`), OF_LIVE)
  t.strictSame(await actions(`environment=${ids.environment!.toLowerCase()}`), OF_LIVE, 'an id in either letter case')
  const ofBackend = [
    OF_TEST[0], OF_LIVE[0], 'secret.store orbit/backend', OF_TEST[1], OF_LIVE[1], 'target.create orbit/backend'
  ]
  t.strictSame(await actions(`target=${ids.target}`), ofBackend)
  const ofOrbit = [...ofBackend.slice(0, 3), 'secret.store orbit', ...ofBackend.slice(3), 'project.create orbit']
  t.strictSame(await actions(`project=${ids.project}`), ofOrbit)
  t.strictSame(await actions(`project=${ids.project}&target=${ids.target}&environment=${ids.environment}`), OF_LIVE)
  t.strictSame(await actions(`project=${ids.environment}`), [], 'an id of another kind of level')

  // With other filters.
  const [{ id } = { id: '' }] = await service.sql(
    `SELECT id::text AS id FROM api_tokens WHERE organization_id = '${o}'`) as { id: string }[]
  t.strictSame(await actions(`project=${ids.project}&action=secret.store`), ofOrbit.slice(0, 4))
  t.strictSame(await actions(`target=${ids.target}&actor=api_token:${id}`), ofBackend)
  t.strictSame(await actions(`target=${ids.target}&actor=operator`), [])
  t.strictSame(await actions(`target=${ids.target}&resource=environment:${ids.environment}`), [OF_LIVE[1]])
  const { sequence } = (await list(`environment=${ids.environment}`))[0]!.attributes
  t.strictSame(await actions(`environment=${ids.environment}&before=${sequence}`), [OF_LIVE[1]])
  t.strictSame(await actions(`environment=${ids.environment}&from=2099-01-01T00:00:00Z`), [])
  const paged = (await call('GET', `/${o}/audit-events?project=${ids.project}&per_page=3&page=2`)).body
  t.strictSame([paged.data.length, paged.meta.total, paged.meta.last_page], [3, 8, 3])

  const counts = (await must(call('GET', `/${o}/audit-events/counts?project=${ids.project}`))).body.data
  t.equal(counts.reduce((sum: number, { attributes: { count } }: any) => sum + count, 0), 8)
  const exported = await must(call('GET', `/${o}/audit-events/export?target=${ids.target}`))
  t.equal(exported.text.trim().split('\n').length, 6)

  await must(call('DELETE', `/${o}/orbit`))
  t.strictSame((await actions(`project=${ids.project}`)).slice(1), ofOrbit)
  for (const query of ['project=orbit', 'target=', `environment=${ids.environment}x`, 'project=8JQZ6V9T4M8N2K7R5W3X1Y0BCD']) {
    t.equal((await call('GET', `/${o}/audit-events?${query}`)).status, 422, query)
  }
})

t.test('the filters show a level to no one who does not see the audit log', async (t) => {
  const { o, ids, owner } = await world()
  const slices = [{ project_id: ids.project!, target_id: null, environment_id: null }]
  const restricted = await service.token(o, ['organization:read'], { slices })
  const guest = await callAs(service, await makePerson(service, { [o]: 'guest' }))
  for (const call of [restricted.call, guest]) {
    for (const filter of ['', `project=${ids.project}`, `environment=${ids.environment}`, `resource=project:${ids.project}`]) {
      const seen = [
        (await must(call('GET', `/${o}/audit-events?${filter}`))).body,
        (await must(call('GET', `/${o}/audit-events?page=2&per_page=1&before=1000&${filter}`))).body
      ].map(({ data, meta }) => [data, meta.total])
      t.strictSame(seen, [[[], 0], [[], 0]], filter)
      t.strictSame((await must(call('GET', `/${o}/audit-events/counts?${filter}`))).body.data, [], filter)
      const exported = await must(call('GET', `/${o}/audit-events/export?${filter}`))
      t.strictSame([exported.text, exported.headers.link], ['', undefined], filter)
    }
  }
  const elsewhere = await service.organization()
  t.strictSame((await must(elsewhere.call('GET', `/${elsewhere.organization}/audit-events?project=${ids.project}`))).body.data, [])
  t.ok(owner)
})
