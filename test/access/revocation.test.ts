// runs: one database; 60 s
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { request as httpRequest } from 'node:http'
import { setTimeout as pause } from 'node:timers/promises'
import type { FastifyRequest } from 'fastify'
import t from 'tap'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { buildApp } from '../../src/app.ts'
import { describeTokens } from '../../src/commands/people/users.ts'
import { hashToken, isCredential } from '../../src/crypto/bearer.ts'
import { inTurn } from '../../src/http/guard/turns.ts'
import { revokeGrant } from '../../src/repositories/people/oauth.ts'
import { setDisabled } from '../../src/repositories/people/users.ts'
import { updateRule, type RuleRow } from '../../src/repositories/people/workloads.ts'
import { ON_CITUS, startIsolatedApp } from '../helpers/app.ts'
import {
  fingerprint, isGivenByTeams, OPERATIONS, prepare, READS, requestOf, settle, type Row
} from '../helpers/operations.ts'
import { LONG } from '../helpers/long.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'
import { startBeside } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { visitor } from '../helpers/visitor.ts'
import { makeRule, tokenOf } from '../helpers/workloads.ts'

// Callers that are revoked during a request: the guard has accepted the headers, and the body arrives later.

// This file has its own database, because it compares fingerprints of all tables.
const service = await startIsolatedApp(t)
const { caller: nimbus, ids } = await settle(service, 'ours')
const o = nimbus.organization
const rosa = await makePerson(service, { [o]: 'owner' })
const ROSA = `organization_id = '${o}' AND user_id = ${rosa.id}`

/** Starts another instance on the same database, with another time after which it checks a caller again. */
async function listening (recheckAfter: number, write: (line: string) => void = () => {}): Promise<string> {
  const app = await buildApp({
    config: service.config,
    database: service.database,
    keyring: service.keyring,
    costs: service.app.costs,
    logStream: { write },
    recheckAfter
  })
  t.teardown(() => app.close())
  return app.listen({ host: '127.0.0.1', port: 0 })
}

async function accessToken () {
  const { access, grant } = await issuePair(service, rosa, SCOPE_NAMES)
  return { token: access, grant }
}

// On Citus, the first of two look-ups does not find these API tokens: tokens of persons, and previous values of tokens.
const foundLater = new Set<string>()

/** `ofPerson`: also ends the person, not only the person's access to this organization. */
interface Ending {
  token: string
  end: () => Promise<unknown>
  undo?: () => Promise<unknown>
  ofPerson?: true
}

const ENDINGS: Record<string, () => Promise<Ending>> = {
  'an API token that is deleted': async () => {
    const { token } = await service.token(o, ['*'])
    return {
      token,
      end: () =>
        service.sql(`DELETE FROM api_tokens WHERE token_hash = '\\x${hashToken(token).toString('hex')}'`)
    }
  },
  'an API token that expires': async () => {
    const { token } = await service.token(o, ['*'])
    return {
      token,
      end: () => service.write(
      `UPDATE api_tokens SET expires_at = now() WHERE token_hash = '\\x${hashToken(token).toString('hex')}'`
      )
    }
  },
  'an API token that is rotated': async () => {
    const { token } = await service.token(o, ['*'])
    return { token, end: () => service.rotate(token) }
  },
  'an API token whose former value ends with the next rotation': async () => {
    const { token } = await service.token(o, ['*'])
    const next = await service.rotate(token, 3600)
    foundLater.add(token)
    return { token, end: () => service.rotate(next, 3600) }
  },
  'a person whose account is closed': async () => ({
    token: (await accessToken()).token,
    end: () => setDisabled(service.database.db, rosa.id, true),
    undo: () =>
      setDisabled(service.database.db, rosa.id, false),
    ofPerson: true
  }),
  'an application whose grant is revoked': async () => {
    const { token, grant } = await accessToken()
    return { token, end: () => revokeGrant(service.database.db, grant), ofPerson: true }
  },
  'a member whose role changes': async () => ({
    token: (await accessToken()).token,
    end: () => service.write(`UPDATE members SET role = 'auditor' WHERE ${ROSA}`),
    undo: () => service.write(`UPDATE members SET role = 'owner' WHERE ${ROSA}`)
  })
}

