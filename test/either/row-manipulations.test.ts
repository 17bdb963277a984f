import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t from 'tap'
import { ulid } from 'ulidx'
import { getTableColumns, sql } from 'drizzle-orm'
import { formToken, hashToken, mintApiToken, mintCredential, mintSecret, tokenPrefix } from '../../src/crypto/bearer.ts'
import { hashPassword } from '../../src/crypto/passwords.ts'
import { hashRecoveryCode } from '../../src/crypto/second-factor.ts'
import { AUTHENTICATED, type AuthenticatedTable } from '../../src/db/rows/authenticated.ts'
import { authorityOf, codeOf, transaction } from '../../src/db/database.ts'
import { eventRow } from '../../src/db/events.ts'
import * as tables from '../../src/db/tables.ts'
import {
  createClient, createCode, createGrant, createPair, createRequest, revokeGrant, setClientDisabled
} from '../../src/repositories/people/oauth.ts'
import { createInvitation } from '../../src/repositories/people/invitations.ts'
import { createPersonalEvent } from '../../src/repositories/people/personal-events.ts'
import { listTokensOfPerson } from '../../src/repositories/people/tokens.ts'
import { createSignInStep } from '../../src/repositories/people/second-factors.ts'
import { createSession } from '../../src/repositories/people/sessions.ts'
import { operatorOf, recordLate } from '../../src/repositories/audit/audit.ts'
import { createPasswordLink, endEverything, findUser, setDisabled } from '../../src/repositories/people/users.ts'
import { makeLevel, startApp, type Answer } from '../helpers/app.ts'
import { authorizationUrl, CALLBACK, giveSecondFactor, issuePair, makePerson, pkce } from '../helpers/people.ts'
import { beside } from '../helpers/statements.ts'

// Somebody who can write to the database, against a service that has the master key. What is tried is made from the
// declaration of the authenticated columns, so that a new one is tried too. Every row that was tampered with has to be
// as if it were not there, or, of a level, to be refused; and it has to be recorded.

t.setTimeout(400_000)

const test = await startApp(t)
const { db } = test.database
const run = (statements: string[]) => beside(() => transaction(db, async (db) => {
  for (const one of statements) {
    await db.execute(sql.raw(one))
  }
}))
const hex = (bytes: Buffer) => `'\\x${bytes.toString('hex')}'::bytea`
const [nimbus, other] = [await test.organization(), await test.organization()]
const [o, foreign] = [nimbus.organization, other.organization]
const [rosa, mallory] = [
  await makePerson(test, { [o]: 'owner', [foreign]: 'auditor' }),
  await makePerson(test, { [foreign]: 'owner', [o]: 'auditor' })
]

/** Everything that somebody can be known by. */
async function credentialsOf (person: typeof rosa, client_id: string) {
  const made = {
    cookie: mintSecret(),
    link: mintSecret(),
    pending: mintSecret(),
    code: mintCredential('ac'),
    verifier: pkce(),
    access: mintCredential('at'),
    refresh: mintCredential('rt'),
    step: mintSecret(),
    browser: mintSecret(),
    factor: await giveSecondFactor(test, person),
    grant: 0
  }
  const user = (await findUser(db, person.id))!
  const verified = { ...user, password_hash: user.password_hash! }
  await createSession(db, hashToken(made.cookie), verified)
  await createSignInStep(db, hashToken(`${made.step} ${made.browser}`), verified)
  await createPasswordLink(db, hashToken(made.link), person.id)
  await createRequest(
    db, hashToken(made.pending), hashToken(made.cookie),
    { client_id, redirect_uri: CALLBACK, state: 's', code_challenge: made.verifier.challenge, scopes: ['project:read'] }
  )
  made.grant = await createGrant(db, { user_id: person.id, client_id, scopes: ['project:read', 'organization:read'] })
  const of = await createGrant(db, { user_id: person.id, client_id, scopes: ['project:read'] })
  await createCode(db, {
    code_hash: hashToken(made.code), grant_id: of, redirect_uri: CALLBACK, code_challenge: made.verifier.challenge
  })
  await createPair(db, {
    grant_id: made.grant,
    access_hash: hashToken(made.access),
    refresh_hash: hashToken(made.refresh),
    scopes: ['project:read', 'organization:read']
  })
  return made
}
await createClient(db, { id: 'web', name: 'Web', redirect_uris: [CALLBACK] })
await createClient(db, { id: 'evil', name: 'Evil', redirect_uris: ['https://evil.example.com/callback'] })
const mine = await credentialsOf(rosa, 'web')
const theirs = await credentialsOf(mallory, 'evil')
// A code is one for a minute; these are for as long as the tests take.
await test.write("UPDATE oauth_codes SET expires_at = now() + interval '1 hour'")
const [narrow, theirToken] = [
  await test.token(o, ['project:read'], { expires_at: new Date(Date.now() + 3_600_000) }),
  await test.token(foreign, ['*'])
]
const [former, theirFormer] = [await test.token(o, ['project:read']), await test.token(foreign, ['*'])]
for (const { token } of [former, theirFormer]) await test.rotate(token, 3600)
const at = await makeLevel(nimbus, { slug: 'orbit' })
const besides = await makeLevel(nimbus, { slug: 'comet' })
for (const [level, of] of [[at, 'orbit'], [besides, 'comet']] as const) {
  for (const place of [{ project: level.project }, { project: level.project, target: level.target }, level]) {
    const { status, text } = await nimbus.call('POST', `/${o}/secrets/store`, { ...place, plaintext: `FROM=${of}` })
    if (status !== 200) throw new Error(text)
  }
}
const levelPath = `/${o}/${at.project}/${at.target}/${at.environment}/secrets`
const { etag } = (await nimbus.call('GET', levelPath)).headers

