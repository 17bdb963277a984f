#!/usr/bin/env node
import './node-version.mjs'
import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** Runs a command. Returns the exit status: 0 for success, 1 for failure or 2 for wrong usage, with few exceptions. */
export async function main (argv: string[]): Promise<number> {
  // Imports dynamically, because Node.js would link static imports before `node-version.mjs` checks the version. The
  // other modules take a while to load, so signals are handled before.
  const { interceptStart } = await import('./commands/common/scratch.ts')
  const begin = argv[0] === 'serve' ? () => {} : interceptStart()
  const { run } = await import('./commands/main.ts')
  return run(argv, process.env, begin)
}

// Follow links, because the installed command is a symbolic link to this file.
const [, started] = process.argv
if (started !== undefined && realpathSync(started) === fileURLToPath(import.meta.url)) {
  // Ignores failed writes to standard error, because there is no other place to report them.
  process.stderr.on('error', () => {})
  process.exit(await main(process.argv.slice(2)))
}
