// runs: one database, embedded
import t, { type Test } from 'tap'
import { ulid } from 'ulidx'
import { DETAILS, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'

// The search for a name in the whole organization.

const test = await startApp(t)
const BOTH = ['secret:read', 'secret:decrypt'] as const
const VALUE = 'never-in-a-response'

interface Found {
  data: { type: string, attributes: Record<string, string | null> }[]
  meta: Record<string, number | string | null>
}

t.test('a name is found in every project and level whose document has it, never with a value', async (t) => {
  const owner = await test.organization()
  for (const [slug, secret_format] of [['one', 'env'], ['two', 'json'], ['three', 'yaml']]) {
    await makeLevel(owner, { slug, secret_format })
  }
  const levels = [
    [{ project: 'one' }, `DB_URL=${VALUE}\nOTHER=${VALUE}\n`],
    [{ project: 'one', target: 'backend' }, `old_db_url=${VALUE}\nDB_URL=${VALUE}\n`],
    [{ project: 'one', target: 'backend', environment: 'live' }, `# DB_URL\nOTHER=DB_URL ${VALUE}\n`],
    [{ project: 'two', target: 'backend', environment: 'live' }, `{"a":{"DB_URL":1},"DB_URL":"${VALUE}","":"","ÄDB_URL":"x"}`],
    [{ project: 'three', target: 'backend' }, `DB_URL: ${VALUE}\n`]
  ] as const
  const ids: string[] = []
  for (const [level, plaintext] of levels) ids.push(await store(owner, { ...level, plaintext }))
  const deleted = { project: 'three' }
  await store(owner, { ...deleted, plaintext: 'DB_URL: x\n' })
  t.equal((await owner.call('POST', `/${owner.organization}/secrets/delete`, deleted)).status, 204)

  const logged = test.logs.length
  const answer = await search(owner, '?search=db_url')
  t.equal(answer.status, 200, answer.text)
  t.equal(answer.headers['cache-control'], 'no-store')
  t.notMatch(answer.text, VALUE)
  t.notMatch(test.logs.slice(logged).join(''), VALUE)
  t.strictSame(foundIn(answer), [
    'DB_URL project one', 'DB_URL target one/backend', 'old_db_url target one/backend',
    'DB_URL environment two/backend/live', 'ÄDB_URL environment two/backend/live', 'DB_URL target three/backend'
  ])
  t.strictSame(answer.body.data[0], {
    type: 'secret-names',
    attributes: {
      name: 'DB_URL',
      level: 'project',
      project: 'one',
      target: null,
      environment: null,
      project_name: answer.body.data[0]!.attributes.project_name,
      target_name: null,
      environment_name: null
    }
  })
  t.strictSame(answer.body.meta, { documents: 5, unreadable: 0, client_managed: 0, text: 0, next: null })
  t.strictSame(foundIn(await search(owner, '?search=URL&prefix=o')), ['old_db_url target one/backend'])
  t.strictSame(foundIn(await search(owner, `?search=${encodeURIComponent('ädb')}`)), ['ÄDB_URL environment two/backend/live'])
  t.match((await search(owner, '?search=none')).body, { data: [], meta: { documents: 5, next: null } })
  const head = await search(owner, '?search=db_url', 'HEAD')
  t.match(head, { status: 200, text: '' })

  const events = await eventsOf(owner)
  t.equal(events.length, 5, 'each request is recorded once, whatever it finds')
  for (const event of events) {
    t.match(event, { resource_type: 'organization', resource_id: owner.organization })
    t.strictSame(event.details, { secrets: ids.join(' '), revisions: '1 1 1 1 1' })
  }
  const decryptions = await test.sql(`SELECT seq FROM audit_events
    WHERE organization_id = '${owner.organization}' AND action = 'secret.decrypt'`)
  t.equal(decryptions.length, 0, 'no read of values')

  const other = await test.organization()
  refused(t, await other.call('GET', `/${owner.organization}/secrets/names?search=a`), 404, 'not_found')
  t.strictSame(foundIn(await search(other, '?search=a')), [])
})

t.test('projects and documents that have no readable names are left out and counted', async (t) => {
  const owner = await test.organization()
  const { registration, blob, proof } = await ofClient()
  await makeLevel(owner, { slug: 'of-client', ...registration })
  await store(owner, { project: 'of-client', content: blob, key_proof: proof })
  await makeLevel(owner, { slug: 'empty-of-client', ...registration })
  await makeLevel(owner, { slug: 'of-text', secret_format: 'text' })
  await store(owner, { project: 'of-text', plaintext: 'A=1\n' })
  await makeLevel(owner, { slug: 'torn', secret_format: 'json' })
  await store(owner, { project: 'torn', plaintext: '{"A":', unchecked: true })
  await store(owner, { project: 'torn', target: 'backend', plaintext: '{"A":"1"}' })
  await makeLevel(owner, { slug: 'no-documents' })
  const answer = await search(owner, '?search=A')
  t.strictSame(foundIn(answer), ['A target torn/backend'])
  t.strictSame(answer.body.meta, { documents: 2, unreadable: 1, client_managed: 2, text: 1, next: null })
})

t.test('a search needs both scopes, and its parameters are checked', async (t) => {
  const owner = await test.organization()
  for (const [has, needs] of [['secret:read', 'secret:decrypt'], ['secret:decrypt', 'secret:read']] as const) {
    const answer = await search(await test.token(owner.organization, [has]), '?search=a')
    refused(t, answer, 403, 'insufficient_permissions')
    t.equal(answer.body.details.required_scope, needs)
  }
  t.equal((await search(await test.token(owner.organization, [...BOTH]), '?search=a')).status, 200)
  const id = ulid()
  for (const query of [
    '', '?search=', `?search=${'x'.repeat(256)}`, '?search=a&search=b', `?search=a&prefix=${'x'.repeat(256)}`, '?search=a&after=x',
    `?search=a&after=${id}.`, `?search=a&after=.${id}`, `?search=a&after=${id}.${id}.${id}`, `?search=a&after=${id.toLowerCase()}`
  ]) {
    refused(t, await search(owner, query), 422, 'validation_failed', query)
  }
  for (const more of [`after=${id}`, `after=${id}.${id}`, 'after=00000000000000000000000000']) {
    t.match(await search(owner, `?search=a&${more}`), { status: 200, body: { data: [], meta: { next: null } } }, more)
  }
  t.equal((await owner.call('POST', `/${owner.organization}/secrets/names?search=a`)).status, 405)
  const events = await eventsOf(owner)
  t.equal(events.length, 4, 'refused requests are not recorded')
  t.strictSame(events[0]!.details, { secrets: '', revisions: '' })
})

t.test('a restricted token finds only names of the levels that it can read', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  for (const slug of ['one', 'two', 'three']) {
    await makeLevel(owner, { slug })
    await owner.call('POST', `/${org}/${slug}/backend/environments`, { name: 'Test' })
    await owner.call('POST', `/${org}/${slug}/targets`, { name: 'Web' })
    for (const level of [
      {}, { target: 'backend' }, { target: 'web' }, { target: 'backend', environment: 'live' },
      { target: 'backend', environment: 'test' }
    ]) await store(owner, { project: slug, ...level, plaintext: 'NAME=1\n' })
  }
  await makeLevel(owner, { slug: 'of-client', ...(await ofClient()).registration })
  const places = await test.sql(`SELECT p.slug, p.id AS project_id, g.id AS target_id, e.id AS environment_id
    FROM projects p JOIN targets g ON g.organization_id = p.organization_id AND g.project_id = p.id AND g.slug = 'backend'
    JOIN environments e ON e.organization_id = p.organization_id AND e.target_id = g.id AND e.slug = 'live'
    WHERE p.organization_id = '${org}'`) as Record<string, string>[]
  const slice = (slug: string, depth: number) => {
    const { project_id, target_id, environment_id } = places.find((place) => place.slug === slug)!
    return {
      project_id: project_id!,
      target_id: depth > 0 ? target_id! : null,
      environment_id: depth > 1 ? environment_id! : null
    }
  }
  const all = (slug: string) => [
    `NAME project ${slug}`, `NAME target ${slug}/backend`, `NAME target ${slug}/web`,
    `NAME environment ${slug}/backend/live`, `NAME environment ${slug}/backend/test`
  ]
  for (const [slices, expected] of [
    [[slice('one', 0)], all('one')],
    [[slice('two', 1)], ['NAME target two/backend', 'NAME environment two/backend/live', 'NAME environment two/backend/test']],
    [[slice('three', 2)], ['NAME environment three/backend/live']],
    [[slice('three', 2), slice('one', 0), slice('one', 1)], [...all('one'), 'NAME environment three/backend/live']]
  ] as const) {
    const narrow = await test.token(org, [...BOTH], { slices: [...slices] })
    const answer = await search(narrow, '?search=name')
    t.strictSame(foundIn(answer), expected)
    t.match(answer.body.meta, { documents: expected.length, client_managed: 0 })
  }
  const narrow = await test.token(org, [...BOTH], { slices: [slice('of-client', 1)] })
  t.match((await search(narrow, '?search=name')).body.meta, { documents: 0, client_managed: 1 })
  const opened = (await eventsOf(owner)).map(({ details }) => details.secrets.split(' ').length)
  t.strictSame(opened, [5, 3, 1, 6, 1], 'no other document was opened')
})

