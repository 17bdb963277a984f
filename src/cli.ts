#!/usr/bin/env node
import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Noun } from './commands/common/noun.ts'
import { UsageError } from './commands/common/words.ts'
import { lineOf } from './commands/common/open.ts'
import { write } from './commands/common/output.ts'

/** Commands by their first word, in the order of the help. Each module is loaded on use. */
const NOUNS: Record<string, () => Promise<{ noun: Noun }>> = {
  serve: () => import('./commands/serve/command.ts'),
  init: () => import('./commands/people/init-command.ts'),
  migrate: () => import('./commands/serve/migrate-command.ts'),
  backup: () => import('./commands/backup/backup-command.ts'),
  restore: () => import('./commands/backup/restore-command.ts'),
  drill: () => import('./commands/backup/drill-command.ts'),
  rewrap: () => import('./commands/keys/rewrap-command.ts'),
  key: () => import('./commands/keys/key-command.ts'),
  organization: () => import('./commands/people/organization-command.ts'),
  user: () => import('./commands/people/user-command.ts'),
  token: () => import('./commands/people/token-command.ts'),
  client: () => import('./commands/people/client-command.ts'),
  audit: () => import('./commands/audit/audit-command.ts'),
  coupon: () => import('./commands/billing/coupon-command.ts'),
  invoice: () => import('./commands/billing/invoice-command.ts'),
  refund: () => import('./commands/billing/refund-command.ts'),
  plan: () => import('./commands/billing/plan-command.ts'),
  openapi: () => import('./commands/serve/openapi-command.ts')
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
  // A failed write to standard error cannot be reported anywhere.
  process.stderr.on('error', () => {})
  process.exit(await main(process.argv.slice(2)))
}
