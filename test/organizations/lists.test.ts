// runs: one database
import t, { type Test } from 'tap'
import { startApp, makeLevel, type Caller } from '../helpers/app.ts'
import { makePerson, makeTeam, issuePair } from '../helpers/people.ts'

const service = await startApp(t)
const owner = await service.organization()
const o = owner.organization
await makeLevel(owner, { slug: 'parent', name: 'zz parent' })

/** Names, in order of creation. The second and third differ only in case. */
const NAMES = ['Mango tree', 'apple', 'Apple', 'Zebra', 'Äpfel', '100% a_b', '.* (x|y)\\', '[z-a]', 'mango pie']
const SORTED = ['.* (x|y)\\', '100% a_b', '[z-a]', 'apple', 'Apple', 'mango pie', 'Mango tree', 'Zebra', 'Äpfel']

interface Item { id: string, name?: string, attributes?: { name: string } }
const nameOf = ({ name, attributes }: Item) => attributes?.name ?? name ?? ''

/** Each list, with a function that creates a resource with this name. `slugged`: searched by slug. */
const LISTS: Record<string, { path: string, make: (name: string, i: number) => Promise<unknown>, searched: 'slug' | 'email' | 'name' }> = {
  projects: { path: `/${o}/projects`, make: (name, i) => create(`/${o}/projects`, name, i), searched: 'slug' },
  targets: { path: `/${o}/parent/targets`, make: (name, i) => create(`/${o}/parent/targets`, name, i), searched: 'slug' },
  environments: {
    path: `/${o}/parent/backend/environments`,
    make: (name, i) => create(`/${o}/parent/backend/environments`, name, i),
    searched: 'slug'
  },
  teams: { path: `/organizations/${o}/teams`, make: (name, i) => create(`/organizations/${o}/teams`, name, i), searched: 'slug' },
  members: {
    path: `/organizations/${o}/members`,
    make: async (name, i) => {
      const person = await makePerson(service, { [o]: 'member' })
      await service.write(`UPDATE users SET name = '${name.replaceAll("'", "''")}', email = 'slug-${i}@nimbus.example',
        email_normalized = 'slug-${i}@nimbus.example' WHERE id = ${person.id}`)
    },
    searched: 'email'
  },
  tokens: {
    path: `/organizations/${o}/api-keys`,
    make: (name) => owner.call('POST', `/organizations/${o}/api-keys`, { name, abilities: ['secret:read'] }),
    searched: 'name'
  }
}

async function create (path: string, name: string, i: number) {
  const { status, text } = await owner.call('POST', path, { name, slug: `slug-${i}` })
  if (status !== 201) throw new Error(text)
}

const listOf = async (caller: Caller, path: string, query: string): Promise<{ names: string[], total: number }> => {
  const { status, body, text } = await caller.call('GET', `${path}?${query}`)
  if (status !== 200) throw new Error(`${status} ${text}`)
  return { names: body.data.map(nameOf), total: body.meta.total }
}
const ofText = (parameter: string, text: string) => `${encodeURIComponent(parameter)}=${encodeURIComponent(text)}`

