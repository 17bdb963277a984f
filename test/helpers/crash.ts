import { randomBytes } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { watchPoints, type Command, type Work } from './crash-process.ts'
import { lostAtRest, recovers, watched, type AtRest, type Outcome, type Watched } from './faults.ts'
import { run, startServer, type Ended, type Server } from './process.ts'
import { makeLevels, mix, patient, random, store, type Level, type Send } from './traffic.ts'

// Two harnesses for crashes. `killAgainAndAgain` kills a server with SIGKILL while clients write, and expects that
// every acknowledged write is there after it; a request without a response may have taken effect or not. `cutAt` and
// `runUntilKilled` end one operation at one of its points: before a statement, or before, during or after a commit.

const PROCESS = fileURLToPath(new URL('crash-process.js', import.meta.url))
const PROOF = randomBytes(32).toString('base64')
const CUSTODY = {
  storage_mode: 'client', key_check: PROOF, key_check_salt: randomBytes(16).toString('base64'), key_check_iterations: 600_000
}

export interface Kills extends Omit<AtRest, 'tenants'> {
  kills: number
  /** How many write at once, and in how many organizations. */
  clients: number
  organizations: number
  seed: number
  /** When the next kill comes: after so many answers, or so many milliseconds from the first one. */
  moment (next: () => number): { answers: number } | { milliseconds: number }
  /** Milliseconds that a client waits at most before it asks again; by default it does not. */
  rest?: number
}

/** An organization: levels under a key of the server, levels under one of its clients, and one that keeps all. */
interface Tenant {
  caller: { organization: string, token: string }
  watch: Watched
  levels: Level[]
  held: Level[]
  /** Is only ever stored to, so that every acknowledged write of it has to be in its history. */
  kept: Level
}

/**
 * Kills a server so often, and looks after each start for what was acknowledged last, and at the end for everything:
 * in the audit, in the tables, and as a reader. A start needs nobody's help.
 */
