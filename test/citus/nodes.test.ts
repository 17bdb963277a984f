// runs: Citus; 60 s
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { CONSOLE_CLIENT, DAILY_SCOPES } from '../../schemas/console.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { callWith, makeLevel, startIsolatedApp, type Caller, type TestApp } from '../helpers/app.ts'
import { urlOf, useOwnCitus } from '../helpers/citus.ts'
import { OPERATIONS, prepare, send, settle } from '../helpers/operations.ts'
import { authorizationUrl, issuePair, makePerson, pkce, post, type Person } from '../helpers/people.ts'
import type { TestPostgres } from '../helpers/postgres.ts'
import { failedInside } from '../helpers/traffic.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

t.setTimeout(300_000)

const BOUND_MS = 5_000

const { nodes } = await useOwnCitus(t)
const workers = nodes.slice(1)

/** The index of the worker that stores the rows of an organization. */
async function workerOf (service: TestApp, organization: string): Promise<number> {
  const [row] = await service.sql(`SELECT nodeport FROM pg_dist_placement JOIN pg_dist_node USING (groupid)
    WHERE shardid = get_shard_id_for_distribution_column('organization_counters', '${organization}')`)
  return workers.findIndex(({ url }) => new URL(url).port === String(row!.nodeport))
}

async function makeStored (service: TestApp): Promise<{ caller: Caller, path: string }> {
  const caller = await service.organization()
  const { project } = await makeLevel(caller)
  return { caller, path: `/${caller.organization}/${project}/backend/live/secrets` }
}

/** The URL of the same database on the first worker. */
const throughWorker = async (url: string) => urlOf(workers[0]!.url, new URL(url).pathname.slice(1))

/** Creates an organization on each worker. `there` is on the worker that the tests stop. */
async function makeOnEachWorker (service: TestApp) {
  const found = new Map<number, Awaited<ReturnType<typeof makeStored>>>()
  while (found.size < workers.length) {
    const made = await makeStored(service)
    found.set(await workerOf(service, made.caller.organization), made)
  }
  return { here: found.get(0)!, there: found.get(1)! }
}

t.test('every operation works through a worker', async (t) => {
  // This test has its own database, because it changes the nodes of the cluster.
  const service = await startIsolatedApp(t, {}, undefined, throughWorker)
  const { caller, ids, person } = await settle(service, 'worker')
  for (const [id, row] of Object.entries(OPERATIONS)) {
    await prepare(service, row, ids)
    const bearer = row.byPerson ? person.access : caller.token
    const { status, text } = await send(service, row, ids, row.access === 'public' ? undefined : bearer)
    t.ok(status < 300 || status === row.public, `${id}: ${status} ${text.slice(0, 200)}`)
  }
})

interface Fault {
  begin (worker: TestPostgres): Promise<void> | void
  end (worker: TestPostgres): Promise<void> | void
  /** The minimum share of successful requests for the other worker; the other requests get 503. */
  least: number
}

const FAULTS: Record<string, Fault> = {
  'is down': { begin: (worker) => worker.stop('immediate'), end: (worker) => worker.start(), least: 1 },
  // A frozen worker accepts connections and acknowledges packets, so no TCP timeout ends the wait. A statement for this
  // worker occupies its connection until the deadline. Reads of other organizations wait behind it on the same
  // connection, so some of them get 503.
  'is frozen': { begin: (worker) => worker.freeze(), end: (worker) => worker.thaw(), least: 0.5 }
}

for (const [fault, { begin, end, least }] of Object.entries(FAULTS)) {
  t.test(`while a worker ${fault}, its organizations and changes of all nodes get 503, the others continue`, async (t) => {
    const service = await startIsolatedApp(t)
    const { here, there } = await makeOnEachWorker(service)
    const person = await makePerson(service, { [here.caller.organization]: 'owner' })
    const { access } = await issuePair(service, person, SCOPE_NAMES)

    const slow: string[] = []
    async function statusOf (name: string, work: () => Promise<{ status: number }>) {
      const began = performance.now()
      const { status } = await work()
      const took = Math.round(performance.now() - began)
      if (took >= BOUND_MS) slow.push(`${name}: ${took} ms`)
      return status
    }
    const write = ({ caller, path }: typeof here) => () =>
      caller.call('POST', `/${caller.organization}/secrets/store`, {
        ...levelOf(path), plaintext: `A=${Math.random()}`
      })
    const read = ({ caller, path }: typeof here) => () => caller.call('GET', `${path}?decrypt=true`)
    const create = () => here.caller.call('POST', '//api/v1/organizations', { name: 'Another' }, {
      authorization: `Bearer ${access}`
    })
    const all = async () => [
      await statusOf('write', write(there)), await statusOf('read', read(there)), await statusOf('create', create)
    ]
    t.equal(await statusOf('write', write(here)), 200, 'before')
    t.strictSame(await all(), [200, 200, 201], 'before')

    await begin(workers[1]!)
    try {
      // Clients of both workers send requests at the same time. Meanwhile, each client of the other worker sends many
      // requests.
      const isOver = { yes: false }
      const others = new Map<number, number>()
      const working = Promise.all([write(here), read(here)].map(async (work) => {
        while (!isOver.yes) {
          const status = await statusOf('the other worker', work)
          others.set(status, (others.get(status) ?? 0) + 1)
          await pause(50)
        }
      }))
      for (let i = 0; i < 3; i++) {
        const statuses = await Promise.all([
          statusOf('write', write(there)), statusOf('read', read(there)), statusOf('create', create)
        ])
        t.strictSame(statuses, [503, 503, 503], 'a write and a read on the worker, and a new organization')
        await pause(500)
      }
      const [{ n: hung }] = await service.sql(`SELECT count(*)::int AS n FROM pg_stat_activity
        WHERE application_name = 'strongroom' AND state <> 'idle' AND query_start < now() - interval '4 s'`) as [{ n: number }]
      t.comment(`sessions of the coordinator that wait for the worker: ${hung}`)
      isOver.yes = true
      await working
      const count = [...others.values()].reduce((sum, one) => sum + one, 0)
      t.ok(others.get(200)! / count >= least, `requests for the other worker: ${JSON.stringify([...others])}`)
      t.strictSame([...others.keys()].filter((status) => status !== 200 && (least === 1 || status !== 503)), [])
      t.strictSame(slow, [], 'each response is in time')
      t.strictSame(failedInside(service), [], 'no response is 500')
    } finally {
      await end(workers[1]!)
    }
    const until = performance.now() + BOUND_MS
    let statuses = await all()
    while (statuses.some((status) => status >= 300) && performance.now() < until) {
      await pause(100)
      statuses = await all()
    }
    t.strictSame(statuses, [200, 200, 201], 'afterwards')
    t.equal(await statusOf('write', write(here)), 200, 'afterwards')
  })
}

