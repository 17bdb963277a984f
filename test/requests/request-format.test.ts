// runs: one database
import type { RouteOptions, FastifyInstance } from 'fastify'
import { once } from 'node:events'
import { connect, type AddressInfo } from 'node:net'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t from 'tap'
import { startIsolatedApp, type Answer } from '../helpers/app.ts'
import { fingerprint, OPERATIONS, publishedPaths, requestOf, settle } from '../helpers/operations.ts'
import { rest } from '../helpers/sockets.ts'

const ORIGIN = 'https://app.example.com'

const routes: { method: string, path: string, isPage: boolean }[] = []
const listen = (message: unknown) =>
  (message as { fastify: FastifyInstance }).fastify.addHook('onRoute', ({ method, url, config }: RouteOptions) => {
    for (const one of [method].flat()) {
      const path = url.replaceAll(/:(\w+)/g, '{$1}').replace('*', '{any}')
      routes.push({ method: one, path, isPage: config?.responseFormat === 'html' })
    }
  })
subscribe('fastify.initialization', listen)
// This file has its own database, because it lists the routes while its service starts.
const service = await startIsolatedApp(t, { CORS_ORIGINS: ORIGIN, METRICS_TOKEN: 'm'.repeat(40) })
unsubscribe('fastify.initialization', listen)
const world = await settle(service, 'format')
await service.app.listen({ port: 0, host: '127.0.0.1' })
const { port } = service.app.server.address() as AddressInfo
const bearer = { authorization: `Bearer ${world.caller.token}` }

const published = Object.entries(publishedPaths(service)).flatMap(([path, methods]) =>
  Object.entries(methods as Record<string, { operationId: string }>).map(([method, { operationId }]) =>
    ({ method: method.toUpperCase(), path, payload: requestOf(OPERATIONS[operationId]!, world.ids).payload })))
const isPublished = (route: { method: string, path: string }) =>
  published.some(({ method, path }) => method === route.method && path === route.path)
// Pages for people, the documentation, and HEAD requests.
const others = routes.filter((route) => !isPublished(route))

const filled = (path: string) => path.replace(/\{(\w+)\}/g, (_, name: string) => world.ids[name] ?? 'x')

/** The path with a NUL in place of each parameter in turn, inside each parameter, and at the end of the path. */
const withNul = (path: string) => [
  ...[...path.matchAll(/\{\w+\}/g)].flatMap(({ 0: parameter, index }) => ['%00', 'a%00b'].map((nul) =>
    filled(path.slice(0, index)) + nul + filled(path.slice(index + parameter.length)))),
  `${filled(path)}%00`
]

t.test('a NUL character in any parameter of any path is 404, with or without a token', async (t) => {
  t.ok(published.length > 100)
  const before = await fingerprint(service)
  for (const { method, path, payload } of published) {
    for (const url of withNul(path)) {
      for (const headers of [bearer, {}]) {
        const { status, body } = await service.inject({
          method: method as 'GET', url, headers, ...(payload !== undefined && { payload })
        })
        t.match([status, body], [404, { error: 'not_found', message: String }], `${method} ${url}`)
      }
    }
  }
  t.equal(await fingerprint(service), before, 'nothing was changed')
})

t.test('a NUL character in a path is 404 at the pages for people, as a page, and everywhere else', async (t) => {
  for (const [kind, some] of [['pages', others.filter(({ isPage }) => isPage)], ['others', others]] as const) {
    t.ok(some.length > 10, kind)
  }
  for (const { method, path } of others) {
    for (const url of withNul(path)) {
      t.equal((await service.inject({ method: method as 'GET', url })).status, 404, `${method} ${url}`)
    }
  }
  for (const method of ['GET', 'POST'] as const) {
    const page = await service.inject({ method, url: '/account/set-password/a%00b' })
    t.match(page, { status: 404, headers: { 'content-type': /^text\/html/ }, text: /<h1>/ }, method)
  }
  const preflight = { origin: ORIGIN, 'access-control-request-method': 'GET' }
  t.equal((await service.inject({ method: 'OPTIONS', url: '/api/v1/nimbus/projects', headers: preflight })).status, 204)
  for (const url of ['/api/v1/%00/projects', '/%00', '/nowhere/a%00b', '/api/oauth/token%00']) {
    for (const method of ['GET', 'PATCH', 'OPTIONS'] as const) {
      t.match(await service.inject({ method, url, headers: preflight }), { status: 404, body: { error: 'not_found' } }, `${method} ${url}`)
    }
  }
  // `%2500` means the text %00, which contains no NUL. A query is not part of the path.
  const { ids } = world
  const own = `/api/v1/${ids.organization}`
  t.equal((await service.inject({ method: 'GET', url: `${own}/projects?page=%00`, headers: bearer })).status, 422)
  t.equal((await service.inject({ method: 'GET', url: `${own}/${ids.project}?x=%00`, headers: bearer })).status, 422)
})