t.test('a team member finds only names of projects in which a role of a team grants both scopes', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  for (const slug of ['open', 'weak', 'closed']) {
    await makeLevel(owner, { slug })
    await store(owner, { project: slug, plaintext: 'NAME=1\n' })
  }
  await makeLevel(owner, { slug: 'of-client', ...(await ofClient()).registration })
  await makeLevel(owner, { slug: 'closed-of-client', ...(await ofClient()).registration })
  const searchBy = async (role: string, projects?: Record<string, 'member' | 'api_user'>, granted: readonly string[] = BOTH) => {
    const person = await makePerson(test, { [org]: role as 'billing_manager' })
    if (projects !== undefined) await makeTeam(test, org, [person], projects)
    const { access } = await issuePair(test, person, [...granted] as ['secret:read'])
    return test.inject({
      method: 'GET', url: `/api/v1/${org}/secrets/names?search=name`, headers: { authorization: `Bearer ${access}` }
    })
  }
  const teams = { open: 'member', weak: 'api_user', 'of-client': 'member' } as const
  const answer = await searchBy('billing_manager', teams)
  t.strictSame(foundIn(answer), ['NAME project open'])
  t.match(answer.body.meta, { documents: 1, client_managed: 1, next: null })
  t.strictSame(foundIn(await searchBy('api_user', teams)), ['NAME project open'], 'secret:read by the own role alone')
  t.strictSame(foundIn(await searchBy('member', teams)), [
    'NAME project open', 'NAME project weak', 'NAME project closed'
  ], 'the own role is enough')
  refused(t, await searchBy('billing_manager'), 403, 'insufficient_permissions')
  refused(t, await searchBy('billing_manager', { weak: 'api_user' }), 403, 'insufficient_permissions')
  refused(t, await searchBy('billing_manager', teams, ['secret:read']), 403, 'insufficient_permissions')

  const person = await makePerson(test, { [org]: 'billing_manager' })
  const team = await makeTeam(test, org, [person], { open: 'member', closed: 'member' })
  const { access } = await issuePair(test, person, [...BOTH])
  await test.sql(`UPDATE team_projects SET role = 'owner' WHERE organization_id = '${org}' AND team_id = '${team}'
    AND project_id = (SELECT id FROM projects WHERE organization_id = '${org}' AND slug = 'closed')`)
  const manipulated = await test.inject({
    method: 'GET', url: `/api/v1/${org}/secrets/names?search=name`, headers: { authorization: `Bearer ${access}` }
  })
  t.strictSame(foundIn(manipulated), ['NAME project open'], 'a manipulated role counts as none')
})