for (const [node, through] of Object.entries({ 'the coordinator': undefined, 'a worker': throughWorker })) {
  t.test(`through ${node}, sign-in and tokens work while the worker of another organization is down`, async (t) => {
    const service = await startIsolatedApp(t, {}, undefined, through)
    service.app.lateEvents.start()
    const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
    const { here, there } = await makeOnEachWorker(service)
    const roles = { [here.caller.organization]: 'owner', [there.caller.organization]: 'member' } as const
    const person = await makePerson(service, roles)
    const colleague = await makePerson(service, { [there.caller.organization]: 'member' })
    const { refresh } = await issuePair(service, person, SCOPE_NAMES)
    const ofConsole = { client_id: CONSOLE_CLIENT, redirect_uri: `${address}/console/` }
    const signIn = async ({ email }: Person, password: string) => {
      const browser = visitor(address)
      const { verifier, challenge } = pkce()
      const asked = authorizationUrl(challenge, { ...ofConsole, scope: DAILY_SCOPES.join(' ') })
      const { status } = await browser.send(formIn(await browser.open(asked)), { email, password })
      if (!browser.jar.has('session')) return { status }
      const back = new URL((await browser.open(asked)).headers.get('location') ?? 'none:')
      const tokens = await post(address, '/api/oauth/token', {
        grant_type: 'authorization_code', code: back.searchParams.get('code')!, code_verifier: verifier, ...ofConsole
      })
      return { status, console: tokens.status }
    }
    const actionsIn = async ({ caller: { organization } }: typeof here) =>
      (await service.sql(`SELECT action FROM audit_events WHERE organization_id = '${organization}'
        AND resource_type = 'user' AND action LIKE 'session.%' ORDER BY occurred_at, seq`)).map(({ action }) => action)

    for (const one of [person, colleague]) {
      t.strictSame(await signIn(one, one.password), { status: 303, console: 200 }, 'before')
    }
    await workers[1]!.stop('immediate')
    try {
      t.strictSame(await signIn(person, 'wrong password'), { status: 422 })
      t.strictSame(await signIn(person, person.password), { status: 303, console: 200 })
      t.strictSame(await signIn(colleague, colleague.password), { status: 303, console: 200 })
      const { status, body } = await post(address, '/api/oauth/token', {
        grant_type: 'refresh_token', refresh_token: refresh, client_id: 'dotenv-cli'
      })
      t.equal(status, 200)
      const call = callWith(service, body.access_token)
      t.equal((await call('GET', `${here.path}?decrypt=true`)).status, 200)
      t.equal((await call('POST', `/${here.caller.organization}/secrets/store`, {
        ...levelOf(here.path), plaintext: 'A=1'
      })).status, 200)
      t.equal((await call('GET', there.path)).status, 503)
      t.equal((await call('GET', '//api/v1/user')).status, 503, 'the list of organizations needs all workers')
    } finally {
      await workers[1]!.start()
    }
    const until = performance.now() + 2 * BOUND_MS
    const [{ n }] = await service.sql('SELECT count(*)::int AS n FROM late_events') as [{ n: number }]
    t.equal(n, 3, 'events of people wait')
    let left = n
    while (left > 0 && performance.now() < until) {
      service.app.lateEvents.wake()
      await pause(100)
      left = ((await service.sql('SELECT count(*)::int AS n FROM late_events')) as [{ n: number }])[0].n
    }
    t.equal(left, 0, 'each organization has its events')
    const ofPerson = ['session.create', 'session.refuse', 'session.create']
    t.strictSame(await actionsIn(here), ofPerson)
    t.strictSame((await actionsIn(there)).sort(), [...ofPerson, 'session.create', 'session.create'].sort())
  })
}

const levelOf = (path: string) => {
  const [, , project, target, environment] = path.split('/')
  return { project, target, environment }
}
