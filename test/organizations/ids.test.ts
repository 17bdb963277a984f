// runs: one database; alone
// In a process of its own, because ids follow the clock of their process, and tests of other files move this clock.
import t from 'tap'
import { startIsolatedApp, type Answer, type TestApp } from '../helpers/app.ts'
import { OPERATIONS, prepare, send, settle, type World } from '../helpers/operations.ts'
import { issuePair, makePerson } from '../helpers/people.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// The ids that a tenant sees contain no counts across tenants, so they reveal nothing about other tenants.

t.setTimeout(120_000)

const UNUSED = 'The service makes the ids (makeId); the column is for rows of builds before that'

/** All columns with counts of the whole installation, and the reasons why no tenant sees such a number. */
const COUNTED: Record<string, string> = {
  'users.id': UNUSED,
  'oauth_grants.id': UNUSED,
  'oauth_tokens.id': UNUSED,
  'api_tokens.id': UNUSED,
  'encryption_keys.id': UNUSED,
  'late_events.id': UNUSED,
  'sign_in_devices.id': 'Only a part of the name of a count of failed sign-ins, which is stored as a keyed hash'
}
const isUsed = (column: string) => COUNTED[column] !== UNUSED

const sequencesOf = async ({ sql }: TestApp) => await sql(`
  SELECT d.refobjid::regclass::text || '.' || a.attname AS column, s.relname AS sequence
  FROM pg_class s
  LEFT JOIN pg_depend d ON d.objid = s.oid AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
  LEFT JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
  WHERE s.relkind = 'S' AND s.relnamespace = 'public'::regnamespace ORDER BY 1`) as { column: string, sequence: string }[]

t.test('each column numbered across the installation is listed with the reason why no tenant sees it', async (t) => {
  // This test has its own database, because it sets the sequences of the installation.
  const service = await startIsolatedApp(t)
  const sequences = await sequencesOf(service)
  t.strictSame(sequences.map(({ column }) => column), Object.keys(COUNTED).sort())
  const computed = await service.sql(`SELECT table_name || '.' || column_name AS column FROM information_schema.columns
    WHERE table_schema = 'public' AND (is_identity = 'YES' OR column_default LIKE '%nextval%') ORDER BY 1`)
  t.strictSame(computed.map(({ column }) => column), Object.keys(COUNTED).sort(), 'and there is no other kind')

  // Unusual start values, so that the test recognizes the numbers in responses.
  const numbers = new Map(sequences.map(({ column }, i) => [column, 777_000_000_000 + i * 1_000_000]))
  for (const { column, sequence } of sequences) {
    await service.sql(`SELECT setval('${sequence}', ${numbers.get(column)!}, false)`)
  }

  const shown: string[] = []
  const world = await settle(service, 'shown')
  await runAll(service, world, (_id, { text, headers }) => shown.push(text, JSON.stringify(headers)))
  const person = await makePerson(service, { [(await service.organization()).organization]: 'owner' })
  const address = await service.app.listen({ port: 0 })
  const browser = visitor(address)
  await browser.signIn(await browser.open('/account'), person.email, person.password)
  const account = await browser.open('/account')
  t.match(account.text, 'Sign out everywhere')
  await browser.send(formIn(account), { current: 'wrong password' })
  shown.push(account.text)

  const drawn = await service.sql(`SELECT sequencename AS sequence FROM pg_sequences
    WHERE schemaname = 'public' AND last_value IS NOT NULL`)
  const used = drawn.map(({ sequence }) => sequences.find((one) => one.sequence === sequence)!.column)
  t.strictSame(used, Object.keys(COUNTED).filter(isUsed), 'only these were counted')
  const text = shown.join('\n')
  for (const [column, number] of numbers) {
    t.notOk(text.includes(String(number).slice(0, -3)), `${column} is in no response`)
  }
})

