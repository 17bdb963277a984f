// runs: one database
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t, { type Test } from 'tap'
import { EXPORT_COLUMNS, MAX_COUNTED, MAX_DAYS, MAX_EXPORTED } from '../../schemas/audit.ts'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { startApp, type Answer, type Caller } from '../helpers/app.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'

// Tests the names of actors in the audit log, the counts per day, and the export of the log.

const service = await startApp(t)

interface Event {
  id: string
  attributes: {
    sequence: number
    occurred_at: string
    action: string
    actor: { type: string, id: number | null }
    actor_name: string | null
    resource: { type: string, id: string | null }
    user_agent: string | null
    details: object | null
  }
}

const as = async (person: { id: number }, scopes: readonly Scope[] = SCOPE_NAMES): Promise<Caller['call']> => {
  const { access } = await issuePair(service, person, scopes)
  return (method, path, payload) => service.inject({
    method: method as 'GET',
    url: `/api/v1${path}`,
    headers: { authorization: `Bearer ${access}` },
    ...(payload !== undefined && { payload: payload as object })
  })
}

/**
 * Inserts events with these times (SQL expressions of n) into the log, without MACs. The API marks them as unverified.
 */
async function insert (
  { organization }: Caller, count: number, occurred_at: string, more: Record<string, string> = {}
) {
  const columns = { action: "'secret.decrypt'", actor_type: "'user'", actor_id: '7', resource_type: "'secret'", resource_id: "'S'", ...more }
  const [{ next }] = await service.sql(
    `SELECT next_event::int AS next FROM organization_counters WHERE organization_id = '${organization}'`
  ) as [{ next: number }]
  await service.sql(`INSERT INTO audit_events
    (organization_id, seq, occurred_at, chain_kid, mac, ${Object.keys(columns).join()})
    SELECT '${organization}', ${next} + n, ${occurred_at}, 'k', '', ${Object.values(columns).join()}
    FROM generate_series(0, ${count} - 1) n`)
  await service.sql(
    `UPDATE organization_counters SET next_event = next_event + ${count} WHERE organization_id = '${organization}'`
  )
}

