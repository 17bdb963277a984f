// runs: one database
import { readFileSync } from 'node:fs'
import { runInNewContext } from 'node:vm'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { parse } from 'yaml'
import { codeOf, ERRORS, type ErrorCode } from '../../schemas/errors.ts'
import { FIRST_ORGANIZATION } from '../../schemas/organizations.ts'
import type { Scope } from '../../schemas/scopes.ts'
import { LAST } from '../../src/http/contract/explorer.ts'
import { startApp } from '../helpers/app.ts'
import { operationsIn, ownErrorsOf } from '../helpers/contract.ts'

// Tests the files of Swagger UI. `browser` tests Swagger UI in a browser.

interface Operation {
  operationId: string
  description?: string
  deprecated?: boolean
  tags: string[]
  security: Record<string, Scope[]>[]
  responses: Record<string, unknown>
}
interface Parameter { in: string, name: string, required?: boolean, example?: string, schema?: object }
interface Published {
  info: { title: string, description: string }
  tags: { name: string, description: string }[]
  paths: Record<string, Record<string, Operation>>
  components: { parameters: Record<string, Parameter>, securitySchemes: object }
}

const service = await startApp(t)
const below = await startApp(t, { PUBLIC_URL: 'https://example.com/base' })
const published = parse(readFileSync('openapi.yaml', 'utf8')) as Published
const operationsOf = ({ paths }: Published) => Object.values(paths).flatMap((item) => Object.values(operationsIn(item)))

t.test('GET / leads a browser to the console or the documentation, and names the addresses to other clients', async (t) => {
  const BROWSER = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8'
  const without = await startApp(t, { DOCS_UI: 'off', CONSOLE: 'off' })
  const documented = await startApp(t, { CONSOLE: 'off', PUBLIC_URL: 'https://example.com/base' })
  const undocumented = await startApp(t, { DOCS_UI: 'off' })
  const ask = async ({ inject }: typeof service, url: string, accept?: string) => {
    const { status, headers, body } = await inject({ url, headers: { ...(accept !== undefined && { accept }) } })
    return status === 200 ? [status, body] : [status, headers.location]
  }
  // Sends the request twice, because the service caches a page that does not depend on `Accept`.
  for (let n = 0; n < 2; n++) {
    t.strictSame(await ask(service, '/', BROWSER), [303, '/console/'])
    for (const accept of [
      undefined, '*/*', 'application/json', 'application/json, text/plain, */*', 'text/html;q=0.5, application/json', 'x'
    ]) {
      t.strictSame(
        await ask(service, '/', accept), [200, { console: '/console/', docs: '/docs', openapi: '/openapi.json' }],
        accept ?? 'none'
      )
    }
  }
  t.equal((await service.inject({ url: '/docs', headers: { accept: BROWSER } })).status, 200)
  for (const url of ['/', '/base', '/base/']) {
    t.strictSame(await ask(below, url, BROWSER), [303, '/base/console/'], url)
    t.strictSame(await ask(below, url), [
      200, { console: '/base/console/', docs: '/base/docs', openapi: '/base/openapi.json' }
    ], url)
    t.strictSame(await ask(documented, url, BROWSER), [303, '/base/docs'], url)
    t.strictSame(await ask(documented, url), [200, { docs: '/base/docs', openapi: '/base/openapi.json' }], url)
  }
  t.strictSame(await ask(undocumented, '/'), [200, { console: '/console/', openapi: '/openapi.json' }])
  t.strictSame(await ask(without, '/', BROWSER), [404, undefined], 'without console and Swagger UI')
  t.strictSame(await ask(without, '/'), [200, { openapi: '/openapi.json' }])
  for (const { inject } of [service, below, documented, undocumented, without]) {
    for (const path of Object.values((await inject({ url: '/' })).body as Record<string, string>)) {
      t.equal((await inject({ url: path, headers: { accept: BROWSER } })).status, 200, path)
    }
  }
  const { headers } = await service.inject({ url: '/' })
  t.strictSame(
    [headers['content-type'], headers['cache-control']], ['application/json; charset=utf-8', 'no-cache']
  )
  t.match(headers.vary, /\bAccept\b/)
  const post = await service.inject({ method: 'POST', url: '/' })
  t.strictSame([post.status, post.headers.allow], [405, 'GET, HEAD, OPTIONS'])
})

