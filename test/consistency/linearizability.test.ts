// runs: one database; 490 s
import type { AddressInfo } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import {
  idProblems, judge, judgeTogether, Recorder, written, type Asked, type Document, type History, type Merged, type Told
} from '../helpers/histories.ts'
import { LONG } from '../helpers/long.ts'
import { startServer } from '../helpers/process.ts'
import {
  client, failedInside, makeLevels, ON_POSTGRES, random, startBeside, startInstances, times, type Send
} from '../helpers/traffic.ts'
import { openWay } from '../helpers/way.ts'

// Clients send requests to several instances at the same time. They record the requests, the responses and the times.
// The responses must equal those of a single level that gets the requests one after the other.

const SEED = 20261123
const CLIENTS = 6
const TURNS = 6

t.setTimeout(180_000)

interface Run { seed: number, sends: Send[], send: Send, name: string }

/** Runs the clients on new levels, and then reads the final states. */
async function record ({ seed, sends, send, name }: Run): Promise<Recorder> {
  const recorder = new Recorder(await makeLevels(send, name, ['live', 'test']))
  await Promise.all(times(CLIENTS, async (one) => {
    const next = random(seed * 100 + one)
    for (let turn = 0; turn < TURNS; turn++) await recorder.one(sends[one % sends.length]!, next)
  }))
  await recorder.end(send)
  return recorder
}

const document = (content: string, version: number | null, etag = content): Document => ({ content, version, etag })
const read = (found: Document | null): [Asked, Told] => [{ kind: 'read' }, { status: 200, document: found }]
const list = (...versions: [number, string][]): [Asked, Told] =>
  [{ kind: 'list' }, { status: 200, versions: versions.map(([id, action]) => ({ id, action })) }]
const store = (content: string, version: number | null, how: object = {}): [Asked, Told] =>
  [{ kind: 'store', content, ...how }, { status: 200, version, etag: content }]
const unknown = ([asked]: [Asked, Told]): [Asked, undefined] => [asked, undefined]
const at = (sent: number, answered: number, [asked, told]: [Asked, Told | undefined]) =>
  ({ asked, told, sent, answered })
/** A history without concurrent operations. */
const row = (...calls: [Asked, Told | undefined][]): History => calls.map((call, i) => at(2 * i, 2 * i + 1, call))

const answered = (kind: 'delete' | 'purge' | 'rotate', told: Told): [Asked, Told] => [{ kind }, told]
const restore = (version: number, told: Told): [Asked, Told] => [{ kind: 'restore', version }, told]

const ACCEPTED: Record<string, History> = {
  'nothing was asked': [],
  'one after the other': row(
    read(null), store('a', 3), store('b', 5), read(document('b', 5)), restore(3, { status: 200, version: 6 }),
    read(document('a', 6, 'c')), list([3, 'create'], [5, 'update'], [6, 'restore'])
  ),
  'a read beside a write sees it': [at(0, 9, store('a', 1)), at(1, 2, read(document('a', 1))), at(3, 4, list([1, 'create']))],
  'or does not': [at(0, 9, store('a', 1)), at(1, 2, read(null)), at(3, 4, read(document('a', 1)))],
  'of two writes at once, the second by id was the first by the clock': [
    at(0, 9, store('a', 2)), at(1, 8, store('b', 1)), at(10, 11, read(document('a', 2)))
  ],
  'a write without an answer never happened': row(unknown(store('a', 1)), read(null), list()),
  'or happened late': row(unknown(store('a', 1)), read(null), read(document('a', 1)), list([1, 'create'])),
  'what is told later fits what was not told': row(
    store('a', 1), unknown(answered('rotate', { status: 200 })), answered('delete', { status: 204 }),
    list([1, 'create'], [4, 'rotate'], [5, 'delete']), restore(4, { status: 200, version: 6 })
  )
}

