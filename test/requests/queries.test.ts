// runs: one database; 5 s
import t from 'tap'
import { startApp } from '../helpers/app.ts'
import { OPERATIONS, publishedPaths, requestOf, settle, type Row } from '../helpers/operations.ts'
import { authorizationUrl, pkce } from '../helpers/people.ts'

interface Schema { type?: string, enum?: string[], minLength?: number, pattern?: string, format?: string }
interface Parameter { name: string, in: string, schema: Schema }

const service = await startApp(t, { METRICS_TOKEN: 'm'.repeat(40) })
const { caller, person, ids } = await settle(service, 'queries')

const operations = Object.values(publishedPaths(service)).flatMap((methods) =>
  Object.values(methods as Record<string, { operationId: string, tags: string[], parameters?: Parameter[] }>)
    .map(({ operationId: id, tags, parameters = [] }) => ({
      id, row: OPERATIONS[id]!, isOAuth: tags[0] === 'oauth', query: parameters.filter((one) => one.in === 'query')
    })))
const api = operations.filter(({ isOAuth }) => !isOAuth)

/** The URL with additional parameters, which replace parameters of the same name. */
function withQuery (url: string, more: string): string {
  const [path, query = ''] = url.split('?')
  const named = more.split('&').map((pair) => pair.split('=')[0])
  const kept = query.split('&').filter((pair) => pair !== '' && !named.includes(pair.split('=')[0]))
  return `${path}?${[...kept, more].join('&')}`
}

/** Sends the request of an operation with further query parameters. */
async function ask (row: Row, more: string) {
  const { method, url, payload } = requestOf(row, ids)
  const token = row.byPerson ? person.access : caller.token
  return service.inject({
    method: method as 'GET',
    url: withQuery(url, more),
    headers: { ...(row.access !== 'public' && { authorization: `Bearer ${token}` }) },
    ...(payload !== undefined && { payload })
  })
}

const allowsEmptyText = ({ type, enum: words, minLength = 0, pattern, format }: Schema) =>
  type === 'string' && minLength === 0 && words === undefined && format === undefined &&
  (pattern === undefined || new RegExp(pattern, 'u').test(''))
const refusal = (errors: object) => ({ status: 422, body: { error: 'validation_failed', errors } })

/** Operations that ignore unknown parameters, because some load balancers add parameters. */
const IGNORING = ['getHealth', 'getReadiness']

t.test('S-1.14 a query parameter that an operation does not have is 422 with its name, at every operation', async (t) => {
  t.ok(api.length > 100)
  const names = [...new Set(api.flatMap(({ query }) => query.map(({ name }) => name)))]
  t.ok(names.length > 15)
  for (const { id, row, query } of api.filter(({ id }) => !IGNORING.includes(id))) {
    const unknown = ['unknown', 'decryt', ...names].filter((name) => !query.some((one) => one.name === name))
    const answer = await ask(row, unknown.slice(0, 20).map((name) => `${encodeURIComponent(name)}=true`).join('&'))
    const errors = Object.fromEntries(unknown.slice(0, 20).map((name) => [name, ['Unknown parameter']]))
    t.match(answer, refusal(errors), id)
  }
  const row = OPERATIONS.listProjects!
  for (const [sent, named] of [
    ['__proto__=1', '__proto__'], ['constructor=1', 'constructor'], ['a%2Fb~1=1', 'a/b~1'], ['%C3%A4=1', 'ä'], ['fields[]=x', 'fields[]'],
    ['Sort=name', 'Sort'], [`${'x'.repeat(500)}=1`, 'x'.repeat(199)]
  ] as const) {
    t.strictSame(Object.keys((await ask(row, sent)).body.errors), [named], sent)
  }
  t.match((await ask(row, 'unknown=1')).body.message, /unknown: Unknown parameter/)
  t.match(await ask(OPERATIONS.getVersion!, 'decrypt=true'), refusal({ decrypt: ['Unknown parameter'] }), 'never ignored')
  t.match(await service.inject({
    method: 'GET', url: '/metrics?x=1', headers: { authorization: `Bearer ${'m'.repeat(40)}` }
  }), refusal({ x: [] }))
})

