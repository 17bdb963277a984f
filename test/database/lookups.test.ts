// runs: one database
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t from 'tap'
import { mintApiToken } from '../../src/crypto/bearer.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { findLevel } from '../../src/repositories/levels/levels.ts'
import { makeLevel, ON_CITUS, startApp, type Caller } from '../helpers/app.ts'

// The service combines the look-ups of one turn of the event loop in one statement. Each caller must get its own
// result, and never that of another caller.

const service = await startApp(t)
const CALLERS = 24

/** The statements that the service sends during the work. */
async function statementsOf<T> (work: () => Promise<T>): Promise<{ result: T, statements: string[] }> {
  const statements: string[] = []
  const look = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (phase === 'before') statements.push(text)
  }
  subscribe('strongroom:statement', look)
  try {
    return { result: await work(), statements }
  } finally {
    unsubscribe('strongroom:statement', look)
  }
}

const callers: { caller: Caller, content: string }[] = []
for (let i = 0; i < CALLERS; i++) {
  const caller = await service.organization()
  const level = await makeLevel(caller)
  await caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: `OWNER=${i}` })
  callers.push({ caller, content: `OWNER=${i}` })
}
const read = ({ organization, call }: Caller) => call('GET', `/${organization}/orbit/backend/live/secrets?decrypt=true`)
// The first request of each token records its use; later requests do not.
for (const { caller } of callers) await read(caller)

t.test('callers and levels of one turn are looked up in one statement each, and each gets its own', async (t) => {
  const { result, statements } = await statementsOf(() => Promise.all(callers.map(({ caller }) => read(caller))))
  for (const [i, { status, body }] of result.entries()) {
    t.equal(status, 200)
    t.equal(body.data.attributes.levels.environment.content, callers[i]!.content)
  }
  const of = (table: string) => statements.filter((text) =>
    new RegExp(`^select .* from jsonb_.* join (lateral \\(select [\\w\\s,*]+ from )?"?${table}\\b`, 'is').test(text.trim())).length
  // On Citus, the service sends a statement for each organization, which runs on the organization's node.
  const most = ON_CITUS ? CALLERS : CALLERS / 4
  t.ok(of('api_tokens') >= 1 && of('api_tokens') <= most, `${of('api_tokens')} statements for ${CALLERS} tokens`)
  t.ok(of('encryption_keys') >= 1 && of('encryption_keys') <= most, `${of('encryption_keys')} statements for ${CALLERS} levels`)
})

t.test('a level is looked up with its caller, and is not returned to a caller that has ended meanwhile', async (t) => {
  const { organization, call } = await service.organization()
  const level = await makeLevel({ organization, call } as Caller)
  await call('POST', `/${organization}/secrets/store`, { ...level, plaintext: 'A=1' })
  const path = `/${organization}/orbit/backend/live/secrets`
  const levelsIn = (statements: string[]) => statements.filter((text) => /AS recorded_revision/.test(text)).length
  await call('GET', path)
  const phases: string[] = []
  const look = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (/jsonb_/.test(text)) phases.push(phase)
  }
  subscribe('strongroom:statement', look)
  t.equal((await call('GET', path)).status, 200)
  unsubscribe('strongroom:statement', look)
  t.strictSame(phases, ['before', 'before', 'after', 'after'], 'one wait')
  const weak = await service.token(organization, ['project:read'])
  for (let time = 0; time < 3; time++) {
    const { result, statements } = await statementsOf(() => weak.call('GET', path))
    t.strictSame([result.status, levelsIn(statements)], [403, 0], 'nothing is looked up for who is refused')
  }
  await service.write(`UPDATE api_tokens SET expires_at = now() WHERE organization_id = '${organization}'`)
  const first = await statementsOf(() => call('GET', path))
  t.strictSame([first.result.status, levelsIn(first.statements)], [401, 1], 'looked up, and not returned')
  const second = await statementsOf(() => call('GET', path))
  t.strictSame(
    [second.result.status, levelsIn(second.statements)], [401, 0], 'of a credential that has ended nothing is expected'
  )
})

t.test('what is wrong with one is no other one\'s answer', async (t) => {
  const [tampered, revoked] = callers as [typeof callers[number], typeof callers[number]]
  await service.sql(`UPDATE secrets SET mac = NULL WHERE organization_id = '${tampered.caller.organization}'`)
  await service.sql(`DELETE FROM api_tokens WHERE organization_id = '${revoked.caller.organization}'`)
  const forged = service.inject({
    url: '/api/v1/organization', headers: { authorization: `Bearer ${mintApiToken(revoked.caller.organization)}` }
  })
  const nowhere = callers[2]!.caller.call('GET', `/${callers[2]!.caller.organization}/orbit/nowhere/secrets`)
  const answers = await Promise.all(callers.map(({ caller }) => read(caller)))
  t.strictSame(
    answers.map(({ status }) => status), callers.map((one) => one === tampered ? 500 : one === revoked ? 401 : 200)
  )
  t.equal((await forged).status, 401)
  t.equal((await nowhere).status, 404)
  // A value that the database refuses makes the shared statement fail for all callers.
  const { organization } = callers[2]!.caller
  const [broken, good] = await Promise.allSettled(['orb\0it', 'orbit'].map((project) =>
    findLevel(service.database.reads, organization, { project }, 'place')))
  t.equal(broken?.status, 'rejected')
  t.match(good, { status: 'fulfilled', value: { slug: 'orbit' } })
})

t.test('many ask at once, more than one statement takes', async (t) => {
  const { caller, content } = callers[3]!
  const { organization } = caller
  const names = Array.from({ length: 250 }, (_, i) =>
    ({ project: i % 2 === 0 ? 'orbit' : `none-${i}`, target: 'backend', environment: 'live' }))
  const { result, statements } = await statementsOf(() =>
    Promise.all(names.map((one) => findLevel(service.database.reads, organization, one, 'place'))))
  t.strictSame(result.map((state) => state?.slug), names.map(({ project }) => project === 'orbit' ? 'live' : undefined))
  t.ok(statements.length <= 3, `${statements.length} statements`)
  t.equal((await read(caller)).body.data.attributes.levels.environment.content, content)
})

t.test('in a transaction it is looked up at once, alone, and sees what that has changed', async (t) => {
  const { organization } = callers[4]!.caller
  await t.rejects(transaction(service.database.db, async (db) => {
    await db.execute(`UPDATE targets SET name = 'Changed' WHERE organization_id = '${organization}'`)
    const level = await findLevel(db, organization, { project: 'orbit', target: 'backend' }, 'place')
    t.equal(level?.slug, 'backend')
    await db.execute(`DELETE FROM targets WHERE organization_id = '${organization}'`)
    t.equal(await findLevel(db, organization, { project: 'orbit', target: 'backend' }, 'place'), undefined)
    throw new Error('undone')
  }), /undone/)
})
