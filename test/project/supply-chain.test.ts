// runs: no database
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import t from 'tap'
import { admittedToImage } from '../helpers/image.ts'

// The packages that the service ships: their licences, and the scripts that run during their installation.

interface Package {
  version: string
  license: string
  dev?: true
  hasInstallScript?: true
  /** The URL of a package that does not come from the configured registry. */
  resolved?: string
  integrity?: string
}

const read = (path: string) => readFileSync(path, 'utf8')
const { dependencies, overrides, scripts } = JSON.parse(read('package.json')) as
  Record<'dependencies' | 'overrides' | 'scripts', Record<string, string>>
const lock = JSON.parse(read('package-lock.json')).packages as Record<string, Package>
const production = Object.entries(lock).filter(([path, { dev }]) => path !== '' && !dev)
function checkLicences (cwd: string) {
  const { status, stdout, stderr } = spawnSync(
    process.execPath, [resolve('scripts/licences.mjs'), '--check'], { cwd, encoding: 'utf8' }
  )
  return { status, stdout, stderr }
}

t.test('docs/licences.md has every production package with its version and licence', async (t) => {
  t.same(checkLicences('.'), { status: 0, stdout: '', stderr: '' })
  t.ok(production.length > 100)
})

t.test('another version, a missing page and a licence that is not accepted are reported', async (t) => {
  const dir = mkdtempSync(join(tmpdir(), 'strongroom-licences-'))
  t.teardown(() => { rmSync(dir, { recursive: true }) })
  const lockWith = (fields: object) => writeFileSync(join(dir, 'package-lock.json'), JSON.stringify({
    packages: { ...lock, 'node_modules/fastify': { ...lock['node_modules/fastify'], ...fields } }
  }))
  lockWith({})
  t.match(checkLicences(dir), { status: 1, stderr: 'docs/licences.md is not up to date: run `npm run licences`\n' })
  lockWith({ license: 'SSPL-1.0' })
  t.match(checkLicences(dir), { status: 1, stderr: /^node_modules\/fastify: the licence SSPL-1\.0 is not one of / })
})

t.test('an installed package has the licence that package-lock.json states', async (t) => {
  const installed = production.filter(([path]) => existsSync(path))
  t.ok(installed.length > 100)
  t.same(installed.filter(([path, { version, license }]) => {
    const found = JSON.parse(read(join(path, 'package.json')))
    return found.version !== version || found.license !== license
  }).map(([path]) => path), [])
})

t.test('no production package has an install script, and each comes from the registry and has a hash', async (t) => {
  t.same(production.filter(([, { hasInstallScript }]) => hasInstallScript).map(([path]) => path), [])
  t.same(production.filter(([, { resolved, integrity = '' }]) =>
    resolved !== undefined || !integrity.startsWith('sha512-')).map(([path]) => path), [])
  // The lock file must list install scripts, so that the check is meaningful.
  t.ok(Object.values(lock).some(({ hasInstallScript }) => hasInstallScript))
})

t.test('npm runs no install script, neither here nor in the container', async (t) => {
  t.ok(read('.npmrc').split('\n').includes('ignore-scripts=true'))
  const installs = read('Dockerfile').match(/\bnpm (?:ci|install|prune)\b.*/g) ?? []
  t.ok(installs.length > 0)
  t.same(installs.filter((line) => !line.includes('--ignore-scripts')), [])
  // With this setting, npm does not run scripts before or after another script either.
  t.same(Object.keys(scripts).filter((name) => /^(?:pre|post|install$)/.test(name)), [])
})

t.test('the image has all that the build and its code name, and no tests, findings and documents', async (t) => {
  const admitted = admittedToImage()
  const folders = new Set(admitted.filter((path) => path.includes('/')).map((path) => path.slice(0, path.indexOf('/') + 1)))
  const [, sources = ''] = /^const SOURCES = \[(.+)\]$/m.exec(read('scripts/build.mjs')) ?? []
  const needed = [...sources.matchAll(/'(\w+)'/g)].map(([, name]) => `${name}/`)
  const unneeded = ['test/', 'bench/', 'examples/']
  t.same([...folders].sort(), [...needed.filter((name) => !unneeded.includes(name)), 'scripts/'].sort())
  const copied = [...read('Dockerfile').matchAll(/^COPY (.+) \.\/$/gm)].flatMap(([, paths = '']) => paths.split(' '))
    .map((path) => path.replace('/app/', '')).filter((path) => !path.startsWith('--'))
  const compiled = [...read('scripts/build.mjs').matchAll(/'([\w/]*tsconfig\.json|[\w-]+\.yaml|scripts\/[\w.-]+)'/g)].map(([, path]) => path!)
  t.ok(copied.includes('LICENSE') && compiled.includes('cli/tsconfig.json'))
  t.same([...copied, ...compiled].filter((path) => !admitted.includes(path)), [])
  // Imports of the sources lead to sources that are there, too.
  const imports = admitted.filter((path) => /\.(?:tsx?|mjs)$/.test(path)).flatMap((path) =>
    [...read(path).matchAll(/^(?:import|export) (?:[^']+ from )?'(\.[^']+)'/gm)].map(([, from]) => join(path, '..', from!)))
  t.ok(imports.includes('schemas/console.ts'))
  t.same([...new Set(imports)].filter((path) => !admitted.includes(path) && !path.startsWith('dist/')), [])
})

t.test('what the console and the client bundle is a production package, which the audit, licences and SBOM cover', async (t) => {
  const sources = ['console', 'cli'].flatMap((folder) => readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.tsx?$/.test(name)).map((name) => join(folder, name)))
  const imported = new Set(sources.flatMap((path) => [...read(path)
    .matchAll(/^(?:import|export) (?:[^']+ from )?'((?:@[\w-]+\/)?[a-z][\w-]*)/gm)].map(([, from]) => from!)))
  t.ok(imported.has('preact') && imported.has('commander'))
  t.same([...imported].filter((name) => name !== 'node' && !Object.hasOwn(dependencies, name)), [])
})

t.test('an override replaces a package that another one needs', async (t) => {
  for (const name of Object.keys(overrides)) t.ok(production.some(([path]) => path.endsWith(`node_modules/${name}`)), name)
})