async function selects (t: Test, caller: Caller, path: string, searched: string) {
  const known = (names: string[]) => names.filter((name) => NAMES.includes(name))
  const all = await listOf(caller, path, '')
  const others = all.total - NAMES.length
  t.strictSame(known((await listOf(caller, path, 'sort=name')).names), SORTED)
  t.strictSame(known((await listOf(caller, path, 'sort=-name')).names), SORTED.toReversed())
  t.strictSame(known((await listOf(caller, path, 'sort=created_at')).names), NAMES)
  t.strictSame(known((await listOf(caller, path, 'sort=-created_at')).names), NAMES.toReversed())
  for (const [text, found] of [
    ['apple', ['apple', 'Apple']], ['MANGO', ['mango pie', 'Mango tree']], ['äPFEL', ['Äpfel']], ['0% A_', ['100% a_b']],
    ['%', ['100% a_b']], ['_', ['100% a_b']], ['.*', ['.* (x|y)\\']], ['\\', ['.* (x|y)\\']], ['(X|', ['.* (x|y)\\']],
    ['[', ['[z-a]']], ['^a', []], ["'; DROP TABLE projects; --", []], ['x'.repeat(255), []], ['😀', []]
  ] as [string, string[]][]) {
    for (const parameter of ['filter[name]', 'search']) {
      const result = await listOf(caller, path, `sort=name&${ofText(parameter, text)}`)
      t.strictSame(result, { names: found, total: found.length }, `${parameter} ${text}`)
    }
  }
  const bySlug = (await listOf(caller, path, 'search=LUG-3')).names
  t.strictSame(bySlug, searched === 'name' ? [] : ['Zebra'])
  t.strictSame((await listOf(caller, path, 'filter[name]=slug-3')).names, [], 'which is of names alone')
  t.strictSame(
    await listOf(caller, path, 'filter%5Bname%5D=MANGO&search=tree'), { names: ['Mango tree'], total: 1 }, 'both hold'
  )
  // All pages together contain each row once, even if names are equal.
  for (const order of ['sort=name', 'sort=-name', 'sort=-created_at', '']) {
    const paged: string[] = []
    for (let page = 1; paged.length < all.total; page++) {
      const { names, total } = await listOf(caller, path, `${order}&page=${page}&per_page=2`)
      t.equal(total, all.total)
      if (names.length === 0) break
      paged.push(...names)
    }
    t.strictSame(paged, (await listOf(caller, path, order)).names, order)
  }
  t.strictSame(await listOf(caller, path, 'filter[name]=apple&per_page=1&page=7'), { names: [], total: 2 }, 'beyond the end')
  t.ok(others >= 0)
  for (const query of [
    'sort=slug', 'sort=Name', 'sort=name,created_at', 'sort=name&sort=name', 'filter[name]=%00', 'search=a%00',
    `search=${'x'.repeat(256)}`, `filter[name]=${'x'.repeat(256)}`, 'filter[slug]=x', 'filter=x', 'search=a&search=b'
  ]) {
    t.match(await caller.call('GET', `${path}?${query}`), { status: 422, body: { error: 'validation_failed' } }, query)
  }
}

for (const [noun, { path, make, searched }] of Object.entries(LISTS)) {
  t.test(`S-1.15 the list of ${noun} is sorted by name or creation and filtered by text, in stable pages`, async (t) => {
    for (const [i, name] of NAMES.entries()) await make(name, i)
    await selects(t, owner, path, searched)
  })
}

t.test('S-1.15 a filter shows a restricted token or a team member nothing that the full list does not show', async (t) => {
  const restricted = await service.token(o, ['project:read', 'api-token:read'], {
    slices: await Promise.all(['slug-1', 'slug-3'].map(async (slug) => {
      const { body } = await owner.call('GET', `/${o}/${slug}`)
      return { project_id: body.data.id, target_id: null, environment_id: null }
    }))
  })
  const person = await makePerson(service, { [o]: 'billing_manager' })
  await makeTeam(service, o, [person], { 'slug-1': 'member', 'slug-3': 'member' })
  await makeTeam(service, o, [person], { 'slug-3': 'developer' })
  const { access } = await issuePair(service, person, ['project:read'])
  const member: Caller = {
    ...owner,
    call: async (method, path) => service.inject({
      method: method as 'GET', url: `/api/v1${path}`, headers: { authorization: `Bearer ${access}` }
    })
  }
  for (const caller of [restricted, member]) {
    const list = (query: string) => listOf(caller, `/${o}/projects`, query)
    t.strictSame(await list('sort=name'), { names: ['apple', 'Zebra'], total: 2 })
    t.strictSame(await list('sort=-name'), { names: ['Zebra', 'apple'], total: 2 })
    t.strictSame(await list('sort=-created_at&per_page=1'), { names: ['Zebra'], total: 2 })
    t.strictSame(await list('filter[name]=APPLE'), { names: ['apple'], total: 1 }, 'not the other one of that name')
    t.strictSame(await list('search=slug-'), { names: ['apple', 'Zebra'], total: 2 })
    t.strictSame(await list('search=mango'), { names: [], total: 0 })
    t.strictSame(await list('filter[name]=e&search=slug-3&sort=name&page=2&per_page=1'), { names: [], total: 1 })
  }
  t.strictSame(await listOf(restricted, `/organizations/${o}/api-keys`, 'search=apple'), { names: [], total: 0 })
})

