import cluster from 'node:cluster'
import { unknownVariables } from '../config.ts'
import { DirectoryLocked } from '../db/database.ts'
import { didYouMean } from '../rules/formats/phrases.ts'
import { VERSION } from '../version.ts'
import { sendCommand } from './common/in-service.ts'
import { untilExit, type Environment, type Noun } from './common/noun.ts'
import { warn, write } from './common/stdio.ts'
import { OPERATOR_NOUNS } from './operator-nouns.ts'

/** Commands by their first word, in the order of the help text. Modules are imported on demand. */
const NOUNS: Record<string, () => Promise<Noun>> = {
  serve: async () => (await import('./serve/serve.ts')).noun,
  init: async () => (await import('./people/initialize.ts')).noun,
  migrate: async () => (await import('./serve/migrate.ts')).noun,
  backup: async () => (await import('./backup/backup.ts')).backupNoun,
  restore: async () => (await import('./backup/backup.ts')).restoreNoun,
  drill: async () => (await import('./backup/drill.ts')).noun,
  key: async () => (await import('./keys/key.ts')).noun,
  ...OPERATOR_NOUNS,
  openapi: async () => (await import('./serve/openapi-command.ts')).noun
}

const HELP_OPTIONS = ['--help', '-h']

/** Words that print a text instead of running a command. */
const TEXTS: Record<string, () => Promise<string>> = {
  help: usage,
  ...Object.fromEntries(HELP_OPTIONS.map((option) => [option, usage])),
  '--version': async () => `${VERSION}\n`
}

async function usage (): Promise<string> {
  const nouns = await Promise.all(Object.values(NOUNS).map((load) => load()))
  return `Usage: strongroom-server COMMAND\n       strongroom-server --version\n\n${nouns.map(({ help }) => help).join('')}`
}

/**
 * Runs a command. Prints the usage instead if an argument is `--help` or `-h`. Returns the exit status, by default 0
 * for success, 1 for failure and 2 for wrong usage. Calls `begin` just before the command runs; from then on the
 * command handles signals, not the caller.
 */
export async function run (argv: string[], env: Environment, begin = () => {}): Promise<number> {
  const [name = '', ...args] = argv
  const load = Object.hasOwn(NOUNS, name) ? NOUNS[name] : undefined
  const asksForHelp = load !== undefined && args.some((arg) => HELP_OPTIONS.includes(arg))
  const text = asksForHelp ? usage : Object.hasOwn(TEXTS, name) ? TEXTS[name] : undefined
  if (text !== undefined) {
    return untilExit(async () => {
      await write(await text())
      begin()
      return 0
    })
  }
  if (load === undefined) {
    warn(name === ''
      ? (await usage()).trimEnd()
      : `Unknown command ${name}${didYouMean(Object.keys(NOUNS), name)}. \`help\` lists the commands.`)
    begin()
    return 2
  }
  // Only the primary process prints warnings, not each worker.
  if (cluster.isPrimary) for (const line of unknownVariables(env)) warn(line)
  return untilExit(async () => {
    const noun = await load()
    begin()
    return noun.run(args, env).catch((error: unknown) => {
      if (error instanceof DirectoryLocked && Object.hasOwn(OPERATOR_NOUNS, name)) return sendCommand(error, argv)
      throw error
    })
  })
}
