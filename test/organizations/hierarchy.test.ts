// runs: one database
import t from 'tap'
import { RESERVED } from '../../src/rules/formats/slugs.ts'
import { DETAILS, makeLevel, startApp, uniqueSlug, type Answer, type Caller } from '../helpers/app.ts'
import { miscounted } from '../helpers/traffic.ts'

const service = await startApp(t)

const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/
const MOMENT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
const LONGEST = 'a'.repeat(64)

// A project with this client-managed key costs the server no key derivation.
const KEY_CHECK = {
  key_check: Buffer.alloc(32, 7).toString('base64'),
  key_check_salt: Buffer.alloc(16, 9).toString('base64'),
  key_check_iterations: 600_000
}
const CLIENT = { storage_mode: 'client', ...KEY_CHECK }

interface Kind {
  /** The path of the list below the organization, given the project and target. */
  list: (place: Place) => string
  type: string
  reserved: readonly string[]
  /** The required fields of a create in addition to the name. */
  extra: object
}
interface Place { organization: string, project: string, target: string }

const KINDS: Record<'project' | 'target' | 'environment', Kind> = {
  project: {
    list: ({ organization }) =>
    `/${organization}/projects`,
    type: 'projects',
    reserved: ['projects', 'secrets'],
    extra: CLIENT
  },
  target: {
    list: ({ organization, project }) => `/${organization}/${project}/targets`,
    type: 'targets',
    reserved: ['targets', 'secrets', 'encryption-key'],
    extra: {}
  },
  environment: {
    list: ({ organization, project, target }) => `/${organization}/${project}/${target}/environments`,
    type: 'environments',
    reserved: ['environments', 'secrets', 'history', 'rotate'],
    extra: {}
  }
}
const EVERY = Object.entries(KINDS)

/** A resource in a list, which includes its last change. */
const inList = <T extends { attributes: object }>(item: T, last_change: object | null = null) =>
  ({ ...item, attributes: { ...item.attributes, last_change } })

/** An organization with a project `home` and a target `house`. Every kind of list can be created there. */
async function settle (options: { plan?: string } = {}): Promise<{ caller: Caller, place: Place }> {
  const caller = await service.organization(options)
  const place = { organization: caller.organization, project: 'home', target: 'house' }
  await made(caller.call('POST', KINDS.project.list(place), { name: 'Home', ...CLIENT }))
  await made(caller.call('POST', KINDS.target.list(place), { name: 'House' }))
  return { caller, place }
}

async function made (answer: Promise<Answer>): Promise<Answer> {
  const { status, text } = await answer
  if (status >= 300) throw new Error(text)
  return answer
}

/** The path of an item: the path of the list, with the last part replaced. */
const itemPath = (list: string, slug: string) => list.replace(/[^/]+$/, slug)
const slugOf = (answer: Answer) => answer.body.data?.attributes.slug
const failing = (answer: Answer) => [answer.status, answer.body.error, Object.keys(answer.body.errors ?? {})]

t.test('an organization is answered by its ULID in either letter case, by its slug and as the token’s own', async (t) => {
  const slug = uniqueSlug('cirrus')
  const caller = await service.organization({ slug, plan: 'team' })
  const first = await caller.call('GET', `/organizations/${caller.organization}`)
  const { created_at, updated_at } = first.body.data.attributes
  t.match(created_at, MOMENT)
  t.match(updated_at, MOMENT)
  t.strictSame(first.body, {
    data: {
      type: 'organizations',
      id: caller.organization,
      name: 'Nimbus',
      slug,
      status: 'active',
      attributes: {
        ulid: caller.organization,
        name: 'Nimbus',
        slug,
        status: 'active',
        plan_name: 'team',
        require_second_factor: false,
        created_at,
        updated_at
      }
    }
  })
  for (const path of [
    `/organizations/${caller.organization.toLowerCase()}`, `/organizations/${slug}`, '/organization'
  ]) {
    const { status, body } = await caller.call('GET', path)
    t.strictSame([status, body], [200, first.body], path)
  }
})