// Somebody who is in the project by a team alone, and a stronger team that holds another one.
const theo = await makePerson(test, { [o]: 'billing_manager' })
const theirsToo = await issuePair(test, theo, ['project:read', 'organization:read'])
const [team, anotherTeam] = ['01ARZ3NDEKTSV4RRFFQ69G5FA0', '01ARZ3NDEKTSV4RRFFQ69G5FA1']
for (const [id, slug, of, held, role] of [
  [team, 'ours', theo.id, 'orbit', 'member'], [anotherTeam, 'theirs', mallory.id, 'comet', 'administrator']
]) {
  await test.write(`INSERT INTO teams (id, organization_id, name, slug) VALUES ('${id}', '${o}', 'Team', '${slug}')`)
  await test.write(`INSERT INTO team_members (organization_id, team_id, user_id) VALUES ('${o}', '${id}', ${of})`)
  await test.write(`INSERT INTO team_projects (organization_id, team_id, project_id, role)
    SELECT '${o}', '${id}', id, '${role}' FROM projects WHERE organization_id = '${o}' AND slug = '${held}'`)
}

// Ways to be somebody, each with what is answered; mutations are taken back after each manipulation.
type Ask = () => Promise<Answer>
const bearer = (token: string, url: string) => () => test.inject({ url, headers: { authorization: `Bearer ${token}` } })
const page = (url: string, cookie?: string) =>
  () => test.inject({ url, headers: cookie === undefined ? {} : { cookie: `session=${cookie}` } })
const form = (url: string, fields: Record<string, string>, cookie?: string) => () => test.inject({
  method: 'POST',
  url,
  headers: {
    'content-type': 'application/x-www-form-urlencoded', 'sec-fetch-site': 'same-origin', ...(cookie && { cookie })
  },
  payload: new URLSearchParams(fields).toString()
})
const exchange = (code: string, code_verifier: string, client_id = 'web') =>
  form('/api/oauth/token', { grant_type: 'authorization_code', code, code_verifier, client_id, redirect_uri: CALLBACK })
const signIn = (email: string, password: string): Ask => async () => {
  await test.sql('DELETE FROM sign_in_failures')
  const browser = mintSecret()
  return form('/oauth/sign-in', { form_token: formToken(browser), query: '', email, password }, `browser=${browser}`)()
}

const giveCode = (code: () => string | Promise<string>): Ask => async () => {
  await test.sql('DELETE FROM sign_in_failures')
  const { step, browser } = mine
  return form(
    '/oauth/sign-in/code', { form_token: formToken(browser), query: '', step, code: await code() }, `browser=${browser}`
  )()
}

// An organization that invites Rosa and another address, and an event of each account.
const inviting = (await test.organization()).organization
const invited = mintSecret()
const [invitation, anotherInvitation] = [
  await createInvitation(
    db, { organization_id: inviting, id: ulid(), email: rosa.email, role: 'auditor', invited_by: null }, hashToken(invited)
  ),
  await createInvitation(
    db, { organization_id: inviting, id: ulid(), email: 'ben@nimbus.example', role: 'owner', invited_by: null },
    hashToken(mintSecret())
  )
]
for (const { id } of [rosa, mallory]) {
  await createPersonalEvent(db, {
    user_id: id, action: 'session.create', actor_type: 'user', ip: '192.0.2.1', user_agent: 'Browser', details: {}
  })
}

/** Events of both that could not wait for their counter. */
async function makeLate () {
  for (const of of [o, foreign]) {
    const event = {
      ...eventRow(operatorOf(of), { action: 'session.create', resource_type: 'user', resource_id: 'late' }),
      occurred_at: '2026-03-01T12:00:00.000Z'
    }
    await test.write(`INSERT INTO late_events (organization_id, occurred_at, event)
      VALUES ('${of}', '${event.occurred_at}', '${JSON.stringify(event)}')`)
  }
}
await makeLate()

/** Puts others in their place: whoever signs in may have them numbered, and then they are no late events any more. */
async function renewLate () {
  await run(['DELETE FROM late_events'])
  await makeLate()
  await run(['DELETE FROM kept.late_events', 'INSERT INTO kept.late_events SELECT * FROM late_events'])
}

/** Numbers them; its answer is what the chains then have more. */
async function numberLate (): Promise<Answer> {
  const numbered = async () => (await test.sql(`SELECT organization_id || ' ' || seq AS event FROM audit_events
    WHERE action <> 'integrity.violation' ORDER BY organization_id, seq`)).map(({ event }) => String(event))
  const before = new Set(await numbered())
  for (const organization of [o, foreign]) while (await recordLate(db, organization) !== 0);
  const late = (await numbered()).filter((event) => !before.has(event)).map((event) => event.split(' ')[0])
  await renewLate()
  return { status: 200, headers: {}, text: late.join(), body: late }
}

const asks = {
  token: bearer(narrow.token, '/api/v1/organization'),
  former: bearer(former.token, '/api/v1/organization'),
  session: page('/account', mine.cookie),
  link: page(`/account/set-password/${mine.link}`),
  invitation: page(`/account/invitation/${inviting}.${invited}`),
  access: bearer(mine.access, '/api/v1/user'),
  member: bearer(mine.access, `/api/v1/${o}/projects`),
  organizations: bearer(mine.access, '/api/v1/organizations'),
  team: () => nimbus.call('GET', `/organizations/${o}/teams/ours`),
  teamed: bearer(theirsToo.access, `/api/v1/${o}/${at.project}`),
  refresh: form('/api/oauth/token', { grant_type: 'refresh_token', refresh_token: mine.refresh, client_id: 'web' }),
  code: exchange(mine.code, mine.verifier.verifier),
  authorize: page(authorizationUrl(mine.verifier.challenge, { client_id: 'web' }), mine.cookie),
  decision: form(
    '/oauth/authorize/decision', { form_token: formToken(mine.cookie), request: mine.pending, decision: 'deny' },
    `session=${mine.cookie}`
  ),
  password: signIn(rosa.email, rosa.password),
  factor: giveCode(() => mine.factor.code()),
  recovery: giveCode(() => mine.factor.codes[0]!),
  level: () => nimbus.call('GET', levelPath, undefined, { 'if-none-match': String(etag) }),
  decrypted: () => nimbus.call('GET', `${levelPath}?decrypt=true&merge=true`),
  late: numberLate
} satisfies Record<string, Ask>

