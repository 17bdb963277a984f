// runs: one database
import t from 'tap'
import { startIsolatedApp } from '../helpers/app.ts'
import { fingerprint, OPERATIONS, publishedPaths, requestOf, settle } from '../helpers/operations.ts'
import { command } from '../helpers/process.ts'

// This file has its own database, because it compares fingerprints of all tables.
const service = await startIsolatedApp(t)
const world = await settle(service, 'times')
const RULE = /^Expected an RFC 3339 time between the years 0001 and 9999/

const INVALID = [
  // Not in the format of RFC 3339. A script with an empty variable sends the empty text.
  '', 'yesterday', 'now', '1767225600', '2026-03-01', '12:00:00Z', '2026-03-01T12:00Z', '2026-03-01T12:00:00',
  '2026-03-01 12:00:00Z', '2026-03-01T12:00:00+0530', '2026-03-01T12:00:00+05', '2026-03-01T12:00:00 05:30',
  '2026-03-01T12:00:00.Z', '2026-03-01T12:00:00,5Z', '2026-3-1T12:00:00Z', '26-03-01T12:00:00Z', '2026-W09-7T12:00:00Z',
  ' 2026-03-01T12:00:00Z', '2026-03-01T12:00:00Z ', '2026-03-01T12:00:00Z\n', '2026-03-01T12:00:00ZZ',
  '2026-03-01T12:00:00+05:30Z', '２026-03-01T12:00:00Z', `2026-03-01T12:00:00.${'1'.repeat(60)}Z`,
  // Days that do not exist in the calendar.
  '2026-02-31T00:00:00Z', '2026-02-30T00:00:00Z', '2027-02-29T00:00:00Z', '2100-02-29T00:00:00Z', '2026-04-31T00:00:00Z',
  '2026-00-01T00:00:00Z', '2026-13-01T00:00:00Z', '2026-01-00T00:00:00Z', '2026-01-32T00:00:00Z',
  // Times of day that do not exist. The first two are real leap seconds.
  '2016-12-31T23:59:60Z', '2017-01-01T00:59:60+01:00', '2026-03-01T12:00:60Z', '2026-03-01T24:00:00Z',
  '2026-03-01T25:00:00Z', '2026-03-01T12:60:00Z', '2026-03-01T12:00:61Z',
  // Invalid offsets.
  '2026-03-01T12:00:00+24:00', '2026-03-01T12:00:00-24:00', '2026-03-01T12:00:00+00:60', '2026-03-01T12:00:00+99:99',
  // Outside of the range of the database.
  '0000-01-01T00:00:00Z', '0000-12-31T23:59:59Z', '0001-01-01T00:00:00+00:01', '9999-12-31T23:59:59-00:01',
  '9999-12-31T23:59:59-12:00', '10000-01-01T00:00:00Z', '+010000-01-01T00:00:00Z', '-000001-01-01T00:00:00Z'
]

/** Valid timestamps, each with the instant that it names. */
const VALID = {
  '2099-03-01T12:00:00Z': '2099-03-01T12:00:00.000Z',
  '2099-03-01t12:00:00z': '2099-03-01T12:00:00.000Z',
  '2099-03-01T12:00:00-00:00': '2099-03-01T12:00:00.000Z',
  '2099-03-01T12:00:00+05:30': '2099-03-01T06:30:00.000Z',
  '2099-03-01T12:00:00-23:59': '2099-03-02T11:59:00.000Z',
  '2099-03-01T12:00:00.5Z': '2099-03-01T12:00:00.500Z',
  '2099-03-01T12:00:00.0009999Z': '2099-03-01T12:00:00.000Z',
  '2099-03-01T12:00:00.12345678901234567890Z': '2099-03-01T12:00:00.123Z',
  '2096-02-29T00:00:00Z': '2096-02-29T00:00:00.000Z',
  '2400-02-29T23:59:59.999Z': '2400-02-29T23:59:59.999Z',
  '9999-12-31T23:59:59.999Z': '9999-12-31T23:59:59.999Z',
  '9999-12-31T23:59:59.9999999+23:59': '9999-12-31T00:00:59.999Z'
}
/** Valid times long ago. */
const LONG_AGO = ['0001-01-01T00:00:00Z', '0001-01-01T23:59:00+23:59', '0050-02-28T12:00:00Z', '1969-12-31T23:59:59.9Z']

