// runs: one database; 40 s
import t from 'tap'
import { getTableColumns, getTableName, is, sql } from 'drizzle-orm'
import { PgTable, type PgColumn } from 'drizzle-orm/pg-core'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { hashToken, mintCredential, mintSecret } from '../../src/crypto/bearer.ts'
import { AUTHENTICATED, type AuthenticatedTable } from '../../src/db/rows/authenticated.ts'
import { authorityOf } from '../../src/db/database.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { eventRow } from '../../src/db/events.ts'
import * as tables from '../../src/db/tables.ts'
import { recordLate } from '../../src/changes/late.ts'
import { operatorOf } from '../../src/repositories/audit/audit.ts'
import { createCode, createGrant, createRequest } from '../../src/repositories/people/oauth.ts'
import { createSession } from '../../src/repositories/people/sessions.ts'
import { createSignInStep } from '../../src/repositories/people/second-factors.ts'
import { createPersonalEvent } from '../../src/repositories/people/personal-events.ts'
import { createPasswordReset } from '../../src/repositories/people/password-resets.ts'
import { createPasswordLink, findUser } from '../../src/repositories/people/users.ts'
import { makeLevel, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { readDoc } from '../helpers/docs.ts'
import { byTurns, LONG } from '../helpers/long.ts'
import { OPERATIONS, publishedPaths, requestOf, settle } from '../helpers/operations.ts'
import { CALLBACK, giveSecondFactor, issuePair, makePerson, makeTeam, pkce } from '../helpers/people.ts'
import { beside } from '../helpers/statements.ts'

// SQL changes rows. The responses must not show the changed values of authenticated columns.

t.setTimeout(120_000)

// This file has its own database, because it forges rows, and verifies all tables.
const service = await startIsolatedApp(t)
const { db } = service.database
const { caller, ids, sliceOf } = await settle(service, 'shown')
const o = caller.organization

// Creates one row in each authenticated table. All rows are about this organization, a member (`ids.member`), and an
// owner who has everything that a person can have.
const owner = await makePerson(service, { [o]: 'owner' })
const { access } = await issuePair(service, owner, SCOPE_NAMES)
const cookie = mintSecret()
await giveSecondFactor(service, owner)
const user = (await findUser(db, owner.id))!
const verified = { ...user, password_hash: user.password_hash! }
await createSession(db, hashToken(cookie), verified, { browser: 'Firefox', system: 'Linux', network: '192.0.2.0/24' })
await createSignInStep(db, hashToken('step'), verified)
await createPasswordLink(db, hashToken('link'), owner.id)
await createPasswordReset(db, owner.email, 'reset', owner.id)
await createPersonalEvent(db, {
  user_id: owner.id,
  action: 'session.create',
  actor_type: 'user',
  ip: '192.0.2.1',
  user_agent: 'Browser',
  details: { attempts: 1 }
})
const inviting = await service.organization()
const invited = await inviting.call('POST', `/organizations/${inviting.organization}/members`, {
  email: owner.email, role: 'auditor'
})
await createRequest(db, hashToken('request'), hashToken(cookie), {
  client_id: 'dotenv-cli', redirect_uri: CALLBACK, state: 's', code_challenge: pkce().challenge, scopes: ['project:read']
})
await createCode(db, {
  code_hash: hashToken(mintCredential('ac')),
  grant_id: await createGrant(db, { user_id: owner.id, client_id: 'dotenv-cli', scopes: ['project:read'] }),
  redirect_uri: CALLBACK,
  code_challenge: pkce().challenge
})
const narrow = await service.token(o, ['secret:read'], {
  slices: [sliceOf()], expires_at: new Date(Date.now() + 3_600_000)
})
await service.rotate((await service.token(o, ['secret:read'])).token, 3600)
const its = (token: string) => `token_hash = '\\x${hashToken(token).toString('hex')}'`
await service.write(`UPDATE api_tokens SET user_id = ${owner.id}, created_by_type = 'user', created_by_id = ${owner.id},
  created_by_name = 'Somebody' WHERE ${its(narrow.token)}`)
ids.id = String((await service.sql(`SELECT id FROM api_tokens WHERE ${its(narrow.token)}`))[0]!.id)
/** Creates an event that has no number yet. */
async function makeLate () {
  const event = eventRow(operatorOf(o), { action: 'session.create', resource_type: 'user', resource_id: 'late' })
  await service.sql('DELETE FROM late_events')
  await service.write(`INSERT INTO late_events (organization_id, occurred_at, event)
    VALUES ('${o}', '2026-03-01T12:00:00Z', '${JSON.stringify(event)}')`)
}

const inWorld = (slug: string) => `slug = '${slug}' AND organization_id = '${o}'`
/** Selects the rows to change. For other tables, any row is good. */
const ROWS: Partial<Record<AuthenticatedTable, string[]>> = {
  users: [`id = ${ids.member}`, `id = ${owner.id}`],
  members: [`organization_id = '${o}' AND user_id = ${ids.member}`, `organization_id = '${o}' AND user_id = ${owner.id}`],
  api_tokens: [its(narrow.token)],
  invitations: [`id = '${ids.invitation}'`, `id = '${invited.body.data.id}'`],
  personal_events: [`user_id = ${owner.id}`],
  oauth_clients: ["id = 'dotenv-cli'"],
  oauth_tokens: [`access_hash = '\\x${hashToken(access).toString('hex')}'`],
  projects: [inWorld(ids.project!)],
  targets: [inWorld(ids.target!)],
  environments: [inWorld(ids.environment!)],
  secrets: [`organization_id = '${o}' AND level = 'environment'`]
}

const LEVELS: AuthenticatedTable[] = ['projects', 'targets', 'environments', 'secrets']

interface Declared { table: PgTable, fields: readonly string[], presence: readonly string[] }

/** The original row, before the change. */
interface Kept { now: Record<string, unknown>, mac: Buffer }

interface Asked { id: string, url: string, headers: Record<string, string> }

// Every GET of the OpenAPI document, with all queries that reveal more, by an API token. Requests about the caller also
// run as a person, together with the account pages.
const bearer = (token: string) => ({ authorization: `Bearer ${token}` })
const gets = Object.entries(OPERATIONS).filter(([, { at }]) => at.startsWith('GET '))
const asked: Asked[] = gets.flatMap(([id, row]) => {
  const { url } = requestOf(row, ids)
  const revealing = (row.reveals ?? []).map(({ query = '' }) =>
    ({ id: id + query, url: requestOf({ ...row, query }, ids).url, headers: bearer(caller.token) }))
  const byToken = [{ id, url, headers: bearer(caller.token) }, ...revealing]
  const byPerson = { id: `${id} by a person`, url, headers: bearer(access) }
  if (row.byPerson) return [byPerson]
  return row.access === 'authenticated' || id === 'getOrganization' ? [...byToken, byPerson] : byToken
})
asked.push({ id: 'the account', url: '/account', headers: { cookie: `session=${cookie}` } })

// At most 16 reads of a caller wait for their turn.
const AT_ONCE = 16

const LOGS = ['listAuditEvents', 'exportAuditEvents']

/**
 * The responses as text. Leaves out the resource of violation events, because the changed row determines its id.
 *
 * @param isLevel whether to include all requests that reveal more of a document
 * @param only the requests to send; default: all
 */
async function answers (
  isLevel = true, only?: ReadonlySet<string>
): Promise<Map<string, { status: number, text: string }>> {
  const wanted = asked.filter(({ id }) => (isLevel || !id.includes('?')) && (only?.has(id) ?? true))
  const answerOf = async ({ id, url, headers }: Asked) => {
    const { status, text, body } = await service.inject({ url, headers })
    if (!LOGS.includes(id) || status !== 200) return [id, { status, text }] as const
    const shown = body?.data ?? text.trim().split('\n').map((line) => JSON.parse(line) as object)
    const events = (shown as { attributes: { action: string, resource: object } }[]).map(({ attributes }) =>
      attributes.action === 'integrity.violation' ? { ...attributes, resource: {} } : attributes)
    return [id, { status, text: JSON.stringify(events) }] as const
  }
  const all = []
  for (let i = 0; i < wanted.length; i += AT_ONCE) {
    all.push(...await Promise.all(wanted.slice(i, i + AT_ONCE).map(answerOf)))
  }
  return new Map(all)
}

let changes = 0
const ULID = () => `7ZZZZZZZZZZZZZZZZZZZZZZ${String(changes).padStart(3, '0')}`

interface Change {
  /** The new value, as SQL. */
  value: string
  /** The new value as a response would show it. */
  shown: string
  /** Whether the shown value can come only from the change. */
  isUnique: boolean
}

/** Other values for a column: a value that did not exist before, if the type allows it, or else another valid word. */
function changesOf (column: PgColumn & { length?: number }, now: unknown): Change[] {
  const { name, dataType, enumValues, notNull, length } = column
  changes++
  const found: Change[] = []
  const unique = (shown: string, value = `'${shown}'`) => found.push({ value, shown, isUnique: true })
  const word = (shown: string, value: string) => found.push({ value, shown, isUnique: false })
  if (dataType === 'boolean') word(`"${name}":${String(now !== true)}`, `NOT coalesce(${name}, false)`)
  else if (dataType === 'number') unique(String(1_900_000_000 + changes), String(1_900_000_000 + changes))
  else if (dataType === 'date') unique(`2031-02-03T04:05:06.${String(changes).padStart(3, '0')}Z`)
  else if (dataType === 'array') word('"organization:delete"', "ARRAY['organization:delete']")
  else if (name === 'slices') word(`"${ids.otherProject!}"`, `'${JSON.stringify([sliceOf('project')])}'`)
  else if (name === 'place') word(`"${ids.otherProject!}"`, `'${JSON.stringify(sliceOf('project'))}'`)
  else if (name === 'claims') unique(ULID(), `'{"sub":"${ULID()}"}'`)
  else if (name === 'jwks') unique(ULID(), `'{"keys":[{"kty":"RSA","kid":"${ULID()}"}]}'`)
  else if (name === 'event') unique(ULID(), `replace(${name}::text, '"late"', '"${ULID()}"')::jsonb`)
  else if (name === 'details') unique(ULID(), `'{"attempts":"${ULID()}"}'`)
  else if (dataType === 'custom') unique(hashToken(String(changes)).toString('hex'), `sha256('${changes}')`)
  else if (enumValues !== undefined && enumValues.length > 0) {
    const another = enumValues.find((one) => one !== now)!
    word(`"${another}"`, `'${another}'`)
  } else if (length === 26) unique(ULID())
  // With a blank, which no random text (a nonce, a token) contains.
  else unique(`zq ${changes}`.slice(0, length))
  if (!notNull && now !== null) word(`"${name}":null`, 'NULL')
  return found
}

const occurrences = (text: string, part: string) => text.split(part).length - 1
const run = (statements: string[]) => beside(() => transaction(db, async (db) => {
  await db.execute(sql.raw("SET LOCAL session_replication_role = 'replica'"))
  for (const one of statements) await db.execute(sql.raw(one))
}))

t.test('no response contains an authenticated column of a row whose MAC does not verify', async (t) => {
  const published = Object.entries(publishedPaths(service)).flatMap(([path, methods]) =>
    methods.get === undefined ? [] : [`GET ${path}`])
  t.strictSame(gets.map(([, { at }]) => at).sort(), published.sort(), 'every GET of the document is asked')
  const [before, again] = [await answers(), await answers()]
  for (const [id, { status, text }] of before) {
    const isNone = id === 'getOwnOrganization by a person'
    t.equal(status, isNone ? 422 : 200, `${id}: ${text.slice(0, 200)}`)
    t.equal(again.get(id)!.status, status)
  }
  const whole = [...before.values()].map(({ text }) => text).join('\n')

  const wrong: string[] = []
  const seen = new Set<string>()
  let tried = 0
  for (const [turn, name] of (Object.keys(AUTHENTICATED) as AuthenticatedTable[]).entries()) {
    const declared = AUTHENTICATED[name] as Declared
    const columns = getTableColumns(declared.table) as Record<string, PgColumn>
    for (const which of (ROWS[name] ?? ['true']).slice(0, LONG ? 2 : 1)) {
      if (name === 'late_events') await makeLate()
      await service.sql(`CREATE TABLE kept AS SELECT * FROM ${name} WHERE ${which} LIMIT 1`)
      const [row] = await service.sql('SELECT to_jsonb(kept) AS now, mac FROM kept') as unknown as Kept[]
      if (row === undefined) throw new Error(`no row of ${name} is there to be changed`)
      const its = `mac = '\\x${row.mac.toString('hex')}'`
      await service.sql('CREATE TABLE changed AS SELECT * FROM kept')
      const put = (from: string) =>
        [`DELETE FROM ${name} WHERE ${its}`, `INSERT INTO ${name} OVERRIDING SYSTEM VALUE SELECT * FROM ${from}`]
      // Without LONG, tests only one row of each table. For every second table, tests only requests whose response
      // depends on the row, each by one of its paths. Each response encrypts documents anew, so the test checks
      // encrypted documents only for rows of levels.
      let only: Set<string> | undefined
      if (!LONG) {
        await run([`DELETE FROM ${name} WHERE ${its}`])
        if (name === 'late_events') await recordLate(db, o)
        const paths = byTurns(asked.map(({ id }) => id), turn, 2).filter((id) => !id.includes('LongPath') &&
          (LEVELS.includes(name) || !/^read\w+Secrets$/.test(id)))
        const without = await answers(LEVELS.includes(name), new Set(paths))
        await run(put('kept'))
        only = new Set([...without].filter(([id, { text }]) => text !== before.get(id)!.text).map(([id]) => id))
      }
      for (const field of declared.fields) {
        // These columns are sealed. The MAC covers only whether they have a value, and no response shows that.
        if (declared.presence.includes(field)) continue
        const now = row.now[field]
        if (typeof now === 'string' && whole.includes(now)) seen.add(`${name}.${field}`)
        // Without LONG, one change of each column, and the audit log only after the first change of a row.
        const all = changesOf(columns[field]!, now)
        for (const { value, shown, isUnique } of LONG ? all : all.slice(0, 1)) {
          tried++
          // Inserts the changed row, because an organization's row is on its own node of a cluster.
          await run([`UPDATE changed SET ${field} = ${value}`, ...put('changed')])
          if (name === 'late_events') await recordLate(db, o)
          for (const [id, { status, text }] of await answers(LEVELS.includes(name), only)) {
            // Each event changes the page of the log.
            if (LOGS.includes(id) && !isUnique) continue
            if (occurrences(text, shown) > occurrences(before.get(id)!.text, shown)) {
              wrong.push(`${name}.${field} = ${shown}: ${id}: ${status} ${text.slice(0, 300)}`)
            }
          }
          if (name !== 'late_events') for (const id of LOGS) only?.delete(id)
          await authorityOf(db).settled()
          await run([...put('kept'), 'DELETE FROM changed', 'INSERT INTO changed SELECT * FROM kept'])
        }
      }
      await service.sql('DROP TABLE kept, changed')
    }
  }
  t.same(wrong, [])
  t.ok(tried > (LONG ? 140 : 80), `${tried} changes`)
  for (const shown of [
    'users.email', 'users.name', 'members.role', 'teams.id', 'teams.slug', 'team_projects.role',
    'api_tokens.name', 'api_tokens.token_prefix', 'api_tokens.token_suffix', 'api_tokens.created_by_name', 'oauth_clients.name', 'projects.slug',
    'projects.secret_format', 'projects.history_policy', 'targets.slug', 'environments.slug', 'environments.status'
  ]) t.ok(seen.has(shown), `${shown} is in a response while nothing is changed`)
  const after = await answers()
  t.strictSame([...after].map(([id, { status }]) => [id, status]), [...before].map(([id, { status }]) => [id, status]))
  t.same(service.logs.filter((line) => line.includes('"error_code":"internal_error"')), [], 'nothing failed in another way')
})

t.test('a list leaves out a person whose account was changed, and counts them; they can still be removed', async (t) => {
  const { organization, call } = await service.organization()
  const [rosa, ben] = [
    await makePerson(service, { [organization]: 'owner' }), await makePerson(service, { [organization]: 'member' })
  ]
  const team = await makeTeam(service, organization, [rosa, ben], {})
  await service.sql(`UPDATE users SET email = 'mallory@evil.example' WHERE id = ${ben.id}`)
  const members = await call('GET', `/organizations/${organization}/members`)
  t.match(members, { status: 200, body: { meta: { total: 2 } } })
  t.strictSame(members.body.data.map(({ id }: { id: string }) => id), [String(rosa.id)])
  t.equal((await call('GET', `/organizations/${organization}/members/${ben.id}`)).status, 404)
  const { body } = await call('GET', `/organizations/${organization}/teams/${team}`)
  t.strictSame(body.data.attributes.members.map(({ id }: { id: string }) => id), [String(rosa.id)])
  await authorityOf(db).settled()
  t.match(await service.sql(`SELECT resource_type, resource_id FROM audit_events
    WHERE organization_id = '${organization}' AND action = 'integrity.violation'`), [
    { resource_type: 'users', resource_id: String(ben.id) }
  ])
  t.equal((await call('DELETE', `/organizations/${organization}/members/${ben.id}`)).status, 204)
})

t.test('a list, team or token that would show a changed slug is integrity_error, and the log names the row', async (t) => {
  const { organization, call } = await service.organization()
  const at = await makeLevel({ organization, call } as Caller)
  const place = `/${organization}/${at.project}`
  const team = await makeTeam(service, organization, [], { [at.project]: 'member' })
  const { text } = await call('POST', `/organizations/${organization}/api-keys`, {
    name: 'Narrow', abilities: ['secret:read'], restrictions: [at]
  })
  const { api_key: { id: token } } = JSON.parse(text)
  const tokens = `/organizations/${organization}/api-keys`
  const shownIn = {
    projects: [`/${organization}/projects`, `/organizations/${organization}/teams/${team}`, tokens, `${tokens}/${token}`],
    targets: [`${place}/targets`, tokens, `${tokens}/${token}`],
    environments: [`${place}/${at.target}/environments`, tokens, `${tokens}/${token}`]
  }
  for (const [table, paths] of Object.entries(shownIn)) {
    const [{ id, slug }] = await service.sql(
      `SELECT id, slug FROM ${table} WHERE organization_id = '${organization}'`
    ) as [{ id: string, slug: string }]
    const set = (slug: string) => service.sql(`UPDATE ${table} SET slug = '${slug}' WHERE id = '${id}'`)
    for (const path of paths) {
      t.equal((await call('GET', path)).status, 200, path)
      await set('other')
      t.match(await call('GET', path), { status: 500, body: { error: 'integrity_error' } }, `${table}: ${path}`)
      await set(slug)
    }
    t.ok(service.logs.some((line) => line.includes(`${table} ${id} is not what the service wrote`)), `${table} in the log`)
  }
})

t.test('a moment that cannot be brought back names no level whose row was changed', async (t) => {
  const { organization, call } = await service.organization()
  const at = await makeLevel({ organization, call } as Caller)
  const store = (plaintext: string, no_backup: boolean) =>
    call('POST', `/${organization}/secrets/store`, { ...at, plaintext, no_backup })
  await store('A=1', false)
  const moment = new Date().toISOString()
  for (const [plaintext, no_backup] of [['A=2', true], ['A=3', false]] as const) {
    t.equal((await store(plaintext, no_backup)).status, 200)
  }
  const restore = () => call('POST', `/${organization}/${at.project}/restore-to`, { at: moment, confirmed: true })
  t.match(await restore(), {
    status: 422, body: { error: 'version_gone', details: { level: `${at.project}/${at.target}/${at.environment}` } }
  })
  await service.sql(`UPDATE environments SET slug = 'other' WHERE organization_id = '${organization}'`)
  t.match(await restore(), { status: 500, body: { error: 'integrity_error' } })
})

t.test('SECURITY.md names each column and table that is not authenticated, and what a change of it does', (t) => {
  const effects = new Map<string, string[]>()
  const add = (name: string, effect: string) => effects.set(effect, [...effects.get(effect) ?? [], name])
  for (const [table, { exempt }] of Object.entries(AUTHENTICATED)) {
    for (const [column, effect] of Object.entries(exempt)) add(`${table}.${column}`, effect)
  }
  for (const [table, effect] of Object.entries(tables.UNAUTHENTICATED)) add(table, effect)
  const expected = [...effects].map(([effect, names]) => [names.join(', '), effect.replaceAll('`', '')])
  t.strictSame(readDoc('SECURITY.md').table('| Column or table | What a change does |'), expected, 'otherwise: npm run openapi')

  const declared = [...Object.keys(AUTHENTICATED), ...Object.keys(tables.UNAUTHENTICATED)].sort()
  const all = Object.values(tables).flatMap((table) => is(table, PgTable) ? [getTableName(table)] : [])
  t.strictSame(declared, all.sort(), 'no table is missing')
  t.end()
})