interface Subject {
  /** Its row, and one of the same kind that is somebody else's. */
  row: string
  another: string
  asks: (keyof typeof asks)[]
  /**
   * What it is looked up by, so that another value is another row, and what says that it has ended: then it is not
   * there anyway.
   */
  finds: string[]
  /**
   * What it belongs to: with a value that is nobody's it is not found either, so that only somebody else's is tried.
   */
  refers?: string[]
}
const id = (query: string) => `id = (SELECT id FROM ${query})`
const users = (person: { id: number }) => `id = ${person.id}`
const project = (slug: string) => `(SELECT id FROM projects WHERE organization_id = '${o}' AND slug = '${slug}')`
const SUBJECTS: Record<AuthenticatedTable, Subject> = {
  users: {
    row: users(rosa),
    another: users(mallory),
    asks: ['session', 'access', 'link', 'password', 'factor'],
    finds: ['id', 'email_normalized', 'disabled_at']
  },
  members: {
    row: `organization_id = '${o}' AND user_id = ${rosa.id}`,
    another: `organization_id = '${o}' AND user_id = ${mallory.id}`,
    asks: ['member', 'organizations'],
    finds: ['organization_id', 'user_id', 'status']
  },
  invitations: {
    row: `organization_id = '${inviting}' AND id = '${invitation.id}'`,
    another: `organization_id = '${inviting}' AND id = '${anotherInvitation.id}'`,
    asks: ['invitation', 'session'],
    finds: ['organization_id', 'token_hash', 'email_normalized']
  },
  personal_events: {
    row: `user_id = ${rosa.id}`, another: `user_id = ${mallory.id}`, asks: ['session'], finds: ['user_id']
  },
  teams: {
    row: `organization_id = '${o}' AND id = '${team}'`,
    another: `organization_id = '${o}' AND id = '${anotherTeam}'`,
    asks: ['team'],
    finds: ['organization_id', 'id', 'slug']
  },
  team_members: {
    row: `organization_id = '${o}' AND team_id = '${team}'`,
    another: `organization_id = '${o}' AND team_id = '${anotherTeam}'`,
    asks: ['teamed'],
    finds: ['organization_id', 'team_id', 'user_id']
  },
  team_projects: {
    row: `organization_id = '${o}' AND team_id = '${team}'`,
    another: `organization_id = '${o}' AND team_id = '${anotherTeam}'`,
    asks: ['teamed'],
    finds: ['organization_id', 'team_id', 'project_id']
  },
  sessions: {
    row: `token_hash = ${hex(hashToken(mine.cookie))}`,
    another: `token_hash = ${hex(hashToken(theirs.cookie))}`,
    asks: ['session'],
    finds: ['token_hash'],
    refers: ['user_id']
  },
  password_links: {
    row: `token_hash = ${hex(hashToken(mine.link))}`,
    another: `token_hash = ${hex(hashToken(theirs.link))}`,
    asks: ['link'],
    finds: ['token_hash'],
    refers: ['user_id']
  },
  second_factors: {
    row: `user_id = ${rosa.id}`, another: `user_id = ${mallory.id}`, asks: ['factor', 'recovery'], finds: ['user_id']
  },
  recovery_codes: {
    row: `code_hash = ${hex(hashRecoveryCode(mine.factor.codes[0]!))}`,
    another: `code_hash = ${hex(hashRecoveryCode(theirs.factor.codes[0]!))}`,
    asks: ['recovery'],
    finds: ['user_id', 'code_hash']
  },
  sign_in_steps: {
    row: `token_hash = ${hex(hashToken(`${mine.step} ${mine.browser}`))}`,
    another: `token_hash = ${hex(hashToken(`${theirs.step} ${theirs.browser}`))}`,
    asks: ['factor', 'recovery'],
    finds: ['token_hash'],
    refers: ['user_id']
  },
  api_tokens: {
    row: `token_hash = ${hex(hashToken(narrow.token))}`,
    another: `token_hash = ${hex(hashToken(theirToken.token))}`,
    asks: ['token'],
    finds: ['token_hash'],
    refers: ['organization_id']
  },
  former_token_hashes: {
    row: `token_hash = ${hex(hashToken(former.token))}`,
    another: `token_hash = ${hex(hashToken(theirFormer.token))}`,
    asks: ['former'],
    finds: ['token_hash', 'organization_id', 'token_id']
  },
  oauth_clients: {
    row: "id = 'web'", another: "id = 'evil'", asks: ['authorize', 'access'], finds: ['id', 'disabled_at']
  },
  oauth_requests: {
    row: `id_hash = ${hex(hashToken(mine.pending))}`,
    another: `id_hash = ${hex(hashToken(theirs.pending))}`,
    asks: ['decision'],
    finds: ['id_hash', 'session_hash']
  },
  oauth_grants: {
    row: `id = ${mine.grant}`,
    another: `id = ${theirs.grant}`,
    asks: ['access', 'refresh'],
    finds: ['id', 'revoked_at'],
    refers: ['user_id', 'client_id']
  },
  oauth_codes: {
    row: `code_hash = ${hex(hashToken(mine.code))}`,
    another: `code_hash = ${hex(hashToken(theirs.code))}`,
    asks: ['code'],
    finds: ['code_hash', 'used_at', 'redirect_uri'],
    refers: ['grant_id']
  },
  oauth_tokens: {
    row: `access_hash = ${hex(hashToken(mine.access))}`,
    another: `access_hash = ${hex(hashToken(theirs.access))}`,
    asks: ['access', 'refresh'],
    finds: ['access_hash', 'refresh_hash', 'used_at'],
    refers: ['grant_id']
  },
  projects: {
    row: `id = ${project('orbit')}`,
    another: `id = ${project('comet')}`,
    asks: ['level', 'decrypted'],
    finds: ['id', 'organization_id', 'slug']
  },
  targets: {
    row: id(`targets WHERE project_id = ${project('orbit')}`),
    another: id(`targets WHERE project_id = ${project('comet')}`),
    asks: ['level', 'decrypted'],
    finds: ['id', 'organization_id', 'project_id', 'slug']
  },
  environments: {
    row: id(`environments WHERE project_id = ${project('orbit')}`),
    another: id(`environments WHERE project_id = ${project('comet')}`),
    asks: ['level', 'decrypted'],
    finds: ['id', 'organization_id', 'target_id', 'slug']
  },
  late_events: {
    row: `organization_id = '${o}'`,
    another: `organization_id = '${foreign}'`,
    asks: ['late'],
    finds: ['organization_id', 'id']
  },
  secrets: {
    row: id(`secrets WHERE project_id = ${project('orbit')} AND level = 'environment'`),
    another: id(`secrets WHERE project_id = ${project('comet')} AND level = 'environment'`),
    asks: ['level', 'decrypted'],
    finds: ['level_id', 'organization_id']
  }
}
const NAMES = Object.keys(AUTHENTICATED) as AuthenticatedTable[]
const LEVELS = new Set<string>(['projects', 'targets', 'environments', 'secrets'])

