// runs: one database; 10 s
import t from 'tap'
import type { Scope } from '../../schemas/scopes.ts'
import { WORKLOAD_SCOPES } from '../../schemas/workloads.ts'
import { MAX_TOKEN_LENGTH } from '../../src/crypto/bearer.ts'
import type { RuleRow } from '../../src/repositories/people/workloads.ts'
import { makeLevel, startApp, startIsolatedApp, type Answer } from '../helpers/app.ts'
import { furtherScopes, OPERATIONS, prepare, send, settle, type Row } from '../helpers/operations.ts'
import { startBeside } from '../helpers/traffic.ts'
import { makeRule, makeSigner, tokenOf } from '../helpers/workloads.ts'

// What the token of a workload can do, until when, and how it is recorded. `oauth/workload-exchange` tests how it is
// issued, and `revocation` that it ends while a request runs.

const service = await startApp(t)
const nimbus = await service.organization()
const o = nimbus.organization
const level = await makeLevel(nimbus)
const READ = `/${o}/${level.project}/${level.target}/${level.environment}/secrets`
await nimbus.call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' })

const as = (token: string) => async (
  method: string, path: string, body?: object, headers: Record<string, string> = {}
): Promise<Answer> => nimbus.call(method, path, body, { authorization: `Bearer ${token}`, ...headers })
const indexes = (scopes: readonly Scope[]) => scopes.map((scope) => WORKLOAD_SCOPES.indexOf(scope))

t.test('WI-45 a token has at most 512 characters, and is valid as it was issued alone', async (t) => {
  const rule = await makeRule(service, o)
  const token = tokenOf(service, rule, { scopes: indexes(WORKLOAD_SCOPES) })
  t.ok(token.length <= MAX_TOKEN_LENGTH, `${token.length} characters`)
  t.equal((await as(token)('GET', READ)).status, 200)
  const other = await service.organization()
  const start = `dotenv_wl_${o}_`.length
  const changed = [
    token.slice(0, -1), `${token}A`, `${token}=`, token.replace('_wl_', '_at_'), token.replace(o, o.toLowerCase()),
    token.replace(o, other.organization), ` ${token.slice(1)}`, token.replace(/.$/, (last) => last === 'A' ? 'B' : 'A'),
    ...Array.from({ length: 40 }, (_, i) => {
      const at = start + Math.floor(i * (token.length - start) / 40)
      return `${token.slice(0, at)}${token[at] === 'x' ? 'y' : 'x'}${token.slice(at + 1)}`
    })
  ]
  const statuses = await Promise.all(changed.map(async (one) => (await as(one)('GET', READ)).status))
  t.ok(statuses.every((status) => status === 401), statuses.join())
  const elsewhere = await startIsolatedApp(t)
  const { organization } = await elsewhere.organization()
  const theirs = await makeRule(elsewhere, organization)
  t.equal((await as(tokenOf(elsewhere, theirs))('GET', READ)).status, 401, 'another service sealed it')
})

t.test('WI-47 each operation accepts a workload with its scopes, and refuses one without', async (t) => {
  const { caller, ids } = await settle(service, 'workload')
  const rule = await makeRule(service, caller.organization)
  const scopesOf = (row: Row) => [row.needs ?? row.access, ...furtherScopes(row)]
    .filter((scope) => scope !== 'authenticated') as Scope[]
  let accepted = 0
  for (const [id, row] of Object.entries(OPERATIONS)) {
    if (row.access === 'public' || row.byPerson) continue
    await prepare(service, row, ids)
    const needed = scopesOf(row)
    const missing = needed.find((scope) => !WORKLOAD_SCOPES.includes(scope)) ?? needed[0]
    const others = WORKLOAD_SCOPES.filter((scope) => scope !== missing && !row.lessAccess?.includes(scope))
    if (missing !== undefined) {
      t.match(await send(service, row, ids, tokenOf(service, rule, { scopes: indexes(others) })), {
        status: 403, body: { error: 'insufficient_permissions', details: { required_scope: missing } }
      }, `${id} without ${missing}`)
    }
    const isPossible = needed.every((scope) => WORKLOAD_SCOPES.includes(scope))
    const token = isPossible ? tokenOf(service, rule, { scopes: indexes(needed) }) : caller.token
    const { status, text } = await send(service, row, ids, token)
    t.ok(status < 300, `${id}: ${status} ${text.slice(0, 200)}`)
    if (isPossible) accepted++
  }
  t.ok(accepted > 40, `${accepted} operations`)
  const actors = await service.sql(`SELECT actor_type, actor_id::float8, count(*)::int FROM audit_events
    WHERE organization_id = '${caller.organization}' AND actor_type = 'workload' GROUP BY 1, 2`)
  t.match(actors, [{ actor_type: 'workload', actor_id: rule.id }], 'the rule is the actor of them all')
  t.ok(Number(actors[0]!.count) > 20)
})

