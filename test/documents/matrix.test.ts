// runs: one database, embedded; 12 s
import t, { type Test } from 'tap'
import { ulid } from 'ulidx'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { DETAILS, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'

// A matrix with the names of a project as rows and its levels as columns.

const test = await startApp(t)
const BOTH = ['secret:read', 'secret:decrypt'] as const
const CANARY = 'never-in-a-response'

t.test('each cell says whether the level sets, inherits, overrides or lacks the name, never a value', async (t) => {
  const owner = await makeProject('cells')
  await store(owner, { project: 'cells', plaintext: `A=${CANARY}1\nB=${CANARY}1\nC=${CANARY}1\n` })
  await store(owner, { project: 'cells', target: 'backend', plaintext: `B=${CANARY}2\nC=${CANARY}1\n` })
  await store(owner, at('cells', 'live'), `C=${CANARY}1\nB=${CANARY}3\nONLY=${CANARY}1\n`)
  await store(owner, at('cells', 'test'), `# nothing\nA=${CANARY}1\nE=\n`)
  const logged = test.logs.length
  const answer = await matrix(owner, 'cells')
  t.equal(answer.status, 200, answer.text)
  t.equal(answer.headers['content-type'], 'application/json')
  t.equal(answer.headers['cache-control'], 'no-store')
  t.notMatch(answer.text, CANARY)
  t.notMatch(test.logs.slice(logged).join(''), CANARY)
  t.strictSame(columnsIn(answer), [
    'project', 'target backend', 'environment backend/live', 'environment backend/test', 'target web', 'environment web/live'
  ])
  t.strictSame(rowsIn(answer), {
    A: 'set 1 | inherited project 1 | inherited project 1 | overrides project 1 | inherited project 1 | inherited project 1',
    B: 'set 1 | overrides project 2 | overrides project,target 3 | inherited target 2 | inherited project 1 | inherited project 1',
    C: 'set 1 | overrides project 1 | overrides project,target 1 | inherited target 1 | inherited project 1 | inherited project 1',
    E: 'missing | missing | missing | set 1 | missing | missing',
    ONLY: 'missing | missing | set 1 | missing | missing | missing'
  })
  t.strictSame(answer.body.meta, {
    current_page: 1, per_page: 1000, total: 5, last_page: 1, from: 1, to: 5, next_levels: null
  })
  t.match(answer.body.data.attributes.levels[0], { version: /^\d+$/, etag: /^"[\w-]{22}"$/, unreadable: false })
  t.match(answer.body.data.attributes.levels[5], { version: null, etag: null, unreadable: false })
  const { levels, project } = answer.body.data.attributes
  t.strictSame(project, { name: 'Orbit', secret_format: 'env', encryption_type: 'server' })
  t.strictSame(levels.map(({ name, target_name, status }: any) => [name, target_name, status]), [
    ['Orbit', null, null], ['Backend', 'Backend', null], ['Live', 'Backend', 'development'],
    ['Test', 'Backend', 'development'], ['Web', 'Web', null], ['Live', 'Web', 'development']
  ])
  const { id } = (await owner.call('GET', `/${owner.organization}/cells/backend/live`)).body.data
  t.equal(levels[2].id, id)
  // A change can use this ETag, because it is the ETag of the document.
  const patched = await owner.call('PATCH', `/${owner.organization}/cells/backend/live/secrets`, { set: { F: '1' } }, {
    'if-match': answer.body.data.attributes.levels[2].etag
  })
  t.equal(patched.status, 200, patched.text)
  const after = await matrix(owner, 'cells')
  t.equal(after.body.data.attributes.levels[2].version, patched.body.data.version)
  t.equal(after.body.data.attributes.levels[2].etag, patched.headers.etag)
  t.match(await matrix(owner, 'cells', '', 'HEAD'), { status: 200, text: '' })
})

t.test('names are selected, filtered by what is missing or different, and paged', async (t) => {
  const owner = await makeProject('filters', { secret_format: 'json' })
  const documents = {
    project: { ALL: '1', SAME: '1', __proto__x: '1', 10: 'x', DB_A: '1' },
    live: { ALL: '1', LIVE: '1', SAME: '1', DB_B: '1' },
    test: { ALL: '2', TEST: '1', SAME: '1', DB_B: '2' }
  }
  const text = (document: object) => JSON.stringify(document).replace('__proto__x', '__proto__')
  await store(owner, { project: 'filters', plaintext: text(documents.project) })
  await store(owner, at('filters', 'live'), text(documents.live))
  await store(owner, at('filters', 'test'), text(documents.test))
  for (const [query, expected] of [
    ['', ['10', 'ALL', 'DB_A', 'DB_B', 'LIVE', 'SAME', 'TEST', '__proto__']],
    ['?only=missing', ['DB_B', 'LIVE', 'TEST']], ['?only=different', ['ALL', 'DB_B']],
    ['?only=missing&level=project', []], ['?only=missing&level=target', []],
    ['?prefix=DB_', ['DB_A', 'DB_B']], ['?search=db', ['DB_A', 'DB_B']], ['?search=db&only=different', ['DB_B']],
    ['?search=none', []], ['?page=2&per_page=3', ['DB_B', 'LIVE', 'SAME']], ['?per_page=3&page=4', []],
    ['?only=missing&per_page=1&page=2', ['LIVE']]
  ] as [string, string[]][]) {
    const answer = await matrix(owner, 'filters', query)
    t.equal(answer.status, 200, answer.text)
    t.strictSame(Object.keys(rowsIn(answer)).sort(), [...expected].sort(), query)
    t.strictSame(answer.body.data.attributes.names.map(({ name }: any) => name), expected, `${query} is sorted`)
  }
  t.match((await matrix(owner, 'filters', '?page=2&per_page=3')).body.meta, {
    current_page: 2, per_page: 3, total: 8, last_page: 3, from: 4, to: 6
  })
  const lacking = await matrix(owner, 'filters', '?only=missing&level=environment')
  t.strictSame(columnsIn(lacking), ['environment backend/live', 'environment backend/test', 'environment web/live'])
  t.strictSame(rowsIn(lacking), {
    DB_B: 'set 1 | set 2 | missing', LIVE: 'set 1 | missing | missing', TEST: 'missing | set 1 | missing'
  }, 'the levels above count, but are no columns')
  t.strictSame(rowsIn(await matrix(owner, 'filters', '?prefix=ALL&level=environment')), {
    ALL: 'overrides project 1 | overrides project 2 | inherited project 1'
  })
  t.strictSame(columnsIn(await matrix(owner, 'filters', '?level=target')), ['target backend', 'target web'])
  for (const query of [
    '?only=none', '?only=', '?level=none', '?page=0', '?per_page=101', `?prefix=${'x'.repeat(256)}`, '?decrypt=both',
    '?levels_after=x', '?levels_after=target:', '?levels_after=environment:a', '?levels_after=project:a', '?values=true'
  ]) refused(t, await matrix(owner, 'filters', query), 422, 'validation_failed', query)
})

t.test('without decryption, the response has levels and versions, no names, and nothing is recorded', async (t) => {
  const owner = await makeProject('auditor')
  await store(owner, { project: 'auditor', plaintext: 'A=1\n' })
  await store(owner, at('auditor', 'live'), 'B=1\n')
  const reader = await test.token(owner.organization, ['secret:read'])
  for (const query of ['', '?decrypt=true', '?decrypt=1', '?decrypt=TRUE', '?decrypt=no', '?decrypt=']) {
    const answer = await matrix(reader, 'auditor', query)
    refused(t, answer, 403, 'insufficient_permissions', query)
    t.equal(answer.body.details.required_scope, 'secret:decrypt')
  }
  const full = await matrix(owner, 'auditor')
  const events = await eventsOf(owner)
  for (const word of ['false', 'FALSE', '0']) {
    const answer = await matrix(reader, 'auditor', `?decrypt=${word}`)
    t.equal(answer.status, 200, answer.text)
    t.strictSame(answer.body.data.attributes, { ...full.body.data.attributes, names: null })
    t.match(answer.body.meta, { total: 0, next_levels: null })
  }
  for (const name of ['prefix=A', 'search=A', 'only=missing']) {
    refused(t, await matrix(reader, 'auditor', `?decrypt=false&${name}`), 422, 'invalid_parameter_combination', name)
  }
  refused(t, await matrix(await test.token(owner.organization, ['secret:decrypt']), 'auditor'), 403, 'insufficient_permissions')
  t.equal((await matrix(await test.token(owner.organization, [...BOTH]), 'auditor')).status, 200)
  t.equal((await eventsOf(owner)).length, events.length + 1, 'only the listing of names')
})

t.test('a listing is one event of the project with the opened documents, and no read of values', async (t) => {
  const owner = await makeProject('recorded')
  const ids = [
    await store(owner, { project: 'recorded', plaintext: 'A=1\n' }), await store(owner, at('recorded', 'live'), 'A=1\n')
  ]
  await matrix(owner, 'recorded', '?only=missing&page=7')
  const [{ id }] = await test.sql(`SELECT id FROM projects WHERE organization_id = '${owner.organization}'`) as [{ id: string }]
  t.strictSame(await eventsOf(owner), [{
    action: 'secret.names', resource_type: 'project', resource_id: id, details: { secrets: ids.join(' '), revisions: '1 1' }
  }])
})

t.test('projects whose names the server cannot read have levels only', async (t) => {
  const owner = await test.organization()
  const { registration, proof } = await clientKey('correct horse battery staple')
  await makeLevel(owner, { slug: 'of-client', ...registration })
  const content = Buffer.alloc(40).toString('base64')
  await store(owner, { project: 'of-client', content, key_proof: proof })
  await makeLevel(owner, { slug: 'of-text', secret_format: 'text' })
  await store(owner, { project: 'of-text', plaintext: 'A=1\n' })
  refused(t, await matrix(owner, 'of-client'), 422, 'client_managed_encryption')
  refused(t, await matrix(owner, 'of-text'), 422, 'invalid_parameter_combination')
  for (const slug of ['of-client', 'of-text']) {
    const answer = await matrix(owner, slug, '?decrypt=false')
    t.match(answer.body.data.attributes, { levels: [{ level: 'project', version: /^\d+$/ }, { level: 'target', version: null }, {}], names: null })
  }
  t.strictSame(await eventsOf(owner), [])
})

t.test('cells of a document that cannot be parsed are unknown, and so are cells that depend on it', async (t) => {
  const owner = await makeProject('torn', { secret_format: 'json' })
  await store(owner, { project: 'torn', plaintext: '{"A":"1","B":"1"}' })
  await store(owner, { project: 'torn', target: 'backend', plaintext: '{"A":', unchecked: true })
  await store(owner, at('torn', 'live'), '{"B":"2","C":"1"}')
  const answer = await matrix(owner, 'torn')
  const unreadable = answer.body.data.attributes.levels.map(({ unreadable }: any) => unreadable)
  t.strictSame(unreadable, [false, true, false, false, false, false])
  t.strictSame(rowsIn(answer), {
    A: 'set 1 | unknown | unknown | unknown | inherited project 1 | inherited project 1',
    B: 'set 1 | unknown | overrides project 2 | unknown | inherited project 1 | inherited project 1',
    C: 'missing | unknown | set 1 | unknown | missing | missing'
  })
  t.strictSame(Object.keys(rowsIn(await matrix(owner, 'torn', '?only=missing'))), ['C'], 'unknown is not missing')
  t.strictSame((await eventsOf(owner))[0]!.details.revisions, '1 1 1')
})

t.test('levels that a restriction of the token hides are no columns, and nothing is inherited from them', async (t) => {
  const owner = await makeProject('narrow')
  const org = owner.organization
  await makeLevel(owner, { slug: 'other' })
  for (const [level, text] of [
    [{ project: 'narrow' }, 'P=1\nALL=1\n'], [{ project: 'narrow', target: 'backend' }, 'T=1\nALL=2\n'],
    [at('narrow', 'live'), 'E=1\nALL=3\n'], [at('narrow', 'test'), 'F=1\n']
  ] as const) await store(owner, { ...level, plaintext: text })
  const [place] = await test.sql(`SELECT e.project_id, e.target_id, e.id AS environment_id FROM environments e
    JOIN targets g ON g.organization_id = e.organization_id AND g.id = e.target_id AND g.slug = 'backend'
    JOIN projects p ON p.organization_id = e.organization_id AND p.id = e.project_id AND p.slug = 'narrow'
    WHERE e.organization_id = '${org}' AND e.slug = 'live'`) as [Record<'project_id' | 'target_id' | 'environment_id', string>]
  const { project_id, target_id, environment_id } = place
  for (const [slices, columns, rows] of [
    [[{ project_id, target_id: null, environment_id: null }], 6, ['ALL', 'E', 'F', 'P', 'T']],
    [[{ project_id, target_id, environment_id: null }], 3, ['ALL', 'E', 'F', 'T']],
    [[{ project_id, target_id, environment_id }], 1, ['ALL', 'E']]
  ] as const) {
    const token = await test.token(org, [...BOTH], { slices: [...slices] })
    const answer = await matrix(token, 'narrow')
    t.equal(answer.status, 200, answer.text)
    t.equal(columnsIn(answer).length, columns)
    t.strictSame(Object.keys(rowsIn(answer)), rows)
    t.equal((await matrix(token, 'narrow', '?decrypt=false')).body.data.attributes.levels.length, columns)
    const [hidden, missing] = [await matrix(token, 'other'), await matrix(token, 'none')]
    refused(t, hidden, 404, 'not_found')
    t.strictSame({ ...hidden.body, request_id: '' }, { ...missing.body, request_id: '' }, 'a hidden project and none are the same')
  }
  const one = await test.token(org, [...BOTH], { slices: [place] })
  t.strictSame(rowsIn(await matrix(one, 'narrow')), { ALL: 'set 1', E: 'set 1' }, 'hidden levels are not even overridden')
  t.strictSame(columnsIn(await matrix(one, 'narrow', '?level=project')), [])
  t.equal((await eventsOf(owner)).at(-2)!.details.secrets.split(' ').length, 1)
})

t.test('a role of a team shows the levels for which it gives both scopes', async (t) => {
  const owner = await makeProject('teams')
  const org = owner.organization
  await makeLevel(owner, { slug: 'closed' })
  for (const [level, text] of [
    [{ project: 'teams' }, 'P=1\n'], [at('teams', 'live'), 'L=1\n'], [at('teams', 'test'), 'T=1\n']
  ] as const) await store(owner, { ...level, plaintext: text })
  const status = await owner.call('PATCH', `/${org}/teams/backend/live`, { status: 'production' })
  t.equal(status.status, 200, status.text)
  const person = await makePerson(test, { [org]: 'billing_manager' })
  const team = await makeTeam(test, org, [person], {})
  const granted = await owner.call('PUT', `/organizations/${org}/teams/${team}/projects/teams`, {
    role: 'member', restrictions: [{ except_status: 'production' }]
  })
  t.ok(granted.status < 300, granted.text)
  const { access } = await issuePair(test, person, [...BOTH])
  const call = async (slug: string, query = '') => test.inject({
    method: 'GET', url: `/api/v1/${org}/${slug}/secrets/matrix${query}`, headers: { authorization: `Bearer ${access}` }
  })
  const answer = await call('teams') as Answer
  t.equal(answer.status, 200, answer.text)
  t.strictSame(columnsIn(answer), ['environment backend/test', 'environment web/live'])
  t.strictSame(rowsIn(answer), { T: 'set 1 | missing' })
  t.equal((await call('closed')).status, 403, 'no role in this project')
  t.equal((await call('closed', '?decrypt=false')).status, 403)
})

t.test('an auditor gets the levels and their versions, but no names', async (t) => {
  const owner = await makeProject('audited')
  const org = owner.organization
  await store(owner, { project: 'audited', plaintext: 'A=1\n' })
  await store(owner, at('audited', 'live'), 'B=1\n')
  const full = await matrix(owner, 'audited')
  const events = await eventsOf(owner)
  const auditor = await makePerson(test, { [org]: 'auditor' })
  const all = callerWith(org, (await issuePair(test, auditor, SCOPE_NAMES)).access)
  const answer = await matrix(all, 'audited', '?decrypt=false')
  t.equal(answer.status, 200, answer.text)
  t.strictSame(answer.body.data.attributes, { ...full.body.data.attributes, names: null })
  t.equal((await matrix(all, 'audited', '?decrypt=false', 'HEAD')).status, 200)
  for (const query of ['', '?decrypt=true', '?decrypt=no', '?decrypt=false&decrypt=true', '?decrypt=false&decrypt=false']) {
    const answer = await matrix(all, 'audited', query)
    refused(t, answer, 403, 'insufficient_permissions', query)
    t.equal(answer.body.details.required_scope, 'secret:read', query)
  }
  const without = callerWith(org, (await issuePair(test, auditor, ['secret:read', 'project:read'])).access)
  const lacking = await matrix(without, 'audited', '?decrypt=false')
  refused(t, lacking, 403, 'insufficient_permissions', 'the application was not granted secret:history')
  t.equal(lacking.body.details.required_scope, 'secret:read')
  t.strictSame(await eventsOf(owner), events, 'nothing is recorded')
})

t.test('without names, each level needs secret:read or secret:history there; with names, both other scopes', async (t) => {
  const owner = await makeProject('parts')
  const org = owner.organization
  await makeLevel(owner, { slug: 'beside' })
  await store(owner, at('parts', 'live'), 'L=1\n')
  await store(owner, at('parts', 'test'), 'T=1\n')
  const places = await test.sql(`SELECT e.project_id, e.target_id, e.id AS environment_id FROM environments e
    JOIN targets g ON g.organization_id = e.organization_id AND g.id = e.target_id AND g.slug = 'backend'
    JOIN projects p ON p.organization_id = e.organization_id AND p.id = e.project_id AND p.slug = 'parts'
    WHERE e.organization_id = '${org}' ORDER BY e.slug`) as Record<'project_id' | 'target_id' | 'environment_id', string>[]
  const [live, other] = places as [typeof places[0] & object, typeof places[0] & object]
  const LIVE = 'environment backend/live'
  const TEST = 'environment backend/test'

  const narrow = await test.token(org, ['secret:history'], { slices: [live] })
  t.strictSame(columnsIn(await matrix(narrow, 'parts', '?decrypt=false')), [LIVE])
  t.strictSame(columnsIn(await matrix(narrow, 'parts', '?decrypt=false&level=project')), [])
  refused(t, await matrix(narrow, 'beside', '?decrypt=false'), 404, 'not_found')
  refused(t, await matrix(narrow, 'parts'), 403, 'insufficient_permissions')
  const mixed = await test.token(org, ['secret:history', 'secret:decrypt'])
  refused(t, await matrix(mixed, 'parts'), 403, 'insufficient_permissions', 'names need secret:read')

  const byTeams = async (scopes: readonly Scope[], ...roles: [role: 'member' | 'auditor' | 'api_user', place: typeof live][]) => {
    const person = await makePerson(test, { [org]: 'billing_manager' })
    for (const [role, place] of roles) await makeTeam(test, org, [person], { parts: role }, [place])
    return callerWith(org, (await issuePair(test, person, scopes)).access)
  }
  const auditor = await byTeams(SCOPE_NAMES, ['auditor', live])
  t.strictSame(columnsIn(await matrix(auditor, 'parts', '?decrypt=false')), [LIVE])
  refused(t, await matrix(auditor, 'parts'), 403, 'insufficient_permissions')
  refused(t, await matrix(auditor, 'beside', '?decrypt=false'), 403, 'insufficient_permissions')
  const both = await byTeams(SCOPE_NAMES, ['auditor', live], ['member', other])
  t.strictSame(columnsIn(await matrix(both, 'parts', '?decrypt=false')), [LIVE, TEST], 'each by one of the two scopes')
  const named = await matrix(both, 'parts')
  t.strictSame(columnsIn(named), [TEST])
  t.strictSame(rowsIn(named), { T: 'set 1' })
  const neither = await byTeams(SCOPE_NAMES, ['auditor', live], ['api_user', other])
  t.strictSame(columnsIn(await matrix(neither, 'parts', '?decrypt=false')), [LIVE, TEST])
  refused(t, await matrix(neither, 'parts'), 403, 'insufficient_permissions')
  const reading = await byTeams(['secret:read'], ['auditor', live], ['member', other])
  t.strictSame(columnsIn(await matrix(reading, 'parts', '?decrypt=false')), [TEST], 'no more than the application was granted')
})

t.test('levels are paged: at most 100, and fewer after much content', async (t) => {
  const owner = await makeProject('wide')
  const org = owner.organization
  await store(owner, { project: 'wide', plaintext: 'P=1\n' })
  await fill(owner, 'wide', 210)
  await store(owner, at('wide', 'e-000'), 'E=1\n')
  await store(owner, at('wide', 'e-209'), 'E=2\n')
  const pages: Answer[] = []
  for (let next: string | null = ''; next !== null; next = pages.at(-1)!.body.meta.next_levels) {
    const answer = await matrix(owner, 'wide', next === '' ? '' : `?levels_after=${encodeURIComponent(next)}`)
    t.equal(answer.status, 200, answer.text)
    pages.push(answer)
  }
  t.strictSame(pages.map((page) => columnsIn(page).length), [100, 100, 16])
  const columns = pages.flatMap(columnsIn)
  t.equal(new Set(columns).size, 216, 'each level once')
  t.strictSame(columns.slice(0, 4), ['project', 'target backend', 'environment backend/e-000', 'environment backend/e-001'])
  t.match(rowsIn(pages[1]!), { P: /^(inherited project 1( \| )?)+$/ }, 'levels above count on each page')
  t.strictSame(Object.keys(rowsIn(pages[1]!)), ['P'])
  t.match(pages[0]!.body.meta.next_levels, 'environment:backend/e-097')
  for (const after of ['project', 'target:backend', 'environment:backend/e-000', 'target:zz', 'environment:zz/a']) {
    const answer = await matrix(owner, 'wide', `?decrypt=false&levels_after=${after}`)
    t.strictSame(columnsIn(answer), columns.slice(columns.indexOf(after.replace(':', ' ')) + 1 || 216).slice(0, 100), after)
  }

  await fill(owner, 'wide', 10, 'large')
  const plaintext = `L=${'x'.repeat(900_000)}\n`
  for (let i = 0; i < 10; i++) await store(owner, at('wide', `large-00${i}`), plaintext)
  const [first, second] = [
    await matrix(owner, 'wide', '?levels_after=environment:backend/e-209'),
    await matrix(owner, 'wide', '?levels_after=environment:backend/large-004')
  ]
  t.equal(first.body.meta.next_levels, 'environment:backend/large-004', 'a page ends after 4 MiB')
  t.strictSame([columnsIn(first).length, columnsIn(second)[0]], [5, 'environment backend/large-005'])
  t.equal((await eventsOf(owner)).at(-1)!.details.secrets.split(' ').length, 6)

  const [{ id }] = await test.sql(`SELECT id FROM projects WHERE organization_id = '${org}'`) as [{ id: string }]
  const [target] = await test.sql(`SELECT id FROM targets WHERE organization_id = '${org}' AND slug = 'web'`)
  const narrow = await test.token(org, [...BOTH], {
    slices: [{ project_id: id, target_id: target!.id as string, environment_id: null }]
  })
  const inside = await matrix(narrow, 'wide')
  t.strictSame(columnsIn(inside), ['target web', 'environment web/live'], 'the limit counts visible levels only')
  t.equal(inside.body.meta.next_levels, null)
})

t.test('a page of levels ends after many names', async (t) => {
  const owner = await makeProject('wordy')
  await fill(owner, 'wordy', 8)
  const names = Array.from({ length: 9_900 }, (_, i) => `N${i}=1\n`).join('')
  for (let i = 0; i < 8; i++) await store(owner, at('wordy', `e-00${i}`), names)
  const answer = await matrix(owner, 'wordy', '?level=environment')
  t.equal(answer.status, 200, answer.text)
  t.equal(answer.body.meta.next_levels, 'environment:backend/e-005')
  t.match(answer.body.meta, { total: 9_900, per_page: 1000 })
  t.equal(answer.body.data.attributes.names.length, 1000)
  const rest = await matrix(owner, 'wordy', '?level=environment&levels_after=environment:backend/e-005')
  t.strictSame(columnsIn(rest).length, 5)
})

t.test('a page of levels ends after much work, never before its first level, and depends only on documents', async (t) => {
  const owner = await makeProject('slow', { secret_format: 'yaml' })
  await fill(owner, 'slow', 8)
  const text = Array.from({ length: 1_400 }, (_, i) => `N${i}: v`).join('\n')
  await store(owner, { project: 'slow' }, text)
  await store(owner, { project: 'slow', target: 'backend' }, text)
  for (let i = 0; i < 8; i++) await store(owner, at('slow', `e-00${i}`), text)
  const pages = async (query: string) => {
    const columns: number[] = []
    for (let after = ''; ;) {
      const answer = await matrix(owner, 'slow', `?level=environment${query}${after}`)
      t.equal(answer.status, 200, answer.text)
      columns.push(columnsIn(answer).length)
      if (answer.body.meta.next_levels === null) return columns
      after = `&levels_after=${answer.body.meta.next_levels}`
    }
  }
  const columns = await pages('')
  t.ok(columns.length > 2 && columns.every((count) => count > 0), columns.join())
  t.equal(columns.reduce((sum, count) => sum + count), 11)
  for (const query of ['&only=missing', '&only=different', '&prefix=N1', '&page=3']) t.strictSame(await pages(query), columns, query)
})

t.test('only=missing and only=different find in 100 levels what a comparison of each cell finds', async (t) => {
  const owner = await makeProject('cells')
  await fill(owner, 'cells', 8)
  await store(owner, { project: 'cells' }, 'TOP=1\nSHADOW=1\n')
  for (let i = 0; i < 8; i++) {
    const own = Array.from({ length: 20 }, (_, j) => (i + j) % 4 === 0 ? '' : `N${j}=${(i * j) % 3}\n`).join('')
    await store(owner, at('cells', `e-00${i}`), `${own}SHADOW=${i < 4 ? 1 : 2}\n`)
  }
  const all = (await matrix(owner, 'cells', '')).body.data.attributes.names
  const namesOf = async (only: string) =>
    (await matrix(owner, 'cells', `?only=${only}`)).body.data.attributes.names.map(({ name }: any) => name)
  const wanted = (isWanted: (cells: any[]) => boolean) =>
    all.filter(({ cells }: any) => isWanted(cells)).map(({ name }: any) => name)
  t.strictSame(await namesOf('missing'), wanted((cells) => cells.some(({ state }) => state === 'missing')))
  t.strictSame(await namesOf('different'), wanted((cells) =>
    new Set(cells.flatMap(({ value_group }) => value_group ?? [])).size > 1))
  t.ok((await namesOf('different')).includes('SHADOW') && !(await namesOf('different')).includes('TOP'))
})

t.test('one such read of an organization runs at a time: callers take turns; beyond a full queue it is 503', async (t) => {
  const owner = await makeProject('queued')
  await store(owner, { project: 'queued' }, `A=${'x'.repeat(500_000)}\n`)
  const second = await test.token(owner.organization, ['*'])
  const other = await makeProject('apart')
  const path = `/${owner.organization}/queued/secrets/matrix`
  const many = Array.from({ length: 60 }, () => owner.call('GET', path))
  const beside = [second.call('GET', path), other.call('GET', `/${other.organization}/apart/secrets/matrix`)]
  for (const answer of await Promise.all(beside)) t.equal(answer.status, 200, 'another caller, another organization')
  const answers = await Promise.all(many)
  t.ok(answers.filter(({ status }) => status === 200).length >= 17)
  const refused = answers.filter(({ status }) => status !== 200)
  t.ok(refused.length > 0)
  for (const answer of refused) t.match(answer, { status: 503, body: { error: 'service_unavailable' } })
  t.equal((await owner.call('GET', path)).status, 200, 'and the queue is open again')
})

t.test('a manipulated row or document refuses the matrix', async (t) => {
  for (const [slug, statement, query] of [
    ['bent-document', 'UPDATE secrets SET sealed = set_byte(sealed, 40, get_byte(sealed, 40) # 1)', ''],
    ['bent-revision', 'UPDATE secrets SET revision = revision + 1', '?decrypt=false'],
    ['bent-target', "UPDATE targets SET slug = 'aaa' WHERE slug = 'backend' AND true", '?decrypt=false'],
    ['bent-environment', "UPDATE environments SET status = 'staging'", '?decrypt=false']
  ] as const) {
    const owner = await makeProject(slug)
    await store(owner, at(slug, 'live'), 'A=1\n')
    t.equal((await matrix(owner, slug, query)).status, 200)
    await test.sql(`${statement}${statement.includes('WHERE') ? ' AND' : ' WHERE'} organization_id = '${owner.organization}'`)
    refused(t, await matrix(owner, slug, query), 500, 'integrity_error', slug)
  }
})

t.test('the path is no level, and other projects and organizations are not there', async (t) => {
  const owner = await makeProject('paths')
  const other = await test.organization()
  refused(t, await other.call('GET', `/${owner.organization}/paths/secrets/matrix`), 404, 'not_found')
  const missing = await matrix(owner, 'none')
  refused(t, missing, 404, 'not_found')
  t.equal(missing.body.details.resource, 'project')
  t.equal((await owner.call('POST', `/${owner.organization}/paths/secrets/matrix`)).status, 405)
})

const matrix = (
  caller: Pick<Caller, 'organization' | 'call'>, project: string, query = '', method = 'GET'
): Promise<Answer> =>
  caller.call(method, `/${caller.organization}/${project}/secrets/matrix${query}`)

const at = (project: string, environment: string) => ({ project, target: 'backend', environment })

/** A new organization with a project that has two targets and three environments. */
async function makeProject (slug: string, project: object = {}) {
  const owner = await test.organization()
  await makeLevel(owner, { slug, ...project })
  for (const [path, name] of [
    [`${slug}/targets`, 'Web'], [`${slug}/web/environments`, 'Live'], [`${slug}/backend/environments`, 'Test']
  ]) {
    const answer = await owner.call('POST', `/${owner.organization}/${path}`, { name })
    if (answer.status !== 201) throw new Error(answer.text)
  }
  return owner
}

const callerWith = (organization: string, token: string) => ({
  organization,
  call: (method: string, path: string) => test.inject({
    method: method as 'GET', url: `/api/v1${path}`, headers: { authorization: `Bearer ${token}` }
  })
})

async function store (caller: Caller, body: object, plaintext?: string): Promise<string> {
  const { status, body: stored, text } = await caller.call('POST', `/${caller.organization}/secrets/store`, {
    ...body, ...(plaintext !== undefined && { plaintext })
  })
  if (status !== 200) throw new Error(text)
  return stored.data.secret_id
}

/** Creates environments of the target `backend`. */
async function fill ({ organization }: Caller, project: string, count: number, prefix = 'e') {
  const [target] = await test.sql(`SELECT g.id, g.project_id FROM targets g JOIN projects p
    ON p.organization_id = g.organization_id AND p.id = g.project_id
    WHERE p.organization_id = '${organization}' AND p.slug = '${project}' AND g.slug = 'backend'`)
  const values = Array.from({ length: count }, (_, i) => `('${ulid()}', '${organization}', '${target!.project_id}',
    '${target!.id}', 'E', '${prefix}-${String(i).padStart(3, '0')}', 'development', false)`)
  await test.write(`INSERT INTO environments (id, organization_id, project_id, target_id, name, slug, status, is_production)
    VALUES ${values.join(', ')}`)
}

function columnsIn ({ status, body, text }: Answer): string[] {
  if (status !== 200) throw new Error(text)
  return body.data.attributes.levels.map(({ level, target, environment }: any) =>
    [level, [target, environment].filter((slug) => slug !== null).join('/')].filter((word) => word !== '').join(' '))
}

/** The rows of the matrix as text. */
function rowsIn ({ status, body, text }: Answer): Record<string, string> {
  if (status !== 200) throw new Error(text)
  const { levels, names } = body.data.attributes
  return Object.fromEntries(names.map(({ name, cells }: any) => {
    if (cells.length !== levels.length) throw new Error('a row has a cell for each level')
    return [name, cells.map(({ state, from, overrides, value_group }: any) =>
      [state, from, overrides?.join(','), value_group].filter((part) => part !== undefined).join(' ')).join(' | ')]
  }))
}

interface Event { action: string, resource_type: string, resource_id: string, details: Record<'secrets' | 'revisions', string> }

const eventsOf = async ({ organization }: Caller) => [...await test.sql(`SELECT action, resource_type, resource_id, ${DETAILS}
  FROM audit_events WHERE organization_id = '${organization}' AND action IN ('secret.names', 'secret.decrypt')
  ORDER BY seq`)] as unknown as Event[]

function refused (t: Test, answer: Answer, status: number, code: string, why = '') {
  t.equal(answer.status, status, `${why} ${code}: ${answer.text}`)
  t.equal(answer.body?.error, code)
}
