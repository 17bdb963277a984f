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
  /** Milliseconds from spawning it to its first good answer. */
  startedIn: number
  /** Resident memory in MiB. */
  memory (): number
  /** Milliseconds of CPU that it has used, its threads included. */
  cpu (): number
  stop (): Promise<void>
}

const CLI = fileURLToPath(new URL('../src/cli.js', import.meta.url))
const BARE = fileURLToPath(new URL('bare.js', import.meta.url))

/**
 * The service itself, `cli.js serve`, with limits off and its log in a file. It inherits nothing from this environment.
 */
export function startService (dir: string, env: Record<string, string>): Promise<Running> {
  const settings = {
    RATE_LIMIT_API: '0',
    RATE_LIMIT_OAUTH: '0',
    RATE_LIMIT_KEY_ROTATION: '0',
    RATE_LIMIT_BILLING: '0',
    LOG_LEVEL: 'info',
    ...env
  }
  return start([CLI, 'serve'], dir, '/readyz', (port) => ({ env: { ...settings, PORT: String(port) }, args: [] }))
}

/** Bare Fastify: with the given database URL, with the service's plugins, or with nothing. */
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
    cpu: () => cpuOf(child.pid!),
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

// Linux counts in hundredths of a second; elsewhere nobody counts.
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

/** Milliseconds of CPU of every process of PostgreSQL on this machine that runs now. */
export function cpuOfPostgres (): number {
  try {
    const names = fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name))
    return names.reduce((sum, name) => sum + (isPostgres(name) ? cpuOf(Number(name)) : 0), 0)
  } catch {
    return NaN
  }
}

function isPostgres (name: string): boolean {
  try {
    return fs.readFileSync(`/proc/${name}/comm`, 'utf8').trim() === 'postgres'
  } catch {
    return false
  }
}
