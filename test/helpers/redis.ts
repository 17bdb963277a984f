import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { freePort } from './postgres.ts'
import { scratchDirectory } from './process.ts'
import { until } from './until.ts'

/** A Redis server that only one test uses, on the loopback interface and in memory. */
export interface TestRedis {
  url: string
  /** The TLS address; the certificate is self-signed, so it is also the authority. */
  tls: { url: string, authority: string }
  /** The remaining lifetime of every key in milliseconds; negative without an expiry. */
  ends (): Promise<Map<string, number>>
  tell (command: string, ...args: string[]): Promise<unknown>
  start (): Promise<void>
  /** Stops the server like a crash, which loses all counters. */
  stop (): Promise<void>
  /** Suspends the server (SIGSTOP). It then accepts connections, but does not respond. */
  freeze (): void
  thaw (): void
}

/** Whether Redis is installed; otherwise tests that need Redis are skipped. */
export function hasRedis (): boolean {
  return spawnSync('redis-server', ['--version']).status === 0
}

/** Starts a Redis server with a password. Stops it after the test. */
export async function startRedis (t: { teardown (fn: () => unknown): void }): Promise<TestRedis> {
  const [port, tlsPort] = [await freePort(), await freePort()]
  const dir = scratchDirectory(t)
  const [key, certificate] = [join(dir, 'key'), join(dir, 'certificate')]
  const made = spawnSync('openssl', [
    'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=redis',
    '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', certificate
  ])
  if (made.status !== 0) throw new Error(String(made.stderr))
  const password = 'p@ss word'
  const credentials = `:${encodeURIComponent(password)}`
  let server: ChildProcess | undefined
  const client = new Redis({ port, host: '127.0.0.1', password, lazyConnect: true, retryStrategy: () => 20 })
  client.on('error', () => {})

  async function start () {
    server = spawn('redis-server', [
      '--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--requirepass', password,
      '--tls-port', String(tlsPort), '--tls-key-file', key, '--tls-cert-file', certificate,
      '--tls-ca-cert-file', certificate, '--tls-auth-clients', 'no'
    ], { stdio: 'ignore' })
    if (client.status === 'wait') await client.connect().catch(() => {})
    await until(() => client.status === 'ready')
    await client.ping()
  }

  async function stop () {
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const gone = once(server, 'exit')
    server.kill('SIGKILL')
    await gone
    await until(() => client.status !== 'ready')
  }

  t.teardown(async () => {
    client.disconnect()
    await stop()
  })
  await start()
  return {
    url: `redis://${credentials}@127.0.0.1:${port}/1`,
    tls: { url: `rediss://${credentials}@127.0.0.1:${tlsPort}/1`, authority: certificate },
    async ends () {
      await client.select(1)
      const keys = await client.keys('*')
      const left = await Promise.all(keys.map((key) => client.pttl(key)))
      // -2 means that the key has expired meanwhile.
      return new Map(keys.map((key, i) => [key, left[i]!] as const).filter(([, ms]) => ms !== -2))
    },
    tell: (command, ...args) => client.call(command, args),
    start,
    stop,
    freeze: () => { server?.kill('SIGSTOP') },
    thaw: () => { server?.kill('SIGCONT') }
  }
}
