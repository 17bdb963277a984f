import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import t from 'tap'
import { parse } from 'yaml'
import { renderOpenApi } from '../src/commands/openapi.ts'

t.test('openapi.yaml is what the routes say; when this fails: npm run openapi', async (t) => {
  const published = await renderOpenApi()
  t.ok(
    readFileSync('openapi.yaml', 'utf8') === published,
    'openapi.yaml is out of date: run npm run openapi and commit the file'
  )
  t.ok(await renderOpenApi() === published, 'it comes out the same every time')
  t.equal(parse(published).openapi, '3.1.0')
})

t.test('the document lints without an error, and its examples match their schemas', async (t) => {
  const { stdout } = await promisify(execFile)(process.execPath, [
    'node_modules/.bin/redocly', 'lint', 'openapi.yaml', '--format=json'
  ], {
    env: { ...process.env, REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' }
  }).catch((error: { stdout: string }) => error)
  const { totals, problems } = JSON.parse(stdout.slice(stdout.indexOf('{')))
  // `/organizations/{organization}` beside `/{organization}/projects` is how the paths are specified: static words win.
  t.strictSame(problems.filter(({ ruleId }: { ruleId: string }) => ruleId !== 'no-ambiguous-paths'), [])
  t.equal(totals.errors, 0)
})