t.test('a project is created with its defaults, and answers the same shape wherever it is read', async (t) => {
  const caller = await service.organization()
  const { organization } = caller
  const created = await caller.call('POST', `/${organization}/projects`, { name: 'Orbit' })
  t.equal(created.status, 201)
  t.equal(created.headers.warning, undefined)
  const { ulid, created_at } = created.body.data.attributes
  t.match(ulid, ULID)
  t.match(created_at, MOMENT)
  const data = {
    type: 'projects',
    id: ulid,
    attributes: {
      ulid,
      organization_id: organization,
      name: 'Orbit',
      slug: 'orbit',
      description: null,
      secret_format: 'env',
      encryption_type: 'server',
      history_policy: 'keep',
      has_secrets: false,
      secret_count: 0,
      environment_count: 0,
      target_count: 0,
      created_at,
      updated_at: created_at
    }
  }
  t.strictSame(created.body, { data })
  t.strictSame((await caller.call('GET', `/${organization}/orbit`)).body, { data })
  t.strictSame((await caller.call('GET', `/${organization}/projects`)).body, {
    data: [inList(data)], meta: { current_page: 1, per_page: 1000, total: 1, last_page: 1, from: 1, to: 1 }
  })
})

t.test('a project takes every member that can be given, its own key string included', async (t) => {
  const caller = await service.organization()
  const key = 'the-key-string-of-an-operator-who-has-one'
  const { status, body } = await caller.call('POST', `/${caller.organization}/projects`, {
    name: 'Données',
    slug: 'data',
    description: 'Everything that flies',
    secret_format: 'json',
    storage_mode: 'server',
    history_policy: 're_encrypt',
    encryption_key: key,
    key_hint: 'in the safe'
  })
  t.equal(status, 201)
  t.match(body.data.attributes, {
    name: 'Données',
    slug: 'data',
    description: 'Everything that flies',
    secret_format: 'json',
    encryption_type: 'server',
    history_policy: 're_encrypt'
  })
  t.equal((await caller.call('GET', `/${caller.organization}/data/encryption-key`)).body.data.attributes.key, key)
})

t.test('a target and an environment are created with their defaults, and have the same shape in every answer', async (t) => {
  const { caller, place } = await settle()
  const { organization } = caller
  const project_id = (await caller.call('GET', `/${organization}/home`)).body.data.id

  const target = await caller.call('POST', `/${organization}/home/targets`, { name: 'Backend', description: 'APIs' })
  t.equal(target.status, 201)
  const { id: target_id, attributes: { created_at } } = target.body.data
  t.match(target_id, ULID)
  t.strictSame(target.body, {
    data: {
      type: 'targets',
      id: target_id,
      attributes: {
        project_id,
        name: 'Backend',
        slug: 'backend',
        description: 'APIs',
        environment_count: 0,
        secret_count: 0,
        created_at,
        updated_at: created_at
      }
    }
  })
  t.strictSame((await caller.call('GET', `/${organization}/home/backend`)).body, target.body)
  t.strictSame(
    (await caller.call('GET', KINDS.target.list(place))).body.data.map(({ id }: { id: string }) => id)[0], target_id
  )

  const list = `/${organization}/home/backend/environments`
  const environment = await caller.call('POST', list, { name: 'Live' })
  t.equal(environment.status, 201)
  const { id, attributes } = environment.body.data
  t.match(id, ULID)
  const data = {
    type: 'environments',
    id,
    attributes: {
      project_id,
      target_id,
      name: 'Live',
      slug: 'live',
      description: null,
      status: 'development',
      is_production: false,
      created_at: attributes.created_at,
      updated_at: attributes.created_at
    }
  }
  t.strictSame(environment.body, { data })
  t.strictSame((await caller.call('GET', itemPath(list, 'live'))).body, { data })
  t.strictSame(
    (await caller.call('GET', list)).body,
    { data: [inList(data)], meta: { current_page: 1, per_page: 1000, total: 1, last_page: 1, from: 1, to: 1 } }
  )
})

t.test('an environment takes a status of the list or another slug; production is told by it or said', async (t) => {
  const { caller, place } = await settle()
  const list = KINDS.environment.list(place)
  const rows: [given: object, status: string, is_production: boolean][] = [
    [{ status: 'production' }, 'production', true],
    [{ status: 'staging' }, 'staging', false],
    [{ status: 'local' }, 'local', false],
    [{ status: 'load-test' }, 'load-test', false],
    [{ status: 'staging', is_production: true }, 'staging', true],
    [{ status: 'production', is_production: false }, 'production', false],
    [{ is_production: true }, 'development', true]
  ]
  for (const [given, status, is_production] of rows) {
    const { body } = await caller.call('POST', list, { name: 'Some', ...given })
    t.match(body.data.attributes, { status, is_production }, JSON.stringify(given))
  }
  for (const status of ['Production', '', 'two words', 5, null, 'a'.repeat(65)]) {
    t.strictSame(
      failing(await caller.call('POST', list, { name: 'Some', status })), [422, 'validation_failed', ['status']],
      JSON.stringify(status)
    )
  }
})

