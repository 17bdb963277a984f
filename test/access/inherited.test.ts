// runs: one database, embedded
import t from 'tap'
import { callWith, earlier, makeLevel, startApp, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { callAs, makePerson, makeTeam } from '../helpers/people.ts'

// A restriction with `inherited`. Merged reads of the part also use the levels above; no other request does.

const service = await startApp(t)

const PROJECT = { SHARED: 'of the project', BOTH: 'project', ALL: 'project' }
const TARGET = { ALL: 'target', OF_TARGET: 'of the target' }
const LIVE = { ALL: 'live', BOTH: 'live', OWN: 'of live' }
const MERGED = { ...PROJECT, ...TARGET, ...LIVE }
const text = (values: object) => Object.entries(values).map(([name, value]) => `${name}=${value} # note\n`).join('')
const [project, target, environment] = ['orbit', 'backend', 'live']
const DECRYPT = ['secret:read', 'secret:decrypt', 'secret:history']

const store = async (owner: Caller, level: object, plaintext: string, more: object = {}) => {
  const { status, text } = await owner.call('POST', `/${owner.organization}/secrets/store`, { ...level, plaintext, ...more })
  if (status !== 200) throw new Error(text)
}

/** An organization whose project, target and environment each have a document. */
async function filled () {
  const owner = await service.organization()
  await makeLevel(owner)
  await owner.call('POST', `/${owner.organization}/orbit/backend/environments`, { name: 'Test' })
  return owner
}
async function withDocuments () {
  const owner = await filled()
  await store(owner, { project }, text(PROJECT))
  await store(owner, { project, target }, text(TARGET))
  await store(owner, { project, target, environment }, text(LIVE))
  return owner
}

const make = async (owner: Caller, restrictions: object[], abilities: readonly string[] = DECRYPT) => {
  const made = await owner.call('POST', `/organizations/${owner.organization}/api-keys`, { name: 'CI', abilities, restrictions })
  if (made.status !== 201) throw new Error(made.text)
  return { id: made.body.api_key.id as string, call: callWith(service, made.body.token), body: made.body }
}

const LEVEL = '/orbit/backend/live'
const pathsOf = ({ organization }: Caller) => ({
  merged: `/${organization}${LEVEL}/secrets?decrypt=true&merge=true`,
  both: `/${organization}${LEVEL}/secrets?decrypt=true&merge=both`,
  raw: `/${organization}${LEVEL}/secrets?decrypt=true&merge=true&raw=true`,
  values: `/${organization}${LEVEL}/secrets/values`,
  names: `/${organization}${LEVEL}/secrets/names?merge=true`,
  retrieve: `/${organization}/secrets/retrieve`
})
const LEFT_OUT = 'strongroom-left-out'
const RETRIEVE = { project, target, environment, action: 'decrypt', merge: 'true' }

t.test('merged reads by a restriction with inherited give the winning values of all levels', async (t) => {
  const owner = await withDocuments()
  const { call } = await make(owner, [{ project, target, environment, inherited: true }])
  const paths = pathsOf(owner)

  const merged = await call('GET', paths.merged)
  t.equal(merged.status, 200, merged.text)
  t.strictSame(merged.body.data.attributes.merged, MERGED)
  t.notOk('levels' in merged.body.data.attributes)
  t.notOk('left_out' in merged.body.meta)

  const both = await call('GET', paths.both)
  t.strictSame(both.body.data.attributes.merged, MERGED)
  t.strictSame(Object.keys(both.body.data.attributes.levels), ['environment'], 'only the own document')

  for (const path of [paths.raw, paths.values]) {
    const { body, headers } = await call('GET', path)
    t.strictSame(body, MERGED)
    t.notOk(LEFT_OUT in headers)
  }
  t.strictSame((await call('POST', paths.retrieve, { ...RETRIEVE, filters: { search: 'of_' } })).body.data.secrets,
    { OF_TARGET: 'of the target' })

  const names = await call('GET', paths.names)
  const described = names.body.data.map(({ attributes: { name, level, overrides } }: any) => [name, level, overrides])
  t.strictSame(described, [
    ['ALL', 'environment', []], ['BOTH', 'environment', []], ['OF_TARGET', 'target', []], ['OWN', 'environment', []],
    ['SHARED', 'project', []]
  ])
  t.strictSame(names.body.meta, { total: 5 })

  const at = new Date().toISOString()
  const past = await call('GET', `${paths.merged}&at=${at}`)
  t.strictSame(past.body.data?.attributes.merged, MERGED, past.text)

  for (const answer of [merged, both, names, past]) {
    t.notMatch(answer.text, /of the (project|target) # note|"(project|target)":\{/, 'no document of a level above')
  }
})

t.test('everything but merged reads is as without inherited', async (t) => {
  const owner = await withDocuments()
  const restriction = { project, target, environment }
  const scopes = [...DECRYPT, 'secret:write', 'project:read', 'target:read', 'environment:read', 'key:retrieve']
  const [plain, inheriting] = [
    await make(owner, [restriction], scopes), await make(owner, [{ ...restriction, inherited: true }], scopes)
  ]
  const o = `/${owner.organization}`
  const requests: [string, string, object?][] = [
    ['GET', `${o}${LEVEL}/secrets`], ['GET', `${o}${LEVEL}/secrets?decrypt=true`],
    ['GET', `${o}/orbit/backend/secrets?decrypt=true`], ['GET', `${o}/orbit/secrets?decrypt=true&merge=true`],
    ['GET', `${o}/orbit/backend/secrets/values`], ['GET', `${o}/orbit/secrets/values`],
    ['GET', `${o}/orbit/backend/test/secrets/values`], ['GET', `${o}${LEVEL}/secrets/names`],
    ['GET', `${o}/orbit/backend/secrets/names?merge=true`],
    ['GET', `${o}${LEVEL}/secrets/names/history?name=SHARED`],
    ['GET', `${o}/orbit/secrets/names/history?name=SHARED`],
    ['GET', `${o}${LEVEL}/secrets/diff?from=environment&to=project`],
    ['GET', `${o}${LEVEL}/secrets/diff?from=environment&to=target&merge=true`],
    ['GET', `${o}/orbit/secrets/matrix`], ['GET', `${o}/secrets/names?search=SHARED`],
    ['POST', `${o}/secrets/versions`, restriction],
    ['POST', `${o}/secrets/versions`, { project, level: 'project' }],
    ['POST', `${o}/secrets/retrieve`, { ...restriction, action: 'read' }],
    ['POST', `${o}/secrets/retrieve`, { ...restriction, action: 'decrypt' }],
    ['POST', `${o}/secrets/retrieve`, { ...restriction, action: 'key:retrieve' }],
    ['POST', `${o}/secrets/retrieve`, { project, action: 'decrypt', merge: 'true' }],
    ['POST', `${o}/secrets/store`, { project, plaintext: 'A=b\n' }],
    ['PATCH', `${o}/orbit/backend/secrets`, { set: { A: 'b' } }],
    ['GET', `${o}/orbit`], ['GET', `${o}/orbit/backend`], ['GET', `${o}/orbit/encryption-key`]
  ]
  const told = ({ text }: { text: string }) => text.replace(/"timestamp":"[^"]*"/, '')
  for (const [method, path, body] of requests) {
    const [one, other] = [await plain.call(method as 'GET', path, body), await inheriting.call(method as 'GET', path, body)]
    t.equal(other.status, one.status, `${method} ${path}`)
    t.equal(told(other), told(one), `${method} ${path} ${JSON.stringify(body)}`)
    t.equal(other.headers.etag, one.headers.etag, `${method} ${path}`)
    t.notMatch(other.text, /left_out|of the project/, path)
  }
})

t.test('a merged read says which levels the restrictions exclude, with or without a document there', async (t) => {
  for (const owner of [await withDocuments(), await filled()]) {
    await store(owner, { project, target, environment }, text(LIVE))
    const paths = pathsOf(owner)
    for (const [restrictions, left] of [
      [[{ project, target, environment }], ['project', 'target']],
      [[{ project, target }], ['project']],
      [[{ project, target, environment: 'test', inherited: true }, { project, target, environment }], ['project', 'target']],
      [[{ project, target, inherited: true }], []],
      [[{ project }], []],
      [[], []]
    ] as const) {
      const { call } = await make(owner, [...restrictions])
      const [merged, both, names, retrieved, raw, values, shell, yaml] = await Promise.all([
        call('GET', paths.merged), call('GET', paths.both), call('GET', paths.names),
        call('POST', paths.retrieve, RETRIEVE), call('GET', paths.raw), call('GET', paths.values),
        call('GET', paths.values, undefined, { accept: 'text/plain' }),
        call('GET', paths.values, undefined, { accept: 'application/yaml' })
      ])
      const name = JSON.stringify(restrictions)
      for (const { status, body, headers, text } of [merged, both, names, retrieved]) {
        t.equal(status, 200, text)
        t.strictSame(body.meta.left_out, left.length === 0 ? undefined : left, name)
        t.notOk(LEFT_OUT in headers, 'the body says it')
      }
      for (const { status, headers, text } of [raw, values, shell, yaml]) {
        t.equal(status, 200, text)
        t.equal(headers[LEFT_OUT], left.length === 0 ? undefined : left.join(', '), name)
      }
      const unmerged = await call('GET', `/${owner.organization}${LEVEL}/secrets?decrypt=true`)
      t.notOk('left_out' in unmerged.body.meta, 'a read that does not merge leaves nothing out')
    }
  }
})

t.test('the ETag of a merged read depends on what is left out and inherited', async (t) => {
  const owner = await filled()
  await store(owner, { project, target, environment }, text(LIVE))
  const paths = pathsOf(owner)
  const calls = [
    (await make(owner, [{ project, target, environment }])).call,
    (await make(owner, [{ project, target, environment, inherited: true }])).call,
    (await make(owner, [])).call
  ]
  for (const path of [paths.merged, paths.both, paths.raw, paths.values, paths.names]) {
    const tags = await Promise.all(calls.map(async (call) => String((await call('GET', path)).headers.etag)))
    t.not(tags[0], tags[1], `${path}: the same document, but another answer`)
    t.not(tags[0], tags[2], path)
    for (const [i, call] of calls.entries()) {
      for (const [k, tag] of tags.entries()) {
        const { status } = await call('GET', path, undefined, { 'if-none-match': tag })
        t.equal(status, tag === tags[i] ? 304 : 200, `${path} ${i} ${k}`)
      }
    }
  }
  const [before] = await Promise.all([calls[1]!('GET', paths.values)])
  await store(owner, { project }, text(PROJECT))
  const after = await calls[1]!('GET', paths.values, undefined, { 'if-none-match': String(before.headers.etag) })
  t.strictSame([after.status, after.body], [200, { ...PROJECT, ...LIVE }], 'a change above changes the ETag')
})

t.test('an unreadable document above is 422 with its level alone, and the own one with its place', async (t) => {
  const owner = await filled()
  await store(owner, { project }, 'A=1\nB="open', { unchecked: true })
  await store(owner, { project, target, environment }, text(LIVE))
  const { call } = await make(owner, [{ project, target, environment, inherited: true }])
  const paths = pathsOf(owner)
  for (const path of [paths.merged, paths.both, paths.raw, paths.values, paths.names]) {
    const { status, body } = await call('GET', path)
    t.strictSame([status, body.error, body.details], [422, 'document_unreadable', { level: 'project' }], path)
  }
  await store(owner, { project }, text(PROJECT))
  await store(owner, { project, target, environment }, 'A=1\nB="open', { unchecked: true })
  t.match((await call('GET', paths.values)).body.details, { level: 'environment', line: 2 })
})

t.test('the event of a merged read names the inherited documents too', async (t) => {
  const owner = await withDocuments()
  const { call } = await make(owner, [{ project, target, environment, inherited: true }])
  const paths = pathsOf(owner)
  const answers = [await call('GET', paths.values), await call('GET', paths.names), await call('GET', paths.merged)]
  t.ok(answers.every(({ status }) => status === 200))
  const ids = await Promise.all(['/orbit', '/orbit/backend', LEVEL].map(async (path) => {
    const { body } = await owner.call('GET', `/${owner.organization}${path}/secrets`)
    return Object.values<any>(body.data.attributes.levels).at(-1).id
  }))
  const events = await owner.call('GET', `/${owner.organization}/audit-events?per_page=100`)
  const read = events.body.data.filter(({ attributes }: any) => ['secret.decrypt', 'secret.names'].includes(attributes.action))
  t.equal(read.length, 3, events.text)
  for (const { attributes } of read) t.equal(attributes.details.secrets, ids.join(' '))
})

t.test('no token makes, changes or sees a token with inherited that it does not have itself', async (t) => {
  const owner = await withDocuments()
  const keys = `/organizations/${owner.organization}/api-keys`
  const scopes = [...DECRYPT, 'api-token:read', 'api-token:create', 'api-token:update', 'api-token:delete']
  const place = { project, target, environment }
  const makers = {
    whole: [],
    project: [{ project }],
    targetOnly: [{ project, target }],
    target: [{ project, target, inherited: true }],
    only: [place],
    live: [{ ...place, inherited: true }],
    apart: [{ project, target, environment: 'test', inherited: true }, place]
  }
  const made = {
    only: [place],
    live: [{ ...place, inherited: true }],
    target: [{ project, target, inherited: true }],
    several: [place, { project, target, environment: 'test', inherited: true }]
  }
  const allowed: Record<keyof typeof makers, (keyof typeof made)[]> = {
    whole: ['only', 'live', 'target', 'several'],
    project: ['only', 'live', 'target', 'several'],
    targetOnly: ['only'],
    target: ['only', 'live', 'target', 'several'],
    only: ['only'],
    live: ['only', 'live'],
    apart: ['only', 'several']
  }
  const tokens = new Map<string, string>()
  for (const [name, restrictions] of Object.entries(made)) tokens.set(name, (await make(owner, restrictions)).id)
  for (const [name, restrictions] of Object.entries(makers)) {
    const { call } = await make(owner, restrictions, scopes)
    const { body: { data: listed } } = await call('GET', `${keys}?per_page=100`)
    for (const [wanted, restrictions] of Object.entries(made)) {
      const isAllowed = allowed[name as keyof typeof makers].includes(wanted as keyof typeof made)
      const id = tokens.get(wanted)!
      const answer = await call('POST', keys, { name: 'CI', abilities: DECRYPT, restrictions })
      t.equal(answer.status, isAllowed ? 201 : 403, `${name} makes ${wanted}`)
      t.equal(listed.some((token: any) => token.id === id), isAllowed, `${name} lists ${wanted}`)
      t.equal((await call('GET', `${keys}/${id}`)).status, isAllowed ? 200 : 404, `${name} reads ${wanted}`)
      t.equal((await call('PUT', `${keys}/${id}`, { name: 'Other' })).status, isAllowed ? 200 : 404, `${name} changes ${wanted}`)
      t.equal((await call('POST', `${keys}/${id}/rotate`, {})).status, isAllowed ? 200 : 404, `${name} rotates ${wanted}`)
      if (!isAllowed) t.equal((await call('DELETE', `${keys}/${id}`)).status, 404, `${name} deletes ${wanted}`)
    }
  }
})

t.test('what the restrictions of a token and of its person include must agree', async (t) => {
  const owner = await withDocuments()
  const { organization } = owner
  const person = await makePerson(service, { [organization]: 'owner' })
  const live = { project, target, environment }
  const token = async (restriction: object) => {
    const made = await (await callAs(service, person))('POST', `/organizations/${organization}/api-keys`, {
      name: 'Theirs', abilities: DECRYPT, restrictions: [restriction], expires_at: new Date(Date.now() + 600_000).toISOString()
    })
    t.equal(made.status, 201, made.text)
    return callWith(service, made.body.token)
  }
  const [plain, inheriting] = [await token(live), await token({ ...live, inherited: true })]
  await makeTeam(service, organization, [person], { orbit: 'developer' })
  await service.write(
    `UPDATE members SET role = 'billing_manager' WHERE organization_id = '${organization}' AND user_id = ${person.id}`
  )
  const [{ attributes: { slug } }] = (await owner.call('GET', `/organizations/${organization}/teams`)).body.data
  for (const [restrictions, isWhole] of [
    [[], true],
    [[{ target, environment, inherited: true }], true],
    [[{ target, inherited: true }], true],
    [[{ except_status: 'production', inherited: true }], true],
    [[{ target, inherited: false }], false],
    [[{ target, environment, inherited: false }], false],
    [[{ target, environment: 'test', inherited: true }, { target, environment, inherited: false }], false]
  ] as const) {
    const set = await owner.call('PUT', `/organizations/${organization}/teams/${slug}/projects/orbit`, { restrictions })
    t.equal(set.status, 200, set.text)
    const name = JSON.stringify(restrictions)
    const answer = await inheriting('GET', pathsOf(owner).values)
    t.strictSame([answer.status, answer.body], [200, isWhole ? MERGED : LIVE], name)
    t.equal(answer.headers[LEFT_OUT], isWhole ? undefined : 'project, target', name)
    t.strictSame((await plain('GET', pathsOf(owner).values)).body, LIVE, name)
  }
})

t.test('a level that is visible itself stays so beside one that is only merged', async (t) => {
  const owner = await withDocuments()
  const { call } = await make(owner, [{ project, target }, { project, target, environment, inherited: true }])
  const paths = pathsOf(owner)
  const both = (await call('GET', paths.both)).body.data.attributes
  t.strictSame([Object.keys(both.levels), both.merged], [['target', 'environment'], MERGED])
  const { body } = await call('GET', paths.names)
  t.strictSame(body.data.map(({ attributes }: any) => [attributes.name, attributes.overrides]), [
    ['ALL', ['target']], ['BOTH', []], ['OF_TARGET', []], ['OWN', []], ['SHARED', []]
  ])
  const ofTarget = await call('GET', `/${owner.organization}/orbit/backend/secrets/values`)
  t.strictSame([ofTarget.body, ofTarget.headers[LEFT_OUT]], [TARGET, 'project'], 'the target itself inherits nothing')
})

t.test('a document above outside of the retention is gone, without the time of its version', async (t) => {
  const owner = await service.organization({ plan: 'free' })
  const { organization } = owner
  await makeLevel(owner)
  await store(owner, { project }, text(PROJECT))
  await store(owner, { project, target, environment }, text(LIVE))
  const its = `WHERE organization_id = '${organization}'`
  for (const table of ['projects', 'targets', 'environments']) {
    await service.sql(`UPDATE ${table} SET ${earlier('created_at', '30 days')} ${its}`)
  }
  await service.sql(`UPDATE secret_versions SET ${earlier('created_at', '20 days')} ${its}`)
  await service.sql(`UPDATE secrets SET ${earlier('created_at', '20 days')}, ${earlier('updated_at', '20 days')} ${its}`)
  await store(owner, { project }, text({ SHARED: 'new' }))
  const at = new Date(Date.now() - 15 * 86_400_000).toISOString()
  const path = `${pathsOf(owner).merged}&at=${at}`
  const { call } = await make(owner, [{ project, target, environment, inherited: true }])
  const { status, body } = await call('GET', path)
  t.strictSame([status, body.error, body.details], [422, 'version_gone', { level: 'orbit' }])
  t.match((await owner.call('GET', path)).body, { error: 'version_locked', details: { version_created_at: /Z$/ } })
})

t.test('a token shows inherited; an update that omits it keeps it, and false removes it', async (t) => {
  const owner = await withDocuments()
  const keys = `/organizations/${owner.organization}/api-keys`
  const place = { project, target, environment }
  const other = { project, target, environment: 'test' }
  const inheriting = { ...place, inherited: true }
  const { id, call, body } = await make(owner, [place, inheriting, { ...other, inherited: false }])
  t.strictSame(body.api_key.restrictions, [inheriting, other], 'false is not shown, and one of two for a part is enough')
  t.notOk('warning' in body)
  const put = (restrictions: object[]) => owner.call('PUT', `${keys}/${id}`, { restrictions })
  for (const [sent, status, shown] of [
    [[place, other], 200, [inheriting, other]],
    [[other, inheriting], 200, [inheriting, other]],
    [[inheriting, { ...other, inherited: true }], 422, [inheriting, other]],
    [[{ ...place, inherited: false }], 422, [inheriting, other]],
    [[{ ...place, inherited: false }, { project, target }], 422, [inheriting, other]],
    [[{ ...place, inherited: false }, other], 200, [place, other]],
    [[place, other], 200, [place, other]],
    [[inheriting, other], 422, [place, other]]
  ] as const) {
    const answer = await put([...sent])
    t.equal(answer.status, status, JSON.stringify(sent))
    if (status === 422) t.equal(answer.body.error, 'restrictions_are_fixed')
    t.strictSame((await owner.call('GET', `${keys}/${id}`)).body.data.restrictions, shown, JSON.stringify(sent))
    const values = await call('GET', pathsOf(owner).values)
    t.equal('SHARED' in values.body, 'inherited' in shown[0]!, 'holds at once')
  }
})

t.test('the end of inherited says that live tokens which the token made still have it', async (t) => {
  const owner = await withDocuments()
  const keys = `/organizations/${owner.organization}/api-keys`
  const place = { project, target, environment }
  const inheriting = { ...place, inherited: true }
  const abilities = ['*']
  for (const [what, made, warns] of [
    ['one that has it', [{ restrictions: [inheriting] }], true],
    ['one of two', [{ restrictions: [place] }, { restrictions: [inheriting] }], true],
    ['none', [], false],
    ['one without it', [{ restrictions: [place] }], false],
    ['a revoked one', [{ restrictions: [inheriting], isRevoked: true }], false]
  ] as const) {
    const maker = await make(owner, [inheriting], abilities)
    for (const { restrictions, ...more } of made) {
      const { status, body } = await maker.call('POST', keys, { name: 'Made', abilities: ['secret:read'], restrictions })
      t.equal(status, 201, what)
      if ('isRevoked' in more) await owner.call('DELETE', `${keys}/${body.api_key.id}`)
    }
    const put = (body: object) => owner.call('PUT', `${keys}/${maker.id}`, body)
    t.notOk('warning' in (await put({ name: what, restrictions: [place] })).body, 'nothing was removed')
    const { status, body } = await put({ restrictions: [{ ...place, inherited: false }] })
    t.strictSame([status, 'warning' in body], [200, warns], what)
    if (warns) t.match(body.warning, /tokens that this token made .* `created_by`/)
  }
})

t.test('inherited is only for a part of a project, and without effect where the server does not merge', async (t) => {
  const owner = await service.organization()
  const keys = `/organizations/${owner.organization}/api-keys`
  await makeLevel(owner, { name: 'Plain', secret_format: 'text' })
  await makeLevel(owner, { name: 'Vault', ...(await clientKey('a key string of the client')).registration })
  await makeLevel(owner)
  const create = (restrictions: object[]) => owner.call('POST', keys, { name: 'CI', abilities: DECRYPT, restrictions })
  const refused = await create([{ project }, { project, inherited: true }])
  t.strictSame([refused.status, Object.keys(refused.body.errors)], [422, ['restrictions.1.inherited']])
  t.equal((await create([{ project, inherited: false }])).status, 201)
  t.equal((await create([{ project, target, inherited: 'true' }])).status, 422)
  const told = await create(['orbit', 'plain', 'vault'].map((project) => ({ project, target, inherited: true })))
  t.equal(told.status, 201)
  t.equal(told.body.warning, '`inherited` has no effect in `plain`, `vault`: documents there are not merged')
  t.notOk('warning' in (await create(['orbit', 'plain'].map((project, i) => ({ project, target, inherited: i === 0 })))).body)

  const teams = `/organizations/${owner.organization}/teams`
  await owner.call('POST', teams, { name: 'Crew' })
  const put = (project: string) =>
    owner.call('PUT', `${teams}/crew/projects/${project}`, { restrictions: [{ target, inherited: true }] })
  for (const project of ['plain', 'vault']) {
    const { status, body } = await put(project)
    t.strictSame([status, body.warning], [200, `\`inherited\` has no effect in \`${project}\`: documents there are not merged`])
    t.strictSame(body.data.attributes.projects.find(({ slug }: any) => slug === project).restrictions,
      [{ project, target, inherited: true }])
  }
  t.notOk('warning' in (await put('orbit')).body)
})

t.test('the role of a team can include what is inherited, also for environments by status', async (t) => {
  const owner = await withDocuments()
  const { organization } = owner
  const person = await makePerson(service, { [organization]: 'billing_manager' })
  await makeTeam(service, organization, [person], { orbit: 'developer' })
  const teams = (await owner.call('GET', `/organizations/${organization}/teams`)).body.data
  const path = `/organizations/${organization}/teams/${teams[0].attributes.slug}/projects/orbit`
  const paths = pathsOf(owner)
  const call = await callAs(service, person)
  const read = async () => {
    const { status, body, headers } = await call('GET', paths.values)
    return [status, status === 200 && 'SHARED' in body, headers[LEFT_OUT]]
  }
  const put = async (restrictions: object[], expected: object[]) => {
    const { status, body, text } = await owner.call('PUT', path, { restrictions })
    t.equal(status, 200, text)
    t.strictSame(body.data.attributes.projects[0].restrictions, expected.map((one) => ({ project, ...one })))
  }
  const left = [200, false, 'project, target']
  const whole = [200, true, undefined]
  const byStatus = { except_status: 'production' }
  await put([byStatus], [byStatus])
  t.strictSame(await read(), left)
  await put([{ ...byStatus, inherited: true }], [{ ...byStatus, inherited: true }])
  t.strictSame(await read(), whole)
  await put([byStatus], [{ ...byStatus, inherited: true }])
  t.strictSame(await read(), whole, 'a PUT that omits it keeps it')
  t.equal((await owner.call('PUT', path, { role: 'member' })).status, 200)
  t.strictSame(await read(), whole)
  await put([{ ...byStatus, inherited: false }], [byStatus])
  t.strictSame(await read(), left, 'false removes it')
  await put([{ target, environment, inherited: true }], [{ target, environment, inherited: true }])
  t.strictSame(await read(), whole)
  await put([{ target, environment: 'test' }, { target, environment }],
    [{ target, environment: 'test' }, { target, environment, inherited: true }])
  t.strictSame(await read(), whole, 'another part takes nothing over')
  const access = await owner.call('GET', `/organizations/${organization}/members/${person.id}/access`)
  t.ok(access.body.data.attributes.projects[0].rights.every(({ restrictions }: any) =>
    restrictions.some(({ inherited }: any) => inherited === true)), 'the overview of what a member can do shows it')

  await owner.call('PATCH', `/${organization}${LEVEL}`, { status: 'production' })
  await put([{ ...byStatus, inherited: true }], [{ ...byStatus, inherited: true }])
  t.equal((await read())[0], 404, 'and it adds no level')
})

t.test('what is inherited needs each scope of the request there: a team that only reads adds no values', async (t) => {
  const owner = await withDocuments()
  const { organization } = owner
  const person = await makePerson(service, { [organization]: 'billing_manager' })
  const live = { target, environment }
  for (const [name, role, restriction] of [
    // `api_user` includes secret:read, but not secret:decrypt.
    ['Readers', 'api_user', { ...live, inherited: true }], ['Crew', 'developer', live]
  ] as const) {
    const made = await owner.call('POST', `/organizations/${organization}/teams`, { name })
    const path = `/organizations/${organization}/teams/${made.body.data.attributes.slug}`
    t.equal((await owner.call('PUT', `${path}/projects/orbit`, { role, restrictions: [restriction] })).status, 200)
    t.equal((await owner.call('PUT', `${path}/members/${person.id}`, {})).status, 200)
  }
  const { status, body, headers } = await (await callAs(service, person))('GET', pathsOf(owner).values)
  t.strictSame([status, body, headers[LEFT_OUT]], [200, LIVE, 'project, target'])
})
