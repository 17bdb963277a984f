import { parseArgs } from 'node:util'
import { loadConfig, type Config } from '../../config.ts'
import { didYouMean } from '../../rules/formats/phrases.ts'
import type { Database } from '../../db/database.ts'
import { Interrupted, lineOf, UsageError } from './command-errors.ts'
import { openedByService } from './in-service.ts'
import { open, type Opened, type Opening } from './open.ts'
import { warn, write } from './stdio.ts'
import { fail } from './words.ts'

/** The environment variables with the configuration. */
export type Environment = NodeJS.ProcessEnv

/** Runs a command with the arguments after the noun. Returns the exit status. */
export type Command = (args: string[], env: Environment) => Promise<number>

/** The first word of a command line, with its help text. */
export interface Noun {
  help: string
  run: Command
  /** The commands concern the whole installation, so no audit log of an organization records them. */
  isOfInstallation?: true
}

type Options = Record<string, { type: 'string', multiple?: boolean } | { type: 'boolean' }>
type Parsing<O extends Options> = { args: string[], options: O, strict: true, allowPositionals: boolean }
type Parsed<O extends Options> = ReturnType<typeof parseArgs<Parsing<O>>>
type Values<O extends Options> = Parsed<O>['values']

/** Runs a command. Returns its exit status; prints an error, with status 1 for failure and 2 for wrong usage. */
export async function untilExit (run: () => Promise<number>): Promise<number> {
  try {
    return await run()
  } catch (error) {
    if (error instanceof Interrupted) {
      warn(error.message)
      return error.status
    }
    const isUsage = error instanceof UsageError
    warn(isUsage ? error.message : lineOf(error))
    return isUsage ? 2 : 1
  }
}

/** Creates a command that accepts only these options. The default exit status is 0. */
export const command = <const O extends Options>(
  options: O, run: (values: Values<O>, env: Environment) => Promise<number | void>
): Command => async (args, env) => await run(parse(args, options, false).values, env) ?? 0

/** Creates a command with options and one file argument; `-` means standard input or output. */
export const fileCommand = <const O extends Options>(
  name: string, options: O, run: (file: string, values: Values<O>, env: Environment) => Promise<number | void>
): Command => async (args, env) => {
    const { values, positionals: [file, ...others] } = parse(args, options, true)
    return !file || others.length > 0 ? fail(`${name} needs one FILE`) : await run(file, values, env) ?? 0
  }

function parse<O extends Options> (args: string[], options: O, allowPositionals: boolean): Parsed<O> {
  try {
    return parseArgs<Parsing<O>>({ args, options, strict: true, allowPositionals })
  } catch (error) {
    const { message } = error as Error
    const [, unknown] = /^Unknown option '(-[^']*)'/.exec(message) ?? []
    if (unknown === undefined) throw new UsageError(message)
    const known = Object.keys(options).map((name) => `--${name}`)
    throw new UsageError(`Unknown option '${unknown}'${didYouMean(known, unknown)}; ` +
      (known.length === 0 ? 'the command has no options' : `allowed: ${known.join(', ')}`))
  }
}

/** Creates a command that selects one of `commands` by the second word. */
export function verbs (noun: string, commands: Record<string, Command>): Command {
  return async ([verb = '', ...args], env) => {
    const command = Object.hasOwn(commands, verb) ? commands[verb] : undefined
    if (command !== undefined) return command(args, env)
    const known = Object.keys(commands)
    return fail(verb === '' || verb.startsWith('-')
      ? `${noun} needs a command, one of: ${known.join(', ')}`
      : `Unknown command ${noun} ${verb}${didYouMean(known, verb)}; ${noun} has: ${known.join(', ')}`)
  }
}

/**
 * Opens the database and the keys, runs `act`, and closes the database. Inside the service, uses the database and keys
 * of the service. Returns the exit status, by default 0.
 */
export async function withOpened (
  env: Environment, act: (opened: Opened, config: Config) => Promise<number | void>,
  options: Pick<Opening, 'creates'> = {}
): Promise<number> {
  const config = loadConfig(env)
  const service = openedByService()
  if (service !== undefined) return await act(service, config) ?? 0
  const opened = await open(config, options)
  try {
    return await act(opened, config) ?? 0
  } finally {
    await opened.database.close()
  }
}

/** Opens the database, runs a change, and prints the text that `act` returns, or else `done`. */
export const changeOn = (env: Environment, act: (database: Database) => Promise<string | void>, done = 'Changed.') =>
  withOpened(env, async ({ database }) => write(`${await act(database) ?? done}\n`))

/** Opens the database and prints lines. */
export const print = (env: Environment, describe: (database: Database) => AsyncIterable<string>) =>
  withOpened(env, async ({ database }) => {
    for await (const line of describe(database)) await write(`${line}\n`)
  })

/** Creates a command without options that prints a list. */
export const listing = (describe: (database: Database) => AsyncIterable<string>) =>
  command({}, (_values, env) => print(env, describe))
