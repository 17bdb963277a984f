// `npm run licences`: writes docs/licences.md, the licences of all packages that the service ships, as
// package-lock.json states them. `-- --check` writes nothing, and fails if the page is not up to date.
import { readFileSync, writeFileSync } from 'node:fs'
import { productionPackages } from './shipped-packages.mjs'

const PAGE = 'docs/licences.md'
// Permissive licences. A package with another licence needs a decision before it is used.
const ACCEPTED = [
  '0BSD', 'Apache-2.0', 'BlueOak-1.0.0', 'BSD-2-Clause', 'BSD-3-Clause', 'ISC', 'MIT', 'MIT-0', 'Unlicense'
]

const production = productionPackages(JSON.parse(readFileSync('package-lock.json', 'utf8')).packages)
const refused = production.filter(({ license }) => !ACCEPTED.includes(license))
if (refused.length > 0) {
  console.error(refused.map(({ path, license }) => `${path}: the licence ${license} is not one of ${ACCEPTED.join(', ')}`).join('\n'))
  process.exit(1)
}

const counts = ACCEPTED.map((licence) => [licence, production.filter(({ license }) => license === licence).length])
// A package can be installed at several places in the same version.
const packages = new Set(production.map(({ name, version, license }) => [name, version, license].join(' | ')))
const rowsOf = (rows) => rows.map((row) => `| ${row} |`).join('\n')

const page = `# Licences of packages

Strongroom has the [MIT licence](../LICENSE). This page lists the licences of the packages that it ships, as \`package-lock.json\` states them. \`npm run licences\` writes it; \`npm test\` fails if it is not up to date, or if a package has another licence than those below.

| Licence | Packages |
|---|---|
${rowsOf(counts.filter(([, count]) => count > 0).map((row) => row.join(' | ')))}

Packages of other platforms are included; an installation has only those of its own. The text of a licence is in the folder of its package in \`node_modules\`, if the package has one.

| Package | Version | Licence |
|---|---|---|
${rowsOf([...packages].sort())}
`

const isCurrent = page === currentPage()
if (process.argv.includes('--check')) {
  if (!isCurrent) {
    console.error(`${PAGE} is not up to date: run \`npm run licences\``)
    process.exit(1)
  }
} else if (!isCurrent) writeFileSync(PAGE, page)

function currentPage () {
  try {
    return readFileSync(PAGE, 'utf8')
  } catch (error) {
    if (error.code === 'ENOENT') return undefined
    throw error
  }
}