t.test('a project, a target and an environment count what they hold', async (t) => {
  const caller = await service.organization()
  const { organization } = caller
  const { project } = await makeLevel(caller)
  const names = { project, target: 'backend', environment: 'live' }
  await made(caller.call('POST', `/${organization}/${project}/backend/environments`, { name: 'Stage' }))
  for (const level of [names, { project, target: 'backend' }, { project }]) {
    await made(caller.call('POST', `/${organization}/secrets/store`, { ...level, plaintext: 'A=1' }))
  }
  const counts = async (path: string) => {
    const {
      has_secrets, secret_count, environment_count, target_count
    } = (await caller.call('GET', `/${organization}/${path}`)).body.data.attributes
    return { has_secrets, secret_count, environment_count, target_count }
  }
  t.strictSame(await counts(project), { has_secrets: true, secret_count: 3, environment_count: 2, target_count: 1 })
  for (const [list, item] of [['projects', project], [`${project}/targets`, `${project}/backend`]]) {
    const listed = (await caller.call('GET', `/${organization}/${list}`)).body.data
    t.strictSame(listed, [
      inList((await caller.call('GET', `/${organization}/${item}`)).body.data, listed[0].attributes.last_change)
    ], 'a list counts as well')
  }
  t.strictSame(
    await counts(`${project}/backend`),
    { has_secrets: undefined, secret_count: 2, environment_count: 2, target_count: undefined }
  )
  await made(caller.call('POST', `/${organization}/secrets/delete`, names))
  t.strictSame(
    await counts(project), { has_secrets: true, secret_count: 2, environment_count: 2, target_count: 1 },
    'a deleted document does not count'
  )
  t.equal((await counts(`${project}/backend`)).secret_count, 1)
  for (const body of [{ no_backup: true, confirmed: true }, {}, { no_backup: true, confirmed: true }]) {
    await made(caller.call('POST', `/${organization}/secrets/store`, { ...names, plaintext: 'A=1' }))
    t.same([await counts(project), await counts(`${project}/backend`)].map((own) => own.secret_count), [3, 2])
    await made(caller.call('POST', `/${organization}/secrets/delete`, { ...names, ...body }))
    t.same([await counts(project), await counts(`${project}/backend`)].map((own) => own.secret_count), [2, 1])
  }
})

t.test('slugs are made from names, numbered if taken, never reserved words, and unique within the parent', async (t) => {
  const { caller, place } = await settle()
  for (const [kind, { list, reserved, extra }] of EVERY) {
    const create = async (name: string) => slugOf(await caller.call('POST', list(place), { name, ...extra }))
    t.strictSame(
      [await create('Big Blue'), await create('big  blue!'), await create('BIG-BLUE')],
      ['big-blue', 'big-blue-2', 'big-blue-3'], kind
    )
    t.equal(await create('Crème Brûlée № 5'), 'creme-brulee-no-5')
    t.equal(await create('--- … ---'), kind, 'nothing is left of the name')
    t.equal(await create('火'), `${kind}-2`)
    for (const word of reserved) t.equal(await create(word), `${word}-2`, `${word} is reserved`)
    t.strictSame([await create('a'.repeat(255)), await create('a'.repeat(255))], [LONGEST, `${'a'.repeat(62)}-2`])
  }
  const elsewhere = await settle()
  t.equal(
    slugOf(await elsewhere.caller.call('POST', KINDS.project.list(elsewhere.place), { name: 'Big Blue', ...CLIENT })),
    'big-blue', 'another organization'
  )
  t.equal(
    slugOf(await caller.call('POST', `/${place.organization}/big-blue/targets`, { name: 'Big Blue' })), 'big-blue',
    'another project'
  )
})