// Whoever may change a table may also have it count otherwise.
for (const table of ['users', 'api_tokens', 'oauth_grants', 'oauth_tokens', 'late_events']) {
  await test.sql(`ALTER TABLE ${table} ALTER COLUMN id SET GENERATED BY DEFAULT`)
}
await run(['CREATE SCHEMA kept', ...NAMES.map((table) => `CREATE TABLE kept.${table} AS SELECT * FROM ${table}`)])
const takeBack = (names: readonly AuthenticatedTable[] = NAMES) => run([
  "SET LOCAL session_replication_role = 'replica'",
  ...names.flatMap((table) =>
    [`DELETE FROM ${table}`, `INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM kept.${table}`])
])

// Of an answer, what does not differ from one request to the next.
const plain = ({ status, text }: Answer) =>
  `${status} ${text.replace(/nonce="[^"]+"|name="form_token" value="[^"]+"|"timestamp":"[^"]+"/g, '')}`
const recorded = async () => {
  await authorityOf(db).settled()
  const [row] = await test.sql("SELECT count(*)::int AS count FROM audit_events WHERE action = 'integrity.violation'")
  return {
    events: row!.count as number, lines: test.logs.filter((line) => line.includes('changed outside the service')).length
  }
}

const missing = new Map<string, Map<string, string>>()
const total = { made: 0, byDatabase: 0 }
const REFUSED =
  '500 {"error":"integrity_error","message":"A stored record was changed outside the service and was rejected. Contact the operator."}'

/** Makes a manipulation and looks whether everything that needs the row answers as without it, or refuses the level. */
async function manipulate (
  table: AuthenticatedTable, name: string, statements: string[], { isFound = true, isNew = true } = {}
): Promise<string[]> {
  total.made++
  try {
    await run(["SET LOCAL session_replication_role = 'replica'", ...statements])
  } catch (error) {
    if (!codeOf(error)?.startsWith('2')) throw error
    total.byDatabase++
    return []
  }
  const wrong: string[] = []
  const before = await recorded()
  for (const ask of SUBJECTS[table].asks) {
    const answer = plain(await asks[ask]())
    const absent = missing.get(table)!.get(ask)!
    const isRefused = LEVELS.has(table) ? answer === REFUSED || (!isFound && answer === absent) : answer === absent
    if (!isRefused) wrong.push(`${table}: ${name}: ${ask}: ${answer.slice(0, 300)} instead of ${absent.slice(0, 100)}`)
  }
  const after = await recorded()
  // A client belongs to no organization: in the log alone, unless it is about somebody's grant.
  const isRecorded = table === 'oauth_clients' ? after.lines > before.lines : after.events > before.events
  if (isFound && isNew && !isRecorded) wrong.push(`${table}: ${name}: nothing was recorded`)
  await takeBack()
  return wrong
}

t.test('every column of these tables is authenticated, or exempt for a reason', async (t) => {
  const key = (name: string) => AUTHENTICATED[name as AuthenticatedTable]
  for (const name of NAMES) {
    const { table, fields, exempt } = key(name) as {
      table: typeof tables.users
      fields: readonly string[]
      exempt: Record<string, string>
    }
    t.strictSame(Object.keys(getTableColumns(table)).sort(), [...fields, ...Object.keys(exempt), 'mac'].sort(), name)
    for (const reason of Object.values(exempt)) t.ok(reason.length > 5)
    const columns = await test.sql(
      `SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = '${name}' ORDER BY 1`
    )
    t.strictSame(
      columns.map(({ column_name }) => column_name), Object.keys(getTableColumns(table)).sort(),
      `${name} in the database`
    )
  }
})