t.test('the document and its edition in OpenAPI 3.0 name the same addresses, below a path too', async (t) => {
  for (const [{ inject }, url] of [[service, '/'], [below, '/base']] as const) {
    const [newer, older] = await Promise.all(['/openapi.json', '/openapi-3.0.json'].map(async (url) => {
      const { openapi, servers } = (await inject({ url })).body
      return { openapi, servers }
    }))
    t.equal(older!.openapi, '3.0.3')
    t.equal(older!.servers[0].url, url)
    t.strictSame(older!.servers, newer!.servers)
  }
})

t.test('operations are in the order of their groups; billing and deprecated are the last groups', async (t) => {
  const groups = published.tags.map(({ name }) => name)
  // A deprecated duplicate has the same path as the operation that it repeats.
  const current = operationsOf(published).filter(({ deprecated = false }) => !deprecated)
  t.strictSame([...new Set(current.flatMap(({ tags }) => tags))], groups.slice(0, -1))
  t.strictSame(groups.slice(-2), ['billing', 'deprecated'])
  t.strictSame(LAST, ['billing', 'deprecated'])
  for (const { operationId, tags, deprecated = false } of operationsOf(published)) {
    t.equal(tags.includes('deprecated'), deprecated, operationId)
  }
  const ids = operationsOf(published).map(({ operationId }) => operationId)
  const [created, one] = [ids.indexOf('createOrganization'), ids.indexOf('getOrganization')]
  t.ok(created < one && one < ids.indexOf('createProject'), 'what is about more comes first')
})

t.test('Swagger UI shows the edition in OpenAPI 3.0, which it reads fast, with the message of each error', async (t) => {
  const [shown, older] = await Promise.all(['/docs/json', '/openapi-3.0.json'].map(async (url) =>
    (await service.inject({ url })).body as Published & { openapi: string }))
  t.equal(shown!.openapi, '3.0.3')
  t.strictSame(
    operationsOf(shown!).map(({ description, security, ...rest }) => rest),
    operationsOf(older!).map(({ description, security, ...rest }) => rest),
    'otherwise the document is that edition'
  )
  const securityOf = (document: Published) =>
    Object.fromEntries(operationsOf(document).map(({ operationId, security }) => [operationId, security]))
  t.strictSame(securityOf(shown!), securityOf(published), 'people sign in with the second scheme')
  t.strictSame(shown!.components.securitySchemes, published.components.securitySchemes)
  const described = new Map(operationsOf(published).map(({ operationId, description }) => [operationId, description]))
  for (const { operationId, description = '' } of operationsOf(shown!)) {
    const [purpose, errors] = description.split('Own errors:')
    const short = described.get(operationId)!
    const codes = ownErrorsOf({ description: short }).map(({ code }) => code)
    t.equal(short.split('Own errors:')[0]!.trim(), purpose!.trim(), operationId)
    t.equal(errors === undefined, codes.length === 0, operationId)
    const lines = [...description.matchAll(/^- (\d{3}) `(\w+)`: (.+)$/gm)]
    t.strictSame(new Set(lines.map(([, , code]) => code)), new Set(codes), operationId)
    t.equal(new Set(lines.map(String)).size, lines.length, `${operationId} lists each error once`)
    for (const [, status, code, message] of lines) {
      const row = Object.entries(ERRORS).find(([name, error]) =>
        codeOf(name as ErrorCode) === code && error.message === message)
      t.equal(String(row?.[1].status), status, `${operationId} ${code}`)
    }
  }
})

t.test('the introduction has at most 120 words, and names the organization of the first start', async (t) => {
  for (const [{ inject }, base] of [[service, ''], [below, '/base']] as const) {
    const { info: { description } } = (await inject({ url: '/docs/json' })).body as Published
    const words = description.replace(/\]\([^)]*\)/g, ']').split(/\s+/)
    t.ok(words.length <= 120, `${words.length} words`)
    t.match(description, FIRST_ORGANIZATION.slug)
    t.match(description, `(${base}/openapi-3.0.json)`)
  }
})

t.test('no filter of the audit log is filled in: only required parameters of a query have examples', async (t) => {
  const { body } = await service.inject({ url: '/docs/json' })
  const parameters = Object.values((body as Published).components.parameters)
  const optional = parameters.filter((parameter) => parameter.in === 'query' && parameter.required !== true)
  t.ok(optional.length > 10)
  t.strictSame(optional.filter(({ example }) => example !== undefined).map(({ name }) => name), [])
  for (const name of ['actor', 'action', 'resource', 'from', 'to', 'before']) {
    const filter = optional.find((parameter) => parameter.name === name)
    t.notOk('default' in (filter!.schema ?? {}), name)
  }
})

