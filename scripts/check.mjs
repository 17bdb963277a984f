// Builds (which checks the types), then runs the tests with the arguments of this script. Lints at the same time,
// because the build and the linter use one core each. Fails if the build, the tests or the linter fail.
import '../src/node-version.mjs'
import { spawn } from 'node:child_process'
import { once } from 'node:events'

async function run (program, ...args) {
  const child = spawn(program, args, { stdio: ['ignore', 'inherit', 'inherit'] })
  const [code] = await once(child, 'exit')
  return code === 0
}

const linted = run('npm', 'run', '--silent', 'lint')
const tested = await run('npm', 'run', '--silent', 'build') &&
  await run(process.execPath, 'scripts/test.mjs', ...process.argv.slice(2))
const isClean = await linted
if (!isClean) console.log('The linter found errors: see above')
process.exit(tested && isClean ? 0 : 1)
