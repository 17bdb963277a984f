import { closeSync } from 'node:fs'
import { constants } from 'node:os'
import { isatty } from 'node:tty'
import { Command, CommanderError } from 'commander'
import { Failure, Misuse } from './failure.ts'
import { plain, print, printError, tellError } from './output.ts'
import { allFinished } from './unfinished.ts'

/** The version of this build, from scripts/client.mjs. */
declare const CLIENT_VERSION: string

// The command line client. Modules are loaded on demand, because `run` stands before each start of a program.

/** The status of `run` for every failure of its own. */
const RUN_FAILED = 125

// Node.js would open its debugger, which shows the memory of this process.
process.on('SIGUSR1', () => process.exit(128 + constants.signals.SIGUSR1))

/** Collects a list: the option may be given several times, with commas. */
const names = (text: string, before: string[] = []): string[] =>
  [...before, ...text.split(',').map((name) => name.trim()).filter((name) => name !== '')]
/** The same for names of which there must be one: an empty variable of a script does not choose everything. */
const someNames = (text: string, before: string[] = []): string[] => {
  const all = names(text, before)
  if (all.length === before.length) throw new Misuse('--only names no value. Without --only, the command gets all values.')
  return all
}
const several = (text: string, before: string[] = []): string[] => [...before, text]

const program = new Command('strongroom')
  .description('Reads and changes secrets of a Strongroom, and starts programs with them.')
  .version(CLIENT_VERSION, '--version', 'print the version')
  .helpOption('--help', 'print this help')
  .helpCommand(false)
  .showSuggestionAfterError()
  .exitOverride()
  .configureOutput({ writeOut: print, outputError: (text) => tellError(text.replace(/^error: /, '').trim().replaceAll('\n', ' ')), writeErr: printError })

let status = 0
/** Adds a command with the options that all commands have. */
function command (usage: string, about: string): Command {
  return program.command(usage).description(about)
    .option('--url <URL>', 'the service (STRONGROOM_URL)')
    .option('--organization <SLUG>', 'the organization (STRONGROOM_ORGANIZATION)')
    .option('--insecure-http <HOST>', 'a host to which plain http is allowed (STRONGROOM_INSECURE_HTTP)', several)
}
const withPlace = (one: Command): Command => one
  .option('--place <PLACE>', 'the place, if it is no argument (STRONGROOM_PLACE)')
const withKey = (one: Command): Command => one
  .option('--key-file <FILE>', 'the key string of a client-managed project (STRONGROOM_KEY_FILE)')
const withJson = (one: Command): Command => one.option('--json', 'print JSON')

command('login', 'Sign in at a service, in the browser').argument('[url]')
  .option('--no-browser', 'print the address, and open no browser')
  .option('--scope <SCOPES>', 'the permissions, separated by blanks')
  .action(async (url, options) => { status = await (await import('./session.ts')).login(url, options) })
command('logout', 'Sign out: revoke the tokens and remove them')
  .option('--all', 'all logins')
  .action(async (options) => { status = await (await import('./session.ts')).logout(options) })
withJson(command('whoami', 'Who calls which service, until when'))
  .action(async (options) => { status = await (await import('./session.ts')).whoami(options) })

withKey(withPlace(command('run', 'Start a command with the values of a place in its environment')))
  .usage('[options] [PLACE] -- COMMAND [ARGUMENT...]')
  .argument('[words...]')
  .option('--only <NAMES>', 'only these names', someNames, [])
  .option('--except <NAMES>', 'without these names', names, [])
  .option('--allow <NAMES>', 'also set these names, such as PATH', names, [])
  .option('--keep-existing', 'variables that exist win over values')
  .option('--keep-token', 'the command gets STRONGROOM_* too')
  .option('--mount <NAME=PATH>', 'write a value to a file', several, [])
  .option('--strict', 'fail if restrictions leave levels out')
  .option('--offline', 'use the cached copy only')
  .option('--no-cache', 'neither read nor write the cached copy')
  .option('--max-stale <TIME>', 'the greatest age of the cached copy', '24h')
  .action(async (words: string[], options) => {
    if (commandOfRun === undefined || words.length > 1) throw new Misuse('Write the command after `--`: strongroom run PLACE -- COMMAND.')
    status = await (await import('./run.ts')).run(words[0], commandOfRun, options)
  })

withJson(withKey(withPlace(command('get', 'Print one value, byte for byte')))).argument('<name>').argument('[place]')
  .action(async (name, place, options) => { status = await (await import('./hand.ts')).get(name, place, options) })
withJson(withPlace(command('set', 'Set one value, from standard input, a file or a prompt'))).argument('<name>').argument('[place]')
  .option('--file <FILE>', 'the file with the value')
  .action(async (name, place, options) => { status = await (await import('./hand.ts')).set(name, place, options) })
withJson(withPlace(command('unset', 'Remove one value'))).argument('<name>').argument('[place]')
  .action(async (name, place, options) => { status = await (await import('./hand.ts')).unset(name, place, options) })
withJson(withKey(withPlace(command('list', 'List names and their levels')))).argument('[place]')
  .option('--values', 'with the values')
  .action(async (place, options) => { status = await (await import('./hand.ts')).list(place, options) })
withPlace(command('open', 'Open a place in the console')).argument('[place]')
  .option('--no-browser', 'print the address, and open no browser')
  .action(async (place, options) => { status = await (await import('./hand.ts')).open(place, options) })
withJson(withPlace(command('doctor', 'What is configured, reachable and permitted'))).argument('[place]')
  .action(async (place, options) => { status = await (await import('./session.ts')).doctor(place, options) })
program.command('completion').description('Print the completion of a shell: bash, zsh or fish').argument('<shell>')
  .action(async (shell: string) => { print((await import('./completion.ts')).completion(program, shell)) })

const terminals = [0, 1, 2].filter((descriptor) => isatty(descriptor))
const argv = process.argv.slice(2)
// The words after `--` belong to the command, also if they look like options.
const separator = argv.indexOf('--')
const commandOfRun = argv[0] === 'run' && separator >= 0 ? argv.slice(separator + 1) : undefined

try {
  await program.parseAsync(commandOfRun === undefined ? argv : argv.slice(0, separator), { from: 'user' })
} catch (error) {
  status = statusOf(error)
}
// Node.js aborts at its end if it cannot reset a terminal that is gone, so the status would be lost.
for (const descriptor of terminals) if (!isatty(descriptor)) closeSync(descriptor)
await allFinished()
// Nothing waits any more: an idle connection to the service would keep the process.
process.exit(status)

function statusOf (error: unknown): number {
  const isRun = argv[0] === 'run'
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : isRun ? RUN_FAILED : 2
  if (error instanceof Failure) {
    tellError(error.message)
    return isRun ? RUN_FAILED : error.status ?? 1
  }
  const { code, path, name } = error as NodeJS.ErrnoException
  // Of an unforeseen error only the kind and a path, because a message or a stack can have values.
  tellError(code !== undefined && path !== undefined
    ? `${path}: ${code}.`
    : `This failed: ${plain(code ?? name)}. Please report it with the command that you gave.`)
  return isRun ? RUN_FAILED : 1
}