export async function killAgainAndAgain (
  t: Test, { kills, env, command, database, clients, organizations, seed, moment, rest = 0 }: Kills
): Promise<Omit<Outcome, 'fault'>> {
  const next = random(seed)
  let exits = 0
  let recovery = 0
  const start = () => startServer(t, { RATE_LIMIT_API: '0', ...env })
  let server = await start()
  const callers: { organization: string, token: string }[] = [server.first!]
  if (organizations > 1) {
    t.equal((await server.stop()).code, 0)
    while (callers.length < organizations) callers.push(await addOrganization(`Nimbus ${callers.length}`))
    server = await start()
  }
  const tenants = await Promise.all(callers.map(async (caller): Promise<Tenant> => {
    const watch = watched(server.address, caller)
    return {
      caller,
      watch,
      levels: await makeLevels(watch.send, 'orbit', ['live', 'test']),
      held: await makeLevels(watch.send, 'vault', ['live'], CUSTODY),
      kept: (await makeLevels(watch.send, 'ledger', ['kept'], CUSTODY))[0]!
    }
  }))
  const total = (of: (tenant: Tenant) => number) => tenants.reduce((sum, tenant) => sum + of(tenant), 0)

  for (let kill = 1; kill <= kills; kill++) {
    const sent = tenants.map(({ watch }) => watch.operations.length)
    await writeUntilKilled(server)
    t.ok(tenants.some(({ watch }, i) => watch.operations.length > sent[i]!), `kill ${kill} came in the middle of writes`)
    const began = performance.now()
    server = await start()
    t.equal(server.first, undefined, 'a restart makes nothing anew')
    for (const tenant of tenants) tenant.watch = watched(server.address, tenant.caller, tenant.watch)
    recovery = Math.max(recovery, ...await Promise.all(tenants.map(({ watch, levels }) =>
      recovers(watch.send, levels[0]!, began))))
    for (const [i, tenant] of tenants.entries()) {
      t.same(await missing(tenant, sent[i]!), [], 'no acknowledged write is lost')
    }
    t.equal(server.stderr(), '')
  }
  t.ok(tenants.some(({ watch }) => watch.operations.some(({ reply }) => reply === undefined)), 'some outcomes were unknown')
  t.equal((await server.stop()).code, 0)
  const lost = await lostAtRest(t, { env, database, command, tenants })
  return {
    cycles: kills,
    acknowledged: total(({ watch }) => watch.acknowledged()),
    lost: lost.length,
    outside: tenants.flatMap(({ watch }) => watch.outside),
    exits,
    recovery
  }

  async function addOrganization (name: string) {
    const added = await command(['organization', 'add', '--name', name], env)
    const [, organization = ''] = /^Organization (\S+)/.exec(added.stdout) ?? []
    const { stdout } = await command(['token', 'add', '--organization', organization, '--name', name], env)
    return { organization, token: /dotenv_\S+/.exec(stdout)![0] }
  }

  async function writeUntilKilled (server: Server) {
    const when = moment(next)
    let answers = 0
    let isKilled = false
    // False for a process that has ended by itself.
    const kill = () => { isKilled = server.child.kill('SIGKILL') }
    let timer: NodeJS.Timeout | undefined
    const seen = new Map<Level[], number[]>()
    await Promise.all(Array.from({ length: clients }, async (_, one) => {
      const { watch: { send }, levels, held, kept } = tenants[one % tenants.length]!
      const role = Math.floor(one / tenants.length)
      const work = role % 4 === 1 ? held : levels
      const versions = seen.get(work) ?? []
      seen.set(work, versions)
      for (;;) {
        const { reply } = role === 0
          ? await store(sealing(send), kept, `VALUE=${Math.floor(next() * 1e9)}`)
          : await mix(work === held ? sealing(send) : send, work, next, versions)
        if (reply === undefined) return
        const version = reply.body?.data?.version
        if (version && role > 0) versions.push(Number(version))
        if (++answers === 1 && 'milliseconds' in when) timer = setTimeout(kill, when.milliseconds)
        if ('answers' in when && answers === when.answers) kill()
        if (rest > 0) await pause(next() * rest)
      }
    }))
    await server.ended
    clearTimeout(timer)
    if (!isKilled) exits++
  }

  // Those that were acknowledged before this kill: the newest pages of the history have them.
  async function missing ({ watch: { send, operations }, kept }: Tenant, from: number): Promise<string[]> {
    const written = operations.slice(from).flatMap(({ kind, level, reply }) =>
      kind === 'store' && level.project === kept.project && reply?.status === 200 ? [reply.body.data.version] : [])
    const left = new Set<string>(written)
    for (let page = 1, last = 1; left.size > 0 && page <= last; page++) {
      const { body } = await patient(send)('POST', '/secrets/versions', { ...kept, page, per_page: 100 })
      for (const { id } of body.data) left.delete(id)
      last = Math.min(body.meta.last_page, Math.ceil((written.length + clients) / 100) + 1)
    }
    return [...left]
  }
}

/** Stores what is sent as its client would seal it, for a project whose key the server does not have. */
function sealing (send: Send): Send {
  return (method, path, body, headers) => {
    const { plaintext, ...rest } = body as { plaintext?: string }
    if (plaintext === undefined) return send(method, path, body, headers)
    const content = Buffer.concat([randomBytes(28), Buffer.from(plaintext)]).toString('base64')
    return send(method, path, { ...rest, content, key_proof: PROOF }, headers)
  }
}

/**
 * Does the work and calls `cut` at its nth point (from 1). Returns the points that it reached, also when the work
 * failed after the cut.
 */
export async function cutAt (
  n: number | undefined, cut: () => void, work: Work, doIt: () => Promise<void>
): Promise<string[]> {
  const points: string[] = []
  const end = watchPoints(work, (name, at) => {
    if (points.push(name) === n) at(cut)
  })
  try {
    await doIt()
    if (n !== undefined && points.length < n) throw new Error(`there is no point ${n}`)
  } catch (error) {
    if (n === undefined || points.length < n) throw error
  } finally {
    end()
  }
  return points
}

/** Does the work in a process of its own, which kills itself at the given point (from 1); it prints its points. */
export const runUntilKilled = (env: Record<string, string>, command: Command): Promise<Ended> =>
  run(process.execPath, [PROCESS], env, JSON.stringify(command))
