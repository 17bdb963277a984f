// runs: one database; 20 s
import { createPublicKey, generateKeyPairSync, randomBytes } from 'node:crypto'
import t, { type Test } from 'tap'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { CLAIM_LIMITS, FAILED_CHECKS, MAX_WORKLOADS, PRESETS, WORKLOAD_SCOPES } from '../../schemas/workloads.ts'
import { authorityOf } from '../../src/db/database.ts'
import { parseWorkloadId } from '../../src/rules/formats/ids.ts'
import { PRESET_RULES } from '../../src/rules/workload-presets.ts'
import { makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { readDoc } from '../helpers/docs.ts'
import { issuePair, makePerson } from '../helpers/people.ts'
import { waitsForTurn } from '../helpers/turns.ts'

const service = await startApp(t)

const rulesOf = ({ organization }: Caller) => `/organizations/${organization}/workloads`
const BODY = {
  name: 'Deployment', issuer: 'https://issuer.example', claims: { repository_id: '4711' }, scopes: ['secret:read']
}
const create = (caller: Caller, body: object = {}) => caller.call('POST', rulesOf(caller), { ...BODY, ...body })
async function made (caller: Caller, body: object = {}): Promise<{ id: string, path: string, etag: string }> {
  const { status, text, body: answer, headers } = await create(caller, body)
  if (status !== 201) throw new Error(text)
  return { id: answer.data.id, path: `${rulesOf(caller)}/${answer.data.id}`, etag: headers.etag as string }
}
const refused = (t: Test, answer: Answer, member: string, about: string) => {
  t.equal(answer.status, 422, `${about}: ${answer.text.slice(0, 200)}`)
  t.strictSame(Object.keys(answer.body.errors ?? {}), [member], about)
}
const eventsOf = async ({ organization }: Caller, action: string) =>
  service.sql(`SELECT resource_id, details FROM audit_events
    WHERE organization_id = '${organization}' AND action = '${action}' ORDER BY seq`)
const revisionOf = async (id: string) =>
  (await service.sql(`SELECT revision::text FROM workload_rules WHERE id = ${id}`))[0]?.revision as string | undefined

t.test('a rule has the fields of its creation, and defaults for the others, in each response', async (t) => {
  const owner = await service.organization()
  const created = await create(owner)
  t.equal(created.status, 201, created.text)
  const { data } = created.body
  t.strictSame(data, {
    type: 'workloads',
    id: data.id,
    attributes: {
      public_id: `wl_${owner.organization}_${data.id}`,
      ...BODY,
      description: null,
      enabled: true,
      preset: null,
      jwks: null,
      audience: service.app.issuer(),
      restrictions: [],
      lifetime: 900,
      single_use: false,
      max_assertion_age: 3600,
      created_by: { type: 'api_token', id: data.attributes.created_by.id, name: 'Test token' },
      created_at: data.attributes.created_at,
      updated_at: data.attributes.created_at,
      restriction_names: []
    }
  })
  t.match(
    await service.sql(`SELECT audience FROM workload_rules WHERE id = ${data.id}`), [{ audience: service.app.issuer() }],
    'the audience is stored, so another PUBLIC_URL does not change it'
  )
  t.strictSame(parseWorkloadId(data.attributes.public_id), { organizationId: owner.organization, id: Number(data.id) })
  const got = await owner.call('GET', `${rulesOf(owner)}/${data.id}`)
  t.strictSame([got.status, got.body.data, got.headers.etag], [200, data, created.headers.etag])
  const list = await owner.call('GET', rulesOf(owner))
  t.strictSame([list.body.data, list.body.meta.total], [[data], 1])
  t.match(await eventsOf(owner, 'workload.create'), [
    { resource_id: data.id, details: { issuer: BODY.issuer, scopes: 'secret:read' } }
  ])
})

t.test('a public id names the organization and the rule, and other texts name none', async (t) => {
  const id = 'wl_01JQZ6V9T4M8N2K7R5W3X1Y0BC_7'
  t.strictSame(parseWorkloadId(id), { organizationId: '01JQZ6V9T4M8N2K7R5W3X1Y0BC', id: 7 })
  for (const other of [
    '', 'wl_', id.toLowerCase(), `${id} `, ` ${id}`, `${id}\n`, id.replace('_7', '_07'), id.replace('_7', '_0'),
    id.replace('_7', '_'), id.replace('_7', '_-7'), id.replace('_7', '_9007199254740992'), id.replace('_7', '_7_7'),
    id.replace('wl', 'wm'), id.replace('01J', '81J')
  ]) t.equal(parseWorkloadId(other), undefined, JSON.stringify(other))
})

t.test('the example of the page is a rule', async (t) => {
  const owner = await service.organization()
  await makeLevel(owner, { slug: 'orbit' })
  const [example = ''] = readDoc('docs/workloads.md').allBlocks
  const { status, body, text } = await owner.call('POST', rulesOf(owner), JSON.parse(example))
  t.equal(status, 201, text)
  t.match(body.data.attributes, { single_use: true, max_assertion_age: 3600, restrictions: [{ inherited: true }] })
})

t.test('the page explains each check', (t) => {
  const named = readDoc('docs/workloads.md').table('| `check` |').flatMap(([names = '']) => names.split(', '))
  t.strictSame(named.sort(), [...FAILED_CHECKS].sort())
  t.end()
})

t.test('lists are sorted, filtered and paged, newest first by default', async (t) => {
  const owner = await service.organization()
  for (const name of ['Beta', 'alpha', 'Gamma']) await made(owner, { name })
  const names = async (query = '') => {
    const { body } = await owner.call('GET', rulesOf(owner) + query)
    return [body.data.map(({ attributes }: { attributes: { name: string } }) => attributes.name), body.meta.total]
  }
  t.strictSame(await names(), [['Gamma', 'alpha', 'Beta'], 3])
  t.strictSame(await names('?sort=name'), [['alpha', 'Beta', 'Gamma'], 3])
  t.strictSame(await names('?search=ALPH'), [['alpha'], 1])
  t.strictSame(await names('?filter[name]=mm'), [['Gamma'], 1])
  t.strictSame(await names('?per_page=2&page=2'), [['Beta'], 3])
  t.strictSame(await names('?page=9'), [[], 3])
})

t.test('WI-21 a rule allows no scope by which a workload could give access or change the organization', async (t) => {
  const owner = await service.organization()
  t.strictSame(SCOPE_NAMES.filter((scope) => !WORKLOAD_SCOPES.includes(scope)), [
    'key:rotate', 'team:create', 'team:read', 'team:update', 'team:delete', 'organization:create',
    'organization:update', 'organization:delete', 'api-token:create', 'api-token:read', 'api-token:update',
    'api-token:delete', 'member:create', 'member:read', 'member:update', 'member:delete', 'billing:write'
  ])
  const spellings = [
    '*', ...SCOPE_NAMES.filter((scope) => !WORKLOAD_SCOPES.includes(scope)), 'apikeys:read', 'encryption:write',
    'teams:read', 'organization:write', 'secret:all', 'Secret:read', ''
  ]
  const { path } = await made(owner)
  for (const scope of spellings) {
    const scopes = ['project:read', scope]
    refused(t, await create(owner, { scopes }), 'scopes.1', `create ${scope}`)
    refused(t, await owner.call('PATCH', path, { scopes }), 'scopes.1', `change ${scope}`)
  }
  refused(t, await create(owner, { scopes: [] }), 'scopes', 'none')
  const all = await create(owner, { scopes: [...WORKLOAD_SCOPES] })
  t.strictSame([all.status, all.body.data?.attributes.scopes], [201, WORKLOAD_SCOPES])
  const older = await create(owner, { scopes: ['encryption:read', 'secrets:write', 'env:read', 'secret:write'] })
  t.strictSame(older.body.data?.attributes.scopes, ['key:retrieve', 'secret:write', 'environment:read'])
})

t.test('claims are exact values: text, whole numbers and booleans, and a prefix only for ref', async (t) => {
  const owner = await service.organization()
  const taken: object[] = [
    { sub: 'x' }, { n: 7, yes: true, no: 'false' }, { list: ['a', 1, false] }, { ref: 'refs/tags/*' },
    { ref: ['refs/heads/main', 'refs/heads/release/*'] }, { 'https://claims.example/a.b"c': 'x', "it's": 'y' },
    { 'kubernetes.io/namespace': 'live' }, { sub: 'ä'.repeat(1024) }, { ['n'.repeat(128)]: 'x' }, { constructor: 'x' }
  ]
  for (const claims of taken) {
    const { status, body, text } = await create(owner, { claims })
    t.equal(status, 201, text.slice(0, 200))
    t.strictSame(body.data?.attributes.claims, claims)
  }
  const not: [claims: unknown, member: string][] = [
    [{}, 'claims'], [[], 'claims'], ['x', 'claims'], [null, 'claims'],
    [{ sub: '' }, 'claims.sub'], [{ sub: null }, 'claims.sub'], [{ sub: [] }, 'claims.sub'],
    [{ sub: { a: 'b' } }, 'claims.sub'], [{ sub: [['a']] }, 'claims.sub'], [{ n: 1.5 }, 'claims.n'],
    [{ n: 2 ** 53 }, 'claims.n'], [{ sub: 'x'.repeat(1025) }, 'claims.sub'],
    [{ sub: Array(51).fill('x') }, 'claims.sub'],
    ...['iss', 'aud', 'exp', 'iat', 'nbf', 'jti'].map((name): [object, string] => [{ [name]: 'x' }, `claims.${name}`]),
    [{ '': 'x' }, 'claims'], [{ 'a\nb': 'x' }, 'claims'], [{ ['n'.repeat(129)]: 'x' }, 'claims'],
    [Object.fromEntries(Array.from({ length: 21 }, (_, i) => [`c${i}`, 'x'])), 'claims'],
    ...['*', 'refs/heads/rel*', 'refs/*/main', '/*', 'refs/**', 'refs/tags/*/*', 'refs/tags/* ', '*/'].map(
      (ref): [object, string] => [{ ref }, 'claims.ref']),
    [{ ref: ['refs/heads/main', 'x*'] }, 'claims.ref'], [{ sub: 'repo:octo/*' }, 'claims.sub'],
    [{ ref_path: 'refs/tags/*' }, 'claims.ref_path']
  ]
  const { path } = await made(owner)
  for (const [claims, member] of not) {
    const about = JSON.stringify(claims)?.slice(0, 60)
    const created = await create(owner, { claims })
    t.equal(created.status, 422, about)
    const members = Object.keys(created.body.errors ?? {})
    t.ok(members.every((name) => name === member || name.startsWith(`${member}.`)), `${about}: ${members.join()}`)
    t.equal((await owner.call('PATCH', path, { claims })).status, 422, about)
  }
  t.strictSame((await owner.call('GET', path)).body.data.attributes.claims, BODY.claims, 'nothing was changed')
})

t.test('WI-22 a preset demands an id that no other project can get, also when a rule is changed', async (t) => {
  const owner = await service.organization()
  t.strictSame(Object.keys(PRESET_RULES), PRESETS)
  for (const preset of PRESETS) {
    const { ids, single_use, max_assertion_age } = PRESET_RULES[preset]
    refused(t, await create(owner, { preset, claims: { repository: 'octo/app', user: 'rosa' } }), 'claims', preset)
    for (const id of ids) {
      const { status, body } = await create(owner, { preset, claims: { [id]: 'x' } })
      t.equal(status, 201, `${preset} ${id}`)
      t.match(body.data.attributes, { preset, single_use, max_assertion_age })
    }
    const other = { single_use: !single_use, max_assertion_age: 61 }
    const set = await create(owner, { preset, claims: { [ids[0]]: 'x' }, ...other })
    t.match(set.body.data.attributes, other, 'a request can set others')
  }
  const { path } = await made(owner, { preset: 'github-actions' })
  refused(t, await owner.call('PATCH', path, { claims: { repository: 'octo/app' } }), 'claims', 'other claims')
  refused(t, await owner.call('PATCH', path, { preset: 'aws' }), 'claims', 'another preset')
  t.equal((await owner.call('PATCH', path, { preset: null, claims: { repository: 'octo/app' } })).status, 200)
  refused(t, await owner.call('PATCH', path, { preset: 'gitlab' }), 'claims', 'a preset for other claims')
  refused(t, await create(owner, { preset: 'jenkins' }), 'preset', 'unknown')
})

t.test('an issuer is an https URL, the other fields are within their bounds, and unknown fields are refused', async (t) => {
  const owner = await service.organization()
  const { path } = await made(owner)
  const wrong: [member: string, values: unknown[]][] = [
    ['issuer', [
      'http://issuer.example', 'issuer.example', 'https://', 'https://a b', 'https://user:x@issuer.example', null, 7,
      'https://issuer.example?x=1', 'https://issuer.example#x', 'HTTPS://issuer.example', `https://${'a'.repeat(512)}`,
      'https://issuer.example/\n', 'https://[::1', 'ftp://issuer.example'
    ]],
    ['audience', [
      '', ' ', 'x'.repeat(513), null, 'x\nSTRONGROOM_URL=https://evil.example', '\u001b[2Jx', 'x\u009b', 'x\u202ey', 'x\u2066'
    ]],
    ['lifetime', [299, 3601, 900.5, '900', null]],
    ['max_assertion_age', [59, 86_401, null]],
    ['single_use', ['true', 1, null]],
    ['enabled', ['true', null]],
    ['name', ['', '  ', 'a\u0007b', null]],
    ['description', ['x'.repeat(2001), 7]],
    ['public_id', ['wl_01JQZ6V9T4M8N2K7R5W3X1Y0BC_7']],
    ['revision', [7]],
    ['created_by', [null]],
    ['user_id', [7]]
  ]
  for (const [member, values] of wrong) {
    for (const value of values) {
      const about = `${member} ${JSON.stringify(value)}`
      refused(t, await create(owner, { [member]: value }), member, `create ${about}`)
      refused(t, await owner.call('PATCH', path, { [member]: value }), member, `change ${about}`)
    }
  }
  for (const issuer of ['https://issuer.example/', 'https://oidc.circleci.com/org/6a1f', 'https://10.0.0.1:6443/a']) {
    t.equal((await create(owner, { issuer })).body.data?.attributes.issuer, issuer, 'as it was sent')
  }
  t.match(await create(owner, { lifetime: 300, max_assertion_age: 60, audience: ' x ' }), { status: 201 })
  t.match(await create(owner, { lifetime: 3600, max_assertion_age: 86_400 }), { status: 201 })
  for (const member of ['name', 'issuer', 'claims', 'scopes']) {
    refused(t, await create(owner, { [member]: undefined }), member, `without ${member}`)
  }
})

t.test('WI-23 keys in a rule are public, at least one can verify, and only known members are stored', async (t) => {
  const owner = await service.organization()
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const secret = privateKey.export({ format: 'jwk' })
  const key = { ...createPublicKey(privateKey).export({ format: 'jwk' }), kid: 'k1', use: 'sig', alg: 'ES256' }
  const keys = [{ ...key, x5c: ['MII'], note: 'x' }, { kty: 'AKP', pub: 'x' }]
  const stored = await create(owner, { jwks: { keys } })
  t.equal(stored.status, 201, stored.text)
  t.strictSame(stored.body.data.attributes.jwks, { keys: [key, { kty: 'AKP' }] })
  const sets = [
    [[secret], 'jwks.keys.0'], [[key, secret], 'jwks.keys.1'], [[{ kty: 'oct', k: 'AAAA' }], 'jwks.keys.0'],
    [[{ kty: 'oct' }], 'jwks.keys.0'], [[key, { kty: 'AKP', priv: 'x' }], 'jwks.keys.1'],
    ...['p', 'q', 'dp', 'dq', 'qi', 'oth'].map((member) => [[{ ...key, [member]: 'x' }], 'jwks.keys.0']),
    [[{ kty: 'AKP' }], 'jwks.keys'], [[], 'jwks'], [Array(21).fill(key), 'jwks'], [[{ kid: 'k1' }], 'jwks'],
    [[{ ...key, x: 7 }], 'jwks']
  ] as [object[], string][]
  const { path } = await made(owner)
  for (const [keys, member] of sets) {
    refused(t, await create(owner, { jwks: { keys } }), member, JSON.stringify(keys).slice(0, 80))
    refused(t, await owner.call('PATCH', path, { jwks: { keys } }), member, JSON.stringify(keys).slice(0, 80))
  }
  t.equal((await owner.call('PATCH', path, { jwks: { keys: [key] } })).body.data.attributes.jwks.keys.length, 1)
  t.equal((await owner.call('PATCH', path, { jwks: null })).body.data.attributes.jwks, null)
})

t.test('a rule has at most 16 KiB of claims and 32 KiB of keys, so that a list of rules is bounded', async (t) => {
  const owner = await service.organization()
  const { path } = await made(owner)
  const claimsOf = (bytes: number, text = 'x') => {
    const values = Array.from({ length: 17 }, (_, i) => `${i}`.padEnd(900, text))
    const claims = { sub: values, last: 'x' }
    return { ...claims, last: 'x'.repeat(Math.max(1, bytes - Buffer.byteLength(JSON.stringify(claims)) + 1)) }
  }
  const key = (i: number, n: number) =>
    ({ kty: 'RSA', kid: `${i}`.padEnd(300, 'k'), n: 'A'.repeat(n), e: 'AQAB', alg: 'RS256' })
  const keysOf = (n: number) => ({ keys: Array.from({ length: 20 }, (_, i) => key(i, n)) })
  const most = claimsOf(CLAIM_LIMITS.bytes)
  t.equal(Buffer.byteLength(JSON.stringify(most)), CLAIM_LIMITS.bytes)
  t.match(await create(owner, { claims: most, jwks: keysOf(1200) }), { status: 201 }, 'twenty keys of 7,200 bits')
  t.match(await owner.call('PATCH', path, { claims: most, jwks: keysOf(1200) }), { status: 200 })
  // Members that are not stored do not count.
  const withMore = { keys: [{ ...key(0, 683), x5c: ['A'.repeat(40_000)] }] }
  t.match(await create(owner, { jwks: withMore }), { status: 201 })
  const wide = Object.fromEntries(Array.from({ length: 20 }, (_, i) =>
    [`c${i}`, Array.from({ length: 50 }, (_, j) => `${j}`.padEnd(1000, 'x'))]))
  for (const [member, body] of [
    ['claims', { claims: claimsOf(CLAIM_LIMITS.bytes + 1) }], ['claims', { claims: claimsOf(0, 'ä') }],
    ['claims', { claims: wide }], ['jwks', { jwks: keysOf(2048) }]
  ] as const) {
    refused(t, await create(owner, body), member, `create ${member}`)
    refused(t, await owner.call('PATCH', path, body), member, `change ${member}`)
  }
})

t.test('a list of large rules waits for its turn, also one page of it, and has what each rule has alone', async (t) => {
  const owner = await service.organization()
  const { organization: o, call } = owner
  await call('POST', `/${o}/projects`, { name: 'Orbit', slug: 'orbit' })
  const path = `/organizations/${o}/workloads`
  const make = async (name: string) => {
    const claims = Object.fromEntries(Array.from({ length: 14 }, (_, i) =>
      [`claim-${i}`, randomBytes(500).toString('hex')]))
    const { status, body } = await call('POST', path, {
      name, issuer: 'https://issuer.example', claims, scopes: ['secret:read'], restrictions: [{ project: 'orbit' }]
    })
    t.equal(status, 201)
    return body.data as { id: string }
  }
  const waits = (query: string) => waitsForTurn(owner, () => call('GET', path + query))
  await make('Single')
  t.strictSame([await waits(''), await waits('?per_page=100')], [false, false], 'a small one does not wait')
  const made: { id: string }[] = []
  for (const name of ['A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J']) made.push(await make(name))
  t.strictSame([await waits(''), await waits('?per_page=1')], [true, true], 'a large one waits')
  const listed = await call('GET', `${path}?sort=name`)
  t.equal(listed.headers['content-type'], 'application/json; charset=utf-8')
  const alone: unknown[] = []
  for (const { id } of made) alone.push((await call('GET', `${path}/${id}`)).body.data)
  t.strictSame(listed.body.data.slice(0, -1), alone)
  const paged = await call('GET', `${path}?sort=name&per_page=3&page=2`)
  t.strictSame([paged.body.data, paged.body.meta.total], [alone.slice(3, 6), made.length + 1])
})

t.test('nothing in a rule goes beyond its creator: scopes and restrictions', async (t) => {
  const owner = await service.organization()
  const level = await makeLevel(owner)
  const { project } = level
  const [{ project: other }, { id }] = [
    await makeLevel(owner, { slug: 'comet' }),
    (await owner.call('GET', `/${owner.organization}/${project}`)).body.data
  ]
  const token = (scopes: Scope[], isRestricted = false) => service.token(owner.organization, scopes, isRestricted
    ? { slices: [{ project_id: id, target_id: null, environment_id: null }] }
    : {})
  const weak = await token(['api-token:create', 'secret:read'])
  t.equal((await create(weak)).status, 201)
  t.match(await create(weak, { scopes: ['secret:read', 'secret:decrypt'] }), {
    status: 403, body: { error: 'insufficient_permissions', details: { required_scope: 'secret:decrypt' } }
  })
  t.match(await create(await token(['api-token:update', 'secret:read'])), {
    status: 403, body: { details: { required_scope: 'api-token:create' } }
  })
  const narrow = await token(['api-token:create', 'api-token:read', 'secret:read'], true)
  t.equal((await create(narrow)).status, 403, 'the whole organization')
  t.equal((await create(narrow, { restrictions: [{ project: other }] })).status, 403)
  t.equal((await create(narrow, { restrictions: [{ project: 'none' }] })).status, 403, 'as for one that exists')
  t.equal((await create(narrow, { restrictions: [{ project }, { project: other }] })).status, 403)
  t.equal((await create(narrow, { restrictions: [{ project }] })).status, 201)
  t.equal((await create(narrow, { restrictions: [{ ...level, inherited: true }] })).status, 201)
  for (const [restriction, member] of [
    [{ project: 'none' }, 'project'], [{ project, environment: 'live' }, 'target'],
    [{ project, inherited: true }, 'inherited']
  ] as const) {
    refused(t, await create(owner, { restrictions: [restriction] }), `restrictions.0.${member}`, member)
  }
})

t.test('WI-20 a change needs all that the rule allows before and after, so that no caller takes a rule over', async (t) => {
  const owner = await service.organization()
  const level = await makeLevel(owner)
  const { body: { data: { id } } } = await owner.call('GET', `/${owner.organization}/${level.project}`)
  const strong = await made(owner, { scopes: ['secret:read', 'secret:decrypt'] })
  const weak = await service.token(owner.organization, ['api-token:update', 'api-token:read', 'secret:read'])
  const before = (await owner.call('GET', strong.path)).body
  for (const body of [
    { claims: { sub: 'mine' } }, { issuer: 'https://evil.example' }, { name: 'x' }, { description: 'x' }, {},
    { enabled: false }, { scopes: ['secret:read'] }, { jwks: { keys: [{ kty: 'OKP', crv: 'Ed25519', x: 'AAAA' }] } }
  ]) {
    t.match(await weak.call('PATCH', strong.path, body), {
      status: 403, body: { details: { required_scope: 'secret:decrypt' } }
    }, JSON.stringify(body))
  }
  t.strictSame((await owner.call('GET', strong.path)).body, before)
  const own = await made(owner)
  t.equal((await weak.call('PATCH', own.path, { claims: { sub: 'mine' } })).status, 200)
  t.match(await weak.call('PATCH', own.path, { scopes: ['secret:read', 'secret:write'] }), {
    status: 403, body: { details: { required_scope: 'secret:write' } }
  })
  const restrictions = [{ project: level.project }]
  const narrow = await service.token(owner.organization, ['api-token:update', 'api-token:read', 'secret:read'], {
    slices: [{ project_id: id, target_id: null, environment_id: null }]
  })
  t.equal((await narrow.call('PATCH', own.path, { restrictions })).status, 404, 'of the whole organization')
  const inside = await made(owner, { restrictions })
  t.equal((await narrow.call('PATCH', inside.path, { restrictions: [] })).status, 403, 'wider')
  t.equal((await narrow.call('PATCH', inside.path, { restrictions: [level] })).status, 200)
  t.equal((await narrow.call('PATCH', inside.path, { restrictions })).status, 200)
})

t.test('a restricted token sees the rules inside of its restrictions alone', async (t) => {
  const owner = await service.organization()
  const { project } = await makeLevel(owner)
  const { body: { data: { id } } } = await owner.call('GET', `/${owner.organization}/${project}`)
  const [whole, inside] = [await made(owner), await made(owner, { restrictions: [{ project }] })]
  const narrow = await service.token(owner.organization, ['api-token:read', 'api-token:delete'], {
    slices: [{ project_id: id, target_id: null, environment_id: null }]
  })
  const list = await narrow.call('GET', rulesOf(owner))
  t.strictSame([list.body.data.map((one: { id: string }) => one.id), list.body.meta.total], [[inside.id], 1])
  for (const [method, path, body] of [['GET', ''], ['DELETE', ''], ['POST', '/test', { token: 'x' }]] as const) {
    t.match(await narrow.call(method, whole.path + path, body), { status: 404, body: { error: 'not_found' } })
  }
  t.equal((await narrow.call('GET', inside.path)).status, 200)
  t.equal((await narrow.call('DELETE', inside.path)).status, 204)
  t.equal((await owner.call('GET', inside.path)).status, 404)
  const elsewhere = await service.organization()
  t.equal((await elsewhere.call('GET', `${rulesOf(elsewhere)}/${whole.id}`)).status, 404, 'of another organization')
  for (const wrong of ['0', '01', 'x', '9007199254740993', `${whole.id}0`]) {
    t.equal((await owner.call('GET', `${rulesOf(owner)}/${wrong}`)).status, 404, wrong)
  }
})

t.test('WI-24 each change but of name and description gives a new revision, and the same values give none', async (t) => {
  const owner = await service.organization()
  const level = await makeLevel(owner)
  const key = { kty: 'OKP', crv: 'Ed25519', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' }
  const { id, path } = await made(owner, { jwks: { keys: [key] }, restrictions: [{ ...level, inherited: true }] })
  let revision = await revisionOf(id)
  const { public_id, created_by, created_at, updated_at, restriction_names, ...shown } =
    (await owner.call('GET', path)).body.data.attributes
  for (const body of [{ name: 'Other' }, { description: 'Text' }, { description: null }, {}, shown]) {
    const { status, text } = await owner.call('PATCH', path, body)
    t.equal(status, 200, text)
    t.equal(await revisionOf(id), revision, JSON.stringify(body).slice(0, 60))
  }
  const others: Record<string, unknown> = {
    enabled: false,
    preset: 'github-actions',
    issuer: 'https://issuer.example/',
    jwks: null,
    audience: 'https://other.example',
    claims: { repository_id: ['4711'] },
    scopes: ['secret:read', 'secret:decrypt'],
    restrictions: [{ ...level, inherited: false }],
    lifetime: 901,
    single_use: true,
    max_assertion_age: 3601
  }
  t.strictSame(Object.keys({ ...others, name: '', description: '' }).sort(), Object.keys(shown).sort(), 'each field')
  for (const [member, value] of Object.entries(others)) {
    const { status, body, text } = await owner.call('PATCH', path, { [member]: value })
    t.equal(status, 200, text)
    const next = await revisionOf(id)
    t.not(next, revision, member)
    revision = next
    t.strictSame(body.data.attributes[member], member === 'restrictions' ? [level] : value)
  }
  t.match(await eventsOf(owner, 'workload.update'), [{ resource_id: id, details: { members: 'name' } }])
})

t.test('inherited stays if a change omits it, false removes it, and another order of claims is no change', async (t) => {
  const owner = await service.organization()
  const level = await makeLevel(owner)
  const claims = { zeta: 'z', a: ['x', true] }
  const { id, path } = await made(owner, { restrictions: [{ ...level, inherited: true }], claims })
  const revision = await revisionOf(id)
  const restrictionsAfter = async (restrictions: object[]) =>
    (await owner.call('PATCH', path, { restrictions })).body.data.attributes.restrictions
  t.strictSame(await restrictionsAfter([level]), [{ ...level, inherited: true }])
  await owner.call('PATCH', path, { claims: { a: ['x', true], zeta: 'z' } })
  t.equal(await revisionOf(id), revision)
  t.strictSame(await restrictionsAfter([{ ...level, inherited: false }]), [level])
  t.not(await revisionOf(id), revision)
  const text = await makeLevel(owner, { slug: 'text', secret_format: 'text' })
  const warned = await owner.call('PATCH', path, { restrictions: [{ ...text, inherited: true }] })
  t.match(warned.body.warning, /`text`/)
})

t.test('of two changes with one ETag the first is made, and a deletion has preconditions too', async (t) => {
  const owner = await service.organization()
  const { path, etag } = await made(owner)
  const patch = (name: string) => owner.call('PATCH', path, { name }, { 'if-match': etag })
  t.equal((await patch('First')).status, 200)
  t.match(await patch('Second'), { status: 412, body: { error: 'precondition_failed' } })
  t.equal((await owner.call('DELETE', path, undefined, { 'if-match': etag })).status, 412)
  t.equal((await owner.call('DELETE', path)).status, 204)
  t.equal((await owner.call('DELETE', path)).status, 404)
  t.equal((await eventsOf(owner, 'workload.delete')).length, 1)
})

t.test('a repeated creation with one Idempotency-Key makes one rule', async (t) => {
  const owner = await service.organization()
  const send = () => owner.call('POST', rulesOf(owner), BODY, { 'idempotency-key': 'once' })
  const [first, again] = [await send(), await send()]
  t.strictSame(again.body, first.body)
  t.equal((await owner.call('GET', rulesOf(owner))).body.meta.total, 1)
})

t.test('an organization has at most a hundred rules, also by requests at once', async (t) => {
  const owner = await service.organization()
  for (let i = 0; i < MAX_WORKLOADS - 2; i += 7) {
    await Promise.all(Array.from({ length: Math.min(7, MAX_WORKLOADS - 2 - i) }, () => made(owner)))
  }
  const last = await Promise.all(Array.from({ length: 5 }, () => create(owner)))
  t.strictSame(last.map(({ status }) => status).sort(), [201, 201, 422, 422, 422])
  t.match(await create(owner), { status: 422, body: { error: 'limit_reached', details: { limit: MAX_WORKLOADS } } })
  const { body } = await owner.call('GET', rulesOf(owner))
  t.strictSame([body.data.length, body.meta.total], [MAX_WORKLOADS, MAX_WORKLOADS])
  t.equal((await owner.call('DELETE', `${rulesOf(owner)}/${body.data[0].id}`)).status, 204)
  const { body: { data } } = await create(owner)
  t.ok(!body.data.some((one: { id: string }) => one.id === data.id), 'the id of a deleted rule is not used again')
})

t.test('a rule whose levels are all deleted is deleted, and one with another level stays restricted to it', async (t) => {
  const owner = await service.organization()
  const level = await makeLevel(owner)
  const { project, target } = level
  const [gone, both, whole] = [
    await made(owner, { restrictions: [level] }),
    await made(owner, { restrictions: [level, { project }] }),
    await made(owner)
  ]
  const remove = (path: string) => owner.call('DELETE', path, { confirmed: true })
  t.equal((await remove(`/${owner.organization}/${project}/${target}/live`)).status, 204)
  t.equal((await owner.call('GET', gone.path)).status, 404)
  t.strictSame((await owner.call('GET', both.path)).body.data.attributes.restrictions, [{ project }])
  t.equal((await remove(`/${owner.organization}/${project}`)).status, 204)
  t.equal((await owner.call('GET', both.path)).status, 404)
  t.equal((await owner.call('GET', whole.path)).status, 200)
  t.match(await eventsOf(owner, 'workload.delete'), [
    { resource_id: gone.id, details: { with: 'environment' } }, { resource_id: both.id, details: { with: 'project' } }
  ])
})

t.test('the event of a removed or changed member lists the rules that the person made, which stay', async (t) => {
  const owner = await service.organization()
  const { organization } = owner
  const rosa = await makePerson(service, { [organization]: 'administrator' })
  const { access } = await issuePair(service, rosa, [...SCOPE_NAMES])
  const as = (token: string): Caller => ({
    ...owner,
    call: (method, path, body, headers) =>
      owner.call(method, path, body, { ...headers, authorization: `Bearer ${token}` })
  })
  const own = await made(as(access))
  const { body: { token } } = await as(access).call('POST', `/organizations/${organization}/api-keys`, {
    name: 'Rosa', abilities: ['api-token:create', 'secret:read']
  })
  const through = await made(as(token))
  await made(owner)
  const ids = [own.id, through.id].join(' ')
  const member = `/organizations/${organization}/members/${rosa.id}`
  t.equal((await owner.call('PATCH', member, { role: 'auditor' })).status, 200)
  t.match(await eventsOf(owner, 'member.update'), [{ details: { to: 'auditor', workloads: 2, workload_ids: ids } }])
  t.equal((await owner.call('DELETE', member)).status, 204)
  t.match(await eventsOf(owner, 'member.delete'), [{ details: { workloads: 2, workload_ids: ids } }])
  for (const { path } of [own, through]) t.equal((await owner.call('GET', path)).status, 200)
  const ben = await makePerson(service, { [organization]: 'member' })
  await owner.call('DELETE', `/organizations/${organization}/members/${ben.id}`)
  t.notOk('workloads' in ((await eventsOf(owner, 'member.delete'))[1]!.details as object), 'no rules')
})

t.test('a rule that was changed outside the service is not there, and can only be deleted', async (t) => {
  const owner = await service.organization()
  const [rule, other] = [await made(owner), await made(owner)]
  await service.sql(`UPDATE workload_rules SET claims = '{"sub": "evil"}' WHERE id = ${rule.id}`)
  t.equal((await owner.call('GET', rule.path)).status, 404)
  t.equal((await owner.call('PATCH', rule.path, { claims: { sub: 'mine' } })).status, 404)
  t.equal((await owner.call('POST', `${rule.path}/test`, { token: 'x' })).status, 404)
  const { body } = await owner.call('GET', rulesOf(owner))
  t.strictSame(body.data.map(({ id }: { id: string }) => id), [other.id])
  await authorityOf(service.database.db).settled()
  t.match(await eventsOf(owner, 'integrity.violation'), [{}])
  t.equal((await owner.call('DELETE', rule.path)).status, 204)
  t.equal(await revisionOf(rule.id), undefined)
})

t.test('a deleted organization has no rules', async (t) => {
  const owner = await service.organization()
  const { id } = await made(owner)
  t.equal((await owner.call('DELETE', `/organizations/${owner.organization}`, { confirmed: true })).status, 204)
  t.equal(await revisionOf(id), undefined)
})
