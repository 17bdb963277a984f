// duration: 48 s
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { killAgainAndAgain, type Kills } from '../helpers/kills.ts'
import { LONG } from '../helpers/long.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { command, scratchDirectory } from '../helpers/process.ts'

// The server process itself is killed with SIGKILL while it writes, a few times (test/faults/kills does it by the
// hundred, at moments of a clock): what is judged here is what is there after it, however long it took.

const KILLS = LONG ? { postgres: 10, embedded: 10 } : { postgres: 10, embedded: 2 }

t.setTimeout(180_000)

async function loseNothing (t: Test, kills: Pick<Kills, 'kills' | 'env' | 'database'>) {
  const { outside, exits } = await killAgainAndAgain(t, {
    clients: 4,
    organizations: 1,
    seed: 42,
    command,
    moment: (next) => ({ answers: 3 + Math.floor(next() * 25) }),
    ...kills
  })
  t.same({ outside, exits }, { outside: [], exits: 0 })
}

t.test(`RL-01 RL-02 S-6.1 S-6.2 S-6.9 AU-12 kills (${KILLS.embedded}) in the middle of writes on the embedded database lose nothing`, async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  await loseNothing(t, { kills: KILLS.embedded, env: { DATA_DIR: dir }, database: { dir: join(dir, 'postgres') } })
})

t.test(`RL-01 S-6.1 S-6.2 S-6.9 AU-12 kills (${KILLS.postgres}) in the middle of writes on PostgreSQL lose nothing`, {
  skip: !hasPostgres() && 'PostgreSQL is not installed'
}, async (t) => {
  const postgres = await startPostgres()
  t.teardown(postgres.close)
  const env = { DATABASE_URL: postgres.url, MASTER_KEY: generateMasterKey().text }
  await loseNothing(t, { kills: KILLS.postgres, env, database: postgres })
})