const REFUSED: Record<string, History> = {
  'a stale read': row(store('a', 1), store('b', 2), read(document('a', 1))),
  'a read that goes back': [
    at(0, 1, store('a', 1)), at(2, 9, store('b', 2)), at(3, 4, read(document('b', 2))), at(5, 6, read(document('a', 1)))
  ],
  'a write that is lost': row(store('a', 1), store('b', 2), read(document('a', 1)), list([1, 'create'])),
  'a write that happened twice': row(store('a', 1), list([1, 'create'], [2, 'update'])),
  'a write that is seen before it was sent': row(read(document('a', 1)), unknown(store('a', 1))),
  'a write without an answer that happened twice': row(
    unknown(store('a', 1)), list([1, 'create'], [2, 'update'])
  ),
  'version ids that go back': row(store('a', 2), store('b', 1)),
  'an id that is given again': row(store('a', 1), answered('purge', { status: 200 }), list(), list([1, 'create'])),
  'two that both had the one ETag': [
    at(0, 1, store('a', 1)), at(2, 9, store('b', 2, { ifMatch: 'a' })), at(2, 9, store('c', 3, { ifMatch: 'a' }))
  ],
  'two that were both the first': [at(0, 9, store('a', 1, { isNew: true })), at(0, 9, store('b', 2, { isNew: true }))],
  'a refusal without a reason': row(store('a', 1), [{ kind: 'store', content: 'b', ifMatch: 'a' }, { status: 412 }]),
  'an ETag that comes again': row(store('a', 1), store('b', 2), restore(1, { status: 200, version: 3 }), read(document('a', 3, 'a'))),
  'a restore of what was purged': row(
    store('a', 1), answered('purge', { status: 200, purged: 1 }), restore(1, { status: 200, version: 2 })
  ),
  'a restore of something else': row(
    store('a', 1), store('b', 2), restore(1, { status: 200, version: 3 }), read(document('b', 3, 'c'))
  ),
  'a purge that counts wrong': row(store('a', 1), answered('purge', { status: 200, purged: 2 })),
  'a rotation that left no version': row(store('a', 1), answered('rotate', { status: 200, key: 2 }), list([1, 'create'])),
  'two rotations to one key': row(answered('rotate', { status: 200, key: 2 }), answered('rotate', { status: 200, key: 2 })),
  'a delete that deleted nothing': row(store('a', 1), answered('delete', { status: 204 }), read(document('a', 1))),
  'a document without a version that is said to have one': row(store('a', 1), store('b', null), read(document('b', 1))),
  'a snapshot that went without force': row(
    store('a', 1), answered('delete', { status: 204 }), list([1, 'create'], [2, 'delete']),
    [{ kind: 'remove', version: 2, force: false }, { status: 204 }]
  )
}

t.test('the checker accepts what a level can have told, and refuses what it cannot', async (t) => {
  for (const [name, history] of Object.entries(ACCEPTED)) {
    const checked = judge(history)
    t.ok(checked.linearizable, name, { written: written(name, history, checked) })
  }
  for (const [name, history] of Object.entries(REFUSED)) t.notOk(judge(history).linearizable, name)
  const [name, history] = Object.entries(REFUSED)[0]!
  t.match(written(name, history, judge(history)), /a stale read.*\n.*\n.*store.*\n.*store.*\n.*! read.*"a"/)
})

const together = (...calls: { at: string[], asked: Asked, told: Told[] }[]): Merged[] =>
  calls.map(({ at, asked, told }, i) => ({ asked: { at, ...asked }, told, sent: 2 * i, answered: 2 * i + 1 }))
const stored = (at: string, content: string, version: number) => {
  const [asked, told] = store(content, version)
  return { at: [at], asked, told: [told] }
}
const merged = (...documents: (Document | null)[]) =>
  ({ at: ['a', 'a/b'], asked: { kind: 'read' } as Asked, told: documents.map((document) => ({ status: 200, document })) })
const rotated = (...told: Told[]) => ({ at: ['a', 'a/b'], asked: { kind: 'rotate' } as Asked, told })
const inKey = (content: string, version: number, key: number) => ({ ...document(content, version), key })

