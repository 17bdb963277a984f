import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { parse } from 'yaml'
import { renderDocuments } from '../src/commands/openapi.ts'
import { asOpenApi30 } from '../src/http/document-3.0.ts'

t.test('openapi.yaml and docs/scopes.md are what the routes say; when this fails: npm run openapi', async (t) => {
  const published = await renderDocuments()
  for (const [file, text] of Object.entries(published)) {
    t.ok(readFileSync(file, 'utf8') === text, `${file} is out of date: run npm run openapi and commit the file`)
  }
  t.strictSame(await renderDocuments(), published, 'it comes out the same every time')
  t.equal(parse(published['openapi.yaml']).openapi, '3.1.0')
})

/** What redocly says of a file. */
async function lint (file: string) {
  const { stdout } = await promisify(execFile)(process.execPath, [
    'node_modules/.bin/redocly', 'lint', file, '--format=json'
  ], {
    env: { ...process.env, REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' }
  }).catch((error: { stdout: string }) => error)
  const { totals, problems } = JSON.parse(stdout.slice(stdout.indexOf('{')))
  // `/organizations/{organization}` beside `/{organization}/projects` is how the paths are specified: static words win.
  const ruleIds = (problems as { ruleId: string }[]).map(({ ruleId }) => ruleId)
  return { errors: totals.errors as number, others: ruleIds.filter((rule) => rule !== 'no-ambiguous-paths') }
}

t.test('the document lints without an error, and its examples match their schemas', async (t) => {
  t.strictSame(await lint('openapi.yaml'), { errors: 0, others: [] })
})

t.test('its edition in OpenAPI 3.0 lints, too, has every operation, and one schema of errors', async (t) => {
  const { paths, components, ...document } = parse(readFileSync('openapi.yaml', 'utf8'))
  const older = asOpenApi30({ ...document, paths, components }) as any
  const dir = mkdtempSync(path.join(tmpdir(), 'strongroom-openapi-'))
  t.teardown(() => rmSync(dir, { recursive: true }))
  const file = path.join(dir, 'openapi-3.0.json')
  writeFileSync(file, JSON.stringify(older))
  // A license has no SPDX identifier there.
  t.strictSame(await lint(file), { errors: 0, others: ['info-license-strict'] })
  const operations = (of: Record<string, object>) =>
    Object.values(of).flatMap((item) => Object.values(item)).map(({ operationId }) => operationId)
  t.strictSame(operations(older.paths), operations(paths))
  t.strictSame(
    Object.keys(older.components.schemas).filter((name) => /Error/.test(name)), ['Error', 'OAuthError']
  )
  t.notMatch(JSON.stringify(older), /"const"|"type":\[|"null"|patternProperties/)
})
