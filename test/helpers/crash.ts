import { randomBytes } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { watchPoints, type Command, type Work } from './crash-process.ts'
import { lostAtRest, recovers, watched, type AtRest, type Outcome, type Watched } from './faults.ts'
import { run, startServer, type Ended, type Server } from './process.ts'
import { makeLevels, mix, patient, random, store, type Level, type Send } from './traffic.ts'

// Two harnesses for crash tests. `killAgainAndAgain` kills a server with SIGKILL while clients write, and expects that
// no acknowledged write is lost; a request without a response may have taken effect or not. `cutAt` and
// `runUntilKilled` interrupt one operation at a point: before a statement, or before, during or after a commit.

const PROCESS = fileURLToPath(new URL('crash-process.js', import.meta.url))
const PROOF = randomBytes(32).toString('base64')
const CUSTODY = {
  storage_mode: 'client', key_check: PROOF, key_check_salt: randomBytes(16).toString('base64'), key_check_iterations: 600_000
}

export interface Kills extends Omit<AtRest, 'tenants'> {
  kills: number
  /** The number of concurrent clients, and of organizations that they write to. */
  clients: number
  organizations: number
  seed: number
  /** The time of the next kill: after a number of responses, or milliseconds after the first response. */
  moment (next: () => number): { answers: number } | { milliseconds: number }
  /** Maximum pause of a client between two requests in milliseconds; default: no pause. */
  rest?: number
}

/** An organization: `levels` have a server-managed key, `held` and `kept` have a client-managed key. */
interface Tenant {
  caller: { organization: string, token: string }
  watch: Watched
  levels: Level[]
  held: Level[]
  /** A level that clients only store to, so its history must contain every acknowledged write. */
  kept: Level
}

/**
 * Kills and restarts a server `kills` times. After each start, checks that the last acknowledged writes exist; at the
 * end, checks all writes in the audit log, in the tables and through the API.
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
    // `kill` returns false if the process has already ended by itself.
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

  // The acknowledged versions of `kept`, from the operation `from` on, that the newest pages of the history do not
  // contain.
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

/** Encrypts the plaintext of stores like a client, for a project with a client-managed key. */
function sealing (send: Send): Send {
  return (method, path, body, headers) => {
    const { plaintext, ...rest } = body as { plaintext?: string }
    if (plaintext === undefined) return send(method, path, body, headers)
    const content = Buffer.concat([randomBytes(28), Buffer.from(plaintext)]).toString('base64')
    return send(method, path, { ...rest, content, key_proof: PROOF }, headers)
  }
}

/**
 * Performs the work and calls `cut` at the nth point (from 1). Returns the points that the work has reached, even if
 * the work fails after the cut.
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

/** Runs crash-process.ts, which prints the points of the work and kills itself at the point `command.at`. */
export const runUntilKilled = (env: Record<string, string>, command: Command): Promise<Ended> =>
  run(process.execPath, [PROCESS], env, JSON.stringify(command))
