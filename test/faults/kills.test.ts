// runs: one database; fault; alone
import { join } from 'node:path'
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { cycles, report, type Outcome } from '../helpers/faults.ts'
import { killAgainAndAgain, type Kills } from '../helpers/crash.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { cli, scratchDirectory } from '../helpers/process.ts'

// Kills the server process at random times under a mix of changes of documents, keys and histories. Uses two
// organizations, and both server-managed and client-managed keys. Three services run at the same time, each on a
// separate database.

// The numbers of kills make the three services finish at about the same time.
const KILLS = { postgres: 220, embedded: 80 }
const CLIENTS = 12
const SEED = 20261123
/** The earliest time of a kill, in milliseconds after the server is ready. */
const EARLIEST = 200
const LATEST = 2_000
// With this pause, three services and their clients leave one of two cores to a starting server.
const REST = 400

type Killed = Omit<Outcome, 'fault'>
const killed = async (t: Test, kills: Pick<Kills, 'kills' | 'env' | 'database' | 'seed'>): Promise<Killed> => {
  const { env, ...others } = kills
  const outcome = await killAgainAndAgain(t, {
    // A rotation derives a key, which takes longer than a start of the server.
    env: { RATE_LIMIT_KEY_ROTATION: '2', ...env },
    clients: CLIENTS,
    organizations: 2,
    command: cli,
    rest: REST,
    moment: (next) => ({ milliseconds: EARLIEST + next() * (LATEST - EARLIEST) }),
    ...others
  })
  return { ...outcome, note: `seed ${kills.seed}` }
}

const together = (one: Killed, other: Killed): Killed => ({
  cycles: one.cycles + other.cycles,
  acknowledged: one.acknowledged + other.acknowledged,
  lost: one.lost + other.lost,
  outside: [...one.outside, ...other.outside],
  exits: one.exits + other.exits,
  recovery: Math.max(one.recovery, other.recovery),
  note: `${one.note}, ${other.note}`
})

t.test('RL-01 RL-02: what a server acknowledged before a kill is there after its next start, without help', async (t) => {
  t.jobs = 3
  const beside = <T>(name: string, work: (t: Test) => Promise<T>) => new Promise<T>((resolve, reject) => {
    t.test(name, { buffered: true }, (t) => work(t).then(resolve, reject)).catch(reject)
  })
  const ended = [
    beside('the embedded database', async (t) => {
      const dir = join(scratchDirectory(t), 'data')
      const outcome = await killed(t, {
        kills: cycles(KILLS.embedded), env: { DATA_DIR: dir }, database: { dir: join(dir, 'postgres') }, seed: SEED
      })
      report(t, { fault: 'kill -9, embedded database', ...outcome })
    })
  ]
  if (hasPostgres()) ended.push(onPostgres(beside))
  else t.test('PostgreSQL', { skip: 'PostgreSQL is not installed' }, () => {})
  await Promise.all(ended)

  async function onPostgres (each: typeof beside) {
    const server = await startPostgres()
    t.teardown(server.close)
    const admin = postgres(server.url, { max: 1 })
    const databases = await Promise.all(['one', 'two'].map(async (name) => {
      await admin.unsafe(`CREATE DATABASE ${name}`)
      return server.url.replace(/postgres$/, name)
    }))
    await admin.end()
    const outcomes = await Promise.all(databases.map((url, i) => each(`PostgreSQL ${i + 1}`, (t) => killed(t, {
      kills: cycles(KILLS.postgres / 2),
      env: { DATABASE_URL: url, MASTER_KEY: generateMasterKey().text },
      database: { url },
      seed: SEED + 1 + i
    }))))
    report(t, { fault: 'kill -9, PostgreSQL', ...outcomes.reduce(together) })
    t.match(server.check() ?? '', /^$/, 'pg_amcheck finds nothing')
  }
})