t.test('everybody is who they are while nothing is touched, and nothing is recorded', async (t) => {
  for (const [name, ask] of Object.entries(asks)) {
    const { status, text } = await ask()
    t.ok([200, 303, 304].includes(status), `${name}: ${status} ${text.slice(0, 200)}`)
    await takeBack()
  }
  t.match(await recorded(), { events: 0, lines: 0 })
  t.strictSame((await asks.late()).body.sort(), [o, foreign].sort(), 'what is late gets its number')
  await takeBack()
  // What is answered without the row.
  for (const table of NAMES) {
    if (table === 'late_events') await renewLate()
    const answers = new Map<string, string>()
    for (const ask of SUBJECTS[table].asks) {
      await run(["SET LOCAL session_replication_role = 'replica'", `DELETE FROM ${table} WHERE ${SUBJECTS[table].row}`])
      answers.set(ask, plain(await asks[ask]()))
      await takeBack()
    }
    missing.set(table, answers)
  }
})

t.test('a late event that has its number gets no other one, whoever puts a copy of it back', async (t) => {
  await renewLate()
  await run(['CREATE TABLE kept.copies AS SELECT * FROM late_events'])
  const [{ id }] = await test.sql(`SELECT id::float8 AS id FROM late_events WHERE organization_id = '${o}'`) as [{ id: number }]
  t.strictSame((await asks.late()).body.sort(), [o, foreign].sort())
  const numbered = () => test.sql(`SELECT seq::int FROM audit_events
    WHERE organization_id = '${o}' AND details = '{"late": ${id}}' AND resource_id = 'late'`)
  t.equal((await numbered()).length, 1, 'which says which one it was')
  const before = await recorded()
  await run([
    'DELETE FROM late_events', 'INSERT INTO late_events OVERRIDING SYSTEM VALUE SELECT * FROM kept.copies'
  ])
  t.strictSame((await asks.late()).body, [])
  t.equal((await numbered()).length, 1)
  t.match(await recorded(), { events: before.events + 2, lines: before.lines + 2 })
  await takeBack()
})

t.test('nothing that has ended comes back when its mark is taken away', async (t) => {
  const pairOf = async (ask: Ask) => (await ask()).body as { access_token: string, refresh_token: string }
  const revived: [name: string, end: () => Promise<unknown>, statement: string, ask: Ask][] = [
    [
      'a revoked grant', () => revokeGrant(db, mine.grant),
      `UPDATE oauth_grants SET revoked_at = NULL WHERE id = ${mine.grant}`, asks.access
    ],
    [
      'a revoked grant, refreshed', () => revokeGrant(db, mine.grant),
      `UPDATE oauth_grants SET revoked_at = NULL WHERE id = ${mine.grant}`, asks.refresh
    ],
    [
      'grants of a new password', () => endEverything(db, rosa.id),
      `UPDATE oauth_grants SET revoked_at = NULL WHERE id = ${mine.grant}`, asks.access
    ],
    [
      'a used code', () => pairOf(asks.code), `UPDATE oauth_codes SET used_at = NULL WHERE ${SUBJECTS.oauth_codes.row}`,
      asks.code
    ],
    [
      'a used refresh token', () => pairOf(asks.refresh),
      `UPDATE oauth_tokens SET used_at = NULL WHERE ${SUBJECTS.oauth_tokens.row}`, asks.refresh
    ],
    [
      'the access token of a used pair', () => pairOf(asks.refresh),
      `UPDATE oauth_tokens SET used_at = NULL WHERE ${SUBJECTS.oauth_tokens.row}`, asks.access
    ],
    [
      'a closed account', () => transaction(db, (db) => setDisabled(db, rosa.id, true)),
      `UPDATE users SET disabled_at = NULL WHERE id = ${rosa.id}`, asks.password
    ],
    [
      'a client that is shut out', () => setClientDisabled(db, 'web', true),
      "UPDATE oauth_clients SET disabled_at = NULL WHERE id = 'web'", asks.authorize
    ],
    ['a burnt code', async () => {
      for (let i = 0; i < 5; i++) await exchange(mine.code, pkce().verifier)()
    }, `UPDATE oauth_codes SET expires_at = now() + interval '1 minute', wrong_verifiers = 0 WHERE ${SUBJECTS.oauth_codes.row}`, asks.code]
  ]
  const told = new Set<string>()
  for (const [name, end, statement, ask] of revived) {
    total.made++
    await end()
    await test.sql(statement)
    const before = await recorded()
    const { status, text } = await ask()
    t.ok([400, 401, 422].includes(status), `${name}: ${status} ${text.slice(0, 200)}`)
    // The same row in the same state is told of once.
    if (!told.has(statement)) t.ok((await recorded()).lines > before.lines, `${name} is told of`)
    told.add(statement)
    await takeBack()
  }
})

// Other values for a column of the subject's row, beside that of somebody else's row.
function valuesFor (column: { dataType: string, notNull: boolean, name: string }): string[] {
  const { dataType, name } = column
  if (dataType === 'array') return [`array_append(${name}, '*')`, "'{}'"]
  if (dataType === 'date') {
    return [`coalesce(${name}, now()) + interval '1 year'`, `coalesce(${name}, now()) + interval '1 millisecond'`]
  }
  // Somebody's: with the id of none it would not be found.
  if (name === 'grant_id') return [String(mine.grant), String(theirs.grant)]
  if (dataType === 'number') return [`coalesce(${name}, 0) + 1`]
  if (dataType === 'boolean') return [`NOT ${name}`]
  if (dataType === 'json') {
    return ['\'[]\'::jsonb', '\'[{"project_id":"x","target_id":null,"environment_id":null}]\'::jsonb']
  }
  if (dataType === 'custom') return [`sha256(${name})`, "''::bytea"]
  return [`${name} || 'x'`, "''", `upper(${name})`, '\'owner\'']
}

