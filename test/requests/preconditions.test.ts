// runs: one database
import t from 'tap'
import { makeProof } from '../../src/crypto/key-proof.ts'
import { startIsolatedApp, type Answer } from '../helpers/app.ts'
import { makePerson, makeTeam } from '../helpers/people.ts'
import { describing } from '../helpers/contract.ts'
import { fingerprint, OPERATIONS, prepare, publishedPaths, READS, send, settle } from '../helpers/operations.ts'

// ETags of organizations, projects, targets, environments, members and teams, and changes that depend on these ETags.
// secrets.test.ts tests the ETags of documents.

// This file has its own database, because it compares fingerprints of all tables.
const service = await startIsolatedApp(t)
const caller = await service.organization()
const o = caller.organization
const call = async (method: string, path: string, body?: object, headers?: Record<string, string>) =>
  caller.call(method, path, body, headers)
/** Repeats a request after a 503, which a busy machine can cause. A request with 503 has changed nothing. */
async function served (ask: () => Promise<Answer>): Promise<Answer> {
  const answer = await ask()
  return answer.status === 503 ? served(ask) : answer
}
const eventsOf = async () => Number((await service.sql(
  `SELECT count(*) FROM audit_events WHERE organization_id = '${o}'`
))[0]!.count)

let made = 0

interface Resource { path: string, long?: string, change: (n: number) => object, put: boolean }

/** A resource of each kind: its path, and a change that differs each time. */
const KINDS: Record<string, () => Promise<Resource>> = {
  project: async () => {
    const slug = `project-${++made}`
    await call('POST', `/${o}/projects`, { name: 'Orbit', slug })
    const [path, long] = [`/${o}/${slug}`, `/organizations/${o}/projects/${slug}`]
    return { path, long, change: (n) => ({ description: `Change ${n}` }), put: true }
  },
  target: async () => {
    const { path: project, long: longProject } = await KINDS.project!()
    await call('POST', `${project}/targets`, { name: 'Backend', slug: 'backend' })
    const [path, long] = [`${project}/backend`, `${longProject}/targets/backend`]
    return { path, long, change: (n) => ({ description: `Change ${n}` }), put: true }
  },
  environment: async () => {
    const { path: target, long: longTarget } = await KINDS.target!()
    await call('POST', `${target}/environments`, { name: 'Live', slug: 'live' })
    const [path, long] = [`${target}/live`, `${longTarget}/environments/live`]
    return { path, long, change: (n) => ({ name: `Live ${n}` }), put: true }
  },
  member: async () => {
    const { id } = await makePerson(service, { [o]: 'auditor' })
    const change = (n: number) => ({ role: ['developer', 'member', 'api_user'][n % 3] })
    return { path: `/organizations/${o}/members/${id}`, change, put: false }
  },
  team: async () => {
    const member = await makePerson(service, { [o]: 'member' })
    const id = await makeTeam(service, o, [member], {})
    return { path: `/organizations/${o}/teams/${id}`, change: (n) => ({ description: `Change ${n}` }), put: false }
  }
}

const etagOf = ({ headers }: Answer) => String(headers.etag)

