#!/usr/bin/env node
import './node-version.mjs'
import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** Runs a command. Returns the exit status, by default 0 for success, 1 for failure and 2 for wrong usage. */
export async function main (argv: string[]): Promise<number> {
  // A static import would be linked before the version is checked. The other modules take a while to load, so the
  // signals are handled first.
  const { interceptStart } = await import('./commands/common/scratch.ts')
  const begin = argv[0] === 'serve' ? () => {} : interceptStart()
  const { run } = await import('./commands/main.ts')
  return run(argv, process.env, begin)
}

// Follow links, because the installed command is a symbolic link to this file.
const [, started] = process.argv
if (started !== undefined && realpathSync(started) === fileURLToPath(import.meta.url)) {
  // A failed write to standard error cannot be reported anywhere.
  process.stderr.on('error', () => {})
  process.exit(await main(process.argv.slice(2)))
}
