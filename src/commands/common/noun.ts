import { loadConfig, type Config } from '../../config.ts'
import type { Database } from '../../db/database.ts'
import { open, type Opened } from './open.ts'
import { write } from './output.ts'
import { parse, UsageError } from './words.ts'

/** The variables that a command reads its configuration from. */
export type Environment = NodeJS.ProcessEnv

/** Does what the words after the noun ask for; answers the exit status. */
export type Command = (args: string[], env: Environment) => Promise<number>

/** The first word of a command line: what it takes, as the help shows it, and what it does. */
export interface Noun { help: string, run: Command }

/** The commands of one kind of thing, by their second word. */
export function verbs (thing: string, commands: Record<string, Command>): Command {
  return async ([verb = '', ...args], env) => {
    const command = Object.hasOwn(commands, verb) ? commands[verb] : undefined
    if (command === undefined) throw new UsageError(`${thing} needs a command, one of: ${Object.keys(commands).join(', ')}`)
    return command(args, env)
  }
}

/** Does something with the open database and its keys, and closes it. */
export async function withOpened (
  env: Environment, act: (opened: Opened, config: Config) => Promise<void>
): Promise<number> {
  const config = loadConfig(env)
  const opened = await open(config)
  try {
    await act(opened, config)
    return 0
  } finally {
    await opened.database.close()
  }
}

/** Does something with the open database, and closes it. */
export const withDatabase = (env: Environment, act: (database: Database, config: Config) => Promise<void>) =>
  withOpened(env, ({ database }, config) => act(database, config))

/** Changes something in the database, and prints that it is done. */
export const change = (env: Environment, act: (database: Database) => Promise<void>, done = 'Changed.') =>
  withDatabase(env, async (database) => {
    await act(database)
    await write(`${done}\n`)
  })

/** A command without options that prints the lines of a list. */
export const listing = (
  describe: (database: Database) => AsyncIterable<string> | Promise<Iterable<string>>
): Command => async (args, env) => {
  parse(args, {})
  return withDatabase(env, (database) => writeLines(describe(database)))
}

/** Prints lines. */
export async function writeLines (lines: AsyncIterable<string> | Promise<Iterable<string>>): Promise<void> {
  for await (const line of await lines) await write(`${line}\n`)
}
