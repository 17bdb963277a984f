import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { main } from '../../src/cli.ts'

/** The command line as it is shipped, next to this compiled file. */
export const CLI = fileURLToPath(new URL('../../src/cli.js', import.meta.url))

export interface Ended { code: number | null, stdout: string, stderr: string }

/** A server process of the test's own. */
export interface Server {
  child: ChildProcess
  address: string
  /** What the first start printed; undefined on later ones. */
  first: { organization: string, token: string, password: string } | undefined
  /** Everything on standard output so far. */
  stdout (): string
  stderr (): string
  /** Resolves when standard output contains the text, or matches. */
  said (text: string): Promise<void>
  /** SIGTERM, and the exit. */
  stop (): Promise<Ended>
  kill (): Promise<Ended>
  ended: Promise<Ended>
}

type Teardown = { teardown (fn: () => unknown): void }
type Env = Record<string, string>

// Nothing of the test's own surroundings may configure the service; what watches its statements goes along.
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
  const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, stdout, stderr }))
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

/** Runs a command of the command line to its end in this process, which costs no start: one after the other. */
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
    // A service that did not start still listens to signals.
    signals.forEach((name, i) =>
      process.listeners(name).filter((one) => !known[i]!.includes(one)).forEach((one) => process.off(name, one)))
  }
  return ended
}

/** A server process that may not serve yet. */
export interface Begun {
  child: ChildProcess
  /** Everything on standard error so far. */
  stderr (): string
  /** Resolves when standard error contains the text. */
  complained (text: string): Promise<void>
  /** Resolves when it says that it serves. */
  serves (): Promise<Server>
  /** SIGTERM, and the exit. */
  stop (): Promise<Ended>
  ended: Promise<Ended>
}

/** Starts `serve` on a free port, and waits until it says that it serves. */
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
  const until = (stream: Readable, text: () => string) => async (wanted: string) => {
    while (!text().includes(wanted)) {
      const more = await Promise.race([once(stream, 'data'), ended])
      if (!Array.isArray(more) && !text().includes(wanted)) {
        throw new Error(`it ended with ${more.code}: ${stderr()}${stdout()}`)
      }
    }
  }
  const said = until(child.stdout, stdout)
  const signal = async (name: NodeJS.Signals) => {
    child.kill(name)
    return ended
  }
  return { child, stderr, complained: until(child.stderr, stderr), serves, stop: () => signal('SIGTERM'), ended }

  async function serves (): Promise<Server> {
    // A whole line: the greeting goes out in one write, and this ends the second of its lines or the only one.
    await said('Strongroom serves on http')
    await said('\n')
    const [, address = ''] = /Strongroom serves on (\S+)/.exec(stdout()) ?? []
    const found = (label: RegExp) => label.exec(stdout())?.[1] ?? ''
    const first = stdout().includes('This is printed once')
      ? {
          organization: found(/Organization +(\S+)/),
          token: found(/Token \(\*\) +(\S+)/),
          password: found(/Password +(\S+)/)
        }
      : undefined
    return {
      child, address, first, stdout, stderr, said, stop: () => signal('SIGTERM'), kill: () => signal('SIGKILL'), ended
    }
  }
}

/** A directory that is gone after the test. */
export function scratchDirectory (t: Teardown): string {
  const directory = mkdtempSync(join(tmpdir(), 'strongroom-'))
  t.teardown(() => rmSync(directory, { recursive: true, force: true }))
  return directory
}
