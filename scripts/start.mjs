// `npm start`: builds if a source is newer than the build, then serves in this process, which receives the signals.
import '../src/node-version.mjs'

await import('./signals.mjs')
const { buildIfNeeded } = await import('./build.mjs')
const args = process.argv.slice(2)
if (!args.includes('--no-build')) buildIfNeeded()
const { main } = await import('../dist/src/cli.js')
process.exit(await main(['serve', ...args.filter((arg) => arg !== '--no-build')]))
