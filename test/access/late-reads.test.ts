// runs: PostgreSQL; 6 s
import type { InjectOptions } from 'light-my-request'
import postgres from 'postgres'
import t from 'tap'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { buildApp } from '../../src/app.ts'
import { revokeGrant } from '../../src/repositories/people/oauth.ts'
import { callWith, makeLevel, startIsolatedApp, type Answer, type Caller } from '../helpers/app.ts'
import { issuePair, makePerson } from '../helpers/people.ts'

// Reads that wait for the database while their caller ends. This file has its own database, because it locks tables.

const service = await startIsolatedApp(t)
const nimbus = await service.organization()
const o = nimbus.organization
const level = await makeLevel(nimbus)
const levelPath = `/${o}/${level.project}/${level.target}/${level.environment}`
t.equal((await nimbus.call('PATCH', `${levelPath}/secrets`, { set: { PASSWORD: 'hunter2' } })).status, 200)

// Another instance on the same database, which checks each read again before its response.
const app = await buildApp({
  config: service.config,
  database: service.database,
  keyring: service.keyring,
  costs: service.app.costs,
  logStream: { write: () => {} },
  recheckAfter: 0
})
t.teardown(() => app.close())
const inject = async (options: InjectOptions): Promise<Answer> => {
  const { statusCode: status, headers, body: text } = await app.inject(options)
  return { status, headers, text, body: JSON.parse(text === '' ? 'null' : text) }
}
const session = postgres(service.env.DATABASE_URL!, { max: 1, onnotice: () => {} })
t.teardown(() => session.end())

/** Holds a lock in another session until the read waits and `end` has run. */
async function whileLocked (lock: string, read: () => Promise<Answer>, end: () => Promise<unknown>): Promise<Answer> {
  const holder = await session.reserve()
  await holder`BEGIN`
  await holder.unsafe(lock)
  let isAnswered = false
  const asked = read().finally(() => { isAnswered = true })
  // More sequential requests than a read needs before it waits.
  for (let i = 0; i < 12; i++) await nimbus.call('GET', `/organizations/${o}`)
  t.notOk(isAnswered, 'the read waits for the lock')
  await end()
  await holder`ROLLBACK`
  holder.release()
  return asked
}

const COUNTER = `SELECT FROM organization_counters WHERE organization_id = '${o}' FOR UPDATE`
const tableOf = (name: string) => `LOCK TABLE ${name} IN ACCESS EXCLUSIVE MODE`

const READS: Record<string, { lock: string, ask: (call: Caller['call']) => Promise<Answer> }> = {
  'a decrypted document': {
    lock: COUNTER, ask: (call) => call('POST', `/${o}/secrets/retrieve`, { ...level, action: 'decrypt' })
  },
  'the values of a level': { lock: COUNTER, ask: (call) => call('GET', `${levelPath}/secrets/values`) },
  'the matrix of a project': { lock: COUNTER, ask: (call) => call('GET', `/${o}/${level.project}/secrets/matrix?only=missing`) },
  'the key of a project': { lock: COUNTER, ask: (call) => call('GET', `/${o}/${level.project}/encryption-key`) },
  'a dry run': {
    lock: COUNTER, ask: (call) => call('PATCH', `${levelPath}/secrets?dry_run=true`, { set: { PASSWORD: 'other' } })
  },
  'the versions of a level': {
    lock: tableOf('secret_versions'), ask: (call) => call('POST', `/${o}/secrets/versions`, level)
  },
  'a list of teams': { lock: tableOf('teams'), ask: (call) => call('GET', `/organizations/${o}/teams`) }
}

t.test('a read that waits for the database is judged again before its response', async (t) => {
  const person = await makePerson(service, { [o]: 'owner' })
  for (const [what, { lock, ask }] of Object.entries(READS)) {
    const { access, grant } = await issuePair(service, person, SCOPE_NAMES)
    const call = callWith({ inject }, access)
    const live = await whileLocked(lock, () => ask(call), async () => {})
    t.equal(live.status, 200, `${what}, of a caller who may read: ${live.text.slice(0, 100)}`)
    const late = await whileLocked(lock, () => ask(call), () => revokeGrant(service.database.db, grant))
    t.match(late, { status: 401, body: { error: 'unauthenticated' } }, `${what}, of an application whose grant ended`)
    t.notMatch(late.text, /hunter2/, what)
  }
})

t.test('a change that ends its own caller is answered, however late', async (t) => {
  const { token } = await service.token(o, ['*'])
  const call = callWith({ inject }, token)
  const [row] = await service.sql(`SELECT id::text FROM api_tokens WHERE organization_id = '${o}' ORDER BY id DESC LIMIT 1`)
  const path = `/organizations/${o}/api-keys/${String(row!.id)}`
  const rotated = await call('POST', `${path}/rotate`, {})
  t.equal(rotated.status, 200)
  t.equal((await call('GET', `/organizations/${o}/teams`)).status, 401, 'the former value')
  t.equal((await callWith({ inject }, rotated.body.token)('DELETE', path)).status, 204)
})