t.test('GET /user shows the rule, its scopes, its part and the end of the token', async (t) => {
  const rule = await makeRule(service, o, { name: 'Pipeline', scopes: ['secret:read', 'project:read'] })
  const ends = new Date(Date.now() + 600_000)
  t.match(await as(tokenOf(service, rule, { ends }))('GET', '/user'), {
    status: 200,
    body: {
      data: {
        type: 'workloads',
        id: String(rule.id),
        attributes: {
          name: 'Pipeline', abilities: ['secret:read', 'project:read'], restrictions: [], expires_at: ends.toISOString()
        },
        relationships: { organizations: { data: [{ type: 'organizations', id: o }] } }
      },
      included: [{ type: 'organizations', id: o }]
    }
  })
})

t.test('the restrictions of a rule limit its workloads, with inherited values if it says so', async (t) => {
  const [place] = await service.sql(`SELECT e.project_id, e.target_id, e.id AS environment_id FROM environments e
    WHERE e.organization_id = '${o}' AND e.slug = '${level.environment}'`) as unknown as [
    { project_id: string, target_id: string, environment_id: string }
  ]
  await nimbus.call('POST', `/${o}/secrets/store`, { project: level.project, plaintext: 'ABOVE=1' })
  const project = `/${o}/${level.project}/secrets`
  for (const inherited of [undefined, true] as const) {
    const slices = [{ ...place, ...(inherited && { inherited }) }]
    const call = as(tokenOf(service, await makeRule(service, o, { slices })))
    t.equal((await call('GET', READ)).status, 200)
    t.equal((await call('GET', project)).status, 404)
    const { body } = await call('GET', `${READ}?decrypt=true&merge=true`)
    t.strictSame(body.data.attributes.merged, inherited ? { ABOVE: '1', A: '1' } : { A: '1' })
    const { body: { data } } = await call('GET', '/user')
    t.strictSame(data.attributes.restrictions, [{ ...level, ...(inherited && { inherited }) }])
    t.strictSame((await call('GET', `/${o}/audit-events`)).body.data, [], 'a restricted caller sees no events')
  }
})

t.test('WI-46 a change of a rule ends its tokens on all instances, except one of name or description', async (t) => {
  const second = await startBeside(t, service)
  const apps = [service.app, ...second === undefined ? [] : [second]]
  const statuses = async (token: string) => Promise.all(apps.map(async (app) => (await app.inject({
    method: 'GET', url: `/api/v1${READ}`, headers: { authorization: `Bearer ${token}` }
  })).statusCode))
  const all = (status: number) => apps.map(() => status)
  const { jwks } = await makeSigner()
  const change = async (rule: RuleRow, body: object) => {
    const { status, text } = await nimbus.call('PATCH', `/organizations/${o}/workloads/${rule.id}`, body)
    t.equal(status, 200, text)
  }
  for (const body of [{ name: 'Other' }, { description: 'Other' }, { name: 'Other', description: null }]) {
    const rule = await makeRule(service, o)
    const token = tokenOf(service, rule)
    await change(rule, body)
    t.strictSame(await statuses(token), all(200), JSON.stringify(body))
  }
  const changes: Record<string, unknown> = {
    enabled: false,
    preset: 'gitlab',
    issuer: 'https://other.example',
    jwks,
    audience: 'https://other.example',
    claims: { project_id: '7' },
    scopes: ['secret:read', 'secret:decrypt'],
    restrictions: [{ project: level.project }],
    lifetime: 300,
    single_use: true,
    max_assertion_age: 60
  }
  for (const [name, value] of Object.entries(changes)) {
    const rule = await makeRule(service, o, { claims: { project_id: '6' } })
    const token = tokenOf(service, rule)
    t.strictSame(await statuses(token), all(200))
    await change(rule, { [name]: value })
    t.strictSame(await statuses(token), all(401), name)
    if (name !== 'enabled') continue
    await change(rule, { enabled: true })
    t.strictSame(await statuses(token), all(401), 'also after it is enabled again')
  }
  const rule = await makeRule(service, o)
  const token = tokenOf(service, rule)
  t.equal((await nimbus.call('DELETE', `/organizations/${o}/workloads/${rule.id}`)).status, 204)
  t.strictSame(await statuses(token), all(401), 'a deletion')
  t.strictSame(await statuses(tokenOf(service, await makeRule(service, o, { enabled: false }))), all(401), 'disabled')
  const tampered = await makeRule(service, o, { scopes: ['secret:read'] })
  await service.sql(`UPDATE workload_rules SET scopes = '{secret:read,secret:decrypt}' WHERE organization_id = '${o}'
    AND id = ${tampered.id}`)
  t.strictSame(await statuses(tokenOf(service, tampered)), all(401), 'a row with a wrong MAC')
})