t.test('an operation on several levels happens at all of them at once, and ids are of one organization', async (t) => {
  const rotation = rotated({ status: 200, key: 2 }, { status: 200, key: 2 })
  const half = together(
    stored('a', 'x', 1), stored('a/b', 'y', 2), rotation, merged({ ...inKey('x', 3, 2), etag: 'x2' }, inKey('y', 2, 1))
  )
  const whole = together(
    stored('a', 'x', 1), stored('a/b', 'y', 2), merged(document('x', 1), document('y', 2)), rotation,
    merged({ ...inKey('x', 3, 2), etag: 'x2' }, { ...inKey('y', 4, 2), etag: 'y2' })
  )
  t.ok(judgeTogether(whole).linearizable)
  // During a rotation, each level can be in the state before or after the rotation.
  const [one, other, , last] = half
  const torn = [one!, other!, { ...half[2]!, sent: 4, answered: 9 }, { ...last!, sent: 5, answered: 6 }]
  for (const i of [0, 1]) {
    t.ok(judge(torn.flatMap(({ asked: { at, ...asked }, told, ...times }) => {
      const place = at.indexOf(['a', 'a/b'][i]!)
      return place < 0 ? [] : [{ asked, told: told![place], ...times }]
    })).linearizable, 'right at each level')
  }
  t.notOk(judgeTogether(torn).linearizable, 'half a rotation, seen while it goes on')
  const read = together(stored('a/b', 'y', 1), stored('a', 'x', 2)).map((call) => ({ ...call, answered: 99 }))
  read[1]!.sent = 100
  read[1]!.answered = 101
  const between = { ...together(merged(document('x', 2), null))[0]!, sent: 98, answered: 102 }
  t.notOk(judgeTogether([...read, between]).linearizable, 'a read that is torn')
  t.same([whole, read].flatMap(idProblems), [])
  t.not(idProblems(together(stored('a', 'x', 1), stored('a/b', 'y', 1))).length, 0, 'an id at two levels')
  t.not(idProblems(together(stored('a', 'x', 2), stored('a/b', 'y', 1))).length, 0, 'ids that go back between levels')
})

const ROUNDS = LONG ? 1000 : 4

t.test('RL-09 S-6.1 S-6.2 S-6.4 S-6.8 S-6.9: two instances are linearizable, and altered histories are not', async (t) => {
  const { service, sends, send } = await startInstances(t)
  let histories = 0
  for (const round of times(ROUNDS, (round) => round)) {
    const seed = SEED + round
    const recorder = await record({ seed, sends, send, name: `orbit-${round}` })
    const problems = recorder.problems(`seed ${seed}`)
    if (problems.length + recorder.strange.length > 0) t.same([problems, recorder.strange], [[], []])
    histories += recorder.levels.length
    for (const { history } of recorder.levels) {
      for (const [bug, alter] of Object.entries(ALTERED)) {
        const altered = alter(history)
        if (judge(altered).linearizable) t.fail(`${bug}, seed ${seed}`, { altered })
      }
    }
  }
  t.ok(histories >= 4 * ROUNDS, `${histories} histories`)
  t.same(failedInside(service), [])
})

/** Changes of a recorded history, as a faulty service could have produced them. */
const ALTERED: Record<string, (history: History) => History> = {
  'a stale read': (history) => {
    const ended = lastOf(history)
    const before = history.map(({ told }) => told?.document).find((one) => one?.etag !== ended.document?.etag)
    return [...history, ...after(ended, read(before ?? document('VALUE=other', ended.newest)))]
  },
  'a lost write': (history) => {
    const ended = lastOf(history)
    return [...history, ...after(ended, store('VALUE=lost', ended.newest + 1), read(ended.document))]
  },
  'a write applied twice': (history) => {
    const ended = lastOf(history)
    const { newest } = ended
    const ids = [[newest + 1, ended.document ? 'update' : 'create'], [newest + 2, 'update']] as [number, string][]
    return [...history, ...after(ended, store('VALUE=twice', newest + 1), list(...ended.listed, ...ids))]
  }
}