t.test('S-1.15 a long text is found in upper or lower case, in any script', async (t) => {
  const caller = await service.organization()
  const path = `/organizations/${caller.organization}/api-keys`
  const names = [
    'The quick brown fox jumps over the lazy dog, 100% of the time: \\ [x] (y|z) _ "quoted" \'single\' $1',
    'Съешь же ещё этих мягких французских булок, да выпей чаю', 'Οδυσσεύς και Σίσυφος στην οδό του νησιού, ένας φίλος',
    'Kurze Gasse an der großen Brücke über den schönen Fluß, ÄÖÜ', 'Łódź, Žižkov, Århus, Œuvre, Þór, Ðakovo and Ñandú: Éclair',
    '日本語の長い名前をここに書いておきますから確かめてください、お願いします', '😀'.repeat(60)
  ]
  for (const name of names) {
    const { status, text } = await caller.call('POST', path, { name, abilities: ['secret:read'] })
    if (status !== 201) throw new Error(text)
  }
  const upper = (text: string) => text.replaceAll(/[^ßς]/g, (character) => character.toUpperCase())
  for (const name of names) {
    const texts = [name, name.slice(4), name.toLowerCase(), upper(name), upper(name.slice(0, -4)), name.slice(0, 34)]
    for (const text of texts) {
      for (const parameter of ['filter[name]', 'search']) {
        const found = await listOf(caller, path, ofText(parameter, text))
        t.strictSame(found, { names: [name], total: 1 }, `${parameter} ${text}`)
        t.strictSame((await listOf(caller, path, ofText(parameter, `${text}!`))).names, [])
      }
    }
  }
  const [one = '', other = ''] = names
  t.strictSame((await listOf(caller, path, `search=fox&${ofText('filter[name]', one.toUpperCase())}`)).names, [one], 'a short and a long text')
  t.strictSame((await listOf(caller, path, `search=fox&${ofText('filter[name]', other)}`)).names, [])
  t.strictSame((await listOf(caller, path, `filter[name]=${'s'.repeat(40)}`)).names, [])
})

t.test('a long text costs the database little more than a short one, however similar the names are', async (t) => {
  const caller = await service.organization()
  const [row] = await service.sql(`SELECT id FROM api_tokens WHERE organization_id = '${caller.organization}'`)
  await service.sql(`INSERT INTO api_tokens OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(x, jsonb_build_object(
      'id', x.id + 1000000 + n, 'token_hash', x.token_hash::text || lpad(n::text, 8, '0'), 'name', repeat('a', 255)))).*
    FROM api_tokens x CROSS JOIN generate_series(1, 2000) n
    WHERE x.organization_id = '${caller.organization}' AND x.id = ${row!.id as string}`)
  const timeOf = async (text: string) => {
    const times: number[] = []
    for (let round = 0; round < 3; round++) {
      const began = performance.now()
      const { total } = await listOf(caller, `/organizations/${caller.organization}/api-keys`, ofText('search', text))
      times.push(performance.now() - began)
      t.equal(total, 0)
    }
    return Math.min(...times)
  }
  const short = await timeOf('b')
  for (const text of [`${'a'.repeat(254)}b`, `${'a'.repeat(33)}b`, `${'ß'.repeat(200)}b`, `${'А'.repeat(250)}b`]) {
    const long = await timeOf(text)
    t.ok(long < 8 * short + 50, `${Math.round(long)} ms for ${text.length} characters, ${Math.round(short)} ms for one`)
  }
})