interface Schema {
  $ref?: string
  format?: string
  properties?: Record<string, Schema>
  items?: Schema
  additionalProperties?: Schema | boolean
  anyOf?: Schema[]
  oneOf?: Schema[]
  allOf?: Schema[]
}
interface Operation {
  operationId: string
  parameters?: { name: string, in: string, schema: Schema }[]
  requestBody?: { content: Record<string, { schema: Schema }> }
}

const { components } = service.app.swagger() as unknown as { components: { schemas: Record<string, Schema> } }

/** The paths of all members with the format `date-time`. */
function timesIn (schema: Schema, path: string[] = []): string[][] {
  if (schema.$ref !== undefined) return timesIn(components.schemas[schema.$ref.split('/').at(-1)!]!, path)
  const more = typeof schema.additionalProperties === 'object' ? schema.additionalProperties : undefined
  return [
    ...schema.format === 'date-time' ? [path] : [],
    ...Object.entries(schema.properties ?? {}).flatMap(([name, member]) => timesIn(member, [...path, name])),
    ...schema.items === undefined ? [] : timesIn(schema.items, [...path, '0']),
    ...more === undefined ? [] : timesIn(more, [...path, 'any']),
    ...[schema.anyOf, schema.oneOf, schema.allOf].flat().flatMap((one) => one === undefined ? [] : timesIn(one, path))
  ]
}

/** A request with one value at a path in its body. */
function withMember (body: object | undefined, path: string[], value: unknown): object {
  const copy = structuredClone(body ?? {}) as Record<string, unknown>
  let place = copy
  for (const [i, name] of path.slice(0, -1).entries()) {
    place[name] ??= path[i + 1] === '0' ? [] : {}
    place = place[name] as Record<string, unknown>
  }
  place[path.at(-1)!] = value
  return copy
}

const FIELDS = Object.values(publishedPaths(service)).flatMap((methods) =>
  Object.values(methods as Record<string, Operation>).flatMap(({ operationId, parameters = [], requestBody }) => {
    const row = OPERATIONS[operationId]!
    const send = (change: (request: ReturnType<typeof requestOf>) => object) => {
      const request = requestOf(row, world.ids)
      const headers = { authorization: `Bearer ${world.caller.token}` }
      return service.inject({ ...request, method: request.method as 'GET', headers, ...change(request) })
    }
    return [
      ...parameters.flatMap((parameter) => timesIn(parameter.schema).map(() => {
        if (parameter.in !== 'query') throw new Error(`this test sends no times in the ${parameter.in}`)
        return {
          at: `${operationId} ${parameter.name}`,
          member: parameter.name,
          isBody: false,
          send: (value: unknown) =>
            send(({ url }) => ({ url: `${url}?${new URLSearchParams({ [parameter.name]: String(value) }).toString()}` }))
        }
      })),
      ...Object.values(requestBody?.content ?? {}).flatMap(({ schema }) => timesIn(schema)).map((path) => ({
        at: `${operationId} ${path.join('.')}`,
        member: path.join('.'),
        isBody: true,
        send: (value: unknown) => send(({ payload }) => ({ payload: withMember(payload, path, value) }))
      }))
    ]
  }))