/** Sends all operations in a world in order, and passes each response to a function. */
async function runAll (
  service: TestApp, { caller, ids }: World, show: (id: string, answer: Answer) => unknown
): Promise<void> {
  const owner = await makePerson(service, { [caller.organization]: 'owner' })
  const { access } = await issuePair(service, owner, ['organization:create'])
  for (const [id, row] of Object.entries(OPERATIONS)) {
    await prepare(service, row, ids)
    const token = row.access === 'public' ? undefined : row.byPerson ? access : caller.token
    await show(id, await send(service, row, ids, token))
  }
}

// The start of the time in ids of `makeId` in milliseconds, and the difference of ids between two milliseconds.
const BEGIN = Date.UTC(2026, 0, 1)
const APART = 2 ** 12
// Counts and limits are smaller than this number, and ids from after January 4, 2026 are larger.
const LEAST_MADE = 2 ** 40

/** The numbers of a response, each with its place. Skips `token_suffix`: random text that can look like a number. */
function numbersIn (value: unknown, place = ''): [place: string, number: number][] {
  if (typeof value === 'number') return [[place, value]]
  if (typeof value === 'string') return /^\d{1,16}$/.test(value) ? [[place, Number(value)]] : []
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([name, member]) =>
    name === 'token_suffix' ? [] : numbersIn(member, `${place}/${name}`))
}

t.test('ids of one organization are the same whatever another one does, or tell a time and nothing else', async (t) => {
  const service = await startIsolatedApp(t)
  const busy = await service.organization()
  const b = busy.organization
  let made = 0
  /** Creates a resource of each kind in another organization, over HTTP. */
  const bustle = async () => {
    const name = `Busy ${++made}`
    const { body: { data: { attributes: { slug } } } } = await busy.call('POST', `/${b}/projects`, { name })
    for (const [path, body] of [
      [`/${b}/${slug}/encryption-key/rotate`, {}], [`/${b}/${slug}/targets`, { name }],
      [`/${b}/secrets/store`, { project: slug, plaintext: 'A=1' }],
      [`/organizations/${b}/api-keys`, { name, abilities: ['secret:read'] }],
      [`/organizations/${b}/members`, { email: `busy-${made}@nimbus.example`, role: 'member' }],
      [`/organizations/${b}/teams`, { name }],
      [`/organizations/${b}/billing/charges`, { amount: 100, currency: 'EUR', description: name }],
      [`/organizations/${b}/billing/payment-methods`, { kind: 'manual', label: name }]
    ] as const) {
      const { status, text } = await busy.call('POST', path, body)
      t.ok(status < 300, `${path}: ${text}`)
    }
  }

  const began = Date.now()
  /**
   * The numbers in the responses to all operations of an organization. `between` runs in other organizations meanwhile.
   */
  const numbersOf = async (between: () => Promise<unknown>) => {
    const world = await settle(service, 'one')
    const numbers: Record<string, unknown> = {}
    const foreign: string[] = []
    let turn = 0
    await runAll(service, world, async (id, { body }) => {
      if (++turn % 6 === 0) await between()
      // The service records counts of calls up to ten seconds later.
      if (id === 'getUsage') return
      numbers[id] = numbersIn(body).map(([place, number]) => {
        if (number < LEAST_MADE) return [place, number]
        const at = BEGIN + Math.floor(number / APART)
        if (at < began || at > Date.now()) foreign.push(`${id} ${place}: ${number}`)
        return [place, 'a moment']
      })
    })
    t.strictSame(foreign, [], 'ids of the service say when they were made')
    return numbers
  }
  const alone = await numbersOf(async () => {})
  const beside = await numbersOf(bustle)
  t.ok(made > 20, `${made} times`)
  t.strictSame(beside, alone, 'everything else is counted by organization')
  const id = (alone.getEncryptionKey as [string, unknown][]).find(([place]) => place === '/data/id')
  t.strictSame(id, ['/data/id', 'a moment'], 'the id of a key is looked at')
})