t.test('a request opens at most 200 documents, and pages neither repeat nor skip a level', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  for (const slug of ['aa', 'bb']) await makeLevel(owner, { slug })
  await makeLevel(owner, { slug: 'cc', ...(await ofClient()).registration })
  await makeLevel(owner, { slug: 'dd', secret_format: 'text' })
  for (const [slug, count] of [['aa', 150], ['bb', 270]] as const) await fill(owner, slug, count)
  const pages: Found[] = []
  for (let query: string | null = '?search=name'; query !== null;) {
    const { status, body, text }: Answer = await search(owner, query)
    t.equal(status, 200, text)
    pages.push(body)
    query = body.meta.next === null ? null : `?search=name&after=${body.meta.next}`
    if (pages.length === 1) {
      // Changes between pages.
      await store(owner, { project: 'aa', plaintext: 'NAME=late\n' })
      await store(owner, { project: 'bb', target: 'backend', environment: 'e-bb-269', plaintext: 'NAME=again\n' })
      t.equal((await owner.call('DELETE', `/${org}/bb/backend/${pages[0]!.data.at(-1)!.attributes.environment}`)).status, 204)
    }
  }
  t.strictSame(pages.map(({ data }) => data.length), [200, 200, 20])
  t.strictSame(pages.map(({ meta }) => [meta.documents, meta.client_managed, meta.text]), [
    [200, 0, 0], [200, 0, 0], [20, 1, 1]
  ])
  const levels = pages.flatMap(({ data }) => data.map(({ attributes: { project, environment } }) => `${project} ${environment}`))
  t.equal(new Set(levels).size, 420)
  const events = await eventsOf(owner)
  t.strictSame(events.map(({ details }) => details.secrets.split(' ').length), [200, 200, 20])
  t.ok(events.every(({ details }) => JSON.stringify(details).length < 10_000), 'the event of a page is bounded')
  const empty = await search(owner, '?search=none')
  t.match(empty.body, { data: [], meta: { documents: 200, next: /./ } }, 'a page can be empty')

  const [place] = await test.sql(`SELECT id AS project_id, null AS target_id, null AS environment_id FROM projects
    WHERE organization_id = '${org}' AND slug = 'bb'`)
  const narrow = await test.token(org, [...BOTH], { slices: [place as any] })
  const first = await search(narrow, '?search=name')
  const second = await search(narrow, `?search=name&after=${first.body.meta.next}`)
  t.strictSame([first, second].map(({ body }) => body.data.length), [200, 69])
  t.equal(second.body.meta.next, null)
  const beyond = await search(narrow, `?search=name&after=${pages[1]!.meta.next}`)
  t.equal(beyond.body.data.length, 20, 'the cursor of another caller')
})

