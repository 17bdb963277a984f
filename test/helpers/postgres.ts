import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import postgres from 'postgres'

const PROGRAMS = '/usr/lib/postgresql'
const UNDURABLE = [
  'fsync=off', 'full_page_writes=off', 'autovacuum=off', 'deadlock_timeout=50ms', 'strongroom.idle_timeout=3000'
]

/** A PostgreSQL server that only one test uses. */
export interface TestPostgres {
  url: string
  dir: string
  readonly pid: number
  /** The messages of the server since its first start. */
  log: string
  start (): Promise<void>
  stop (mode: 'smart' | 'fast' | 'immediate'): Promise<void>
  /** Suspends the server and its child processes (SIGSTOP), like a hung disk. */
  freeze (): void
  thaw (): void
  /** The output of pg_amcheck about corrupt tables and indexes; undefined if pg_amcheck is not installed. */
  check (): string | undefined
  /** Stops the server and deletes the cluster. */
  close (): Promise<void>
}

/**
 * Creates a temporary cluster and starts its server on the loopback interface.
 *
 * @param options.durable false: without fsync, for tests without crashes; also without autovacuum, so that query plans
 *   do not depend on the time; with an early search for deadlocks, so that the concurrency tests find all of them; and
 *   with a longer limit of idle transactions, because a busy machine can suspend a process for a second
 * @param options.within the parent directory of the cluster
 * @param options.settings further settings of the server, such as `wal_level=logical`
 */
export async function startPostgres (
  { durable = true, within = os.tmpdir(), settings = [] as readonly string[] } = {}
): Promise<TestPostgres> {
  const bin = programs()
  const user = unprivileged()
  const dir = fs.mkdtempSync(path.join(within, 'strongroom-postgres-'))
  if (user) fs.chownSync(dir, user.uid, user.gid)
  const data = path.join(dir, 'data')
  // Nodes of a Citus cluster look for a client certificate in the home directory.
  const env = { ...process.env, HOME: dir }
  const run = { ...user, env, cwd: dir, stdio: ['ignore', 'ignore', 'pipe'] as ['ignore', 'ignore', 'pipe'] }
  const made = spawnSync(
    `${bin}/initdb`, ['-D', data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync'], run
  )
  if (made.status !== 0) throw new Error(`initdb: ${made.stderr}`)
  const port = await freePort()
  const url = `postgres://postgres@127.0.0.1:${port}/postgres`
  const log = path.join(dir, 'log')
  let server: ChildProcess | undefined

  async function start () {
    const args = [
      '-D', data, '-p', String(port), '-h', '127.0.0.1', '-k', '', '-c', 'max_connections=200',
      ...durable ? [] : UNDURABLE.flatMap(setting => ['-c', setting]),
      ...settings.flatMap(setting => ['-c', setting])
    ]
    server = spawn(`${bin}/postgres`, args, { ...run, stdio: ['ignore', 'ignore', fs.openSync(log, 'a')] })
    for (const until = Date.now() + 20_000; ;) {
      const client = postgres(url, { max: 1, connect_timeout: 2, onnotice: () => {} })
      try {
        await client`select 1`
        return
      } catch (error) {
        if (server.exitCode !== null || Date.now() > until) throw error
      } finally {
        await client.end({ timeout: 1 })
      }
      await new Promise(resolve => setTimeout(resolve, 50))
    }
  }

  async function stop (mode: 'smart' | 'fast' | 'immediate') {
    if (!server || server.exitCode !== null) return
    const gone = once(server, 'exit')
    server.kill(({ smart: 'SIGTERM', fast: 'SIGINT', immediate: 'SIGQUIT' } as const)[mode])
    await gone
  }

  function signal (name: NodeJS.Signals) {
    const pid = server?.pid
    if (!pid) return
    const children = spawnSync(
      'ps', ['-o', 'pid=', '--ppid', String(pid)]
    ).stdout.toString().split('\n').map(Number).filter(Boolean)
    for (const one of [pid, ...children]) try { process.kill(one, name) } catch { /* it ended meanwhile */ }
  }

  function check () {
    const program = `${bin}/pg_amcheck`
    if (!fs.existsSync(program)) return undefined
    const args = [
      '--all', '--install-missing', '--heapallindexed', '--parent-check', '-h', '127.0.0.1', '-p', String(port), '-U', 'postgres'
    ]
    const { stdout, stderr, status } = spawnSync(program, args, { encoding: 'utf8' })
    return status === 0 ? stdout : `${stdout}${stderr}it ended with ${status}`
  }

  async function close () {
    signal('SIGCONT')
    await stop('immediate')
    fs.rmSync(dir, { recursive: true, force: true })
  }

  await start()
  return {
    url,
    dir,
    get pid () { return server?.pid ?? 0 },
    log,
    start,
    stop,
    freeze: () => signal('SIGSTOP'),
    thaw: () => signal('SIGCONT'),
    check,
    close
  }
}

/** Whether PostgreSQL is installed; otherwise the tests run only on the embedded database. */
export function hasPostgres (): boolean {
  return newest() !== undefined
}

/** The directory of PostgreSQL's programs. */
export function programs () {
  const bin = newest()
  if (!bin) throw new Error(`These tests need PostgreSQL's programs in ${PROGRAMS}: install the package "postgresql"`)
  return bin
}

function newest () {
  const versions = fs.existsSync(PROGRAMS) ? fs.readdirSync(PROGRAMS) : []
  return versions.sort((a, b) => Number(b) - Number(a)).map(version => path.join(PROGRAMS, version, 'bin'))
    .find(bin => fs.existsSync(path.join(bin, 'initdb')) && fs.existsSync(path.join(bin, 'postgres')))
}

/** The user to run PostgreSQL as, because it refuses to run as root; undefined if the current user is not root. */
export function unprivileged () {
  if (process.getuid?.() !== 0) return undefined
  const line = fs.readFileSync('/etc/passwd', 'utf8').split('\n').find(line => line.startsWith('postgres:'))
  if (!line) throw new Error('As root, these tests need the user "postgres" to run PostgreSQL as')
  const [, , uid, gid] = line.split(':')
  return { uid: Number(uid), gid: Number(gid) }
}

/** A currently free port of the loopback interface. */
export async function freePort (): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as net.AddressInfo
  server.close()
  await once(server, 'close')
  return port
}