t.test('an event has the name of its actor, for those who may read the members and tokens', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  const person = await makePerson(service, { [o]: 'owner' })
  const nameless = await makePerson(service, { [o]: 'administrator' })
  await service.write(`UPDATE users SET name = '' WHERE id = ${nameless.id}`)
  const call = await as(person)
  await call('POST', `/${o}/projects`, { name: 'Theirs' })
  await (await as(nameless))('POST', `/${o}/projects`, { name: 'Nameless' })
  await caller.call('POST', `/${o}/projects`, { name: 'Of a token' })
  const ended = await service.token(o, ['*'])
  await ended.call('POST', `/${o}/projects`, { name: 'Of another token' })
  await insert(caller, 1, 'now()', { action: "'user.disable'", actor_type: "'operator'", actor_id: 'NULL' })
  const names = async (by: Caller['call']): Promise<(string | null)[]> =>
    (await by('GET', `/${o}/audit-events`)).body.data.map(({ attributes }: Event) => attributes.actor_name).reverse()
  t.strictSame(await names(call), [person.name, nameless.email, 'Test token', 'Test token', null])
  t.strictSame(await names(caller.call), await names(call))
  const reader = async (...scopes: Scope[]) => names((await service.token(o, ['organization:read', ...scopes])).call)
  t.strictSame(await reader(), [null, null, null, null, null])
  t.strictSame(await reader('member:read'), [person.name, nameless.email, null, null, null])
  t.strictSame(await reader('api-token:read'), [null, null, 'Test token', 'Test token', null])
  const developer = await as(await makePerson(service, { [o]: 'developer' }))
  t.strictSame(await names(developer), [person.name, nameless.email, null, null, null], 'a developer lists no tokens')

  await service.write(`UPDATE api_tokens SET name = 'Renamed' WHERE organization_id = '${o}'
    AND id = (SELECT min(id) FROM api_tokens WHERE organization_id = '${o}')`)
  const [{ id }] = await service.sql(`SELECT max(id) AS id FROM api_tokens WHERE organization_id = '${o}'
    AND name = 'Test token' AND abilities = '{*}'`) as [{ id: number }]
  await caller.call('DELETE', `/organizations/${o}/api-keys/${id}`)
  await caller.call('DELETE', `/organizations/${o}/members/${nameless.id}`)
  t.strictSame((await names(caller.call)).slice(0, 5), [person.name, null, 'Renamed', null, null])
  await service.sql(`UPDATE members SET role = 'auditor' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  t.equal((await names(caller.call))[0], null, 'a row that does not verify has no name')
})

t.test('events are counted per day in UTC, with the filters of the list', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  const counts = (query: string, call = caller.call) => call('GET', `/${o}/audit-events/counts?${query}`)
  await insert(caller, 40, "'2026-03-01T00:00:00Z'::timestamptz + n * interval '2 hours'")
  await insert(caller, 7, "'2026-03-03T23:59:59.999Z'::timestamptz", { actor_id: '8', action: "'secret.store'" })
  await insert(caller, 5, "'2026-03-04T00:00:00Z'::timestamptz", { resource_id: "'T'" })
  const of = async (query: string): Promise<Record<string, number>> => {
    const { status, body, text } = await counts(query)
    t.equal(status, 200, text)
    return Object.fromEntries(body.data.map((row: any) => {
      t.match(row, { type: 'audit-event-counts', id: row.attributes.date, attributes: { is_capped: false } })
      return [row.id, row.attributes.count]
    }))
  }
  const whole = 'from=2026-02-28T00:00:00Z&to=2026-03-05T00:00:00Z'
  t.strictSame(await of(whole), {
    '2026-02-28': 0, '2026-03-01': 12, '2026-03-02': 12, '2026-03-03': 19, '2026-03-04': 9
  })
  t.strictSame(await of('from=2026-03-01T12:00:00%2B01:00&to=2026-03-02T04:00:00Z'), { '2026-03-01': 6, '2026-03-02': 2 })
  const filters = [
    'actor=user:7', 'actor=user:8', 'action=secret.store', 'resource=secret:S', 'resource=secret:T',
    'actor=user:7&action=secret.decrypt', 'actor=user:8&resource=secret:S', 'actor=user:8&resource=secret:T',
    'actor=user:7&resource=secret:T&action=secret.decrypt', 'actor=operator'
  ]
  for (const filter of filters) {
    const { body } = await caller.call('GET', `/${o}/audit-events?per_page=100&${whole}&${filter}`)
    const days = (body.data as Event[]).map(({ attributes }) => attributes.occurred_at.slice(0, 10))
    t.strictSame(await of(`${whole}&${filter}`), Object.fromEntries(
      ['2026-02-28', '2026-03-01', '2026-03-02', '2026-03-03', '2026-03-04'].map((day) =>
        [day, days.filter((one) => one === day).length])), filter)
  }

  const now = Object.entries(await of(''))
  t.equal(now.length, 31)
  t.equal(now.at(-1)![0], new Date().toISOString().slice(0, 10))
  await caller.call('POST', `/${o}/projects`, { name: 'Today' })
  t.equal(Object.values(await of('')).at(-1), now.at(-1)![1] + 1)

  t.equal(Object.keys(await of('from=2026-01-01T00:00:00Z&to=2026-04-03T00:00:00Z')).length, MAX_DAYS)
  for (const query of [
    'from=2026-01-01T00:00:00Z&to=2026-04-03T00:00:00.001Z', 'from=2026-03-01T00:00:00Z&to=2026-03-01T00:00:00Z',
    'from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z', 'from=2020-01-01T00:00:00Z', 'from=2999-01-01T00:00:00Z',
    'from=today', 'page=1', 'before=3'
  ]) t.equal((await counts(query)).status, 422, query)
})

t.test('the count of a day ends, and says so', async (t) => {
  const caller = await service.organization()
  await insert(caller, MAX_COUNTED, "'2026-03-01T00:00:00Z'::timestamptz")
  await insert(caller, MAX_COUNTED + 5, "'2026-03-02T00:00:00Z'::timestamptz + n * interval '1 second'")
  for (const filter of ['', '&actor=user:7', '&resource=secret:S&actor=user:7', '&action=secret.decrypt']) {
    const { body } = await caller.call('GET', `/${caller.organization}/audit-events/counts?from=2026-03-01T00:00:00Z&to=2026-03-03T00:00:00Z${filter}`)
    t.strictSame(body.data.map(({ attributes }: { attributes: object }) => attributes), [
      { date: '2026-03-01', count: MAX_COUNTED, is_capped: false }, { date: '2026-03-02', count: MAX_COUNTED, is_capped: true }
    ], filter)
  }
})

t.test('an organization counts ten days at a time, in turns, so that others do not wait for the sum', async (t) => {
  const [caller, other] = [await service.organization(), await service.organization()]
  await insert(caller, 92, "'2026-01-01T00:00:00Z'::timestamptz + n * interval '1 day'")
  const together: number[] = []
  let counting = 0
  const look = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (!text.includes('AS counted) AS count')) return
    if (phase === 'before') together.push(++counting)
    else counting--
  }
  subscribe('strongroom:statement', look)
  t.teardown(() => unsubscribe('strongroom:statement', look))
  const count = async ({ call, organization }: Caller) =>
    call('GET', `/${organization}/audit-events/counts?from=2026-01-01T00:00:00Z&to=2026-04-03T00:00:00Z`)
  const all = await Promise.all([caller, caller, caller, caller].map(count))
  for (const { status, body } of all) {
    t.equal(status, 200)
    t.equal(body.data.length, MAX_DAYS)
    t.ok(body.data.every(({ attributes }: { attributes: { count: number } }) => attributes.count === 1))
  }
  t.same(together, Array(4 * 10).fill(1), 'one at a time')
  t.same((await count(other)).body.data.map(({ attributes }: any) => attributes.count), Array(MAX_DAYS).fill(0))
})

t.test('lists by filters that can exclude each other take turns, so that others do not wait for them', async (t) => {
  const caller = await service.organization()
  const { organization: o, call } = caller
  const id = (n: number) => `01JQZ6V9T4M8N2K7R5W3X1P00${n}`
  await insert(caller, 50, "'2026-01-01T00:00:00Z'::timestamptz", {
    details: `'{"project_id": "${id(0)}", "target_id": "${id(1)}"}'::jsonb`
  })
  const together: number[] = []
  let reading = 0
  const look = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (!/ AS (?:matched|counted)\b/.test(text)) return
    if (phase === 'before') together.push(++reading)
    else reading--
  }
  subscribe('strongroom:statement', look)
  t.teardown(() => unsubscribe('strongroom:statement', look))
  for (const [filter, found] of [
    [`project=${id(0)}&target=${id(1)}`, 50], [`project=${id(0)}&target=${id(2)}`, 0],
    [`resource=secret:S&project=${id(0)}`, 50], [`resource=secret:S&environment=${id(2)}&actor=user:7`, 0]
  ] as const) {
    together.length = 0
    const [lists, exports] = await Promise.all(['?per_page=100&', '/export?'].map(async (path) =>
      Promise.all(Array.from({ length: 4 }, () => call('GET', `/${o}/audit-events${path}${filter}`)))))
    for (const { body } of lists!) t.equal(body.meta.total, found, filter)
    for (const { status, text } of exports!) t.strictSame([status, text.split('\n').length - 1], [200, found], filter)
    t.ok(together.length >= 8 && together.every((count) => count === 1), `${filter}, one at a time: ${together.join()}`)
  }
})

/** All parts of an export. */
async function exported (t: Test, caller: Caller, query: string, accept?: string): Promise<string[]> {
  const parts: string[] = []
  let path: string | undefined = `/${caller.organization}/audit-events/export?${query}`
  while (path !== undefined) {
    const { status, text, headers }: Answer = await caller.call('GET', path, undefined, accept === undefined ? {} : { accept })
    t.equal(status, 200, text.slice(0, 200))
    t.equal(headers['content-type'], `${accept ?? 'application/x-ndjson'}; charset=utf-8`)
    parts.push(text)
    const [, next] = /^<http:\/\/[^/]+\/api\/v1(\/.+)>; rel="next"$/.exec(String(headers.link ?? '')) ?? []
    t.equal(next === undefined, headers.link === undefined, String(headers.link))
    path = next
  }
  return parts
}

/** Parses CSV text by the rules of RFC 4180. */
function recordsOf (text: string): string[][] {
  const records: string[][] = [[]]
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n)/g)) {
    records.at(-1)!.push(quoted?.replaceAll('""', '"') ?? plain!)
    if (end === '\r\n') records.push([])
  }
  return records.slice(0, -1)
}

t.test('an export has every event once, oldest first, in parts', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  const count = 2 * MAX_EXPORTED + 50
  // The times decrease, like the times of late events.
  await insert(caller, count, "'2026-03-01T00:00:00Z'::timestamptz - n * interval '1 second'")
  await insert(caller, 3, "'2026-03-02T00:00:00Z'::timestamptz", { action: "'secret.store'", actor_id: '9' })
  const linesOf = (parts: string[]) => parts.map((part) => part.trimEnd().split('\n').map((line) => JSON.parse(line) as Event))
  const parts = linesOf(await exported(t, caller, ''))
  t.strictSame(parts.map(({ length }) => length), [MAX_EXPORTED, MAX_EXPORTED, 53])
  t.strictSame(
    parts.flat().map(({ attributes }) => attributes.sequence), Array.from({ length: count + 3 }, (_, i) => i + 1)
  )
  const { body } = await caller.call('GET', `/${o}/audit-events?per_page=3`)
  t.strictSame(parts.flat().slice(-3), body.data.reverse(), 'each line is an item of the list')

  const byTime = linesOf(await exported(t, caller, 'from=2026-02-28T00:00:00Z')).flat()
  t.equal(byTime.length, count + 3)
  const times = byTime.map(({ attributes }) => `${attributes.occurred_at} ${String(attributes.sequence).padStart(9, '0')}`)
  t.strictSame(times, times.toSorted(), 'with a filter by time')
  for (const [filter, expected] of [
    ['action=secret.store', 3], ['actor=user:9', 3], ['actor=user:7&resource=secret:S', count],
    ['actor=user:7&action=secret.decrypt&from=2026-03-01T00:00:00Z', 1], ['actor=operator', 0]
  ] as const) {
    const parts = await exported(t, caller, filter)
    t.equal(parts.join('').split('\n').length - 1, expected, filter)
  }
  t.strictSame(await exported(t, caller, `after=${count + 3}`), [''])
  t.strictSame(linesOf(await exported(t, caller, `after=${count + 1}`))[0]!.map(({ id }) => Number(id)), [count + 2, count + 3])
  t.equal((await caller.call('GET', `/${o}/audit-events/export?after=0`)).status, 422)
  t.equal((await caller.call('GET', `/${o}/audit-events/export?per_page=5`)).status, 422)

  const tables = (await exported(t, caller, '', 'text/csv')).map(recordsOf)
  t.strictSame(tables.map(([header]) => header), [EXPORT_COLUMNS, EXPORT_COLUMNS, EXPORT_COLUMNS])
  t.strictSame(tables.flatMap((records) => records.slice(1).map(([sequence]) => sequence)),
    parts.flat().map(({ id }) => id))
})

t.test('a cell is no formula for a spreadsheet, and keeps every character', async (t) => {
  const caller = await service.organization()
  const texts = [
    '=1+1', '+1', '-1', '@SUM(A1)', '\t=1', 'a "b", c', 'curl/8', '', '\'=1', 'two\r\nlines', 'ünï ☃', '=HYPERLINK("http://x","y")',
    '＝1', '＋1', '－1', '＠SUM(A1)', 'a＝1'
  ]
  for (const text of texts) {
    await insert(caller, 1, "'2026-03-01T00:00:00Z'::timestamptz", {
      user_agent: `'${text.replaceAll("'", "''")}'`, details: '\'{"level":"=project"}\'', ip: "'::1'"
    })
  }
  const [text] = await exported(t, caller, '', 'text/csv')
  const [header, ...records] = recordsOf(text!)
  const cells = records.map((record) => record[header!.indexOf('user_agent')]!)
  t.strictSame(cells.map((cell) => cell.replace(/^'(?=[=+\-@＝＋－＠\t\r\n])/, '')), texts.map((text) => text.replace(/^'(?=[=])/, '')))
  t.notOk(cells.some((cell) => /^[=+\-@＝＋－＠\t\r\n]/.test(cell)))
  t.strictSame(records[0], [
    '1', '2026-03-01T00:00:00.000Z', 'secret.decrypt', 'user', '7', '', 'secret', 'S', '', '::1', "'=1+1", '{"level":"=project"}'
  ])
})

