// `npm run release:check [-- CHECK ...]`: checks the steps of docs/releasing.md, or only the named ones. Runs all of
// them, and fails if one fails. Exit code 2: there is no such check.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { parse } from 'yaml'
import { productionPackages } from './shipped-packages.mjs'

const SBOM = 'dist/sbom.cdx.json'
const KUBERNETES = 'examples/kubernetes/strongroom.yaml'

const read = (path) => readFileSync(path, 'utf8')
const readJson = (path) => JSON.parse(read(path))
const { name: NAME, version: VERSION } = readJson('package.json')

/** Each check returns what is wrong; an empty text if nothing is. */
const CHECKS = {
  tree: () => changes() === '' ? '' : `commit or remove these changes:\n${changes()}`,
  generated () {
    const before = changes()
    for (const script of ['openapi', 'licences']) run('npm', 'run', '-s', script)
    return changes() === before ? '' : `these files were not up to date, and now are:\n${changes()}`
  },
  versions () {
    const lock = readJson('package-lock.json')
    const found = {
      'package-lock.json': lock.version,
      'package-lock.json, packages': lock.packages[''].version,
      'info.version of openapi.yaml': parse(read('openapi.yaml')).info.version,
      [`the image of ${KUBERNETES}`]: /image: \S+\/strongroom:(\S+)/.exec(read(KUBERNETES))?.[1],
      '--version': run(process.execPath, 'dist/src/cli.js', '--version').trim()
    }
    return Object.entries(found).filter(([, version]) => version !== VERSION)
      .map(([place, version]) => `${place} is ${version}, and package.json has ${VERSION}`).join('\n')
  },
  changelog () {
    const [, version, date] = /^## \[(.+?)\](?: - (\d{4}-\d{2}-\d{2}))?$/m.exec(read('CHANGELOG.md')) ?? []
    return version === VERSION && date !== undefined
      ? ''
      : `the first heading of CHANGELOG.md must be \`## [${VERSION}] - DATE\``
  },
  database () {
    const dump = `test/releases/${VERSION}.sql.gz`
    if (!existsSync(dump)) return `there is no ${dump}: run \`npm run release:database\``
    const text = gunzipSync(readFileSync(dump)).toString()
    const missing = readdirSync('drizzle').filter((file) => file.endsWith('.sql'))
      .filter((file) => !text.includes(createHash('sha256').update(read(`drizzle/${file}`)).digest('hex')))
    return missing.length === 0
      ? ''
      : `${dump} was made without ${missing.join(', ')}: raise the version, then run \`npm run release:database\``
  },
  audit () {
    // `npm run -s` would silence the reason.
    run('npm', 'audit', '--omit=dev', '--loglevel=error')
    return ''
  },
  sbom () {
    const components = readSbom()
    const missing = productionPackages(readJson('package-lock.json').packages)
      .map(({ name, version }) => `${name}@${version}`).filter((id) => !components.includes(id))
    return missing.length === 0 ? '' : `${SBOM} lacks ${missing.join(', ')}`
  }
}

const names = process.argv.slice(2)
const unknown = names.filter((name) => !Object.hasOwn(CHECKS, name))
if (unknown.length > 0) {
  console.error(`There is no check ${unknown.join(', ')}; the checks are: ${Object.keys(CHECKS).join(', ')}`)
  process.exit(2)
}
const failed = (names.length > 0 ? names : Object.keys(CHECKS)).filter((name) => {
  const problem = problemOf(CHECKS[name])
  console.log(problem === '' ? `${name}: ok` : `${name}: failed: ${problem}`)
  return problem !== ''
})
process.exit(failed.length > 0 ? 1 : 0)

function problemOf (check) {
  try {
    return check()
  } catch (error) {
    return error.message
  }
}

function changes () {
  return run('git', 'status', '--porcelain').trimEnd()
}

/** Returns the output of a program; throws an error with its output if the program fails. */
function run (program, ...args) {
  const { status, error, stdout, stderr } = spawnSync(program, args, { encoding: 'utf8', maxBuffer: 1 << 26 })
  if (error !== undefined) throw error
  if (status !== 0) throw new Error(`${[program, ...args].join(' ')} ended with ${status}:\n${`${stdout}${stderr}`.trim()}`)
  return stdout
}

/**
 * Writes the bill of materials and returns its packages. `npm sbom --omit=dev` also leaves out production packages that
 * a development package needs too, so it reads copies of package.json and package-lock.json without the latter. The
 * name of the folder becomes the name of the service.
 */
function readSbom () {
  const parent = mkdtempSync(join(tmpdir(), 'strongroom-sbom-'))
  try {
    const folder = join(parent, NAME)
    mkdirSync(folder)
    const { devDependencies: _, ...manifest } = readJson('package.json')
    const { packages, ...lock } = readJson('package-lock.json')
    const { devDependencies: __, ...root } = packages['']
    const kept = Object.entries(packages).filter(([path, { dev }]) => path !== '' && !dev)
    writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest))
    writeFileSync(join(folder, 'package-lock.json'), JSON.stringify({
      ...lock, packages: { '': root, ...Object.fromEntries(kept) }
    }))
    const text = run(
      'npm', 'sbom', '--prefix', folder, '--sbom-format=cyclonedx', '--sbom-type=application', '--package-lock-only'
    )
    mkdirSync('dist', { recursive: true })
    writeFileSync(SBOM, text)
    return JSON.parse(text).components.map(({ purl }) => decodeURIComponent(purl.replace('pkg:npm/', '')))
  } finally {
    rmSync(parent, { recursive: true })
  }
}