t.test('what hung on an account or a grant that is gone hangs on no other, wherever the sequences of the database stand', async (t) => {
  const service = await startApp(t)
  const { db } = service.database
  const { organization } = await service.organization()
  const make = async () => {
    const person = await makePerson(service, { [organization]: 'owner' })
    await createSession(
      db, hashToken(mintSecret()), { id: person.id, password_hash: (await findUser(db, person.id))!.password_hash! }
    )
    return { person, ...await issuePair(service, person, ['project:read']) }
  }
  const own = await make()
  t.equal(
    (await service.inject({ url: '/api/v1/user', headers: { authorization: `Bearer ${own.access}` } })).status, 200
  )
  const kept = ['sessions', 'members', 'oauth_tokens']
  for (const table of kept) await service.sql(`CREATE TABLE kept_${table} AS SELECT * FROM ${table}`)
  await service.sql('DELETE FROM users')
  for (const table of ['users', 'oauth_grants', 'oauth_tokens', 'api_tokens']) {
    await service.sql(`SELECT setval(pg_get_serial_sequence('${table}', 'id'), 1, false)`)
  }
  const others = [await make(), await make(), await make()]
  for (const { person, grant } of others) {
    t.ok(person.id > own.person.id && grant > own.grant, 'a later id is a larger one')
  }
  for (const table of kept) {
    await t.rejects(
      service.sql(`INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM kept_${table}`), 'it refers to nobody'
    )
  }
})

t.test('a pair of tokens can do no more than its grant says', async (t) => {
  const access = mintCredential('at')
  const grant = await createGrant(db, { user_id: rosa.id, client_id: 'web', scopes: ['organization:read'] })
  await createPair(db, {
    grant_id: grant,
    access_hash: hashToken(access),
    refresh_hash: hashToken(mintCredential('rt')),
    scopes: ['organization:read', 'project:read']
  })
  t.match(
    await bearer(access, `/api/v1/${o}/projects`)(),
    { status: 403, body: { details: { granted_scopes: ['organization:read'] } } }
  )
})

t.test('a token that somebody wrote into the database is not listed, in whatever form it is, and the others are', async (t) => {
  const service = await startApp(t)
  const owner = await service.organization()
  const list = async () => (await owner.call(
    'GET', `/organizations/${owner.organization}/api-keys`
  )).body.data.map(({ name }: { name: string }) => name)
  await service.token(owner.organization, ['secret:read'])
  const slices = ['null', "'[]'", '\'{"project_id":1}\'', '\'[1, null]\'', '\'"x"\'']
  for (const [i, value] of slices.entries()) {
    await service.sql(`
      INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, abilities, slices)
      VALUES ('${owner.organization}', 'Forged', sha256('${i}'), 'dotenv_', '{*}', ${value}::jsonb)`)
  }
  t.strictSame(await list(), ['Test token', 'Test token'])
  await service.sql("UPDATE api_tokens SET abilities = '{*}' WHERE abilities = '{secret:read}'")
  t.strictSame(await list(), ['Test token'])
  const person = await makePerson(service)
  const listed = async () => (await listTokensOfPerson(service.database.db, person.id)).rows.length
  await service.sql(`UPDATE api_tokens SET user_id = ${person.id}`)
  t.equal(await listed(), 0, 'nor to the person that it names')
  await service.write(`UPDATE api_tokens SET user_id = ${person.id} WHERE name <> 'Forged'`)
  t.ok(await listed() > 0)
})

t.test('however many rows a list leaves out, few transactions record that: whoever is served keeps a connection', async (t) => {
  const service = await startApp(t)
  const { call, organization } = await service.organization()
  const forged = 300
  await service.sql(`INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, abilities)
    SELECT '${organization}', 'Forged', sha256(n::text::bytea), 'dotenv_', '{*}' FROM generate_series(1, ${forged}) n`)
  let begun = 0
  const count = (message: unknown) => { if ((message as { phase: string }).phase === 'begin') begun++ }
  subscribe('strongroom:statement', count)
  t.teardown(() => unsubscribe('strongroom:statement', count))
  t.equal((await call('GET', `/organizations/${organization}/api-keys`)).body.data.length, 1)
  await authorityOf(service.database.db).settled()
  t.ok(begun <= forged / 10, `${begun} transactions`)
  t.same(await service.sql(`SELECT count(*)::int AS events FROM audit_events
    WHERE organization_id = '${organization}' AND action = 'integrity.violation'`), [{ events: forged }])
})