t.test('where many siblings have the name, its slug ends with something random', async (t) => {
  const { caller, place } = await settle()
  const create = async () => slugOf(await caller.call('POST', KINDS.target.list(place), { name: 'Many' }))
  const slugs: string[] = []
  for (let i = 0; i < 55; i++) slugs.push(await create())
  t.strictSame(slugs.slice(0, 50), Array.from({ length: 50 }, (_, i) => i === 0 ? 'many' : `many-${i + 1}`))
  for (const slug of slugs.slice(50)) t.match(slug, /^many-[0-9a-f]{8}$/)
  t.equal(new Set(slugs).size, 55)
})

t.test('a slug that is taken, reserved, too long or malformed is refused on create and update', async (t) => {
  const { caller, place } = await settle()
  for (const [kind, { list, reserved, extra }] of EVERY) {
    const path = list(place)
    await made(caller.call('POST', path, { name: 'One', slug: 'one', ...extra }))
    await made(caller.call('POST', path, { name: 'Two', slug: 'two', ...extra }))
    const before = (await caller.call('GET', path)).text
    t.strictSame(
      RESERVED[kind as 'project'].filter((word) => reserved.includes(word)).sort(), [...reserved].sort(),
      'every reserved word of S-3.4 is one'
    )
    for (const [method, url] of [
      ['POST', path], ['PATCH', itemPath(path, 'two')], ['PUT', itemPath(path, 'two')]
    ] as const) {
      const send = async (slug: unknown) =>
        failing(await caller.call(method, url, { name: 'Two', slug, ...(method === 'POST' && extra) }))
      t.strictSame(await send('one'), [422, 'slug_taken', ['slug']], `${kind} ${method}`)
      for (const word of RESERVED[kind as 'project']) {
        t.strictSame(await send(word), [422, 'validation_failed', ['slug']], `${method} ${word}`)
      }
      for (const bad of [
        'a'.repeat(65), '', 'Upper', 'two words', '-a', 'a-', 'a--b', 'a_b', 'a/b', '..', 'ä', 'a\n', 7, null, {}
      ]) {
        t.strictSame(await send(bad), [422, 'validation_failed', ['slug']], `${kind} ${method} ${JSON.stringify(bad)}`)
      }
    }
    t.equal((await caller.call('GET', path)).text, before, 'nothing changed')
    t.equal(
      slugOf(await caller.call('POST', path, { name: 'x', slug: LONGEST, ...extra })), LONGEST,
      '64 characters are allowed'
    )
    t.equal(
      (await caller.call('PATCH', itemPath(path, 'two'), { slug: 'two' })).status, 200, 'its own slug is not taken'
    )
  }
})

t.test('names, descriptions and unknown members are judged on create and on update', async (t) => {
  const { caller, place } = await settle()
  for (const [kind, { list, extra }] of EVERY) {
    const path = list(place)
    await made(caller.call('POST', path, { name: 'One', slug: 'one', ...extra }))
    for (const [method, url] of [
      ['POST', path], ['PATCH', itemPath(path, 'one')], ['PUT', itemPath(path, 'one')]
    ] as const) {
      const send = async (members: object) =>
        failing(await caller.call(method, url, { name: 'One', ...members, ...(method === 'POST' && extra) }))
      for (const name of ['', ' \t', 'a'.repeat(256), 5, null, ['One']]) {
        t.strictSame(
          await send({ name }), [422, 'validation_failed', ['name']], `${kind} ${method} name ${JSON.stringify(name)}`
        )
      }
      for (const description of ['a'.repeat(2001), 5, {}]) {
        t.strictSame(await send({ description }), [422, 'validation_failed', ['description']])
      }
      t.strictSame(await send({ nmae: 'x' }), [422, 'validation_failed', ['nmae']])
      t.strictSame(await send({ id: '1', ulid: '2' }), [422, 'validation_failed', ['id', 'ulid']])
    }
    t.strictSame(
      failing(await caller.call('POST', path, extra)), [422, 'validation_failed', ['name']], 'a name is required'
    )
    t.strictSame(failing(await caller.call('POST', path)), [422, 'validation_failed', ['name']], 'so is a body')
  }
})

