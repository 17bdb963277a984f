// runs: Citus; 40 s
import t from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { killAgainAndAgain } from '../helpers/crash.ts'
import { createOnCitus, dropOnCitus, useOwnCitus } from '../helpers/citus.ts'
import { command } from '../helpers/process.ts'

t.setTimeout(500_000)

const KILLS = 4
const ORGANIZATIONS = 3
const CLIENTS = 9

const { nodes } = await useOwnCitus(t)
const urls = nodes.map(({ url }) => url)

t.test('kills in the middle of writes to several organizations lose nothing', async (t) => {
  const url = await createOnCitus(urls, 'killed')
  t.teardown(() => dropOnCitus(urls, 'killed'))
  const { acknowledged, ...outcome } = await killAgainAndAgain(t, {
    kills: KILLS,
    clients: CLIENTS,
    organizations: ORGANIZATIONS,
    seed: 27,
    env: { DATABASE_URL: url, MASTER_KEY: generateMasterKey().text },
    database: { url },
    command,
    moment: (next) => ({ answers: 10 + Math.floor(next() * 40) })
  })
  t.match(outcome, { outside: [], exits: 0, lost: 0 })
  // A kill comes after at least 10 responses, and some of these are refusals.
  t.ok(acknowledged > KILLS * 5, `${acknowledged} changes were acknowledged`)
})