t.test('a token ends by the clock of the database, and with its organization', async (t) => {
  const rule = await makeRule(service, o)
  const statusOf = async (token: string, path = READ) => (await as(token)('GET', path)).status
  t.equal(await statusOf(tokenOf(service, rule, { ends: new Date(Date.now() - 1) })), 401)
  t.equal(await statusOf(tokenOf(service, rule, { ends: new Date(Date.now() + 60_000) })), 200)
  for (const status of ['suspended', 'locked', 'cancelled']) {
    const { organization } = await service.organization()
    const token = tokenOf(service, await makeRule(service, organization))
    t.equal(await statusOf(token, '/user'), 200)
    await service.sql(`UPDATE organization_counters SET status = '${status}' WHERE organization_id = '${organization}'`)
    t.equal(await statusOf(token, '/user'), 401, `${status}: also where API tokens can still read`)
  }
})

t.test('versions and repeated requests belong to the rule, with any of its tokens', async (t) => {
  const [rule, other] = [await makeRule(service, o, { name: 'Writer' }), await makeRule(service, o)]
  const store = async (of: RuleRow, key: string, plaintext: string) =>
    as(tokenOf(service, of))('POST', `/${o}/secrets/store`, { ...level, plaintext }, { 'idempotency-key': key })
  const first = await store(rule, 'key-1', 'A=2')
  t.equal(first.status, 200, first.text)
  const again = await store(rule, 'key-1', 'A=2')
  t.match(again, { status: 200, headers: { 'idempotent-replayed': 'true' }, text: first.text })
  t.match(await store(rule, 'key-1', 'A=3'), { status: 422, body: { error: 'idempotency_key_reused' } })
  t.match(await store(other, 'key-1', 'A=3'), { status: 200, headers: { 'idempotent-replayed': undefined } })
  const { body } = await nimbus.call('POST', `/${o}/secrets/versions`, level)
  const [latest, former] = body.data
  t.strictSame(former.attributes.created_by, { id: rule.id, name: 'Writer' })
  t.strictSame(former.attributes.created_through, { type: 'workload', name: 'Writer' })
  t.equal(latest.attributes.created_by.id, other.id)
})

t.test('events name the rule as the actor, and can be filtered by it', async (t) => {
  const rule = await makeRule(service, o, { name: 'Reader' })
  const call = as(tokenOf(service, rule))
  t.equal((await call('GET', `${READ}?decrypt=true`)).status, 200)
  await call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=4' })
  const { body } = await nimbus.call('GET', `/${o}/audit-events?actor=workload:${rule.id}`)
  t.match(body.data.map(({ attributes }: { attributes: object }) => attributes), [
    { action: 'secret.store', actor: { type: 'workload', id: rule.id }, actor_name: 'Reader' },
    { action: 'secret.decrypt', actor: { type: 'workload', id: rule.id }, actor_name: 'Reader' }
  ])
  t.equal(body.data.length, 2)
  const blind = await service.token(o, ['organization:read'])
  const { body: unnamed } = await blind.call('GET', `/${o}/audit-events?actor=workload:${rule.id}`)
  t.equal(unnamed.data[0].attributes.actor_name, null, 'names need api-token:read')
  t.match(await nimbus.call('GET', `/${o}/audit-events?actor=workloads:7`), { status: 422 })
})

t.test('a token of a workload is no credential elsewhere', async (t) => {
  const rule = await makeRule(service, o)
  const token = tokenOf(service, rule)
  const other = await service.organization()
  t.equal((await as(token)('GET', `/${other.organization}/projects`)).status, 404)
  t.match(await as(token)('GET', '/user/invitations'), { status: 422, body: { error: 'user_required' } })
  for (const client_id of ['dotenv-cli', rule.client_id]) {
    t.equal((await service.inject({ method: 'POST', url: '/api/oauth/revoke', payload: { token, client_id } })).status, 200)
  }
  t.equal((await as(token)('GET', READ)).status, 200, 'a revocation ends it not: it ends with its rule')
  const refreshed = await service.inject({
    method: 'POST', url: '/api/oauth/token', payload: { grant_type: 'refresh_token', refresh_token: token, client_id: 'dotenv-cli' }
  })
  t.match(refreshed, { status: 400, body: { error: 'invalid_grant' } })
})
