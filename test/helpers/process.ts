import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import postgres from 'postgres'
import { ulid } from 'ulidx'
import { main } from '../../src/cli.ts'
import { until } from './until.ts'

// Lines that a command writes every ten seconds, which only happens on a busy machine.
const PROGRESS = /^(?:Waiting for the embedded database, which [\w ]+ \(|(?:Backing up|Comparing|Exporting|Re-encrypting|Migration \d+ of \d+|Opening|Re-wrapping|Restoring|Verifying(?: the backup)?): )\d[^\n]*\n/gm
const withoutProgress = (stderr: string) => stderr.replace(PROGRESS, '')

/** The path of the compiled command line. */
export const CLI = fileURLToPath(new URL('../../src/cli.js', import.meta.url))

export interface Ended { code: number | null, stdout: string, stderr: string }

/** A server process that only one test uses. */
export interface Server {
  child: ChildProcess
  address: string
  /** The credentials that the first start printed; undefined for later starts. */
  first: { organization: string, token: string, password: string } | undefined
  /** Everything on standard output so far. */
  stdout (): string
  stderr (): string
  /** Resolves when standard output contains the text. */
  said (text: string): Promise<void>
  /** SIGTERM, and the exit. */
  stop (): Promise<Ended>
  kill (): Promise<Ended>
  ended: Promise<Ended>
}

type Teardown = { teardown (fn: () => unknown): void }
type Env = Record<string, string>

// Environment variables of the test process must not configure the service. NODE_OPTIONS loads the check of statements.
const { PATH, HOME, NODE_OPTIONS } = process.env
const surroundings = (env: Env) => ({ PATH, HOME, ...(NODE_OPTIONS !== undefined && { NODE_OPTIONS }), ...env })

function program (file: string, args: string[], env: Env, input = '') {
  const child = spawn(file, args, { env: surroundings(env), stdio: ['pipe', 'pipe', 'pipe'] })
  child.stdin.on('error', () => {})
  child.stdin.end(input)
  let stdout = ''
  let stderr = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => { stdout += text })
  child.stderr.setEncoding('utf8').on('data', (text: string) => { stderr += text })
  const ended = once(child, 'close').then(([code]) =>
    ({ code: code as number | null, stdout, stderr: withoutProgress(stderr) }))
  return { child, ended, stdout: () => stdout, stderr: () => stderr }
}

/** Runs a program to its end. */
export function run (file: string, args: string[], env: Env = {}, input?: string): Promise<Ended> {
  return program(file, args, env, input).ended
}

/** Runs a command of the command line to its end. */
export function cli (args: string[], env: Env = {}, input?: string): Promise<Ended> {
  return run(process.execPath, [CLI, ...args], env, input)
}

let turn: Promise<unknown> = Promise.resolve()

/** Runs a command of the command line in this process, which is faster than a child process. Commands are queued. */
export function command (args: string[], env: Env = {}): Promise<Ended> {
  const mine = turn.then(() => inProcess(args, env))
  turn = mine.catch(() => {})
  return mine
}

async function inProcess (args: string[], env: Env): Promise<Ended> {
  const ended = { code: 0, stdout: '', stderr: '' }
  const { env: before, stdout: { write: toStdout }, stderr: { write: toStderr } } = process
  const signals = ['SIGTERM', 'SIGINT'] as const
  const known = signals.map((name) => process.listeners(name))
  const into = (name: 'stdout' | 'stderr') => (text: string | Uint8Array, ...more: unknown[]) => {
    ended[name] += Buffer.from(text as Uint8Array).toString()
    for (const done of more) if (typeof done === 'function') process.nextTick(done as () => void)
    return true
  }
  process.env = surroundings(env) as NodeJS.ProcessEnv
  process.stdout.write = into('stdout')
  process.stderr.write = into('stderr')
  try {
    ended.code = await main(args)
  } finally {
    process.stdout.write = toStdout
    process.stderr.write = toStderr
    process.env = before
    // Removes the signal handlers of a service that failed to start.
    signals.forEach((name, i) =>
      process.listeners(name).filter((one) => !known[i]!.includes(one)).forEach((one) => process.off(name, one)))
  }
  return { ...ended, stderr: withoutProgress(ended.stderr) }
}

/** A server process that is starting. */
export interface Begun {
  child: ChildProcess
  /** Everything on standard error so far. */
  stderr (): string
  /** Resolves when standard error contains the text. */
  complained (text: string): Promise<void>
  /** Resolves when the server is ready. */
  serves (): Promise<Server>
  /** SIGTERM, and the exit. */
  stop (): Promise<Ended>
  ended: Promise<Ended>
}

/** Starts `serve` on a free port, and waits until the server is ready. */
export const startServer = (t: Teardown, env: Env): Promise<Server> => beginServer(t, env).serves()

/** Starts `serve` on a free port. */
export function beginServer (t: Teardown, env: Env): Begun {
  const { child, ended, stdout, stderr } = program(
    process.execPath, [CLI, 'serve'], { PORT: '0', LOG_LEVEL: 'warn', ...env }
  )
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
  })
  let end: Ended | undefined
  ended.then((more) => { end = more }, () => {})
  const untilIn = (text: () => string) => async (wanted: string) => {
    await until(() => text().includes(wanted) || end, { every: 5, within: 120_000 })
    if (!text().includes(wanted)) throw new Error(`it ended with ${end?.code}: ${stderr()}${stdout()}`)
  }
  const said = untilIn(stdout)
  const signal = async (name: NodeJS.Signals) => {
    child.kill(name)
    return ended
  }
  return { child, stderr, complained: untilIn(stderr), serves, stop: () => signal('SIGTERM'), ended }

  async function serves (): Promise<Server> {
    // Waits for the end of the line. The greeting is one write, so the other lines are complete as well.
    await said('Strongroom serves on http')
    await said('\n')
    const [, address = ''] = /Strongroom serves on (\S+)/.exec(stdout()) ?? []
    const found = (label: RegExp) => label.exec(stdout())?.[1] ?? ''
    const first = stdout().includes('This is printed once')
      ? {
          organization: found(/Organization +(\S+)/),
          token: found(/API token +(\S+)/),
          password: found(/Password +(\S+)/)
        }
      : undefined
    return {
      child, address, first, stdout, stderr, said, stop: () => signal('SIGTERM'), kill: () => signal('SIGKILL'), ended
    }
  }
}

/** Creates a directory that is deleted after the test. */
export function scratchDirectory (t: Teardown): string {
  const directory = mkdtempSync(join(tmpdir(), 'strongroom-'))
  t.teardown(() => rmSync(directory, { recursive: true, force: true }))
  return directory
}

/**
 * The variables for a command with a new, empty database, by default of the kind that this run tests. The
 * database is deleted after the test.
 */
export async function emptyPlace (
  t: Teardown, kind = process.env.TEST_DATABASE_URL === undefined ? 'embedded' : 'postgres'
): Promise<Record<string, string>> {
  if (kind === 'embedded') return { DATA_DIR: scratchDirectory(t) }
  const url = new URL(process.env.TEST_DATABASE_URL!)
  const admin = postgres(url.href, { max: 1, onnotice: () => {} })
  const name = `empty_${ulid().toLowerCase()}`
  await admin.unsafe(`CREATE DATABASE ${name}`)
  t.teardown(async () => {
    await admin.unsafe(`DROP DATABASE ${name} WITH (FORCE)`)
    await admin.end({ timeout: 2 })
  })
  url.pathname = `/${name}`
  return { DATABASE_URL: url.href }
}