t.test('a page ends early after much content, many names or many projects', async (t) => {
  const owner = await test.organization()
  await makeLevel(owner, { slug: 'large' })
  await fill(owner, 'large', 11, (i) => `NAME_${i}=${'x'.repeat(900_000)}\n`, 1)
  // A page ends after 8 MiB, or earlier after some work on a busy machine.
  const pages: Answer[] = []
  for (let next: string | null = ''; next !== null; next = pages.at(-1)!.body.meta.next) {
    pages.push(await search(owner, `?search=name${next === '' ? '' : `&after=${next}`}`))
  }
  t.ok(pages.length >= 2 && pages.every(({ body }) => body.meta.documents >= 1 && body.meta.documents <= 10))
  t.equal(new Set(pages.flatMap(foundIn)).size, 11)

  const wordy = await test.organization()
  await makeLevel(wordy, { slug: 'wordy' })
  await fill(wordy, 'wordy', 4, () => Array.from({ length: 600 }, (_, i) => `NAME_${i}=1\n`).join(''))
  const names = await search(wordy, '?search=name')
  t.match([names.body.data.length, names.body.meta.documents], [1_200, 2], 'a document is never divided')
  const others = await search(wordy, `?search=name&after=${names.body.meta.next}`)
  t.match([others.body.data.length, others.body.meta], [1_200, { documents: 2, next: null }])

  const wide = await test.organization()
  const org = wide.organization
  await makeLevel(wide, { slug: 'first' })
  const values = Array.from({ length: 205 }, (_, i) => `('${ulid()}', '${org}', 'P', 'p-${i}', 'env', 'client', 'keep', 1)`)
  await test.write(`INSERT INTO projects (id, organization_id, name, slug, secret_format, encryption_type, history_policy, key_version)
    VALUES ${values.join(', ')}`)
  await makeLevel(wide, { slug: 'last' })
  await store(wide, { project: 'last', plaintext: 'NAME=1\n' })
  const start = await search(wide, '?search=name')
  t.match(start.body, { data: [], meta: { documents: 0, client_managed: 199 } })
  const end = await search(wide, `?search=name&after=${start.body.meta.next}`)
  t.strictSame(foundIn(end), ['NAME project last'])
  t.match(end.body.meta, { documents: 1, client_managed: 6, next: null })

  const person = await makePerson(test, { [org]: 'billing_manager' })
  const slugs = ['first', 'last', ...Array.from({ length: 205 }, (_, i) => `p-${i}`)]
  for (const part of [slugs.slice(0, 70), slugs.slice(70, 140), slugs.slice(140)]) {
    await makeTeam(test, org, [person], Object.fromEntries(part.map((slug) => [slug, 'member'])))
  }
  const { access } = await issuePair(test, person, [...BOTH])
  const byTeams = async (after: string) => test.inject({
    method: 'GET', url: `/api/v1/${org}/secrets/names?search=name${after}`, headers: { authorization: `Bearer ${access}` }
  })
  const near = await byTeams('')
  t.match(near.body, { data: [], meta: { documents: 0, client_managed: 199, next: start.body.meta.next } })
  const far = await byTeams(`&after=${near.body.meta.next}`)
  t.strictSame(foundIn(far), ['NAME project last'])
  t.match(far.body.meta, { client_managed: 6, next: null })
})

