// runs: one database, embedded; 15 s
import t from 'tap'
import { ulid } from 'ulidx'
import { makeLevel, startApp } from '../helpers/app.ts'
import { sample } from '../helpers/long.ts'
import { callAs, makePerson } from '../helpers/people.ts'

// Reads of many documents have a budget of work (decision 0091). If documents take long to parse, a page ends before
// its other limits. All pages together contain each document once.

const test = await startApp(t)
const owner = await test.organization()
const org = owner.organization

const NAMES = 9_990
/** A document that takes a fifth of the budget. `value` is the value of the name `LAST`. */
const slow = (value: string) =>
  Array.from({ length: NAMES }, (_, i) => `export P${i} = "x"`).join('\n') + `\nLAST=${value}\n`
const ENVIRONMENTS = ['e0', 'e1', 'e2', 'e3', 'e4', 'e5', 'e6', 'e7']

async function store (at: object, plaintext: string) {
  const answer = await owner.call('POST', `/${org}/secrets/store`, { ...at, plaintext })
  if (answer.status !== 200) throw new Error(answer.text)
}

/** A project with a slow document in each of eight environments. */
async function makeProject (slug: string) {
  const { project, target } = await makeLevel(owner, { slug })
  for (const name of ENVIRONMENTS) await owner.call('POST', `/${org}/${project}/${target}/environments`, { name })
  const levels = ENVIRONMENTS.map((environment) => ({ project, target, environment }))
  for (const level of levels) await store(level, slow('1'))
  return { project, levels }
}

t.test('a search for a name ends its page by the work, and its pages find each document once', async (t) => {
  await makeProject('searched')
  const found: string[] = []
  const sizes: number[] = []
  for (let after: string | null = ''; after !== null;) {
    const { status, body } = await owner.call('GET', `/${org}/secrets/names?search=LAST${after && `&after=${after}`}`)
    t.equal(status, 200)
    found.push(...body.data.map(({ attributes }: { attributes: { environment: string } }) => attributes.environment))
    sizes.push(body.meta.documents)
    after = body.meta.next
  }
  t.strictSame(found.sort(), ENVIRONMENTS)
  t.ok(sizes.length > 1 && sizes[0]! > 0, `documents of the pages: ${sizes.join(', ')}`)
})

t.test('the history of a name ends its page by the work, and its pages have each change once, newest first', async (t) => {
  const at = await makeLevel(owner, { slug: 'traced' })
  const values = Array.from({ length: 12 }, (_, i) => String(i))
  for (const value of values) await store(at, slow(value))
  const path = `/${org}/${at.project}/${at.target}/${at.environment}/secrets/names/history?name=LAST&values=true`
  const found: string[] = []
  let pages = 0
  for (let after: string | null = ''; after !== null; pages++) {
    const { status, body } = await owner.call('GET', `${path}${after && `&after=${after}`}`)
    t.equal(status, 200)
    found.push(...body.data.map(({ attributes }: { attributes: { value: string } }) => attributes.value))
    after = body.meta.next
  }
  t.strictSame(found, values.reverse())
  t.ok(pages > 1, `${pages} pages`)
})

t.test('the history of a name can be read whatever its values are, and its pages count what is written', async (t) => {
  const MIB = 1024 * 1024
  // `most`: the changes that a page can have. A character of a value takes up to 13 bytes of the response, in the value
  // and in its JSON.
  const kinds = [['controls', '\u0001', 3], ['quotes', '"', 4], ['letters', 'x', 6]] as const
  for (const [of, character, most] of sample(kinds, 3)) {
    const at = await makeLevel(owner, { slug: of })
    const path = `/${org}/${at.project}/${at.target}/${at.environment}/secrets/names/history?name=A&values=true`
    const last = Array.from({ length: 7 }, (_, i) => String(i))
    for (const i of last) await store(at, `A='${character.repeat(MIB - 100)}${i}'`)
    const found: string[] = []
    const sizes: number[] = []
    for (let after: string | null = ''; after !== null;) {
      const { status, body, text } = await owner.call('GET', `${path}${after && `&after=${after}`}`)
      t.equal(status, 200, `${of}: ${text.slice(0, 200)}`)
      if (status !== 200) break
      found.push(...body.data.map(({ attributes: { value, json } }: any) => {
        t.ok(JSON.parse(json) === value, 'the JSON of the value')
        return value.at(-1)
      }))
      sizes.push(body.data.length)
      after = body.meta.next
    }
    t.strictSame(found, last.reverse(), of)
    t.ok(Math.max(...sizes) <= most && Math.max(...sizes) > most / 3, `${of}: changes of the pages: ${sizes.join(', ')}`)
  }
})