t.test('OA-34 unknown query parameters change nothing at the endpoints of OAuth, and at the pages for people', async (t) => {
  for (const { id, row } of operations.filter(({ isOAuth }) => isOAuth)) {
    const { method, url, payload } = requestOf(row, ids)
    const request = { method: method as 'GET', ...(payload !== undefined && { payload }) }
    const [plain, other] = [await service.inject({ ...request, url }), await service.inject({ ...request, url: `${url}?x=` })]
    t.strictSame([other.status, other.text], [plain.status, plain.text], id)
  }
  const authorize = new URL(authorizationUrl(pkce().challenge), 'http://127.0.0.1')
  for (const url of [`${authorize.pathname}${authorize.search}`, '/account?', '/docs/static/index.html?', '/openapi.json?']) {
    const [plain, other] = [
      await service.inject({ method: 'GET', url }), await service.inject({ method: 'GET', url: `${url}&unknown=1` })
    ]
    t.equal(other.status, plain.status, url)
    t.not(other.status, 422, url)
  }
})

t.test('S-1.14 an empty query parameter is 422 with its name, whichever it is', async (t) => {
  const seen = new Set<string>()
  for (const { id, row, query } of api) {
    for (const { name, schema } of query) {
      // In JSON and YAML, the empty text is a valid name.
      if (schema.minLength === 0) continue
      seen.add(name)
      t.notOk(allowsEmptyText(schema), `${id} ${name} is not empty in the document either`)
      const { url } = requestOf(row, ids)
      const isRequired = new URLSearchParams(url.split('?')[1]).has(name)
      const { method, payload } = requestOf(row, ids)
      const answer = isRequired
        ? await service.inject({
          method: method as 'GET',
          url: url.replace(new RegExp(`([?&]${name}=)[^&]*`), '$1'),
          headers: { authorization: `Bearer ${caller.token}` },
          ...(payload !== undefined && { payload })
        })
        : await ask(row, `${encodeURIComponent(name)}=`)
      t.match(answer, refusal({ [name]: ['Must not be empty'] }), `${id} ${name}`)
    }
  }
  for (const name of ['at', 'decrypt', 'merge', 'raw', 'page', 'per_page', 'from', 'to', 'force', 'search', 'sort']) {
    t.ok(seen.has(name), name)
  }
})

t.test('S-1.14 a boolean in a query is true, false, 1 or 0 in any case, and nothing else', async (t) => {
  const seen = new Set<string>()
  for (const { id, row, query } of api) {
    for (const { name } of query.filter(({ schema }) => schema.type === 'boolean' || schema.enum?.includes('true'))) {
      seen.add(name)
      // The unknown parameter prevents an effect of the request.
      for (const value of ['true', 'false', '1', '0', 'TRUE', 'False', 'tRuE']) {
        const { unknown, [name]: fault = [''] } = (await ask(row, `${name}=${value}&unknown=1`)).body.errors as Record<string, string[]>
        t.ok(unknown, `${id} ${name}=${value}`)
        // The service may refuse a combination of parameters, but not the value itself.
        t.notMatch(fault[0], /^must be/, `${id} ${name}=${value}`)
      }
      for (const value of ['yes', 'on', '2', '01', '10', 'tru', '%20true', 'true&' + name + '=true']) {
        t.match(await ask(row, `${name}=${value}`), refusal({ [name]: [/^must be .*true/] }), `${id} ${name}=${value}`)
      }
    }
  }
  t.strictSame([...seen].sort(), ['decrypt', 'dry_run', 'ending', 'force', 'merge', 'raw', 'values'])
  const { organization, project, target, environment } = ids
  t.strictSame((await ask(OPERATIONS.readEnvironmentSecrets!, 'decrypt=yes')).body.errors, {
    decrypt: ['must be true, false, 1 or 0']
  })
  const read = (query: string) => caller.call('GET', `/${organization}/${project}/${target}/${environment}/secrets?${query}`)
  for (const yes of ['1', 'TRUE', 'True', 'true']) {
    t.match((await read(`decrypt=${yes}`)).body, { data: { attributes: { encrypted: false } } }, yes)
    t.match((await read(`decrypt=true&merge=${yes}`)).body, { meta: { merged: 'true' }, data: { attributes: { merged: { A: '3' } } } }, yes)
  }
  for (const no of ['0', 'FALSE', 'false']) {
    t.match((await read(`decrypt=${no}&merge=${no}`)).body, { data: { attributes: { encrypted: true } }, meta: { merged: 'false' } }, no)
  }
})