t.test('a manipulated document refuses the search', async (t) => {
  const owner = await test.organization()
  await makeLevel(owner, { slug: 'manipulated' })
  const id = await store(owner, { project: 'manipulated', plaintext: 'NAME=1\n' })
  await test.sql(`UPDATE secrets SET sealed = set_byte(sealed, 40, get_byte(sealed, 40) # 1)
    WHERE organization_id = '${owner.organization}' AND id = '${id}'`)
  refused(t, await search(owner, '?search=name'), 500, 'integrity_error')
  t.equal((await eventsOf(owner)).length, 0)
})

t.test('the path of the search is no level of a project', async (t) => {
  const owner = await test.organization()
  refused(t, await owner.call('POST', `/${owner.organization}/projects`, { name: 'P', slug: 'secrets' }), 422, 'validation_failed')
  await makeLevel(owner, { slug: 'names' })
  await store(owner, { project: 'names', plaintext: 'A=1\n' })
  const level = await owner.call('GET', `/${owner.organization}/names/secrets/names`)
  t.strictSame(level.body.data.map(({ attributes }: any) => attributes), [{ name: 'A', level: 'project', overrides: [] }])
})

const search = (caller: Caller, query: string, method = 'GET') =>
  caller.call(method, `/${caller.organization}/secrets/names${query}`)

const foundIn = ({ status, body, text }: Answer): string[] => {
  if (status !== 200) throw new Error(text)
  return (body as Found).data.map(({ attributes: { name, level, project, target, environment } }) =>
    `${name} ${level} ${[project, target, environment].filter((slug) => slug !== null).join('/')}`)
}

async function store (caller: Caller, body: object): Promise<string> {
  const { status, body: stored, text } = await caller.call('POST', `/${caller.organization}/secrets/store`, body)
  if (status !== 200) throw new Error(text)
  return stored.data.secret_id
}

/** Creates environments of the target `backend` and stores a document in each, some of them at the same time. */
async function fill (
  caller: Caller, project: string, count: number, textOf: (i: number) => string = () => 'NAME=1\n', together = 20
) {
  const numbers = Array.from({ length: count }, (_, i) => i)
  const [target] = await test.sql(`SELECT g.id, g.project_id FROM targets g JOIN projects p ON p.organization_id = g.organization_id
    AND p.id = g.project_id WHERE p.organization_id = '${caller.organization}' AND p.slug = '${project}'`)
  const values = numbers.map((i) => `('${ulid()}', '${caller.organization}', '${target!.project_id}', '${target!.id}', 'E',
    'e-${project}-${i}', 'development', false)`)
  await test.write(`INSERT INTO environments (id, organization_id, project_id, target_id, name, slug, status, is_production)
    VALUES ${values.join(', ')}`)
  const storeOne = (i: number) => store(caller, {
    project, target: 'backend', environment: `e-${project}-${i}`, plaintext: textOf(i)
  })
  for (let i = 0; i < count; i += together) await Promise.all(numbers.slice(i, i + together).map(storeOne))
}

const eventsOf = async ({ organization }: Caller) => await test.sql(`SELECT resource_type, resource_id, ${DETAILS}
  FROM audit_events WHERE organization_id = '${organization}' AND action = 'secret.names' ORDER BY seq`) as
  { resource_type: string, resource_id: string, details: Record<'secrets' | 'revisions', string> }[]

async function ofClient () {
  const { registration } = await clientKey('correct horse battery staple')
  return { registration, blob: Buffer.alloc(40).toString('base64'), proof: registration.key_check }
}

function refused (t: Test, answer: Answer, status: number, code: string, why = '') {
  t.equal(answer.status, status, `${why} ${code}: ${answer.text}`)
  t.equal(answer.body?.error, code)
}
