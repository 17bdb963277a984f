#!/usr/bin/env node
import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Noun } from './commands/cli/noun.ts'
import { UsageError } from './commands/cli/words.ts'
import { lineOf } from './commands/open.ts'
import { write } from './commands/output.ts'

/** The first words of a command line, in the order of the help. Each is loaded when it is asked for. */
const NOUNS: Record<string, () => Promise<{ noun: Noun }>> = {
  serve: () => import('./commands/cli/serve.ts'),
  init: () => import('./commands/cli/init.ts'),
  migrate: () => import('./commands/cli/migrate.ts'),
  backup: () => import('./commands/cli/backup.ts'),
  restore: () => import('./commands/cli/restore.ts'),
  drill: () => import('./commands/cli/drill.ts'),
  rewrap: () => import('./commands/cli/rewrap.ts'),
  key: () => import('./commands/cli/key.ts'),
  organization: () => import('./commands/cli/organization.ts'),
  user: () => import('./commands/cli/user.ts'),
  token: () => import('./commands/cli/token.ts'),
  client: () => import('./commands/cli/client.ts'),
  audit: () => import('./commands/cli/audit.ts'),
  coupon: () => import('./commands/cli/coupon.ts'),
  invoice: () => import('./commands/cli/invoice.ts'),
  refund: () => import('./commands/cli/refund.ts'),
  plan: () => import('./commands/cli/plan.ts'),
  openapi: () => import('./commands/cli/openapi.ts')
}

const HELP = ['help', '--help', '-h']

async function usage (): Promise<string> {
  const nouns = await Promise.all(Object.values(NOUNS).map((load) => load()))
  return `Usage: strongroom COMMAND\n\n${nouns.map(({ noun }) => noun.help).join('')}`
}

/** Runs a command. Exit status: 0 done, 1 failed, 2 wrong usage; every failure is one line. */
export async function main (argv: string[]): Promise<number> {
  const [name = '', ...args] = argv
  const load = Object.hasOwn(NOUNS, name) ? NOUNS[name] : undefined
  if (load === undefined && !HELP.includes(name)) {
    process.stderr.write(`${name === '' ? '' : `Unknown command ${name}\n`}${await usage()}`)
    return 2
  }
  try {
    if (load === undefined) {
      await write(await usage())
      return 0
    }
    const { noun } = await load()
    return await noun.run(args, process.env)
  } catch (error) {
    if (error instanceof UsageError) {
      process.stderr.write(`${error.message}\n`)
      return 2
    }
    process.stderr.write(`${lineOf(error)}\n`)
    return 1
  }
}

// The installed command is a link to this file.
const [, started] = process.argv
if (started !== undefined && realpathSync(started) === fileURLToPath(import.meta.url)) {
  // There is nowhere else to say it.
  process.stderr.on('error', () => {})
  process.exit(await main(process.argv.slice(2)))
}