t.test('an invalid RFC 3339 timestamp is 422 with the name of its member everywhere, and changes nothing', async (t) => {
  const found = FIELDS.map(({ at }) => at)
  for (const known of [
    'readProjectSecrets at', 'readEnvironmentSecretsLongPath at', 'listAuditEvents from', 'listAuditEvents to',
    'restoreProject at', 'createApiToken expires_at', 'updateApiToken expires_at'
  ]) t.ok(found.includes(known), known)
  const before = await fingerprint(service)
  for (const { at, member, isBody, send } of FIELDS) {
    for (const text of INVALID) {
      const { status, body } = await send(text)
      t.match([status, body.error], [422, 'validation_failed'], `${at}: ${JSON.stringify(text)}`)
      t.strictSame(Object.keys(body.errors ?? {}), [member], `${at}: ${JSON.stringify(text)}`)
      const rule = text === '' && !isBody ? /^Must not be empty$/ : RULE
      if (text.length <= 64) t.match(body.errors?.[member]?.[0], rule, `${at}: ${JSON.stringify(text)}`)
    }
    for (const value of isBody ? [0, 1767225600, true, [], {}, ['2026-03-01T12:00:00Z']] : []) {
      const { status, body } = await send(value)
      t.match([status, Object.keys(body.errors ?? {})], [422, [member]], `${at}: ${JSON.stringify(value)}`)
    }
  }
  t.equal(await fingerprint(service), before)
})

t.test('every operation takes a valid timestamp of any offset, from the year 0001 to the year 9999', async (t) => {
  for (const { at, member, send } of FIELDS) {
    for (const text of [...Object.keys(VALID), ...LONG_AGO]) {
      const { status, body } = await send(text)
      t.ok(status < 500, `${at}: ${text} is ${status}`)
      // The time can still be refused because it is in the past or in the future.
      t.notMatch(String(body?.errors?.[member] ?? ''), RULE, `${at}: ${text}`)
    }
  }
})

t.test('a timestamp is the instant that it names, cut off to the millisecond', async (t) => {
  const { caller } = world
  for (const [text, instant] of Object.entries(VALID)) {
    const { status, body } = await caller.call('POST', `/organizations/${caller.organization}/api-keys`, {
      name: 'Ends', abilities: ['secret:read'], expires_at: text
    })
    t.match([status, body.api_key?.expires_at], [201, instant], text)
  }
  const events = async (query: Record<string, string>) => {
    const path = `/${caller.organization}/audit-events?${new URLSearchParams({ ...query, per_page: '1' }).toString()}`
    return (await caller.call('GET', path)).body.meta.total as number
  }
  const all = await events({})
  for (const text of LONG_AGO) t.strictSame([await events({ from: text }), await events({ to: text })], [all, 0], text)
})

/** The other options that a command needs to get as far as its time. */
const OTHERS: Record<string, string[]> = {
  'audit verify': [], 'audit export': [], 'coupon add': ['--code', 'TIMES', '--percent', '10']
}

t.test('every time on the command line is RFC 3339: an invalid one is wrong usage, with the option named', async (t) => {
  const { stdout } = await command(['help'])
  const options = stdout.split('\n').flatMap((line) => {
    const [, name = ''] = /^ {2}([\w-]+(?: [a-z][\w-]*)?)/.exec(line) ?? []
    return [...line.matchAll(/(--[\w-]+) TIME\b/g)].map(([, option]) => ({ name, option: option! }))
  })
  t.strictSame(options.map(({ name, option }) => `${name} ${option}`), [
    'audit verify --since', 'audit export --since', 'coupon add --valid-until'
  ])
  for (const { name, option } of options) {
    const others = OTHERS[name]
    if (others === undefined) throw new Error(`${name}: this test does not know its other options`)
    const run = (text: string) => command([...name.split(' '), ...others, `${option}=${text}`], service.env)
    for (const text of ['', ...INVALID]) {
      const { code, stdout, stderr } = await run(text)
      t.strictSame([code, stdout], [2, ''], `${name} ${option} ${JSON.stringify(text)}`)
      t.match(stderr, new RegExp(`^${option}: ${RULE.source.slice(1)}`), `${name} ${option} ${JSON.stringify(text)}`)
    }
    // The command checks the time before everything else: another process uses the embedded database.
    for (const text of ['2099-03-01T12:00:00Z', '2099-03-01t12:00:00.123456+05:30', '0001-01-01T00:00:00Z']) {
      t.notMatch((await run(text)).stderr, /RFC 3339/, `${name} ${option} ${text}`)
    }
  }
})
