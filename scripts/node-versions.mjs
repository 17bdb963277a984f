// `npm run test:nodes [-- WORD ...]`: runs the quick tests, or the tests of files whose names contain a word, on the
// newer major versions of Node.js, from the npm package `node`. Exit code 2: a version could not be downloaded.
import { spawnSync } from 'node:child_process'

const VERSIONS = ['22', '24']

const words = process.argv.slice(2)
// npm puts the version first in PATH. Tests start programs with the version that runs them. The package `node`
// downloads its program by an install script, which .npmrc disables for all other packages.
const runOn = (version, ...args) => spawnSync(
  'npm', ['exec', '--yes', '--ignore-scripts=false', `--package=node@${version}`, '--', 'node', ...args],
  { stdio: 'inherit' }
).status

const statuses = VERSIONS.map((version) => runOn(version, '--version') !== 0
  ? 2
  : runOn(version, 'scripts/test.mjs', ...words.length > 0 ? words : ['--quick']) === 0 ? 0 : 1)
VERSIONS.forEach((version, i) =>
  console.log(`Node.js ${version}: ${['passed', 'failed', 'could not be downloaded'][statuses[i]]}`))
process.exit(statuses.includes(1) ? 1 : statuses.includes(2) ? 2 : 0)
