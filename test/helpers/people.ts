import { randomBytes } from 'node:crypto'
import { ulid } from 'ulidx'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import type { Role } from '../../schemas/users.ts'
import { challengeOf, hashToken, mintCredential } from '../../src/crypto/bearer.ts'
import { hashPassword } from '../../src/crypto/passwords.ts'
import { codeAt, stepAt } from '../../src/crypto/second-factor.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { createGrant, createPair } from '../../src/repositories/people/oauth.ts'
import { createMember, createUser } from '../../src/repositories/people/users.ts'
import type { Slice } from '../../src/rules/slices.ts'
import { beginFactor, confirmFactor } from '../../src/vault/keys/second-factor.ts'
import { callWith, type Answer, type Caller, type TestApp } from './app.ts'
import { QUICK } from './costs.ts'
import { visitor, type Visitor } from './visitor.ts'

export interface Person { id: number, email: string, name: string, password: string }

let people = 0

/** Creates a user with a password and with roles in organizations (organization id → role). */
export async function makePerson (
  { database }: Pick<TestApp, 'database'>, roles: Record<string, Role> = {}, password = 'correct horse battery'
): Promise<Person> {
  const name = `Person ${++people}`
  const email = `person-${people}-${randomBytes(3).toString('hex')}@nimbus.example`
  const id = (await createUser(
    database.db, { email, name, password_hash: await hashPassword(password, QUICK.password) }
  ))!
  for (const [organization_id, role] of Object.entries(roles)) {
    await createMember(database.db, { organization_id, user_id: id, role })
  }
  return { id, email, name, password }
}

/** Adds a user to an organization: `call` sends the invitation as the inviter, and the user accepts. */
export async function join (
  on: Pick<TestApp, 'database' | 'inject'>, call: (method: string, path: string, body?: object) => Promise<Answer>,
  organization: string, person: Pick<Person, 'id' | 'email'>, role: Role | 'admin'
): Promise<void> {
  const invited = await call('POST', `/organizations/${organization}/members`, { email: person.email, role })
  if (invited.status !== 201) throw new Error(invited.text)
  const { access } = await issuePair(on, person, ['organization:create'])
  const accepted = await on.inject({
    method: 'POST',
    url: `/api/v1/user/invitations/${invited.body.data.id}/accept`,
    headers: { authorization: `Bearer ${access}` }
  })
  if (accepted.status !== 200) throw new Error(accepted.text)
}

/** Creates `many` organizations and gives a user a role in each. */
export async function crowd (
  service: Pick<TestApp, 'sql' | 'write'>, { id }: Pick<Person, 'id'>, role: Role, many: number
) {
  const made = 'FROM generate_series(1, ' + many + ') n'
  const its = (n: string) => `lpad('${id}' || 'X' || ${n}, 26, '0')`
  await service.sql(`INSERT INTO organizations (id, slug, storage_key)
    SELECT ${its('n')}, 'crowd-${id}-' || n, '' ${made}`)
  await service.sql(`INSERT INTO organization_counters (organization_id, name, plan) SELECT ${its('n')}, 'Crowd', 'self-hosted' ${made}`)
  await service.write(`INSERT INTO members (organization_id, user_id, role) SELECT ${its('n')}, ${id}, '${role}' ${made}`)
  return () => service.sql("DELETE FROM organizations WHERE slug LIKE 'crowd-%'")
}

/**
 * Creates a team of these people with roles in projects (slug → role), all with these restrictions. Returns the id of
 * the team.
 */
export async function makeTeam (
  service: Pick<TestApp, 'sql' | 'write'>, organization: string, people: readonly Person[], roles: Record<string, Role>,
  slices: readonly Slice[] | null = null
): Promise<string> {
  const id = ulid()
  await service.write(`INSERT INTO teams (id, organization_id, name, slug)
    VALUES ('${id}', '${organization}', 'Team', 'team-${id.toLowerCase()}')`)
  for (const person of people) {
    await service.write(`INSERT INTO team_members (organization_id, team_id, user_id)
      VALUES ('${organization}', '${id}', ${person.id})`)
  }
  for (const [slug, role] of Object.entries(roles)) {
    await service.write(`INSERT INTO team_projects (organization_id, team_id, project_id, role, slices)
      SELECT organization_id, '${id}', id, '${role}', ${slices === null ? 'NULL' : `'${JSON.stringify(slices)}'::jsonb`}
      FROM projects
      WHERE organization_id = '${organization}' AND slug = '${slug}'`)
  }
  return id
}

