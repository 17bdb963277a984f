// runs: one database; 25 s
import { sql } from 'drizzle-orm'
import t from 'tap'
import { hashToken, mintCredential } from '../../src/crypto/bearer.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../../src/crypto/keyring.ts'
import { connect } from '../../src/db/database.ts'
import { createCode, createGrant } from '../../src/repositories/people/oauth.ts'
import { ON_CITUS } from '../helpers/app.ts'
import { createOnCitus, startCitus } from '../helpers/citus.ts'
import { authenticateTable } from '../helpers/macs.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { IN_PROOFS, LONG } from '../helpers/long.ts'
import { CALLBACK, makePerson, pkce, post } from '../helpers/people.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { startServer } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

// Several server processes get requests for the same codes and tokens at the same time. Other tests kill a process or
// stop its database.

const ROUNDS = LONG ? 200 : 4
const AT_ONCE = 20
const WORKERS = 2

t.setTimeout(240_000)

t.test('two processes on one database', { skip: !hasPostgres() && 'PostgreSQL is not installed' }, async (t) => {
  // On Citus, the test uses a separate cluster, and the first process places the tables.
  const cluster = ON_CITUS ? await startCitus() : undefined
  const postgres = cluster?.nodes[0] ?? await startPostgres({ durable: false })
  t.teardown(() => (cluster ?? postgres).close())
  const databaseUrl = cluster === undefined
    ? postgres.url
    : await createOnCitus(cluster.nodes.map(({ url }) => url), 'race')
  const env = {
    DATABASE_URL: databaseUrl, MASTER_KEY: generateMasterKey().text, RATE_LIMIT_OAUTH: '0', RATE_LIMIT_API: '0'
  }
  const one = await startServer(t, env)
  const other = await startServer(t, env)
  const startAgain = () => startServer(t, env)
  const servers = [one.address, other.address]
  const database = await connect({ url: databaseUrl, pool: 6 })
  await openRows(database, createKeyring([parseMasterKey(env.MASTER_KEY)]))
  t.teardown(() => database.close())
  const [{ id: organization }] =
    await database.db.execute(sql`SELECT id FROM organizations`) as unknown as [{ id: string }]
  const rosa = await makePerson({ database }, { [organization]: 'owner' })
  const newGrant = (scopes: ('project:read' | 'secret:read')[] = ['project:read', 'secret:read']) =>
    createGrant(database.db, { user_id: rosa.id, client_id: 'dotenv-cli', scopes })

  async function newCode () {
    const [code, { verifier, challenge }] = [mintCredential('ac'), pkce()]
    const grant = await newGrant()
    await createCode(
      database.db, { code_hash: hashToken(code), grant_id: grant, redirect_uri: CALLBACK, code_challenge: challenge }
    )
    return {
      grant,
      exchange: {
        grant_type: 'authorization_code', code, code_verifier: verifier, client_id: 'dotenv-cli', redirect_uri: CALLBACK
      }
    }
  }

  const ask = (i: number, parameters: Record<string, string>) =>
    post(servers[i % 2]!, '/api/oauth/token', parameters, i % 4 < 2 ? 'form' : 'json')
  const user = async (i: number, token: string) => {
    const answer = await fetch(`${servers[i % 2]}/api/v1/user`, { headers: { authorization: `Bearer ${token}` } })
    await answer.text()
    return answer.status
  }

  async function livePairs (grant: number): Promise<number> {
    const [row] = await database.db.execute(sql`
      SELECT count(*)::int AS count FROM oauth_tokens t JOIN oauth_grants g ON g.id = t.grant_id
      WHERE g.id = ${grant} AND t.used_at IS NULL AND t.refresh_expires_at > now() AND g.revoked_at IS NULL`) as unknown as [
      { count: number }
    ]
    return row.count
  }

  async function pairs (grant: number): Promise<number> {
    const [row] = await database.db.execute(
      sql`SELECT count(*)::int AS count FROM oauth_tokens WHERE grant_id = ${grant}`
    ) as unknown as [{ count: number }]
    return row.count
  }

  /** Sends the same request many times at once. Asserts that exactly one succeeds, and returns its response. */
  async function burst (
    round: number, parameters: Record<string, string>
  ): Promise<{ access_token: string, refresh_token: string }> {
    const answers = await Promise.all(Array.from({ length: AT_ONCE }, (_, i) => ask(i, parameters)))
    const good = answers.filter(({ status }) => status === 200)
    // On a slow machine, a request may wait too long for the lock. This is no success either.
    const refusals = ['400 invalid_grant', '503 temporarily_unavailable']
    const strange = answers.filter(({ status, body }) =>
      status !== 200 && !refusals.includes(`${status} ${body?.error}`))
    if (good.length !== 1 || strange.length > 0) {
      throw new Error(
        `round ${round}: ${good.length} were good, and these are strange: ${JSON.stringify(strange.map(({ status, text }) => [status, text]))}`
      )
    }
    return good[0]!.body
  }

  async function rounds (one: (round: number) => Promise<void>) {
    let next = 0
    await Promise.all(Array.from({ length: WORKERS }, async () => { while (next < ROUNDS) await one(next++) }))
  }

  /** Asserts that a token family is revoked after its last credential was used twice. */
  async function expectDead (round: number, grant: number, issued: number) {
    const [all, alive] = [await pairs(grant), await livePairs(grant)]
    if (all !== issued || alive !== 0) {
      throw new Error(`round ${round}: ${all} pairs were issued, ${alive} of them are alive`)
    }
  }

  await t.test(`OA-44: of ${AT_ONCE} redemptions of one code at once one succeeds, and the others end the grant`, async (t) => {
    await rounds(async (round) => {
      const { grant, exchange } = await newCode()
      const tokens = await burst(round, exchange)
      await expectDead(round, grant, 1)
      if (round % 10 > 0) return
      t.equal(await user(round, tokens.access_token), 401)
      t.equal((await ask(
        round + 1, { grant_type: 'refresh_token', refresh_token: tokens.refresh_token, client_id: 'dotenv-cli' }
      )).status, 400)
    })
  })

  await t.test(`OA-57: of ${AT_ONCE} uses of one refresh token at once one succeeds; no refresh token is left`, async (t) => {
    await rounds(async (round) => {
      const { grant, exchange } = await newCode()
      const first = await ask(round, exchange)
      const tokens = await burst(
        round, { grant_type: 'refresh_token', refresh_token: first.body.refresh_token, client_id: 'dotenv-cli' }
      )
      await expectDead(round, grant, 2)
      if (round % 10 === 0) t.equal(await user(round, tokens.access_token), 401)
    })
  })

  await t.test('OA-70 OA-73: what one process revokes counts for nothing on the other', async (t) => {
    for (const [i, token] of (['refresh_token', 'access_token', 'refresh_token', 'access_token'] as const).entries()) {
      const { exchange } = await newCode()
      const { body } = await ask(i, exchange)
      t.equal(await user(i + 1, body.access_token), 200)
      t.equal(
        (await post(servers[i % 2]!, '/api/oauth/revoke', { token: body[token], client_id: 'dotenv-cli' })).status, 200
      )
      t.equal(await user(i + 1, body.access_token), 401)
      t.equal((await ask(
        i + 1, { grant_type: 'refresh_token', refresh_token: body.refresh_token, client_id: 'dotenv-cli' }
      )).body.error, 'invalid_grant')
    }
  })

  await t.test('OA-57 OA-70: a refresh and a revocation at once leave nothing alive', async (t) => {
    for (let round = 0; round < (LONG ? 40 : 4); round++) {
      const { grant, exchange } = await newCode()
      const { body } = await ask(round, exchange)
      const [refreshed, revoked] = await Promise.all([
        ask(round, { grant_type: 'refresh_token', refresh_token: body.refresh_token, client_id: 'dotenv-cli' }),
        post(servers[(round + 1) % 2]!, '/api/oauth/revoke', { token: body.refresh_token, client_id: 'dotenv-cli' })
      ])
      t.equal(revoked.status, 200)
      if (refreshed.status === 200) t.equal(await user(round, refreshed.body.access_token), 401)
      t.equal(await livePairs(grant), 0)
    }
  })

  await t.test('OA-59: a used refresh token stays used after a kill of the process, and a second use ends the family', IN_PROOFS, async (t) => {
    const { exchange } = await newCode()
    const refresh = (refresh_token: string) =>
      ask(1, { grant_type: 'refresh_token', refresh_token, client_id: 'dotenv-cli' })
    const first = await ask(1, exchange)
    const second = await refresh(first.body.refresh_token)
    t.equal(second.status, 200)
    await other.kill()
    servers[1] = (await startAgain()).address
    t.equal(await user(1, second.body.access_token), 200, 'what was issued before counts')
    const replayed = await refresh(first.body.refresh_token)
    t.strictSame([replayed.status, replayed.body.error], [400, 'invalid_grant'])
    t.equal(await user(1, second.body.access_token), 401)
    t.equal((await refresh(second.body.refresh_token)).status, 400)
  })

  await t.test('OA-42 OA-77: without its database the service says so, and nothing is used up or revoked by it', async (t) => {
    const { exchange } = await newCode()
    const { body } = await ask(0, (await newCode()).exchange)
    const refresh = { grant_type: 'refresh_token', refresh_token: body.refresh_token, client_id: 'dotenv-cli' }
    await postgres.stop('fast')
    for (const as of ['form', 'json'] as const) {
      const attempts: [string, Record<string, string>][] = [
        ['token', exchange], ['token', refresh], [
          'revoke', { token: body.refresh_token, client_id: 'dotenv-cli' }
        ], ['revoke', { token: 'garbage', client_id: 'dotenv-cli' }]
      ]
      for (const [path, parameters] of attempts) {
        const answer = await post(one.address, `/api/oauth/${path}`, parameters, as)
        t.equal(answer.status, 503, `${path} ${as}: ${answer.text}`)
        t.equal(answer.body.error, 'temporarily_unavailable')
        t.equal(typeof answer.body.error_description, 'string')
        t.match(answer.headers.get('content-type'), /^application\/json/)
        t.equal(answer.headers.get('cache-control'), 'no-store')
      }
    }
    await postgres.start()
    const isReady = () => fetch(`${one.address}/readyz`).then(({ status }) => status === 200, () => false)
    await until(isReady, { every: 50 })
    t.equal(await user(0, body.access_token), 200, 'it was not revoked')
    const refreshed = await ask(0, refresh)
    t.equal(refreshed.status, 200, 'the refresh token was not used')
    // The code may have expired meanwhile. An expired code alone is a reason for the refusal.
    await database.db.execute(
      sql`UPDATE oauth_codes SET expires_at = now() + interval '1 minute' WHERE code_hash = ${hashToken(exchange.code)}`
    )
    await authenticateTable(database.db, 'oauth_codes')
    t.equal((await ask(0, exchange)).status, 200, 'the code was not used')
  })
})