/** The final state of a history, after the end of all requests. */
function lastOf (history: History) {
  const reads = history.filter(({ told }) => told?.document !== undefined)
  const lists = history.filter(({ told }) => told?.versions !== undefined)
  const listed = lists.at(-1)!.told!.versions!.map(({ id, action }): [number, string] => [id, action])
  const ids = history.flatMap(({ told }) => [told?.version ?? 0, ...told?.versions?.map(({ id }) => id) ?? []])
  return {
    document: reads.at(-1)!.told!.document!,
    listed,
    newest: Math.max(0, ...ids),
    time: Math.max(...history.map(({ answered }) => answered))
  }
}

const after = ({ time }: { time: number }, ...calls: [Asked, Told][]): History =>
  calls.map((call, i) => at(time + 2 * i + 1, time + 2 * i + 2, call))

/** Faults of a proxy, which changes requests or responses. */
const BUGS: Record<string, (send: Send) => Send> = {
  'a stale read': (send) => {
    const cache = new Map<string, ReturnType<Send>>()
    return (...request) => {
      const [method, path, , headers = {}] = request
      if (method !== 'GET' || headers['if-none-match'] !== undefined || !path.endsWith('decrypt=true')) return send(...request)
      if (!cache.has(path)) cache.set(path, send(...request))
      return cache.get(path)!
    }
  },
  'a lost write': (send) => {
    let stores = 0
    return (method, path, body, headers) => path === '/secrets/store' && ++stores % 4 === 0
      ? send(method, path, { ...body as object, ...DECOY }, {})
      : send(method, path, body, headers)
  },
  'a write applied twice': (send) => {
    let stores = 0
    return async (method, path, body, headers) => {
      const reply = await send(method, path, body, headers)
      if (path === '/secrets/store' && reply.status === 200 && ++stores % 4 === 0) await send(method, path, body, {})
      return reply
    }
  },
  ...(LONG && {
    'a torn read': (send) => async (...request) => {
      const [method, path, , headers = {}] = request
      const before = await send(...request)
      if (method !== 'GET' || headers['if-none-match'] !== undefined || !path.endsWith('decrypt=true')) return before
      await pause(20)
      const reply = await send(...request)
      const { levels } = reply.body.data.attributes
      Object.assign(levels, { ...before.body.data.attributes.levels, project: levels.project })
      return reply
    },
    'an ignored precondition': (send) => (method, path, body, { 'if-match': _, ...headers } = {}) =>
      send(method, path, body, headers),
    'a first write that is not the first': (send) => (method, path, body, headers = {}) =>
      send(method, path, body, method === 'POST' ? {} : headers),
    'a refused write that happens': (send) => async (method, path, body, headers = {}) => {
      const reply = await send(method, path, body, headers)
      if (reply.status === 412) await send(method, path, body)
      return reply
    },
    'a delete that is not done': (send) => async (method, path, body, headers) =>
      path === '/secrets/delete'
        ? { status: 204, body: undefined, headers: new Headers() }
        : send(method, path, body, headers),
    'a purge that is not done': (send) => async (method, path, body, headers) =>
      path === '/secrets/versions/purge'
        ? { status: 200, body: { data: { purged_count: 0 } }, headers: new Headers() }
        : send(method, path, body, headers),
    'a restore of the version before': (send) => {
      const stored: number[] = []
      return async (method, path, body, headers) => {
        const [, id] = /^\/secrets\/versions\/(\d+)\/restore$/.exec(path) ?? []
        const other = stored[stored.indexOf(Number(id)) - 1]
        const reply = await send(method, other === undefined ? path : path.replace(id!, String(other)), body, headers)
        if (path === '/secrets/store' && reply.status === 200) stored.push(Number(reply.body.data.version))
        return reply
      }
    },
    'a list without the oldest': (send) => async (...request) => {
      const reply = await send(...request)
      if (request[1] === '/secrets/versions' && reply.body.data.length > 1) {
        reply.body.data.pop()
        reply.body.meta.total--
      }
      return reply
    },
    'not modified, whatever was': (send) => async (...request) => {
      const isConditional = request[0] === 'GET' && request[3]?.['if-none-match'] !== undefined
      return isConditional ? { status: 304, body: undefined, headers: new Headers() } : send(...request)
    },
    'a rotation that happens twice': (send) => async (...request) => {
      const reply = await send(...request)
      if (request[1].endsWith('/rotate') && reply.status === 200) await send(...request)
      return reply
    }
  } satisfies Record<string, (send: Send) => Send>)
}