t.test('PUT and PATCH are alike: what is left out stays, and only an explicit slug changes the slug', async (t) => {
  const { caller, place } = await settle()
  const rows: Record<string, { given: object, changed: object }> = {
    project: {
      given: { description: 'd', secret_format: 'json', history_policy: 're_encrypt' },
      changed: { secret_format: 'yaml', history_policy: 'keep' }
    },
    target: { given: { description: 'd' }, changed: {} },
    environment: {
      given: { description: 'd', status: 'staging', is_production: true },
      changed: { status: 'local', is_production: false }
    }
  }
  for (const [kind, { list, extra }] of EVERY) {
    const { given, changed } = rows[kind]!
    for (const method of ['PUT', 'PATCH']) {
      const name = `First ${method}`
      const created = await made(caller.call('POST', list(place), { name, ...given, ...extra }))
      const { slug, ...rest } = created.body.data.attributes
      const path = itemPath(list(place), slug)
      const update = async (at: string, body: object) => {
        const answer = await caller.call(method, at, body)
        t.equal(answer.status, 200, `${kind} ${method} ${JSON.stringify(body)}`)
        t.equal(answer.body.data.id, created.body.data.id)
        return answer.body.data.attributes
      }
      const { updated_at, ...renamed } = await update(path, { name: 'Second' })
      t.ok(updated_at >= rest.updated_at)
      const { updated_at: _, ...before } = rest
      t.strictSame(renamed, { ...before, slug, name: 'Second' })
      t.match(
        await update(path, { description: null, ...changed }), { name: 'Second', slug, description: null, ...changed }
      )
      t.match(await update(path, {}), { name: 'Second', slug, description: null, ...changed })
      const moved = `moved-${method.toLowerCase()}`
      t.match(await update(path, { slug: moved }), { name: 'Second', slug: moved })
      t.equal((await caller.call('GET', path)).status, 404, 'the old slug names nothing')
      t.equal((await caller.call('GET', itemPath(path, moved))).status, 200)
    }
  }
})

t.test('no member of an update changes the key of a project, or who holds it, by itself', async (t) => {
  const { caller, place } = await settle()
  for (const [member, value] of Object.entries({
    storage_mode: 'server', encryption_key: 'x'.repeat(20), key_hint: 'x', ...KEY_CHECK
  })) {
    const wanted = member === 'storage_mode' ? 'encryption_key' : member
    t.strictSame(
      failing(await caller.call('PATCH', `/${place.organization}/home`, { [member]: value })),
      [422, 'validation_failed', [wanted]]
    )
  }
})

t.test('lists come back whole, or by page, in the order of slugs', async (t) => {
  const { caller, place } = await settle()
  for (const [kind, { list, extra, type }] of EVERY) {
    const path = list(place)
    const already = (await caller.call('GET', path)).body.data.length
    for (let i = 0; i < 27 - already; i++) {
      await made(caller.call('POST', path, { name: 'n', slug: `n-${String(i).padStart(2, '0')}`, ...extra }))
    }
    const whole = await caller.call('GET', path)
    const slugs = whole.body.data.map(({ attributes }: { attributes: { slug: string } }) => attributes.slug)
    t.strictSame(slugs, [...slugs].sort(), kind)
    t.ok(whole.body.data.every((item: { type: string }) => item.type === type))
    t.strictSame(whole.body.meta, { current_page: 1, per_page: 1000, total: 27, last_page: 1, from: 1, to: 27 })
    const page = async (query: string) => {
      const { body } = await caller.call('GET', `${path}?${query}`)
      return [body.data.map(({ attributes }: { attributes: { slug: string } }) => attributes.slug), body.meta]
    }
    t.strictSame(
      await page('page=1'),
      [slugs.slice(0, 25), { current_page: 1, per_page: 25, total: 27, last_page: 2, from: 1, to: 25 }]
    )
    t.strictSame(
      await page('page=2'),
      [slugs.slice(25), { current_page: 2, per_page: 25, total: 27, last_page: 2, from: 26, to: 27 }]
    )
    t.strictSame(
      await page('per_page=10&page=3'),
      [slugs.slice(20), { current_page: 3, per_page: 10, total: 27, last_page: 3, from: 21, to: 27 }]
    )
    t.strictSame(
      await page('page=1000000000&per_page=100'),
      [[], { current_page: 1_000_000_000, per_page: 100, total: 27, last_page: 1, from: null, to: null }]
    )
    for (const query of [
      'page=0', 'page=-1', 'page=1.5', 'page=x', 'page=9007199254740993', 'per_page=0', 'per_page=101', 'per_page=all',
      'page=1&page=2', 'order=name&per_page=1'
    ]) {
      t.strictSame(
        failing(await caller.call('GET', `${path}?${query}`)), [422, 'validation_failed', [query.split('=')[0]]], query
      )
    }
  }
})

