#!/usr/bin/env node
import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Noun } from './commands/common/noun.ts'
import { lineOf, UsageError } from './commands/common/errors.ts'
import { warn, write } from './commands/common/stdio.ts'

/** Commands by their first word, in the order of the help text. Modules are imported on demand. */
const NOUNS: Record<string, () => Promise<Noun>> = {
  serve: async () => (await import('./commands/serve/serve.ts')).noun,
  init: async () => (await import('./commands/people/initialize.ts')).noun,
  migrate: async () => (await import('./commands/serve/migrate.ts')).noun,
  backup: async () => (await import('./commands/backup/backup.ts')).backupNoun,
  restore: async () => (await import('./commands/backup/backup.ts')).restoreNoun,
  drill: async () => (await import('./commands/backup/drill.ts')).noun,
  rewrap: async () => (await import('./commands/keys/rewrap.ts')).noun,
  key: async () => (await import('./commands/keys/key.ts')).noun,
  organization: async () => (await import('./commands/people/organizations.ts')).noun,
  user: async () => (await import('./commands/people/users.ts')).noun,
  token: async () => (await import('./commands/people/tokens.ts')).noun,
  client: async () => (await import('./commands/people/clients.ts')).noun,
  audit: async () => (await import('./commands/audit/audit.ts')).noun,
  coupon: async () => (await import('./commands/billing/billing.ts')).coupon,
  invoice: async () => (await import('./commands/billing/billing.ts')).invoice,
  refund: async () => (await import('./commands/billing/billing.ts')).refund,
  plan: async () => (await import('./commands/billing/billing.ts')).plan,
  openapi: async () => (await import('./commands/serve/openapi-command.ts')).noun
}

const HELP = ['help', '--help', '-h']

async function usage (): Promise<string> {
  const nouns = await Promise.all(Object.values(NOUNS).map((load) => load()))
  return `Usage: strongroom COMMAND\n\n${nouns.map(({ help }) => help).join('')}`
}

/** Runs a command. Returns the exit status, by default 0 for success, 1 for failure and 2 for wrong usage. */
export async function main (argv: string[]): Promise<number> {
  const [name = '', ...args] = argv
  const load = Object.hasOwn(NOUNS, name) ? NOUNS[name] : undefined
  if (load === undefined && !HELP.includes(name)) {
    process.stderr.write(`${name === '' ? '' : `Unknown command ${name}\n`}${await usage()}`)
    return 2
  }
  try {
    if (load !== undefined) return await (await load()).run(args, process.env)
    await write(await usage())
    return 0
  } catch (error) {
    const isUsage = error instanceof UsageError
    warn(isUsage ? error.message : lineOf(error))
    return isUsage ? 2 : 1
  }
}

// Follow links, because the installed command is a symbolic link to this file.
const [, started] = process.argv
if (started !== undefined && realpathSync(started) === fileURLToPath(import.meta.url)) {
  // A failed write to standard error cannot be reported anywhere.
  process.stderr.on('error', () => {})
  process.exit(await main(process.argv.slice(2)))
}
