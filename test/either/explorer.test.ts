import { readFileSync } from 'node:fs'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { parse } from 'yaml'
import { codeOf, ERRORS, type ErrorCode } from '../../schemas/errors.ts'
import { FIRST_ORGANIZATION } from '../../schemas/organizations.ts'
import { SCOPES, type Scope } from '../../schemas/scopes.ts'
import { startApp } from '../helpers/app.ts'

// Swagger UI as it is served; what a browser makes of it is in `browser`.

interface Operation {
  operationId: string
  description?: string
  deprecated?: boolean
  tags: string[]
  security: Record<string, Scope[]>[]
  responses: Record<string, unknown>
  'x-error-codes'?: string[]
}
interface Published {
  info: { title: string, description: string }
  tags: { name: string, description: string }[]
  paths: Record<string, Record<string, Operation>>
  components: { parameters: Record<string, { in: string, name: string, example?: string }> }
}

const service = await startApp(t)
const below = await startApp(t, { PUBLIC_URL: 'https://example.com/base' })
const published = parse(readFileSync('openapi.yaml', 'utf8')) as Published
const operationsOf = ({ paths }: Published) => Object.values(paths).flatMap((item) => Object.values(item))

t.test('GET / in a browser leads to the documentation, below a path too; to others there is nothing', async (t) => {
  const BROWSER = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8'
  const without = await startApp(t, { DOCS_UI: 'off' })
  const ask = async ({ inject }: typeof service, url: string, accept?: string) => {
    const { status, headers } = await inject({ url, headers: { ...(accept !== undefined && { accept }) } })
    return [status, headers.location]
  }
  t.strictSame(await ask(service, '/', BROWSER), [303, '/docs'])
  t.equal((await service.inject({ url: '/docs', headers: { accept: BROWSER } })).status, 200)
  for (const url of ['/', '/base', '/base/']) t.strictSame(await ask(below, url, BROWSER), [303, '/base/docs'], url)
  for (const accept of [undefined, '*/*', 'application/json']) {
    t.strictSame(await ask(service, '/', accept), [404, undefined], accept ?? 'none')
  }
  t.strictSame(await ask(without, '/', BROWSER), [404, undefined], 'without Swagger UI')
})

t.test('the document and its edition in OpenAPI 3.0 name the same addresses, below a path too', async (t) => {
  for (const [{ inject }, url] of [[service, '/'], [below, '/base']] as const) {
    const [newer, older] = await Promise.all(['/openapi.json', '/openapi-3.0.json'].map(async (url) => {
      const { openapi, servers, components: { securitySchemes } } = (await inject({ url })).body
      return { openapi, addresses: { servers, securitySchemes } }
    }))
    t.equal(older!.openapi, '3.0.3')
    t.equal(older!.addresses.servers[0].url, url)
    t.strictSame(older!.addresses, newer!.addresses)
  }
})

t.test('operations come in the order of their groups, the deprecated ones last, in a group of their own', async (t) => {
  const groups = published.tags.map(({ name }) => name)
  // A duplicate shares its path with the operation that it repeats.
  const current = operationsOf(published).filter(({ deprecated = false }) => !deprecated)
  t.strictSame([...new Set(current.flatMap(({ tags }) => tags))], groups.slice(0, -1))
  t.equal(groups.at(-1), 'deprecated')
  for (const { operationId, tags, deprecated = false } of operationsOf(published)) {
    t.equal(tags.includes('deprecated'), deprecated, operationId)
  }
  const ids = operationsOf(published).map(({ operationId }) => operationId)
  const [created, one] = [ids.indexOf('createOrganization'), ids.indexOf('getOrganization')]
  t.ok(created < one && one < ids.indexOf('createProject'), 'what is about more comes first')
})

t.test('Swagger UI says at each operation what its scope is for, and what can go wrong there alone', async (t) => {
  const { body } = await service.inject({ url: '/docs/json' })
  const shown = body as Published
  t.strictSame(
    operationsOf(shown).map(({ description, ...rest }) => rest),
    operationsOf(published).map(({ description, ...rest }) => rest),
    'otherwise the document is the published one'
  )
  t.match(shown.info.description, FIRST_ORGANIZATION.slug)
  for (const { operationId, description = '', security, 'x-error-codes': codes = [] } of operationsOf(shown)) {
    const scopes = new Set(security.flatMap((way) => Object.values(way).flat()))
    for (const scope of scopes) {
      t.match(description.toLowerCase(), `\`${scope}\` to ${SCOPES[scope].toLowerCase()}`, operationId)
    }
    if (security.length === 0) t.match(description, /^Needs no token\./, operationId)
    else if (scopes.size === 0) t.match(description, /^Any token is accepted\./, operationId)
    const lines = [...description.matchAll(/^- (\d{3}) `(\w+)`: (.+)$/gm)]
    t.strictSame([...new Set(lines.map(([, , code]) => code))], codes, operationId)
    t.equal(new Set(lines.map(String)).size, lines.length, `${operationId} says each once`)
    for (const [, status, code, message] of lines) {
      const row = Object.entries(ERRORS).find(([name, error]) =>
        codeOf(name as ErrorCode) === code && error.message === message)
      t.equal(String(row?.[1].status), status, `${operationId} ${code}`)
    }
  }
})

t.test('Swagger UI has the name and the look of the service, and asks nobody else for anything', async (t) => {
  const page = await service.inject({ url: '/docs' })
  t.match(page.text, '<title>Strongroom API</title>')
  const files = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, file]) => file!)
  t.ok(files.some((file) => file.endsWith('/strongroom.css')) && files.some((file) => file.endsWith('/icon.svg')))
  for (const file of files) {
    t.ok(file.startsWith('/docs/'), file)
    t.equal((await service.inject({ url: file })).status, 200, file)
  }
})

t.test('a group is open, the deprecated one closed, until somebody opens it', async (t) => {
  const { text } = await service.inject({ url: '/docs/static/swagger-initializer.js' })
  const [, source] = /"isShown":(.+?)\}\}\}\}\]/s.exec(text)!
  // Swagger UI calls it so: with its own selector, then with the state, the thing and what holds by default.
  const wrap = runInNewContext(source!) as
    (original: (thing: string[], byDefault: boolean) => boolean) =>
    (state: unknown, thing: string[], byDefault: boolean) => boolean
  const opened = new Set<string>()
  const isShown = wrap((thing, byDefault) => opened.has(thing.join()) || byDefault)
  t.equal(isShown({}, ['operations-tag', 'projects'], true), true)
  t.equal(isShown({}, ['operations-tag', 'deprecated'], true), false)
  opened.add('operations-tag,deprecated')
  t.equal(isShown({}, ['operations-tag', 'deprecated'], true), true)
})

t.test('the examples of paths are the organization of the first start and what those of bodies make there', async (t) => {
  const examples = Object.fromEntries(Object.values(published.components.parameters)
    .filter((parameter) => parameter.in === 'path').map(({ name, example }) => [name, example]))
  t.match(examples, {
    organization: FIRST_ORGANIZATION.slug, project: 'orbit', target: 'backend', environment: 'live', team: 'platform'
  })
})