t.test('a list of nothing is an empty page', async (t) => {
  const caller = await service.organization()
  t.strictSame((await caller.call('GET', `/${caller.organization}/projects`)).body, {
    data: [], meta: { current_page: 1, per_page: 1000, total: 0, last_page: 1, from: null, to: null }
  })
})

t.test('a delete takes everything below it, documents and history included, and is audited with the counts', async (t) => {
  const rows: [path: string, gone: string[], stays: string[], event: string, counts: object][] = [
    [
      'live', ['live', 'live/secrets'], ['', 'secrets', '../backend'], 'environment.delete',
      { documents: 1, versions: 2 }
    ],
    [
      '', ['', 'secrets', 'live', 'live/secrets', 'environments'], ['../secrets', '../targets'], 'target.delete',
      { documents: 2, versions: 3 }
    ],
    ['..', ['..', '../targets', '../secrets', '', 'live'], [], 'project.delete', { documents: 3, versions: 4 }]
  ]
  for (const [path, gone, stays, event, counts] of rows) {
    const caller = await service.organization()
    const { project, target, environment } = await makeLevel(caller)
    const at = (below: string) =>
      new URL(below, `http://x/${caller.organization}/${project}/backend/`).pathname.replace(/\/$/, '')
    for (const level of [
      { project }, { project, target }, { project, target, environment }, { project, target, environment }
    ]) {
      await made(caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: 'A=1' }))
    }
    const history = `/${caller.organization}/secrets/versions`
    const { data: [newest] } = (await caller.call('POST', history, { project, target, environment })).body
    const deleted = await caller.call('DELETE', at(path))
    t.strictSame([deleted.status, deleted.text, deleted.headers['content-type']], [204, '', undefined], event)
    for (const below of gone) t.equal((await caller.call('GET', at(below))).status, 404, `${event} ${at(below)}`)
    for (const below of stays) t.equal((await caller.call('GET', at(below))).status, 200, `${event} ${at(below)}`)
    t.equal((await caller.call('DELETE', at(path))).status, 404, 'it is gone')
    t.equal((await caller.call('POST', history, { project, target, environment })).status, 404)
    t.equal((await caller.call('GET', `${history}/${newest.id}`)).status, 404)
    t.equal((await caller.call('POST', `${history}/${newest.id}/restore`)).status, 404)
    const own = `organization_id = '${caller.organization}'`
    t.same(
      [...await service.sql(`SELECT ${DETAILS} FROM audit_events WHERE ${own} AND action = '${event}'`)],
      [{ details: counts }]
    )
    const [left] = await service.sql(`SELECT (SELECT count(*)::int FROM secrets WHERE ${own}) AS secrets, (SELECT count(*)::int FROM secret_versions WHERE ${own}) AS versions,
      (SELECT count(*)::int FROM encryption_keys WHERE ${own}) AS keys`)
    const { documents, versions } = counts as { documents: number, versions: number }
    t.strictSame(left, { secrets: 3 - documents, versions: 4 - versions, keys: event === 'project.delete' ? 0 : 1 })
    t.same(await miscounted(service.sql, service.organizations), [])
  }
})

t.test('a slug can be used again after a delete, and brings nothing back', async (t) => {
  const caller = await service.organization()
  const { project } = await makeLevel(caller)
  const path = `/${caller.organization}/${project}`
  await made(caller.call(
    'POST', `/${caller.organization}/secrets/store`,
    { project, target: 'backend', environment: 'live', plaintext: 'A=1' }
  ))
  await made(caller.call('DELETE', `${path}/backend`))
  t.equal(slugOf(await caller.call('POST', `${path}/targets`, { name: 'Backend' })), 'backend')
  t.equal((await caller.call('GET', `${path}/backend/live`)).status, 404)
  await made(caller.call('POST', `${path}/backend/environments`, { name: 'Live' }))
  t.strictSame((await caller.call('GET', `${path}/backend/live/secrets`)).body.data.attributes.levels, {})
})

