import { loadConfig, type Config } from '../../config.ts'
import type { Database } from '../../db/database.ts'
import { open, type Opened } from './open.ts'
import { write } from './output.ts'
import { parse, UsageError } from './words.ts'

/** The environment variables with the configuration. */
export type Environment = NodeJS.ProcessEnv

/** Runs a command with the arguments after the noun. Returns the exit status. */
export type Command = (args: string[], env: Environment) => Promise<number>

/** The first word of a command line, with its help text. */
export interface Noun { help: string, run: Command }

/** Dispatches to a command by the second word. */
export function verbs (thing: string, commands: Record<string, Command>): Command {
  return async ([verb = '', ...args], env) => {
    const command = Object.hasOwn(commands, verb) ? commands[verb] : undefined
    if (command === undefined) throw new UsageError(`${thing} needs a command, one of: ${Object.keys(commands).join(', ')}`)
    return command(args, env)
  }
}

/** Opens the database and the keys, runs `act`, and closes the database. */
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

/** Opens the database, runs `act`, and closes the database. */
export const withDatabase = (env: Environment, act: (database: Database, config: Config) => Promise<void>) =>
  withOpened(env, ({ database }, config) => act(database, config))

/** Runs a change and prints a confirmation. */
export const change = (env: Environment, act: (database: Database) => Promise<void>, done = 'Changed.') =>
  withDatabase(env, async (database) => {
    await act(database)
    await write(`${done}\n`)
  })

/** A command without options that prints a list. */
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