/** An API token that Rosa created through an application, with all of her permissions. */
async function tokenOfRosa (): Promise<string> {
  const { token } = await accessToken()
  const { status, text, body } = await service.inject({
    method: 'POST',
    url: `/api/v1/organizations/${o}/api-keys`,
    headers: { authorization: `Bearer ${token}` },
    payload: { name: 'Hers', abilities: ['*'], expires_at: new Date(Date.now() + 3_600_000).toISOString() }
  })
  if (status !== 201) throw new Error(text)
  foundLater.add(body.token)
  return body.token
}

const isRemoved = {
  end: () => service.sql(`DELETE FROM members WHERE ${ROSA}`),
  undo: () => service.write(`INSERT INTO members (organization_id, user_id, role) VALUES ('${o}', ${rosa.id}, 'owner')`)
}

Object.assign(ENDINGS, {
  'a person who is removed from the organization': async () => ({ token: (await accessToken()).token, ...isRemoved }),
  'an API token of a person who is removed': async () => ({ token: await tokenOfRosa(), ...isRemoved }),
  'a member whose role changes, with an API token': async () => ({
    token: await tokenOfRosa(),
    end: () => service.write(`UPDATE members SET role = 'auditor' WHERE ${ROSA}`),
    undo: () => service.write(`UPDATE members SET role = 'owner' WHERE ${ROSA}`)
  })
} satisfies typeof ENDINGS)

// A rule can never have all scopes. Here it has, so that it may call all operations.
const ALL = { scopes: [...SCOPE_NAMES] }
const workload = (end: (rule: RuleRow) => Promise<unknown>) => async (): Promise<Ending> => {
  const rule = await makeRule(service, o, ALL)
  return { token: tokenOf(service, rule), end: () => end(rule) }
}
const isRule = ({ organization_id, id }: RuleRow) => `organization_id = '${organization_id}' AND id = ${id}`
Object.assign(ENDINGS, {
  'a workload whose rule is narrowed': workload((rule) =>
    updateRule(service.database.db, rule, { scopes: ['secret:read'] })),
  'a workload whose rule is disabled': workload((rule) => updateRule(service.database.db, rule, { enabled: false })),
  'a workload whose rule is deleted': workload((rule) => service.sql(`DELETE FROM workload_rules WHERE ${isRule(rule)}`))
} satisfies typeof ENDINGS)

// A person whose own role includes only billing, and whose team is administrator of the test projects.
const inTeam = (sql: (team: string, id: number) => string) => async (): Promise<Ending> => {
  const theo = await makePerson(service, { [o]: 'billing_manager' })
  const team = await makeTeam(
    service, o, [theo], { [ids.project!]: 'administrator', [ids.client!]: 'administrator' }
  )
  const { access } = await issuePair(service, theo, SCOPE_NAMES)
  const statement = sql(team, theo.id)
  // A changed row has the MAC of the service.
  return {
    token: access, end: () => statement.startsWith('UPDATE') ? service.write(statement) : service.sql(statement)
  }
}
const TEAM_ENDINGS: typeof ENDINGS = {
  'a member whose team goes on without them': inTeam((team, id) =>
    `DELETE FROM team_members WHERE organization_id = '${o}' AND team_id = '${team}' AND user_id = ${id}`),
  'a member whose team loses its projects': inTeam((team) =>
    `DELETE FROM team_projects WHERE organization_id = '${o}' AND team_id = '${team}'`),
  'a member whose team gets another role': inTeam((team) =>
    `UPDATE team_projects SET role = 'auditor' WHERE organization_id = '${o}' AND team_id = '${team}'`),
  'a member whose team is restricted to other levels': inTeam((team) =>
    `UPDATE team_projects SET slices = ('[{"project_id": "' || project_id || '", "target_id": "' || project_id ||
      '", "environment_id": null}]')::jsonb WHERE organization_id = '${o}' AND team_id = '${team}'`),
  'a member whose team is deleted': inTeam((team) =>
    `DELETE FROM teams WHERE organization_id = '${o}' AND id = '${team}'`),
  'a person who is removed, with a team': inTeam((_team, id) =>
    `DELETE FROM members WHERE organization_id = '${o}' AND user_id = ${id}`)
}