t.test('Accept chooses the format', async (t) => {
  const caller = await service.organization()
  for (const [accept, type] of [
    ['*/*', 'application/x-ndjson'], ['application/json', 'application/x-ndjson'], ['text/*', 'text/csv'],
    ['text/csv;q=0.5, application/x-ndjson;q=0.4', 'text/csv']
  ] as const) {
    const { headers } = await caller.call('GET', `/${caller.organization}/audit-events/export`, undefined, { accept })
    t.equal(headers['content-type'], `${type}; charset=utf-8`, accept)
  }
})

t.test('counts and export are empty where the list is: for restricted tokens and for roles without projects', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  const { id } = (await caller.call('POST', `/${o}/projects`, { name: 'Orbit' })).body.data
  const restricted = await service.token(o, ['*'], {
    slices: [{ project_id: id, target_id: null, environment_id: null }]
  })
  const manager = await makePerson(service, { [o]: 'billing_manager' })
  await makeTeam(service, o, [manager], { orbit: 'member' })
  for (const call of [restricted.call, await as(manager)]) {
    t.strictSame((await call('GET', `/${o}/audit-events`)).body.data, [])
    t.strictSame((await call('GET', `/${o}/audit-events/counts`)).body, { data: [] })
    t.equal((await call('GET', `/${o}/audit-events/export`)).text, '')
  }
  t.equal(
    (await restricted.call('GET', `/${o}/audit-events/export`, undefined, { accept: 'text/csv' })).text,
    `${EXPORT_COLUMNS.join()}\r\n`
  )
  const elsewhere = await service.organization()
  for (const path of ['', '/counts', '/export']) {
    t.equal((await elsewhere.call('GET', `/${o}/audit-events${path}`)).status, 404)
    t.equal((await (await service.token(o, ['secret:read'])).call('GET', `/${o}/audit-events${path}`)).status, 403)
  }
})