t.test('the documentation is compressed for clients that accept gzip, with an ETag of its own, and is cached', async (t) => {
  const urls = ['/docs/json', '/docs/static/swagger-ui-bundle.js', '/openapi.json', '/openapi.yaml', '/openapi-3.0.json']
  const app = service.app
  for (const url of urls) {
    const plain = await app.inject({ url })
    t.equal(plain.headers['content-encoding'], undefined, url)
    t.match(plain.headers.vary, /Accept-Encoding/, url)
    for (const accepted of ['gzip', 'deflate, gzip;q=0.5, br', 'GZIP']) {
      const compressed = await app.inject({ url, headers: { 'accept-encoding': accepted } })
      t.equal(compressed.headers['content-encoding'], 'gzip', `${url} ${accepted}`)
      t.ok(gunzipSync(compressed.rawPayload).equals(plain.rawPayload), `${url} ${accepted}`)
      t.equal(Number(compressed.headers['content-length']), compressed.rawPayload.length)
      t.not(compressed.headers.etag, plain.headers.etag)
      const etag = String(compressed.headers.etag)
      const again = await app.inject({ url, headers: { 'accept-encoding': accepted, 'if-none-match': etag } })
      t.strictSame([again.statusCode, again.headers.etag, again.rawPayload.length], [304, etag, 0])
    }
    for (const refused of ['identity', 'gzip;q=0', 'br', 'x-gzip-like']) {
      const { headers } = await app.inject({ url, headers: { 'accept-encoding': refused } })
      t.equal(headers['content-encoding'], undefined, `${url} ${refused}`)
    }
  }
  const whole = await Promise.all(['swagger-ui-bundle.js', 'swagger-ui.css', 'swagger-ui-standalone-preset.js'].map(async (file) =>
    (await app.inject({ url: `/docs/static/${file}`, headers: { 'accept-encoding': 'gzip' } })).rawPayload.length))
  t.ok(whole.reduce((sum, bytes) => sum + bytes, 0) < 700_000, 'the files together')
})

t.test('Swagger UI has the name and the look of the service, and requests nothing from a third party', async (t) => {
  const page = await service.inject({ url: '/docs' })
  t.match(page.text, '<title>Strongroom API</title>')
  const files = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, file]) => file!)
  t.ok(files.some((file) => file.endsWith('/strongroom.css')) && files.some((file) => file.endsWith('/icon.svg')))
  for (const file of files) {
    t.ok(file.startsWith('/docs/'), file)
    t.equal((await service.inject({ url: file })).status, 200, file)
  }
})

// The functions of the plugin, as the browser gets them. Swagger UI calls these functions.
const sourceOf = async (name: string, end: RegExp) => {
  const { text } = await service.inject({ url: '/docs/static/swagger-initializer.js' })
  const [, source] = new RegExp(`"${name}":(.+?)${end.source}`, 's').exec(text)!
  return runInNewContext(`(${source!})`)
}

t.test('all groups but the first are folded until a person opens them or filters', async (t) => {
  const wrap = await sourceOf('isShown', /\}\}\}\}\]/) as
    (original: (thing: string[], byDefault: boolean) => boolean) =>
    (state: { get (name: string): unknown }, thing: string[], byDefault: boolean) => boolean
  const opened = new Set<string>()
  const isShown = wrap((thing, byDefault) => opened.has(thing.join()) || byDefault)
  for (const filter of [true, '']) {
    const state = { get: () => filter }
    for (const { name } of published.tags) {
      t.equal(isShown(state, ['operations-tag', name], true), name === published.tags[0]!.name, name)
    }
  }
  t.equal(isShown({ get: () => 'coupon' }, ['operations-tag', 'billing'], true), true, 'a filter opens it')
  opened.add('operations-tag,deprecated')
  t.equal(isShown({ get: () => true }, ['operations-tag', 'deprecated'], true), true)
})

t.test('the examples of paths are the organization of the first start and what those of bodies make there', async (t) => {
  const examples = Object.fromEntries(Object.values(published.components.parameters)
    .filter((parameter) => parameter.in === 'path').map(({ name, example }) => [name, example]))
  t.match(examples, {
    organization: FIRST_ORGANIZATION.slug, project: 'orbit', target: 'backend', environment: 'live', team: 'platform'
  })
})
