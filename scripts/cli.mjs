// `npm run -s cli -- COMMAND`: the command line, built if a source is newer than the build.
import '../src/node-version.mjs'

await import('./signals.mjs')
const { buildIfNeeded } = await import('./build.mjs')
buildIfNeeded()
const { main } = await import('../dist/src/cli.js')
process.exit(await main(process.argv.slice(2)))