t.test('the pages of a history count lines without an assignment, and have each change once, newest first', async (t) => {
  const kinds = [['CR', '\r'], ['LF', '\n'], ['CRLF', '\r\n'], ['comments', '#\n']] as const
  for (const [of, line] of sample(kinds, 2)) {
    const at = await makeLevel(owner, { slug: `lines-${of.toLowerCase()}` })
    const path = `/${org}/${at.project}/${at.target}/${at.environment}/secrets/names/history?name=A&values=true`
    const values = Array.from({ length: 70 }, (_, i) => String(i))
    for (const value of values) await store(at, `A=${value}\n${line.repeat(19_980)}`)
    const found: string[] = []
    let pages = 0
    for (let after: string | null = ''; after !== null; pages++) {
      const { status, body } = await owner.call('GET', `${path}${after && `&after=${after}`}`)
      t.equal(status, 200, of)
      found.push(...body.data.map(({ attributes }: { attributes: { value: string } }) => attributes.value))
      after = body.meta.next
    }
    t.strictSame(found, values.reverse(), of)
    t.ok(pages > 1, `${of}: ${pages} pages`)
  }
})

t.test('a dry run of restore-to compares levels up to the budget and counts the others; a restore does all', async (t) => {
  const { project, levels } = await makeProject('restored')
  const [row] = await test.sql('SELECT clock_timestamp() AS now')
  const at = new Date(row!.now as string).toISOString()
  for (const level of levels) await store(level, slow('2'))
  const path = `/${org}/${project}/restore-to`
  const { status, body } = await owner.call('POST', `${path}?dry_run=true`, { at, confirmed: true })
  t.equal(status, 200)
  const { levels: compared, more } = body.dry_run
  t.ok(compared.length > 0 && more > 0, `${compared.length} levels, ${more} more`)
  t.equal(compared.length + more, ENVIRONMENTS.length)
  t.strictSame(compared.map(({ names }: { names: { changed: string[] } }) => names.changed), compared.map(() => ['LAST']))
  t.match(await owner.call('POST', path, { at, confirmed: true }), { status: 200, body: { data: { restored: ENVIRONMENTS.length } } })
})

t.test('a search by roles with very many restrictions ends its page early, and finds each level once', async (t) => {
  const caller = await test.organization()
  const o = caller.organization
  const [PROJECTS, TEAMS] = [35, 20]
  const slugs = Array.from({ length: PROJECTS }, (_, i) => `of-teams-${String(i).padStart(2, '0')}`)
  for (const slug of slugs) {
    const level = await makeLevel(caller, { slug })
    await caller.call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'LAST=1' })
    await caller.call('POST', `/${o}/secrets/store`, { project: slug, plaintext: 'LAST=2' })
  }
  const person = await makePerson(test, { [o]: 'api_user' })
  // Each role has 50 restrictions: to the environment of the project, and to others.
  for (let team = 0; team < TEAMS; team++) {
    const id = ulid()
    await test.write(`INSERT INTO teams (id, organization_id, name, slug) VALUES ('${id}', '${o}', 'T', 'team-${team}')`)
    await test.write(`INSERT INTO team_members (organization_id, team_id, user_id) VALUES ('${o}', '${id}', ${person.id})`)
    await test.write(`INSERT INTO team_projects (organization_id, team_id, project_id, role, slices)
      SELECT e.organization_id, '${id}', e.project_id, 'developer', jsonb_agg(jsonb_build_object('project_id', e.project_id,
        'target_id', e.target_id, 'environment_id', CASE WHEN n = 0 THEN e.id ELSE left(e.id, 20) || lpad(n::text, 6, '0') END))
      FROM environments e CROSS JOIN generate_series(0, 49) n WHERE e.organization_id = '${o}' GROUP BY 1, 2, 3`)
  }
  const call = await callAs(test, person)
  const found: string[] = []
  let pages = 0
  for (let after: string | null = ''; after !== null; pages++) {
    const { status, body, text } = await call('GET', `/${o}/secrets/names?search=LAST${after && `&after=${after}`}`)
    t.equal(status, 200, text)
    found.push(...body.data.map(({ attributes }: { attributes: { project: string, level: string } }) =>
      `${attributes.project} ${attributes.level}`))
    after = body.meta.next
  }
  t.strictSame(found.sort(), slugs.map((slug) => `${slug} environment`))
  t.ok(pages > 1, `${pages} pages`)
})