/**
 * Gives a user a second factor without the account pages. `code` returns a currently valid code, or the code of another
 * time step. `reuse` makes used codes valid again.
 */
export async function giveSecondFactor (
  { database, keyring, write }: Pick<TestApp, 'database' | 'keyring' | 'write'>, { id }: Pick<Person, 'id'>
) {
  const { secret, codes } = await transaction(database.db, async (db) => {
    const secret = await beginFactor(db, keyring, id)
    return { secret, codes: (await confirmFactor(db, keyring, id, await codeAt(secret, stepAt(Date.now()))))! }
  })
  const reuse = () => write(`UPDATE second_factors SET last_step = 5 WHERE user_id = ${id}`)
  await reuse()
  return { secret, codes, reuse, code: (offset = 0) => codeAt(secret, stepAt(Date.now()) + offset) }
}

export const CALLBACK = 'http://127.0.0.1:5555/callback'

/** A PKCE verifier and its challenge. */
export function pkce (verifier = randomBytes(48).toString('base64url')) {
  return { verifier, challenge: challengeOf(verifier) }
}

/** The URL of an authorization request. An undefined parameter in `changes` is omitted. */
export function authorizationUrl (challenge: string, changes: Record<string, string | undefined> = {}): string {
  const parameters = {
    response_type: 'code',
    client_id: 'dotenv-cli',
    redirect_uri: CALLBACK,
    state: 'state',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...changes
  }
  const query = new URLSearchParams(Object.entries(parameters).filter((pair): pair is [
    string, string
  ] => pair[1] !== undefined))
  return `/oauth/authorize?${query}`
}

/** Signs in, allows access, and returns the authorization code with its verifier. */
export async function authorize (
  address: string, person: Person, changes: Record<string, string | undefined> = {}, browser: Visitor = visitor(address)
) {
  const { verifier, challenge } = pkce()
  const page = await browser.open(authorizationUrl(challenge, changes))
  const consent = page.text.includes('name="password"')
    ? await browser.signIn(page, person.email, person.password)
    : page
  const back = await browser.decide(consent, 'allow')
  return { code: back.searchParams.get('code')!, verifier, back, browser }
}

/** Sends a request to an OAuth endpoint as a form, or as JSON. */
export async function post (
  address: string, path: string, parameters: Record<string, unknown>, as: 'form' | 'json' = 'form',
  headers: Record<string, string> = {}
) {
  const body = as === 'json'
    ? JSON.stringify(parameters)
    : new URLSearchParams(parameters as Record<string, string>).toString()
  const response = await fetch(`${address}${path}`, {
    method: 'POST',
    body,
    headers: { 'content-type': as === 'json' ? 'application/json' : 'application/x-www-form-urlencoded', ...headers }
  })
  const text = await response.text()
  return {
    status: response.status, headers: response.headers, text, body: text.startsWith('{') ? JSON.parse(text) : undefined
  }
}

/** Creates an access token and a refresh token directly in the database. */
export async function issuePair (
  { database }: Pick<TestApp, 'database'>, person: Pick<Person, 'id'>, scopes: readonly Scope[], client_id = 'dotenv-cli'
) {
  const [access, refresh] = [mintCredential('at'), mintCredential('rt')]
  const grant = await createGrant(database.db, { user_id: person.id, client_id, scopes: [...scopes] })
  await createPair(database.db, {
    grant_id: grant, access_hash: hashToken(access), refresh_hash: hashToken(refresh), scopes: [...scopes]
  })
  return { access, refresh, grant }
}

/** Sends requests for a person, with a token for these scopes. */
export const callAs = async (
  service: Pick<TestApp, 'database' | 'inject'>, person: Pick<Person, 'id'>, scopes: readonly Scope[] = SCOPE_NAMES
): Promise<Caller['call']> => callWith(service, (await issuePair(service, person, scopes)).access)

/** Gets an access token and a refresh token through the whole OAuth flow. */
export async function tokensFor (address: string, person: Person, changes: Record<string, string | undefined> = {}) {
  const { code, verifier } = await authorize(address, person, changes)
  const { client_id = 'dotenv-cli', redirect_uri = CALLBACK } = changes
  const answer = await post(
    address, '/api/oauth/token',
    { grant_type: 'authorization_code', code, code_verifier: verifier, client_id, redirect_uri }
  )
  if (answer.status !== 200) throw new Error(answer.text)
  return answer.body as {
    access_token: string
    refresh_token: string
    token_type: string
    expires_in: number
    scope: string
  }
}