for (const [kind, make] of Object.entries(KINDS)) {
  t.test(`a ${kind} has a strong ETag: a read with it is 304, a change or deletion with another is 412`, async (t) => {
    const { path, long, change, put } = await make()
    const first = await call('GET', path)
    const etag = etagOf(first)
    t.match(etag, /^"[\w-]{22}"$/)
    t.equal(etagOf(await call('GET', path)), etag, 'as long as it is the same')
    if (long !== undefined) t.equal(etagOf(await call('GET', long)), etag, 'at its former path, too')
    const unchanged = await call('GET', path, undefined, { 'if-none-match': `"other", ${etag}` })
    t.match(unchanged, { status: 304, text: '', headers: { etag } })
    t.notOk('content-type' in unchanged.headers)
    t.match(await call('HEAD', path), { status: 200, headers: { etag } })
    t.equal((await call('GET', path, undefined, { 'if-none-match': '"other"' })).status, 200)

    const before = await eventsOf()
    for (const [headers, what] of [
      [{ 'if-match': '"other"' }, 'another one'], [{ 'if-match': `W/${etag}` }, 'a weak one'],
      [{ 'if-none-match': '*' }, 'none at all']
    ] as const) {
      for (const method of put ? ['PATCH', 'PUT', 'DELETE'] : ['PATCH', 'DELETE']) {
        const answer = await call(method, path, method === 'DELETE' ? undefined : change(0), headers)
        t.match(answer, { status: 412, body: { error: 'precondition_failed' } }, `${method}: ${what}`)
      }
    }
    t.strictSame([(await call('GET', path)).text, await eventsOf()], [first.text, before], 'nothing was changed')

    const changed = await call('PATCH', path, change(1), { 'if-match': `"other", ${etag}` })
    t.equal(changed.status, 200)
    const next = etagOf(await call('GET', path))
    t.not(next, etag)
    if (kind !== 'team') t.equal(etagOf(changed), next, 'the answer to a change has the next one')
    t.equal((await call('PATCH', path, change(2), { 'if-match': etag })).status, 412, 'it has moved on')
    t.equal((await call('PATCH', path, change(2), { 'if-match': '*' })).status, 200)
    t.equal((await call('DELETE', path, undefined, { 'if-match': next })).status, 412)
    const last = etagOf(await call('GET', path))
    t.equal((await call('DELETE', path, undefined, { 'if-match': last })).status, 204)
    t.equal((await call('DELETE', path, undefined, { 'if-match': last })).status, 404)
  })

  t.test(`of those who change a ${kind} and those who end it at once, with one If-Match, one succeeds`, async (t) => {
    const { path, change, put } = await make()
    const etag = etagOf(await call('GET', path))
    const before = await eventsOf()
    const answers = await Promise.all(Array.from({ length: 12 }, (_, n) => {
      const method = ['PATCH', 'DELETE', put ? 'PUT' : 'PATCH'][n % 3]!
      return served(async () => call(method, path, method === 'DELETE' ? undefined : change(n), { 'if-match': etag }))
    }))
    const good = answers.filter(({ status }) => status < 300)
    t.equal(good.length, 1)
    // After a deletion, the resource does not exist any more.
    const others = good[0]!.status === 204 ? [404, 412] : [412]
    t.same(answers.filter((one) => one !== good[0] && !others.includes(one.status)), [])
    t.equal(await eventsOf(), before + 1)
  })

  t.test(`a ${kind} that is changed in no member keeps its ETag`, async (t) => {
    const { path } = await make()
    const etag = etagOf(await call('GET', path))
    const answer = await call('PATCH', path, {})
    // A member has no other field to change.
    t.equal(answer.status, kind === 'member' ? 422 : 200)
    t.equal(etagOf(await call('GET', path)), etag)
  })

  t.test(`of 50 writers of a ${kind} at once with one If-Match, one succeeds and 49 get 412`, async (t) => {
    const { path, change } = await make()
    const etag = etagOf(await call('GET', path))
    const before = await eventsOf()
    const answers = await Promise.all(Array.from({ length: 50 }, (_, n) =>
      served(async () => call('PATCH', path, change(n), { 'if-match': etag }))))
    const statuses = answers.map(({ status }) => status).sort()
    t.strictSame(statuses, [200, ...Array.from({ length: 49 }, () => 412)])
    t.equal(await eventsOf(), before + 1)
  })
}

t.test('a created resource has the ETag of its reads; counts and the members of a team are part of the ETag', async (t) => {
  const project = await call('POST', `/${o}/projects`, { name: 'Tagged', slug: 'tagged' })
  t.equal(etagOf(project), etagOf(await call('GET', `/${o}/tagged`)))
  const target = await call('POST', `/${o}/tagged/targets`, { name: 'Backend' })
  t.equal(etagOf(target), etagOf(await call('GET', `/${o}/tagged/backend`)))
  t.not(etagOf(project), etagOf(await call('GET', `/${o}/tagged`)), 'counts are a part of it')
  const { path } = await KINDS.team!()
  const { id } = await makePerson(service, { [o]: 'member' })
  const before = etagOf(await call('GET', path))
  t.equal((await call('PUT', `${path}/members/${id}`, {})).status, 200)
  t.equal((await call('PATCH', path, { name: 'Other' }, { 'if-match': before })).status, 412)
})

t.test('who is put into a team or taken out, and what it holds, depends on the ETag of the team', async (t) => {
  const { path } = await KINDS.team!()
  const { path: project } = await KINDS.project!()
  const { id } = await makePerson(service, { [o]: 'member' })
  const changes = [
    ['PUT', `${path}/members/${id}`, {}], ['PUT', `${path}/projects/${project.split('/').at(-1)}`, { role: 'auditor' }],
    ['DELETE', `${path}/projects/${project.split('/').at(-1)}`], ['DELETE', `${path}/members/${id}`]
  ] as const
  for (const [method, at, body] of changes) {
    const team = await call('GET', path)
    const before = await eventsOf()
    const moved = await call(method, at, body, { 'if-match': '"other"' })
    t.match(moved, { status: 412, body: { error: 'precondition_failed' } }, `${method} ${at}`)
    t.strictSame([(await call('GET', path)).text, await eventsOf()], [team.text, before], 'nothing was changed')
    const changed = await call(method, at, body, { 'if-match': etagOf(team) })
    t.ok(changed.status < 300, changed.text)
    const next = etagOf(await call('GET', path))
    t.not(next, etagOf(team))
    if (method === 'PUT') t.equal(etagOf(changed), next, 'the answer has the next one')
  }
})