t.test('what does not exist is 404 for every operation, whatever its parent', async (t) => {
  const { caller, place } = await settle()
  const o = place.organization
  const missing = [
    `/${o}/none`, `/${o}/home/none`, `/${o}/home/house/none`, `/${o}/none/house`, `/${o}/home/none/live`,
    `/${o}/none/house/live`, `/${o}/${'a'.repeat(100)}`, `/${o}/HOME`
  ]
  for (const path of missing) {
    for (const method of ['GET', 'DELETE']) {
      t.strictSame(failing(await caller.call(method, path)), [404, 'not_found', []], `${method} ${path}`)
    }
    for (const method of ['PUT', 'PATCH']) {
      t.strictSame(failing(await caller.call(method, path, { name: 'x' })), [404, 'not_found', []], `${method} ${path}`)
    }
  }
  for (const path of [`/${o}/none/targets`, `/${o}/none/house/environments`, `/${o}/home/none/environments`]) {
    t.strictSame(failing(await caller.call('GET', path)), [404, 'not_found', []], path)
    t.strictSame(failing(await caller.call('POST', path, { name: 'x' })), [404, 'not_found', []], path)
  }
})

t.test('the long paths answer the same, with the dates of their deprecation and end, and their replacement', async (t) => {
  const caller = await service.organization()
  const { organization } = caller
  const { project } = await makeLevel(caller)
  await made(caller.call(
    'POST', `/${organization}/secrets/store`, { project, target: 'backend', environment: 'live', plaintext: 'A=1' }
  ))
  const long = `/organizations/${organization}/projects`
  const rows = [
    [long, `/${organization}/projects`],
    [`${long}/${project}`, `/${organization}/${project}`],
    [`${long}/${project}/secrets`, `/${organization}/${project}/secrets`],
    [`${long}/${project}/targets`, `/${organization}/${project}/targets`],
    [`${long}/${project}/targets/backend`, `/${organization}/${project}/backend`],
    [`${long}/${project}/targets/backend/secrets`, `/${organization}/${project}/backend/secrets`],
    [`${long}/${project}/targets/backend/environments`, `/${organization}/${project}/backend/environments`],
    [`${long}/${project}/targets/backend/environments/live`, `/${organization}/${project}/backend/live`],
    [`${long}/${project}/targets/backend/environments/live/secrets`, `/${organization}/${project}/backend/live/secrets`]
  ] as const
  const stable = ({ body }: Answer) =>
    ({ ...body, meta: body.meta && { ...body.meta, timestamp: null, api_path: null } })
  for (const [old, path] of rows) {
    const [before, now] = [await caller.call('GET', old), await caller.call('GET', path)]
    t.strictSame([before.status, stable(before)], [200, stable(now)], old)
    t.match(before.headers, { deprecation: /^@\d+$/, link: `</api/v1${path}>; rel="successor-version"` }, old)
    t.ok(
      Date.parse(String(before.headers.sunset)) > Number(String(before.headers.deprecation).slice(1)) * 1000,
      'the sunset is a date after the deprecation'
    )
    t.strictSame(
      [now.headers.deprecation, now.headers.sunset, now.headers.link], [undefined, undefined, undefined], path
    )
    for (const method of ['POST', 'PUT', 'PATCH', 'DELETE']) {
      t.equal((await caller.call(method, old, { name: 'x' })).status, 405, `${method} ${old} only reads`)
    }
  }
  const retrieve = await caller.call(
    'POST', `/organizations/${organization}/secrets/retrieve`,
    { project, action: 'decrypt', target: 'backend', environment: 'live' }
  )
  t.strictSame([retrieve.status, retrieve.body.data.secrets], [200, { A: '1' }])
  t.match(retrieve.headers, {
    deprecation: /^@\d+$/, link: `</api/v1/${organization}/secrets/retrieve>; rel="successor-version"`
  })
})

t.test('a plan’s number of projects is a limit, also for creations at once; a delete gives one back', async (t) => {
  const caller = await service.organization({ plan: 'free' })
  const create = () => caller.call('POST', `/${caller.organization}/projects`, { name: 'Orbit', ...CLIENT })
  const answers = await Promise.all(Array.from({ length: 9 }, create))
  t.strictSame(answers.map(({ status }) => status).sort(), [201, 201, 201, 201, 201, 422, 422, 422, 422])
  const refused = answers.find(({ status }) => status === 422)!
  t.equal(refused.body.error, 'plan_limit_reached')
  t.strictSame(refused.body.details, { limit: 5, used: 5, plan: 'free' })
  t.equal((await caller.call('GET', `/${caller.organization}/projects`)).body.meta.total, 5)
  await made(caller.call('DELETE', `/${caller.organization}/orbit-3`))
  t.equal(slugOf(await create()), 'orbit-3')
  t.equal((await create()).body.error, 'plan_limit_reached')
})