for (const table of NAMES) {
  t.test(`${table}: no column can be changed, copied, swapped or emptied`, async (t) => {
    if (table === 'late_events') await renewLate()
    const { row, another, finds, refers = [] } = SUBJECTS[table]
    const { fields, presence } = AUTHENTICATED[table] as { fields: readonly string[], presence: readonly string[] }
    const columns = getTableColumns(AUTHENTICATED[table].table as typeof tables.users) as unknown as Record<string, {
      dataType: string
      notNull: boolean
      name: string
    }>
    const [subject, somebody] = [
      (await test.sql(`SELECT * FROM ${table} WHERE ${row}`))[0]!,
      (await test.sql(`SELECT * FROM ${table} WHERE ${another}`))[0]!
    ]
    const wrong: string[] = []
    let tried = 0
    for (const field of fields) {
      const isFound = !finds.includes(field)
      // Sealed content is bound by its seal: that there is none is what this is about.
      const isSealed = presence.includes(field)
      const values = isSealed || refers.includes(field) ? [] : valuesFor(columns[field]!)
      if (!columns[field]!.notNull && subject[field] !== null) values.push('NULL')
      if (!isSealed && somebody[field] !== null) values.push(`(SELECT ${field} FROM ${table} WHERE ${another})`)
      const seen = new Set([JSON.stringify(subject[field])])
      for (const value of values) {
        const [result] = await test.sql(`SELECT ${value} AS value FROM ${table} WHERE ${row}`)
        if (seen.has(JSON.stringify(result!.value))) continue
        seen.add(JSON.stringify(result!.value))
        tried++
        wrong.push(...await manipulate(
          table, `${field} = ${value}`, [`UPDATE ${table} SET ${field} = ${value} WHERE ${row}`], { isFound }
        ))
      }
    }
    // Everything of somebody else, with their MAC, but for what the row is found by.
    const copied = [...fields.filter((field) => !finds.includes(field)), 'mac']
    for (const set of copied.length > 1 ? [copied, ['mac']] : [copied]) {
      wrong.push(...await manipulate(
        table, `${set.join(', ')} of another`,
        [`UPDATE ${table} t SET ${set.map((field) => `${field} = o.${field}`).join(', ')} FROM (SELECT * FROM ${table} WHERE ${another}) o WHERE t.ctid = (SELECT ctid FROM ${table} WHERE ${row})`]
      ))
      tried++
    }
    for (const mac of ["''", 'substring(mac for 16)', "mac || '\\x00'::bytea", 'sha256(mac)', 'NULL']) {
      wrong.push(...await manipulate(
        table, `mac = ${mac}`, [`UPDATE ${table} SET mac = ${mac} WHERE ${row}`], { isNew: mac !== 'NULL' }
      ))
      tried++
    }
    t.same(wrong, [])
    t.ok(tried > 8, `${tried} manipulations`)
  })
}

t.test('nothing that was added to the database counts', async (t) => {
  const secret = mintSecret()
  const made = {
    token: mintApiToken(o), access: mintCredential('at'), refresh: mintCredential('rt'), code: mintCredential('ac')
  }
  const argon = await hashPassword('intruder of the night')
  const none = await test.inject({
    url: '/api/v1/organization', headers: { authorization: `Bearer ${mintApiToken(o)}` }
  })
  const added: [
    name: string, statements: (mac: string) => string[], ask: Ask, refused: (answer: Answer) => boolean
  ][] = [
    ['an API token', (mac) =>
      [
        `INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, abilities, mac) VALUES ('${o}', 'x', ${hex(hashToken(made.token))}, '${tokenPrefix(made.token)}', '{*}', ${mac})`
      ],
    bearer(made.token, '/api/v1/organization'), (answer) => plain(answer) === plain(none)],
    ['a session', (mac) =>
      [
        `INSERT INTO sessions (token_hash, user_id, expires_at, mac) VALUES (${hex(hashToken(secret))}, ${rosa.id}, now() + interval '1 day', ${mac})`
      ],
    page('/account', secret), ({ text }) => text.includes('name="password"')],
    ['a recovery code', (mac) =>
      [
        `INSERT INTO recovery_codes (user_id, code_hash, factor_id, mac) SELECT ${rosa.id}, ${hex(hashRecoveryCode('aaaa-bbbb-cccc-dddd'))}, second_factor_id, ${mac} FROM users WHERE id = ${rosa.id}`
      ],
    giveCode(() => 'aaaa-bbbb-cccc-dddd'), ({ status }) => status === 422],
    ['a sign-in whose password was right', (mac) =>
      [
        `INSERT INTO sign_in_steps (token_hash, user_id, expires_at, mac) VALUES (${hex(hashToken(`${secret} ${mine.browser}`))}, ${rosa.id}, now() + interval '1 minute', ${mac})`
      ],
    async () => form('/oauth/sign-in/code', {
      form_token: formToken(mine.browser), query: '', step: secret, code: await mine.factor.code()
    }, `browser=${mine.browser}`)(), ({ status }) => status === 422],
    ['a link', (mac) =>
      [
        `INSERT INTO password_links (token_hash, user_id, expires_at, mac) VALUES (${hex(hashToken(secret))}, ${rosa.id}, now() + interval '1 day', ${mac})`
      ],
    page(`/account/set-password/${secret}`), ({ status }) => status === 404],
    ['a membership', (mac) => [`INSERT INTO organizations SELECT '01ARZ3NDEKTSV4RRFFQ69G5FAV', 'X', 'x-org', 'active', plan, storage_key FROM organizations WHERE id = '${o}'`,
      `INSERT INTO members (organization_id, user_id, role, mac) VALUES ('01ARZ3NDEKTSV4RRFFQ69G5FAV', ${rosa.id}, 'owner', ${mac})`],
    bearer(mine.access, '/api/v1/x-org/projects'), ({ status }) => status === 404],
    ['an account', (mac) =>
      [
        `INSERT INTO users (email, email_normalized, name, password_hash, is_verified, mac) VALUES ('i@evil.example', 'i@evil.example', 'I', '${argon}', true, ${mac})`
      ],
    signIn('i@evil.example', 'intruder of the night'), ({ status }) => status === 422],
    ['an application', (mac) =>
      [
        `INSERT INTO oauth_clients (id, name, redirect_uris, is_first_party, mac) VALUES ('planted', 'P', '{https://evil.example.com/cb}', true, ${mac})`
      ],
    page(authorizationUrl(
      mine.verifier.challenge, { client_id: 'planted', redirect_uri: 'https://evil.example.com/cb' }
    ), mine.cookie), ({ status }) => status === 400],
    ['a pair of tokens', (mac) => [`INSERT INTO oauth_tokens (grant_id, access_hash, refresh_hash, scopes, access_expires_at, refresh_expires_at, mac)
      VALUES (${mine.grant}, ${hex(hashToken(made.access))}, ${hex(hashToken(made.refresh))}, '{*}', now() + interval '1 day', now() + interval '1 day', ${mac})`],
    bearer(made.access, '/api/v1/user'), ({ status }) => status === 401],
    ['a refresh token', (mac) => [`INSERT INTO oauth_tokens (grant_id, access_hash, refresh_hash, scopes, access_expires_at, refresh_expires_at, mac)
      VALUES (${mine.grant}, ${hex(hashToken(made.access))}, ${hex(hashToken(made.refresh))}, '{*}', now() + interval '1 day', now() + interval '1 day', ${mac})`],
    form(
      '/api/oauth/token', { grant_type: 'refresh_token', refresh_token: made.refresh, client_id: 'web' }
    ), ({ body }) => body.error === 'invalid_grant'],
    ['a code', (mac) => [`INSERT INTO oauth_codes (code_hash, grant_id, redirect_uri, code_challenge, expires_at, mac)
      VALUES (${hex(hashToken(made.code))}, ${mine.grant}, '${CALLBACK}', '${mine.verifier.challenge}', now() + interval '1 minute', ${mac})`],
    exchange(made.code, mine.verifier.verifier), ({ body }) => body.error === 'invalid_grant']
  ]
  for (const [name, statements, ask, refused] of added) {
    for (const mac of [
      'NULL', "sha256('x')", `(SELECT mac FROM api_tokens WHERE ${SUBJECTS.api_tokens.another})`,
      `(SELECT mac FROM sessions WHERE ${SUBJECTS.sessions.row})`
    ]) {
      total.made++
      const before = await recorded()
      await run(statements(mac))
      const answer = await ask()
      t.ok(refused(answer), `${name} with the MAC ${mac}: ${plain(answer).slice(0, 200)}`)
      const after = await recorded()
      t.ok(after.lines > before.lines, `${name} is told of`)
      await takeBack()
      await test.sql("DELETE FROM organizations WHERE slug = 'x-org'")
    }
  }
})