/** Sends raw text on a new connection. */
async function exchange (head: string, body = ''): Promise<Answer> {
  const socket = connect(port, '127.0.0.1')
  await once(socket, 'connect')
  socket.write(`${head}Connection: close\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`)
  const text = await rest(socket)
  const [start = '', ...parts] = text.split('\r\n\r\n')
  const [line = '', ...lines] = start.split('\r\n')
  const headers = Object.fromEntries(lines.map((one) => {
    const [name = '', value = ''] = one.split(/: ?(.*)/s, 2)
    return [name.toLowerCase(), value]
  }))
  const content = parts.join('\r\n\r\n')
  const isJson = headers['content-type']?.startsWith('application/json') === true && content !== ''
  return { status: Number(line.slice(9, 12)), headers, text: content, body: isJson ? JSON.parse(content) : undefined }
}

const HOSTS = 'Host: a.example\r\nHost: b.example\r\n'
const AUTHORIZATION = `Authorization: ${bearer.authorization}\r\nContent-Type: application/json\r\n`

t.test('two Host headers are 400 malformed_request at every operation, or the OAuth error at its endpoints', async (t) => {
  const before = await fingerprint(service)
  for (const { method, path, payload } of published) {
    const body = payload === undefined ? '' : JSON.stringify(payload)
    for (const who of [AUTHORIZATION, '']) {
      const answer = await exchange(`${method} ${filled(path)} HTTP/1.1\r\n${HOSTS}${who}`, body)
      const error = path.startsWith('/api/oauth/')
        ? { error: 'invalid_request', error_description: String }
        : { error: 'malformed_request' }
      t.match(answer, { status: 400, body: error, headers: { 'x-request-id': String } }, `${method} ${path}`)
    }
  }
  t.equal(await fingerprint(service), before, 'nothing was changed')
})

t.test('a request with two Host headers is 400 at the pages for people, as a page, and everywhere else', async (t) => {
  for (const { method, path, isPage } of others) {
    const { status, headers } = await exchange(`${method} ${filled(path)} HTTP/1.1\r\n${HOSTS}`)
    t.equal(status, 400, `${method} ${path}`)
    t.match(headers['content-type'], isPage ? /^text\/html/ : /^application\/json/, `${method} ${path}`)
  }
  const preflight = `Origin: ${ORIGIN}\r\nAccess-Control-Request-Method: GET\r\n`
  for (const [name, head] of Object.entries({
    'the same twice': 'GET /healthz HTTP/1.1\r\nHost: a\r\nHost: a\r\n',
    'in another case, apart': 'GET /healthz HTTP/1.1\r\nhost: a\r\nAccept: */*\r\nHOST: b\r\n',
    'one of them empty': 'GET /healthz HTTP/1.1\r\nHost: a\r\nHost:\r\n',
    three: `GET /healthz HTTP/1.1\r\n${HOSTS}Host: c\r\n`,
    'HTTP/1.0': `GET /healthz HTTP/1.0\r\n${HOSTS}`,
    'no route': `GET /nowhere HTTP/1.1\r\n${HOSTS}`,
    'no method': `PATCH /healthz HTTP/1.1\r\n${HOSTS}`,
    'a path that does not decode': `GET /%ff HTTP/1.1\r\n${HOSTS}`,
    'a NUL as well': `GET /%00 HTTP/1.1\r\n${HOSTS}`,
    'another version as well': `GET /api/v1/user HTTP/1.1\r\n${HOSTS}X-API-Version: 2\r\n`,
    'a preflight': `OPTIONS /api/v1/user HTTP/1.1\r\n${HOSTS}${preflight}`
  })) t.match(await exchange(head), { status: 400, body: { error: 'malformed_request' } }, name)
  t.equal((await exchange('GET /healthz HTTP/1.1\r\nHost: a\r\n')).status, 200)
  t.equal((await exchange(`OPTIONS /api/v1/user HTTP/1.1\r\nHost: a\r\n${preflight}`)).status, 204)
})