const DECOY = { project: 'decoy', target: 'backend', environment: 'live' }

t.test('RL-09: a service with a fault is found out', async (t) => {
  const { sends, send } = await startInstances(t)
  await makeLevels(send, 'decoy', ['live'])
  for (const [i, [bug, plant]] of Object.entries(BUGS).entries()) {
    let caught: string[] = []
    let round = 0
    for (; round < 100 && caught.length === 0; round++) {
      const faulty = sends.map(plant)
      const name = `${bug.replaceAll(/\W+/g, '-')}-${round}`
      caught = (await record({ seed: SEED + i * 100 + round, sends: faulty, send, name })).problems(bug)
    }
    t.not(caught.length, 0, `${bug}: after ${round} times 4 histories`)
  }
})

const CUT_ROUNDS = LONG ? 250 : 4
const KILLS = LONG ? 25 : 0

t.test(`RL-09 RL-01: a request cut off (${KILLS} kills) happened or did not; the rest is linearizable`, {
  skip: !ON_POSTGRES && 'runs on PostgreSQL'
}, async (t) => {
  const { service, addresses, send, organization } = await startInstances(t)
  // One instance loses its connections to clients, the other instance loses those to the database.
  const ways = [await openWay(addresses[0]!)]
  const beside = await startBeside(t, service, async (url) => {
    ways.push(await openWay(url))
    return ways.at(-1)!.url
  })
  await beside!.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => Promise.all(ways.map((way) => way.close())))
  const { port } = beside!.server.address() as AddressInfo
  const reached = [ways[0]!.url.replace(/\/$/, ''), `http://127.0.0.1:${port}`]
  const caller = { organization, token: (await service.token(organization, ['*'])).token }
  const process = KILLS === 0 ? undefined : await killable(t, { ...service.env, RATE_LIMIT_API: '0' }, caller)
  const all: Send[] = [...reached.map((address) => client(address, caller)), ...process ? [process.send] : []]
  const next = random(SEED)
  let asked = 0
  const sends = all.map((one): Send => (...request) => {
    if (++asked % 12 === 0) {
      const way = ways[Math.floor(next() * ways.length)]!
      setTimeout(way.sever, next() * 20)
    }
    return one(...request)
  })

  let unknown = 0
  for (const round of times(CUT_ROUNDS, (round) => round)) {
    const seed = SEED + 10_000 + round
    const killed = process && round % Math.ceil(CUT_ROUNDS / KILLS) === 0 && process.kill(next() * 200)
    const recorder = await record({ seed, sends, send, name: `cut-${round}` })
    await killed
    const problems = recorder.problems(`seed ${seed}`)
    if (problems.length + recorder.strange.length > 0) t.same([problems, recorder.strange], [[], []])
    unknown += recorder.unknown
  }
  t.not(unknown, 0, `${unknown} operations were not answered`)
  t.same(failedInside(service), [])
})

/** An instance in a separate process, which the test can kill. Requests wait for the next process while none runs. */
async function killable (t: Test, env: Record<string, string>, caller: { organization: string, token: string }) {
  let server = Promise.resolve(await startServer(t, env))
  const send: Send = async (...request) => client((await server).address, caller)(...request)
  const kill = async (after: number) => {
    const before = await server
    await pause(after)
    server = before.kill().then(() => startServer(t, env))
    await server
  }
  return { send, kill }
}
