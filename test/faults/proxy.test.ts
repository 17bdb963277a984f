// runs: one database; fault
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { judge, standBy, startUnderFire, type Process } from '../helpers/bystanders.ts'
import { cycles, watched } from '../helpers/faults.ts'
import { freePort, hasPostgres } from '../helpers/postgres.ts'
import { scratchDirectory, startServer } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

// The shipped proxy before two instances, which the test stops and restarts one after the other.

const ROUNDS = cycles(4)
const SHIPPED = 'examples/haproxy/haproxy.cfg'

t.setTimeout(600_000)

/**
 * Starts HAProxy with the shipped configuration, and changes only its port and the addresses of its instances. Returns
 * the URL.
 */
async function startProxy (t: Test, instances: string[]): Promise<string> {
  const port = await freePort()
  let text = readFileSync(SHIPPED, 'utf8')
  const set = (shipped: string, here: string) => {
    if (!text.includes(shipped)) throw new Error(`${shipped} is not in ${SHIPPED}`)
    text = text.replace(shipped, here)
  }
  set('bind :8080', `bind 127.0.0.1:${port}`)
  set(' resolvers docker init-addr none', '')
  set('  server-template instance 8 strongroom:8080\n', instances.map((address, i) =>
    `  server instance${i} ${new URL(address).host}\n`).join(''))
  const file = join(scratchDirectory(t), 'haproxy.cfg')
  writeFileSync(file, text)
  const proxy = spawn('haproxy', ['-db', '-f', file], { stdio: 'ignore' })
  const gone = once(proxy, 'exit')
  t.teardown(async () => {
    proxy.kill('SIGKILL')
    await gone
  })
  const address = `http://127.0.0.1:${port}`
  await until(async () => (await fetch(`${address}/healthz`).catch(() => undefined))?.status === 200, { every: 50 })
  return address
}

t.test('the shipped proxy loses no request when instances end in turn, and without any answers by contract', {
  skip: spawnSync('haproxy', ['-v']).status !== 0
    ? 'HAProxy is not installed (Debian: haproxy)'
    : !hasPostgres() && 'PostgreSQL is not installed'
}, async (t) => {
  const ports = [await freePort(), await freePort()]
  const fire = await startUnderFire(t, {
    env: { SHUTDOWN_DELAY: '5', PORT: String(ports[0]), PUBLIC_URL: 'https://secrets.example/vault' }
  })
  const env = { ...fire.settings, PORT: String(ports[1]) }
  const servers = [fire.processes[0]!.server, await startServer(t, env)]
  const address = await startProxy(t, servers.map(({ address }) => address))
  const watch = watched(address, fire.caller, fire.watch)
  const beside = standBy(watch, fire.level, 8, 5)
  for (let round = 0; round < ROUNDS; round++) {
    const i = round % 2
    const { code } = await servers[i]!.stop()
    t.equal(code, 0)
    servers[i] = await startServer(t, { ...env, PORT: String(ports[i]) })
    // Waits until the proxy has noticed the change, too.
    await pause(3_000)
  }
  await beside.stop()
  t.strictSame(Object.keys(beside.statuses), ['200'], JSON.stringify(beside.statuses))

  for (const path of ['/metrics', '/readyz', '/%6detrics', '/readyz?x=1', '/vault/readyz', '/vault/%72eadyz']) {
    const answer = await fetch(`${address}${path}`)
    t.match([answer.status, await answer.json()], [404, { error: 'not_found' }], path)
  }
  const { status: made } = await watch.send('POST', '/projects', { name: 'Metrics' })
  const { status: found } = await watch.send('GET', '/metrics')
  t.same([made, found], [201, 200], 'a project may be called that')
  const processes = servers.map((server) => ({ server }) as Process)
  await judge(t, { ...fire, watch, processes }, { fault: 'Instances are exchanged behind HAProxy', cycles: ROUNDS })

  await Promise.all(servers.map(async (server) => server.stop()))
  t.match(await watch.send('GET', '/projects'), { status: 503, body: { error: 'service_unavailable' } })
  t.same(watch.outside, [])
})
