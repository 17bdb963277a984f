// runs: no database
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { readDoc } from '../helpers/docs.ts'
import { command, scratchDirectory } from '../helpers/process.ts'

const { version } = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string }

function check (cwd: string, ...names: string[]) {
  const { status, stdout, stderr } = spawnSync(
    process.execPath, [resolve('scripts/release-check.mjs'), ...names], { cwd, encoding: 'utf8' }
  )
  return { status, stdout, stderr }
}

t.test('the command line and the document have the version of package.json; the API has version 1', async (t) => {
  t.match(version, /^\d+\.\d+\.\d+$/)
  t.same(await command(['--version']), { code: 0, stdout: `${version}\n`, stderr: '' })
  const { info, paths } = parse(readFileSync('openapi.yaml', 'utf8'))
  t.equal(info.version, version)
  t.ok(Object.keys(paths).some((path) => path.startsWith('/api/v1/')))
  t.same(Object.keys(paths).filter((path) => /^\/api\/v(?!1\/)/.test(path)), [])
})

t.test('the version, the kept database and the bill of materials are those of this build', async (t) => {
  t.same(check('.', 'versions', 'sbom'), { status: 0, stdout: 'versions: ok\nsbom: ok\n', stderr: '' })
  // Migrations that are newer than the last release belong to the next one.
  const isReleased = !readFileSync('CHANGELOG.md', 'utf8').includes('\n## [Unreleased]\n')
  const { stdout } = check('.', 'database')
  t.match(stdout, isReleased ? /^database: ok$/m : /^database: (?:ok|failed: \S+ was made without \S+\.sql(?:, \S+\.sql)*: )/)
  const { bomFormat, metadata, components } = JSON.parse(readFileSync('dist/sbom.cdx.json', 'utf8'))
  t.match({ bomFormat, ...metadata.component }, { bomFormat: 'CycloneDX', name: 'strongroom', version })
  t.ok(components.some(({ purl }: { purl: string }) => purl.startsWith('pkg:npm/fastify@')))
})

t.test('the newest release of the change log is this version', async (t) => {
  const [, newest] = /^## \[(\d[^\]]*)\] - \d{4}-\d{2}-\d{2}$/m.exec(readFileSync('CHANGELOG.md', 'utf8')) ?? []
  t.equal(newest, version)
})

t.test('docs/releasing.md lists every check, and no other', async (t) => {
  const { status, stderr } = check('.', 'unknown')
  t.equal(status, 2)
  const [, names = ''] = /^There is no check unknown; the checks are: (.+)\n$/.exec(stderr) ?? []
  t.same(readDoc('docs/releasing.md').table('| Check | What must hold |').map(([name]) => name), names.split(', '))
})

t.test('other versions, another changelog, a changed file and a missing database are reported', async (t) => {
  const dir = scratchDirectory(t)
  const write = (path: string, text: string) => writeFileSync(join(dir, path), text)
  mkdirSync(join(dir, 'dist/src'), { recursive: true })
  write('package.json', '{"name":"strongroom","version":"0.2.0","dependencies":{}}')
  write('package-lock.json', '{"version":"0.2.0","packages":{"":{"version":"0.1.9"}}}')
  write('openapi.yaml', 'info: { version: 0.1.0 }')
  write('dist/src/cli.js', 'console.log("0.2.0")')
  mkdirSync(join(dir, 'examples/kubernetes'), { recursive: true })
  write('examples/kubernetes/strongroom.yaml', 'image: registry.example.com/strongroom:0.1.8\n')
  write('CHANGELOG.md', '# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-31\n')
  spawnSync('git', ['init', '--quiet'], { cwd: dir })
  const { status, stdout } = check(dir, 'tree', 'versions', 'changelog', 'database')
  t.equal(status, 1)
  for (const line of [
    /^tree: failed: commit or remove these changes:\n[^]*\?\? CHANGELOG\.md\n/m,
    /^versions: failed: package-lock\.json, packages is 0\.1\.9, and package\.json has 0\.2\.0\ninfo\.version of openapi\.yaml is 0\.1\.0, .*\nthe image of \S+ is 0\.1\.8, /m,
    /^changelog: failed: the first heading of CHANGELOG\.md must be `## \[0\.2\.0\] - DATE`$/m,
    /^database: failed: there is no test\/releases\/0\.2\.0\.sql\.gz: run `npm run release:database`$/m
  ]) t.match(stdout, line)

  write('CHANGELOG.md', '# Changelog\n\n## [0.2.0] - 2026-12-31\n')
  t.same(check(dir, 'changelog'), { status: 0, stdout: 'changelog: ok\n', stderr: '' })
})