t.test('an If-Match or If-None-Match that is neither * nor a list of ETags is 422, and is never ignored', async (t) => {
  const { path, change } = await KINDS.project!()
  const etag = etagOf(await call('GET', path))
  for (const bad of ['W/*', `${etag}, *`, `*, ${etag}`, `x${etag}`, `${etag} "x"`, etag.slice(1, -1), '"', '']) {
    for (const name of ['if-match', 'if-none-match']) {
      t.match(await call('PATCH', path, change(1), { [name]: bad }), {
        status: 422, body: { error: 'validation_failed', errors: { [name]: [String] } }
      }, `${name}: ${bad}`)
    }
    // A read with an invalid header gets the complete response.
    t.equal((await call('GET', path, undefined, { 'if-none-match': bad })).status, 200, bad)
  }
  t.equal(etagOf(await call('GET', path)), etag)
})

t.test('every change that depends on no precondition refuses one', async (t) => {
  const { caller, ids } = await settle(service, 'unconditional')
  const paths = publishedPaths(service)
  const before = await fingerprint(service)
  const refused: string[] = []
  for (const [id, row] of Object.entries(OPERATIONS)) {
    const [method, path] = row.at.split(' ') as [string, string]
    if (method === 'GET' || row.access === 'public' || row.byPerson || READS.includes(id)) continue
    const { parameters = [], responses } = paths[path]![method.toLowerCase()]
    if ((parameters as { name: string }[]).some(({ name }) => name === 'if-match')) continue
    refused.push(id)
    t.ok(responses['422'] ?? responses.default, `${id}: the document says so`)
    for (const name of ['if-match', 'if-none-match']) {
      const answer = await send(service, row, ids, caller.token, { [name]: '"x"' })
      t.match(answer, { status: 422, body: { errors: { [name]: [/does not support preconditions/] } } }, `${id}: ${answer.text}`)
    }
  }
  t.ok(['rotateEncryptionKey', 'rotateClientKeys', 'updateApiToken', 'createProject'].every((id) =>
    refused.includes(id)), refused.join())
  t.equal(await fingerprint(service), before, 'nothing was changed')
})

t.test('a restore depends on the ETag of the level that it writes', async (t) => {
  const { path: project } = await KINDS.project!()
  const level = { project: project.split('/').at(-1)! }
  const store = async (plaintext: string) => call('POST', `/${o}/secrets/store`, { ...level, plaintext })
  const first = await store('A=1')
  const second = await store('A=2')
  const restore = (headers: { 'if-match'?: string, 'if-none-match'?: string }) =>
    call('POST', `/${o}/secrets/versions/${first.body.data.version}/restore`, {}, headers as Record<string, string>)
  for (const headers of [{ 'if-match': etagOf(first) }, { 'if-none-match': '*' }]) {
    t.match(await restore(headers), { status: 412, body: { error: 'precondition_failed' } })
  }
  const restored = await restore({ 'if-match': etagOf(second) })
  t.equal(restored.status, 200)
  t.equal(
    etagOf(restored), (await call('GET', `/${o}/${level.project}/secrets`)).body.data.attributes.levels.project.etag,
    'the answer has the ETag of the level'
  )
  t.equal((await restore({ 'if-match': etagOf(second) })).status, 412, 'it has moved on')
})

t.test('an organization has an ETag, and its changes and its end depend on it', async (t) => {
  const other = await service.organization()
  const path = `/organizations/${other.organization}`
  const first = await other.call('GET', path)
  const at = { 'if-match': etagOf(first) }
  t.equal((await other.call('GET', path, undefined, { 'if-none-match': etagOf(first) })).status, 304)
  const answers = await Promise.all(Array.from({ length: 12 }, (_, n) =>
    other.call(n % 2 === 0 ? 'PATCH' : 'PUT', path, { name: `Nimbus ${n}` }, at)))
  const good = answers.filter(({ status }) => status === 200)
  t.strictSame([good.length, answers.filter(({ status }) => status === 412).length], [1, 11])
  t.equal(etagOf(good[0]!), etagOf(await other.call('GET', path)), 'the answer has the next one')
  t.equal((await other.call('DELETE', path, { confirmed: true }, at)).status, 412)
  t.equal((await other.call('PATCH', path, {})).status, 200)
  t.equal(etagOf(await other.call('GET', path)), etagOf(good[0]!), 'it was changed in no member')
  const next = { 'if-match': etagOf(good[0]!) }
  t.equal((await other.call('DELETE', path, { confirmed: true }, next)).status, 204)
})