t.test('a level that was moved, renamed, emptied or rolled back is refused before its ETag is compared', async (t) => {
  const swapped = (table: string, column: string) => [
    `UPDATE ${table} SET ${column} = 'x' WHERE ${SUBJECTS[table as 'projects'].row}`,
    `UPDATE ${table} SET ${column} = (SELECT ${column} FROM kept.${table} WHERE ${SUBJECTS[table as 'projects'].row.replaceAll('FROM ', 'FROM kept.')}) WHERE ${SUBJECTS[table as 'projects'].another.replaceAll('FROM ', 'FROM kept.')}`
  ]
  const cases: Record<string, string[]> = {
    'the slugs of two projects exchanged': swapped('projects', 'slug'),
    'an environment of another target': [
      `DELETE FROM environments WHERE ${SUBJECTS.environments.row}`,
      `UPDATE environments SET project_id = ${project('orbit')}, target_id = ${SUBJECTS.targets.row.replace('id = ', '')} WHERE ${SUBJECTS.environments.another}`
    ],
    'an override set to nothing': [`UPDATE secrets SET sealed = NULL WHERE ${SUBJECTS.secrets.row}`],
    'an override set to nothing, as a delete would': [
      `UPDATE secrets SET sealed = NULL, size_bytes = 0, revision = revision + 1 WHERE ${SUBJECTS.secrets.row}`
    ],
    'a document on another level': [`UPDATE secrets SET level = 'project' WHERE ${SUBJECTS.secrets.row}`],
    'a project of another custody': [`UPDATE projects SET encryption_type = 'client' WHERE ${SUBJECTS.projects.row}`]
  }
  const { etag } = (await nimbus.call('GET', levelPath)).headers
  for (const [name, statements] of Object.entries(cases)) {
    total.made++
    const before = await recorded()
    await run(["SET LOCAL session_replication_role = 'replica'", ...statements])
    const answer = await nimbus.call('GET', levelPath, undefined, { 'if-none-match': String(etag) })
    t.equal(plain(answer), REFUSED, name)
    t.equal((await recorded()).events, before.events + 1, `${name} is recorded`)
    await takeBack()
  }
  // A row that was put back whole, with its MAC, under a newer version: it verifies, and is older than what is
  // recorded.
  await nimbus.call('POST', `/${o}/secrets/store`, { ...at, plaintext: 'FROM=now' })
  await takeBack(['secrets'])
  t.equal(
    plain(await nimbus.call('GET', levelPath, undefined, { 'if-none-match': String(etag) })), REFUSED,
    'rolled back, with the ETag of then'
  )
})

t.test('slices that have no form fail no deletion of a level', async (t) => {
  for (const slices of [
    '{}', '[1]', '"x"', 'null', '[{"project_id":{"a":"longer than any id of ours would be"}}]',
    '[{"environment_id":"longer than any id of ours would be"}]'
  ]) {
    const { project } = await makeLevel(nimbus, { slug: 'doomed' })
    await run([
      `INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, abilities, slices) VALUES ('${o}', 'x', ${hex(hashToken(mintSecret()))}, 'x', '{*}', '${slices}')`
    ])
    const { status, text } = await nimbus.call('DELETE', `/${o}/${project}`)
    t.equal(status, 204, `${slices}: ${text}`)
    await takeBack()
  }
})

t.test('at least 200 manipulations were refused, by the service and not by the database alone', async (t) => {
  t.ok(
    total.made - total.byDatabase >= 200,
    `${total.made} manipulations, ${total.byDatabase} of them refused by the database itself`
  )
  t.same(
    test.logs.filter((line) => line.includes('"error_code":"internal_error"')), [], 'nothing failed in another way'
  )
})