const CREDENTIAL = /^\s*select .*\b(api_tokens\.token_prefix\b|rule\.revision\b|join "?oauth_tokens"? )/is
const MEMBERSHIP = /^\s*select queries\.query_index, \(\s*select jsonb_build_object\('member'/is
const OWNER = /\bjsonb_build_object\('users'/i

/** Matches the last statement with which the guard looks up a caller. The guard can send two statements. */
function lastLookup (row: Row, token: string): RegExp {
  if (!isCredential('at', token)) return foundLater.has(token) ? OWNER : CREDENTIAL
  // On Citus, the membership is on another node than the access token. A person who is removed between the two
  // statements gets 404, like every person who is not a member.
  return ON_CITUS && row.at.includes('{organization}') ? MEMBERSHIP : CREDENTIAL
}

/** Waits until the next look-up of a caller starts or ends, and calls `then` at that moment. */
function lookedUp (phase: 'before' | 'after', then = () => {}, statements = CREDENTIAL): Promise<void> {
  return new Promise((resolve) => {
    const listen = (message: unknown) => {
      const statement = message as { phase: string, text: string }
      if (statement.phase !== phase || !statements.test(statement.text)) return
      unsubscribe('strongroom:statement', listen)
      then()
      resolve()
    }
    subscribe('strongroom:statement', listen)
  })
}

/**
 * Starts a request and sends the rest of its body only after `meanwhile`. `meanwhile` starts after the guard has
 * accepted the request. Returns the request and the rest of its body.
 */
async function begun (
  address: string, row: Row, token: string, meanwhile: () => Promise<unknown>, headers: Record<string, string> = {}
) {
  const { method, url, payload } = requestOf(row, ids)
  const text = JSON.stringify(payload ?? {})
  const judged = lookedUp('after', undefined, lastLookup(row, token))
  const request = httpRequest(new URL(url, address), {
    method,
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(text),
      ...headers
    }
  })
  request.write(text.slice(0, 1))
  await judged
  await meanwhile()
  return { request, rest: text.slice(1) }
}

/**
 * Sends a request that completes its body only after `meanwhile`. `meanwhile` starts after the guard has accepted the
 * request.
 */
async function heldOpen (
  address: string, row: Row, token: string, meanwhile: () => Promise<unknown>
): Promise<{ status: number, body: any, challenge: string }> {
  const { request, rest } = await begun(address, row, token, meanwhile)
  request.end(rest)
  const [answer] = await once(request, 'response')
  let received = ''
  for await (const chunk of answer) received += chunk
  return {
    status: answer.statusCode,
    body: received === '' ? undefined : JSON.parse(received),
    challenge: answer.headers['www-authenticate'] ?? ''
  }
}

/** All cases in the long form, otherwise each `step`th case, with another first case at each turn. */
const someOf = <T>(cases: readonly T[], turn: number, step: number) =>
  LONG ? cases : cases.filter((_, i) => (i + turn) % step === 0)

t.test('a revoked caller changes nothing, even with a late body: each change locks its caller until commit', async (t) => {
  // Tests only the check in the transactions, because the decision of the guard never expires here.
  const address = await listening(Infinity)
  const changes = Object.entries(OPERATIONS).filter(([id, { at, access }]) =>
    access !== 'public' && !at.startsWith('GET ') && !READS.includes(id))
  t.ok(changes.length >= 22, `${changes.length} operations that change something`)
  for (const [turn, [who, make]] of Object.entries({ ...ENDINGS, ...TEAM_ENDINGS }).entries()) {
    const wrong: string[] = []
    const possible = who in TEAM_ENDINGS ? changes.filter(([, row]) => isGivenByTeams(row)) : changes
    t.ok(possible.length >= 15, `${possible.length} of them are possible`)
    // In npm test, each operation with one or two endings, and each ending with operations of each kind.
    const some = possible.filter(([, row], i) => LONG || (i + turn) % (row.byPerson ? 5 : 10) === 0)
    for (const [id, row] of some) {
      await prepare(service, row, ids)
      const { token, end, undo, ofPerson } = await make()
      if (row.byPerson && !ofPerson) continue
      let before = ''
      const answer = await heldOpen(address, row, token, async () => {
        await end()
        before = await fingerprint(service)
      })
      // The service looks up roles of teams together with the level, after the body has arrived.
      const isMissing = who in TEAM_ENDINGS && ['insufficient_permissions', 'not_found'].includes(answer.body?.error)
      if (!isMissing && (answer.status !== 401 || answer.body.error !== 'unauthenticated' ||
        !answer.challenge.includes('error="invalid_token"'))) {
        wrong.push(`${id}: ${answer.status} ${JSON.stringify(answer.body)}`)
      }
      if (await fingerprint(service) !== before) wrong.push(`${id} left something`)
      await undo?.()
    }
    t.strictSame(wrong, [], who)
  }
})

t.test('a workload whose token expires before its body arrives changes nothing', async (t) => {
  const address = await listening(Infinity)
  const rule = await makeRule(service, o, ALL)
  for (const id of ['storeSecrets', 'updateProject', 'createTarget']) {
    const ends = new Date(Date.now() + 2_000)
    let before = ''
    const answer = await heldOpen(address, OPERATIONS[id]!, tokenOf(service, rule, { ends }), async () => {
      await until(() => Date.now() > ends.getTime() + 20)
      before = await fingerprint(service)
    })
    t.match(answer, { status: 401, body: { error: 'unauthenticated' } }, id)
    t.equal(await fingerprint(service), before, `${id} left nothing`)
  }
})

t.test('a token changes nothing if it loses `inherited` before its body arrives', async (t) => {
  // The tests before can have made as many rules as an organization may have. Later ones need the rule of `ids`.
  await service.sql(`DELETE FROM workload_rules WHERE organization_id = '${o}' AND id <> ${ids.workload}`)
  const address = await listening(Infinity)
  const place = { project: '{project}', target: '{target}', environment: '{environment}' }
  const inheriting = { ...place, inherited: true }
  const keys = `/organizations/${o}/api-keys`
  const changed = (id: string, body: object): Row => {
    const { body: whole, ...row } = OPERATIONS[id]!
    return { ...row, body: { ...whole, ...body } }
  }
  const rows = {
    createApiToken: changed('createApiToken', { restrictions: [inheriting] }),
    'createApiToken without': changed('createApiToken', { restrictions: [place] }),
    createWorkload: changed('createWorkload', { restrictions: [inheriting] }),
    storeSecrets: changed('storeSecrets', place)
  }
  for (const [what, row] of Object.entries(rows)) {
    for (const loses of [true, false]) {
      const { status, text, body } = await nimbus.call('POST', keys, {
        name: 'CI',
        abilities: ['api-token:create', 'secret:read', 'secret:write', 'secret:decrypt'],
        restrictions: [requestOf({ ...row, body: inheriting }, ids).payload]
      })
      if (status !== 201) throw new Error(text)
      let before = ''
      const answer = await heldOpen(address, row, body.token, async () => {
        const [one] = body.api_key.restrictions
        const restrictions = [loses ? { ...one, inherited: false } : one]
        const put = await nimbus.call('PUT', `${keys}/${body.api_key.id}`, { name: 'Other', restrictions })
        if (put.status !== 200) throw new Error(put.text)
        before = await fingerprint(service)
      })
      const after = await fingerprint(service)
      if (loses) t.match(answer, { status: 401, body: { error: 'unauthenticated' } }, what)
      else t.ok(answer.status < 300, `${what}: ${answer.status} ${JSON.stringify(answer.body)}`)
      t.equal(after === before, loses, `${what} ${loses ? 'left nothing' : 'has an effect'}`)
    }
  }
})

t.test('a token whose expiry changes before its body arrives gives another at most the present one', async (t) => {
  const address = await listening(Infinity)
  const keys = `/organizations/${o}/api-keys`
  const [near, far] = [1, 30].map((days) => new Date(Date.now() + days * 86_400_000).toISOString()) as [string, string]
  const made = async (expires_at: string | null) => {
    const { status, text, body } = await nimbus.call('POST', keys, { name: 'CI', abilities: [...SCOPE_NAMES], expires_at })
    if (status !== 201) throw new Error(text)
    return { token: body.token as string, path: `${keys}/${body.api_key.id}` }
  }
  const body = { name: 'Other', abilities: ['secret:read'] }
  const refused = { status: 403, body: { error: 'insufficient_permissions' } }
  const given = (status: number, expires_at: string | null) => ({ status, body: { api_key: { expires_at } } })
  type Case = [string, (path: string) => Pick<Row, 'at' | 'body'>, from: string | null, to: string | null, object]
  const ROWS: Case[] = [
    ['none asked', () => ({ at: `POST /api/v1${keys}`, body }), null, near, given(201, near)],
    ['the former', () => ({ at: `POST /api/v1${keys}`, body: { ...body, expires_at: far } }), far, near, refused],
    ['no end', () => ({ at: `POST /api/v1${keys}`, body: { ...body, expires_at: null } }), null, near, refused],
    ['the present', () => ({ at: `POST /api/v1${keys}`, body: { ...body, expires_at: near } }), null, near, given(201, near)],
    ['extended', () => ({ at: `POST /api/v1${keys}`, body: { ...body, expires_at: far } }), near, far, given(201, far)],
    ['an update', (path) => ({ at: `PUT /api/v1${path}`, body: { expires_at: far } }), far, near, refused],
    ['a rotation', (path) => ({ at: `POST /api/v1${path}/rotate`, body: {} }), far, near, refused],
    ['a rotation, extended', (path) => ({ at: `POST /api/v1${path}/rotate`, body: {} }), near, far, { status: 200 }]
  ]
  for (const [what, row, from, to, answer] of ROWS) {
    const [maker, other] = [await made(from), await made(far)]
    t.match(await heldOpen(address, row(other.path) as Row, maker.token, async () => {
      const put = await nimbus.call('PUT', maker.path, { expires_at: to })
      if (put.status !== 200) throw new Error(put.text)
    }), answer, what)
  }
})

t.test('what one instance has ended is refused by all from the next request on', async (t) => {
  const second = await startBeside(t, service)
  const apps = [service.app, ...second === undefined ? [] : [second]]
  const answers = (token: string, method: 'GET' | 'POST' = 'GET', payload?: object) => Promise.all(apps.map(async (app) =>
    (await app.inject({
      method, url: `/api/v1/${o}/projects`, headers: { authorization: `Bearer ${token}` }, ...payload && { payload }
    })).statusCode))
  const all = (status: number) => apps.map(() => status)
  for (const [who, make] of Object.entries(ENDINGS)) {
    const { token, end, undo } = await make()
    // An auditor can read but not write. The guard accepts the empty body, and the validation refuses it later.
    const changes = who.includes('role changes')
    const look = () => changes ? answers(token, 'POST', {}) : answers(token)
    for (let use = 0; use < 3; use++) t.strictSame(await look(), all(changes ? 422 : 200), who)
    await end()
    const refused = await look()
    t.ok(refused.every((status) => status === refused[0] && [401, 403, 404].includes(status)), `${who}: ${refused.join()}`)
    await undo?.()
  }
  const { token } = await service.token(o, ['*'])
  const [row] = await service.sql(
    `SELECT id::text FROM api_tokens WHERE token_hash = '\\x${hashToken(token).toString('hex')}'`
  )
  t.strictSame(await answers(token), all(200))
  const { statusCode } = await apps.at(-1)!.inject({
    method: 'DELETE',
    url: `/api/v1/organizations/${o}/api-keys/${String(row!.id)}`,
    headers: { authorization: `Bearer ${nimbus.token}` }
  })
  t.equal(statusCode, 204)
  t.strictSame(await answers(token), all(401))
})

t.test('what a late body would only read is judged again', async (t) => {
  const address = await listening(0)
  for (const [turn, [who, make]] of Object.entries({ ...ENDINGS, ...TEAM_ENDINGS }).entries()) {
    const possible = who in TEAM_ENDINGS ? READS.filter((id) => isGivenByTeams(OPERATIONS[id]!)) : READS
    for (const id of someOf(possible, turn, possible.length)) {
      const { token, end, undo } = await make()
      const { status, body } = await heldOpen(address, OPERATIONS[id]!, token, end)
      // A role without the scope gets 403, a level outside of a restriction 404, and any other ended caller 401.
      const expected = who.includes('restricted') ? [404] : who.startsWith('a member whose') ? [200, 403] : [401]
      t.ok(expected.includes(status), `${id} for ${who}: ${status} ${body?.error}`)
      await undo?.()
    }
  }
})

t.test('a read that waits for its turn is judged again', async (t) => {
  // Long enough for a request to reach the queue.
  const RECHECK = 50
  const address = await listening(RECHECK)
  const moment = new Date().toISOString()
  const turned: Record<string, Row> = {
    readProjectMatrix: OPERATIONS.readProjectMatrix!,
    searchNames: OPERATIONS.searchNames!,
    compareEnvironmentSecrets: { ...OPERATIONS.compareEnvironmentSecrets!, query: `?from=${moment}&to=${moment}&values=true` },
    readEnvironmentNameHistory: OPERATIONS.readEnvironmentNameHistory!,
    restoreProject: { ...OPERATIONS.restoreProject!, query: '?dry_run=true' }
  }
  // A guest may ask for events and gets none.
  const ofEvents: Record<string, Row> = {
    countAuditEvents: OPERATIONS.countAuditEvents!,
    // Two filters that exclude each other, so that the list takes a turn.
    listAuditEvents: { ...OPERATIONS.listAuditEvents!, query: `?resource=organization:${o}&project=${o}` }
  }
  const readIn = async (row: Row, token: string, end: () => Promise<unknown>) => {
    let release = () => {}
    const other = { principal: { organization: { id: o }, type: 'user', id: 0 }, server: { authorizeAgain: async () => {} } }
    const held = inTurn(other as unknown as FastifyRequest, () => new Promise<void>((resolve) => { release = resolve }))
    const { method, url, payload } = requestOf(row, ids)
    const judged = lookedUp('after', undefined, lastLookup(row, token))
    const asked = fetch(new URL(url, address), {
      method,
      headers: { authorization: `Bearer ${token}`, ...payload && { 'content-type': 'application/json' } },
      ...payload && { body: JSON.stringify(payload) }
    })
    await judged
    await pause(3 * RECHECK)
    await end()
    release()
    await held
    const answer = await asked
    return { status: answer.status, body: await answer.json() as any }
  }
  const { token } = await service.token(o, ['*'])
  for (const [id, row] of Object.entries(turned)) {
    t.equal((await readIn(row, token, async () => {})).status, 200, `${id} of a caller who may do it`)
  }
  for (const [turn, [who, make]] of Object.entries({ ...ENDINGS, ...TEAM_ENDINGS }).entries()) {
    // These two operations leave out restricted levels instead of refusing the request.
    const possible = Object.keys(turned).filter((id) =>
      !who.includes('restricted') || !['readProjectMatrix', 'searchNames'].includes(id))
    for (const id of someOf(possible, turn, possible.length)) {
      const { token, end, undo } = await make()
      const { status, body } = await readIn(turned[id]!, token, end)
      const expected = who.includes('restricted') ? 404 : who.startsWith('a member whose') ? 403 : 401
      t.equal(status, expected, `${id} for ${who}: ${status} ${body?.error}`)
      await undo?.()
    }
  }
  for (const [id, row] of Object.entries(ofEvents)) {
    const person = await makePerson(service, { [o]: 'developer' })
    const { access } = await issuePair(service, person, SCOPE_NAMES)
    const { status, body } = await readIn(row, access, async () => {
      await service.write(`UPDATE members SET role = 'guest' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
    })
    t.strictSame([status, body?.data], [200, []], `${id} for a member who became a guest`)
  }
})

t.test('a client that hangs up during the second check leaves one line, no change and no unhandled rejection', async (t) => {
  const lines: Record<string, unknown>[] = []
  const unheard: unknown[] = []
  const hear = (reason: unknown) => { unheard.push(reason) }
  process.on('unhandledRejection', hear)
  t.teardown(() => process.off('unhandledRejection', hear))
  const address = await listening(0, (line) => lines.push(JSON.parse(line)))
  for (const [i, [who, make]] of Object.entries(ENDINGS).entries()) {
    const id = `hung-up-${i}`
    const { token, end, undo } = await make()
    const { request, rest } = await begun(address, OPERATIONS.createProject!, token, end, { 'x-request-id': id })
    const before = await fingerprint(service)
    request.on('error', () => {})
    const gone = lookedUp('before', () => { request.socket!.resetAndDestroy() })
    request.end(rest)
    await gone
    const linesOf = () => lines.filter(({ reqId }) => reqId === id)
    await until(() => linesOf().length > 0, { again: () => fetch(new URL('/healthz', address)) })
    // Waits for a whole request, so that any later log line would be there.
    await fetch(new URL('/readyz', address))
    t.match(
      linesOf(), { length: 1, 0: { msg: 'request', error_code: /^(unauthenticated|insufficient_permissions)$/ } }, who
    )
    t.equal(await fingerprint(service), before, `${who} changed nothing`)
    await undo?.()
  }
  t.same(unheard, [])
})

t.test('a token may end itself', async (t) => {
  const own = await nimbus.call(
    'POST', `/organizations/${o}/api-keys`, { name: 'Short', abilities: ['api-token:delete'] }
  )
  const { token, api_key: { id } } = own.body
  const end = () => service.inject({
    method: 'DELETE', url: `/api/v1/organizations/${o}/api-keys/${id}`, headers: { authorization: `Bearer ${token}` }
  })
  t.equal((await end()).status, 204)
  t.equal((await end()).status, 401)
})

t.test('a token shows its creator, and ends with the grant and the account of the person behind it', async (t) => {
  const address = await listening(Infinity)
  const list = async () => new Map((await nimbus.call(
    'GET', `/organizations/${o}/api-keys`
  )).body.data.map((one: { name: string, created_by: unknown }) => [one.name, one.created_by]))
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const make = async (bearer: string, name: string): Promise<string> => {
    const { status, text, body } = await service.inject({
      method: 'POST',
      url: `/api/v1/organizations/${o}/api-keys`,
      headers: { authorization: `Bearer ${bearer}` },
      payload: { name, abilities: ['api-token:create', 'api-token:read'], expires_at }
    })
    if (status !== 201) throw new Error(text)
    return body.token
  }
  const alive = async (...tokens: string[]) => Promise.all(tokens.map(async (token) =>
    (await service.inject({ url: '/api/v1/user', headers: { authorization: `Bearer ${token}` } })).status))

  const [first] = await service.sql(
    `SELECT id::float8 AS id FROM api_tokens WHERE token_hash = '\\x${hashToken(nimbus.token).toString('hex')}'`
  )
  const byToken = await make(nimbus.token, 'By a token')
  t.strictSame((await list()).get('By a token'), { type: 'api_token', id: first!.id, name: 'Test token' })
  t.equal((await list()).get('Test token'), null, 'made by an operator')

  for (const [how, end] of Object.entries({
    'the grant is revoked': (grant: number) => revokeGrant(service.database.db, grant),
    'the account is closed': async () => {
      await setDisabled(service.database.db, rosa.id, true)
      await setDisabled(service.database.db, rosa.id, false)
    }
  })) {
    const { token, grant } = await accessToken()
    const { token: other } = await accessToken()
    const mine = await make(token, `Of ${how}`)
    const second = await make(mine, `Second of ${how}`)
    const elsewhere = await make(other, `Elsewhere of ${how}`)
    t.strictSame((await list()).get(`Of ${how}`), { type: 'user', id: rosa.id, name: rosa.name })
    t.match((await list()).get(`Second of ${how}`), { type: 'api_token', name: `Of ${how}` })
    const shown: string[] = []
    for await (const line of describeTokens(service.database, rosa.email)) shown.push(line)
    t.equal(shown.filter((line) => line.includes(how)).length, 3, 'the operator is shown each, whichever token made it')
    const visit = visitor(address)
    const page = await visit.signIn(await visit.open('/account'), rosa.email, rosa.password)
    for (const name of [`Of ${how}`, `Second of ${how}`]) {
      t.match(page.text, `<strong>${name}</strong> <span>Nimbus, ends in`, 'and so is the person')
    }

    t.strictSame(await alive(mine, second, elsewhere, byToken), [200, 200, 200, 200])
    await end(grant)
    const others = how === 'the grant is revoked' ? 200 : 401
    t.strictSame(await alive(mine, second, elsewhere, byToken), [401, 401, others, 200], how)
    t.notOk((await list()).has(`Second of ${how}`), 'and they are not listed any more')
  }
})

t.test('a person’s token is refused once its account or grant was changed by SQL, and ends with the account', async (t) => {
  const manipulations: Record<string, (grant: number) => string> = {
    'the grant is marked as revoked': (grant) => `UPDATE oauth_grants SET revoked_at = now() WHERE id = ${grant}`,
    'the grant is another person’s': (grant) =>
      `UPDATE oauth_grants SET user_id = (SELECT max(id) FROM users WHERE id <> ${rosa.id}) WHERE id = ${grant}`,
    'the account was changed': () => `UPDATE users SET is_verified = NOT is_verified WHERE id = ${rosa.id}`
  }
  await makePerson(service)
  for (const [how, statement] of Object.entries(manipulations)) {
    const { token, grant } = await accessToken()
    const payload = {
      name: how,
      abilities: ['project:read', 'project:create'],
      expires_at: new Date(Date.now() + 3_600_000).toISOString()
    }
    const made = await service.inject({
      method: 'POST', url: `/api/v1/organizations/${o}/api-keys`, headers: { authorization: `Bearer ${token}` }, payload
    })
    const headers = { authorization: `Bearer ${made.body.token}` }
    const answers = async () => [
      (await service.inject({ url: `/api/v1/${o}/projects`, headers })).status,
      (await service.inject({ method: 'POST', url: `/api/v1/${o}/projects`, headers, payload: { name: how } })).status
    ]
    t.strictSame(await answers(), [200, 201], how)
    await service.sql(statement(grant))
    t.strictSame(await answers(), [401, 401], how)
    t.ok(await setDisabled(service.database.db, rosa.id, true), 'the account can be closed all the same')
    t.strictSame(
      [...await service.sql(`SELECT 1 FROM api_tokens WHERE name = '${how}'`)], [], 'and nothing of it is left'
    )
    if (how === 'the account was changed') {
      t.notOk(await setDisabled(service.database.db, rosa.id, false), 'but not opened')
    } else t.ok(await setDisabled(service.database.db, rosa.id, false))
  }
})