t.test('CR-25: a client’s key is registered with its whole triple, within its bounds, or not at all', async (t) => {
  const caller = await service.organization()
  const path = `/${caller.organization}/projects`
  const create = (members: object) => caller.call('POST', path, { name: 'Vault', storage_mode: 'client', ...members })
  const bytes = (length: number) => Buffer.alloc(length, 1).toString('base64')
  for (const member of Object.keys(KEY_CHECK)) {
    t.strictSame(
      failing(await create({ ...KEY_CHECK, [member]: undefined })), [422, 'validation_failed', [member]],
      `without ${member}`
    )
  }
  const bad: Record<string, unknown[]> = {
    key_check: [bytes(31), bytes(33), '', 'no base64!', bytes(32).replace('=', ''), 5, null],
    key_check_salt: [bytes(15), bytes(65), '', '%%%%', bytes(16).replace('==', ''), 5, null],
    key_check_iterations: [0, -1, 1, 999, 10_000_001, 2 ** 31, 1e9, '600000', 600000.5, null, true]
  }
  for (const [member, values] of Object.entries(bad)) {
    for (const value of values) {
      t.strictSame(
        failing(await create({ ...KEY_CHECK, [member]: value })), [422, 'validation_failed', [member]],
        `${member} ${JSON.stringify(value)}`
      )
    }
  }
  t.strictSame(
    failing(await create({ ...KEY_CHECK, encryption_key: 'x'.repeat(20) })),
    [422, 'validation_failed', ['encryption_key']], 'a client keeps its key'
  )
  for (const member of Object.keys(KEY_CHECK)) {
    t.strictSame(
      failing(await create({ storage_mode: 'server', [member]: KEY_CHECK[member as 'key_check'] })),
      [422, 'validation_failed', [member]]
    )
  }
  t.equal((await caller.call('GET', path)).body.meta.total, 0, 'none was made')

  const good: [members: object, warned: boolean][] = [
    [{}, false],
    [{ key_check_iterations: 6e5 }, false],
    [{ key_check_iterations: 10_000_000 }, false],
    [{ key_check_salt: bytes(64) }, false],
    [{ key_check_iterations: 599_999 }, true],
    [{ key_check_iterations: 1000 }, true]
  ]
  for (const [members, warned] of good) {
    const answer = await create({ ...KEY_CHECK, ...members })
    t.strictSame([answer.status, answer.body.data.attributes.encryption_type], [201, 'client'], JSON.stringify(members))
    t.equal(answer.headers.warning !== undefined, warned, JSON.stringify(members))
    if (warned) t.match(answer.headers.warning, /^299 - "/)
    const key = await caller.call('GET', `${itemPath(path, slugOf(answer))}/encryption-key`)
    t.match(
      key.body.data.attributes,
      { managed: 'client', key_check_salt: KEY_CHECK.key_check_salt, key_check_iterations: 600_000, ...members }
    )
    t.notMatch(key.text, KEY_CHECK.key_check, 'the active check is not given out')
  }
})

t.test('a project’s key string, format, custody and policy are judged', async (t) => {
  const caller = await service.organization()
  const rows: [member: string, values: unknown[]][] = [
    ['encryption_key', ['short', 'x'.repeat(1025), 5, null]],
    ['key_hint', ['x'.repeat(256), 5]],
    ['secret_format', ['ENV', 'toml', '', 5, null]],
    ['storage_mode', ['Server', 'none', 5, null]],
    ['history_policy', ['drop', 'Keep', 5, null]]
  ]
  for (const [member, values] of rows) {
    for (const value of values) {
      t.strictSame(
        failing(await caller.call('POST', `/${caller.organization}/projects`, { name: 'x', [member]: value })),
        [422, 'validation_failed', [member]], `${member} ${JSON.stringify(value)}`
      )
    }
  }
})