t.test('HEAD with If-None-Match answers what GET does, on every read that has an ETag', async (t) => {
  const { caller, ids } = await settle(service, 'heads')
  const tagged: string[] = []
  for (const [id, row] of Object.entries(OPERATIONS)) {
    const [method, path] = row.at.split(' ') as [string, string]
    if (method !== 'GET' || publishedPaths(service)[path]?.get?.responses['304'] === undefined) continue
    tagged.push(id)
    await prepare(service, row, ids)
    const etag = etagOf(await send(service, row, ids, caller.token))
    const head = { ...row, at: `HEAD ${path}` }
    for (const [listed, status] of [[etag, 304], ['"other"', 200]] as const) {
      const [get, same] = [row, head].map(async (one) =>
        send(service, one, ids, caller.token, { 'if-none-match': listed }))
      const { 'x-request-id': _, date: __, ...headers } = (await get!).headers
      t.match(await same!, { status, text: '', headers }, `${id}: ${status}`)
      t.equal('content-length' in (await same!).headers, status === 200, `${id}: the length of what is there`)
    }
  }
  t.ok(['Project', 'Target', 'Environment', 'Member', 'Team'].every((kind) => tagged.includes(`get${kind}`)), tagged.join())
  t.ok(tagged.some((id) => id.startsWith('read')), tagged.join())
})

t.test('a change of custody depends on the ETag, too', async (t) => {
  const encryption_key = 'a key string that has more than 32 bytes'
  await call('POST', `/${o}/projects`, { name: 'Custody', slug: 'custody', encryption_key })
  const { key_check_salt, key_check_iterations } = (await call('GET', `/${o}/custody/encryption-key`)).body.data.attributes
  const proof = Buffer.alloc(32).toString('base64')
  const body = { storage_mode: 'client', key_check: proof, key_check_salt, key_check_iterations, key_proof: proof }
  t.equal((await call('PATCH', `/${o}/custody`, body, { 'if-match': '"other"' })).status, 422, 'the proof comes first')
  const right = await makeProof(encryption_key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
  const good = { ...body, key_check: right, key_proof: right }
  t.equal((await call('PATCH', `/${o}/custody`, good, { 'if-match': '"other"' })).status, 412)
  const etag = etagOf(await call('GET', `/${o}/custody`))
  t.equal((await call('PATCH', `/${o}/custody`, good, { 'if-match': etag })).status, 200)
})

t.test('the document says which operations take a precondition, and what has an ETag', async (t) => {
  const operations = Object.values(publishedPaths(service)).flatMap((methods) => Object.values(methods)) as {
    operationId: string
    description?: string
    parameters?: { name: string }[]
    responses: Record<string, { headers?: Record<string, unknown> }>
  }[]
  const takes = operations.filter(({ parameters = [] }) => parameters.some(({ name }) => name === 'if-match'))
  const kinds = ['Organization', 'Project', 'Target', 'Environment']
  t.strictSame(takes.map(({ operationId }) => operationId).sort(), [
    'deleteSecrets', 'storeSecrets', 'restoreVersion', 'removeMember', 'updateMember', 'putMember', 'withdrawInvitation', 'updateTeam', 'putTeam', 'deleteTeam', 'updateWorkload', 'deleteWorkload',
    'addTeamMember', 'removeTeamMember', 'setTeamProject', 'patchTeamProject', 'removeTeamProject',
    ...kinds.slice(1).map((kind) => `change${kind}Secrets`),
    ...kinds.flatMap((kind) => [`update${kind}`, `put${kind}`, `delete${kind}`])
  ].sort())
  for (const operation of takes) t.ok(describing(operation, operations).responses['412'], operation.operationId)
  const reads = operations.filter(({ responses }) => responses['304'] !== undefined)
  for (const kind of [...kinds, 'Member', 'Invitation', 'Team', 'Workload']) {
    const read = reads.find(({ operationId }) => operationId === `get${kind}`)
    t.ok(read?.responses['200']!.headers?.ETag, `get${kind}`)
  }
})
