import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import path from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { freePort } from '../test/helpers/postgres.ts'

/** A process under measurement. */
export interface Running {
  url: string
  /** Milliseconds from the spawn to the first successful response. */
  startedIn: number
  /** Resident memory in MiB. */
  memory (): number
  /** CPU time in milliseconds, including threads and worker processes. */
  cpu (): number
  stop (): Promise<void>
}

const CLI = fileURLToPath(new URL('../src/cli.js', import.meta.url))
const BARE = fileURLToPath(new URL('bare.js', import.meta.url))

/**
 * The service, `cli.js serve`, with limits off and its log in a file. Does not inherit environment variables.
 *
 * @param cli the command line program of another build
 */
export function startService (dir: string, env: Record<string, string>, cli = CLI): Promise<Running> {
  const settings = {
    RATE_LIMIT_API: '0',
    RATE_LIMIT_OAUTH: '0',
    RATE_LIMIT_KEY_ROTATION: '0',
    RATE_LIMIT_LONG_OPERATIONS: '0',
    RATE_LIMIT_BILLING: '0',
    LOG_LEVEL: 'info',
    ...env
  }
  return start([cli, 'serve'], dir, '/readyz', (port) => ({ env: { ...settings, PORT: String(port) }, args: [] }))
}

/** Bare Fastify. `more`: a database URL, or `plugins` for the service's plugins. */
export function startBare (dir: string, more?: string): Promise<Running> {
  return start([BARE], dir, '/static', (port) =>
    ({ env: {}, args: [String(port), ...more === undefined ? [] : [more]] }))
}

async function start (
  command: string[], dir: string, probe: string, forPort: (port: number) => {
    env: Record<string, string>
    args: string[]
  }
): Promise<Running> {
  const port = await freePort()
  const { env, args } = forPort(port)
  const log = path.join(dir, `${path.basename(command[0]!)}-${port}.log`)
  const out = fs.openSync(log, 'a')
  const begun = performance.now()
  const child = spawn(process.execPath, [...command, ...args], { env, stdio: ['ignore', out, out] })
  fs.closeSync(out)
  const url = `http://127.0.0.1:${port}`
  await answers(child, `${url}${probe}`, log)
  return {
    url,
    startedIn: performance.now() - begun,
    memory: () => Number(execFileSync('ps', ['-o', 'rss=', '-p', String(child.pid)], { encoding: 'utf8' })) / 1024,
    cpu: () => cpuWithChildren(child.pid!),
    async stop () {
      const gone = once(child, 'exit')
      child.kill('SIGTERM')
      await gone
    }
  }
}

async function answers (child: ChildProcess, url: string, log: string) {
  while (true) {
    if (child.exitCode !== null) throw new Error(`It did not start: ${fs.readFileSync(log, 'utf8').slice(-500)}`)
    try {
      const answer = await fetch(url)
      await answer.arrayBuffer()
      if (answer.ok) return
    } catch { /* not listening yet */ }
    await pause(5)
  }
}

/** CPU time in milliseconds of a process and its running child processes. */
export const cpuWithChildren = (pid: number): number =>
  [pid, ...workersOf(pid)].reduce((sum, one) => sum + cpuOf(one), 0)

// Linux reports CPU time in hundredths of a second; not available on other systems.
function cpuOf (pid: number): number {
  try {
    const [user, system] = fs.readFileSync(
      `/proc/${pid}/stat`, 'utf8'
    ).split(') ')[1]!.split(' ').slice(11, 13).map(Number)
    return (user! + system!) * 10
  } catch {
    return NaN
  }
}

const workersOf = (pid: number): number[] => processes().filter((other) => parentOf(other) === pid)

// A listed process can have ended meanwhile.
function parentOf (pid: number): number | undefined {
  try {
    return Number(fs.readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ')[1])
  } catch {
    return undefined
  }
}

function processes (): number[] {
  try {
    return fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name)).map(Number)
  } catch {
    return []
  }
}

/** CPU time in milliseconds of all running PostgreSQL processes on this machine. */
export function cpuOfPostgres (): number {
  try {
    return processes().reduce((sum, pid) => sum + (isPostgres(pid) ? cpuOf(pid) : 0), 0)
  } catch {
    return NaN
  }
}

function isPostgres (pid: number): boolean {
  try {
    return fs.readFileSync(`/proc/${pid}/comm`, 'utf8').trim() === 'postgres'
  } catch {
    return false
  }
}
