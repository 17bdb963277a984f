import type { FastifyRequest } from 'fastify'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import { canonicalAbilities, canonicalList, SCOPE_NAMES, type Ability, type Scope } from '../../../schemas/scopes.ts'
import { NoContent, PAGE_SIZE } from '../../../schemas/shapes.ts'
import {
  ApiTokenAnswer, ApiTokenList, CreateTokenBody, CreatedToken, ListTokensQuery, NOT_AGAIN, RotateTokenBody,
  RotatedToken, TokenParams, UpdateTokenBody, type Restriction
} from '../../../schemas/tokens.ts'
import { change } from '../../changes/change.ts'
import { mintApiToken, storedToken } from '../../crypto/bearer.ts'
import { readNow, type Db } from '../../db/database.ts'
import { findSlugs, idsOf } from '../../db/rows/slugs.ts'
import { inTurn, type Turn } from '../../http/guard/turns.ts'
import { writeIfLarge } from '../../http/responses/large-responses.ts'
import { actorOf, makerOf, principalOf } from '../../http/routes/actor.ts'
import {
  refuseAs, refuseWider, requireRestriction, resolveRestrictions, restrictionsIn
} from '../../http/guard/authority.ts'
import type { RedactedReplay } from '../../http/repeats/idempotency.ts'
import type { Domain, Rule } from '../../http/routes/types.ts'
import { eventOf } from '../../repositories/audit/audit.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import {
  areManyRestricted, createToken, deleteTokens, endsWith, findSlices, findToken, hasMadeInherited,
  lockTokenSupport, listTokens, lockToken, findReachedTokenLimit, rotateToken, showToken, updateToken,
  type LockedToken, type TokenRow
} from '../../repositories/people/tokens.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { requireNewName } from '../../rules/formats/names.ts'
import { mustBeOneOf } from '../../rules/formats/phrases.ts'
import { parseId } from '../../rules/formats/ids.ts'
import { pageMeta, pageOf } from '../../rules/pagination.ts'
import {
  CHARACTERS_OF_RESTRICTION, coversAll, keepInherited, restrictionOf, textOf, type SentSlice, type Slice
} from '../../rules/slices.ts'
import { requireTimestamp } from '../../rules/formats/timestamps.ts'
import { inheritedWarning } from '../../vault/documents/open-documents.ts'
import { deleteUngiven } from '../../vault/memberships.ts'

// The value of a token is never stored, not even for an `Idempotency-Key`. After a loss, the client rotates the token.
const VALUE: RedactedReplay = {
  keep: ({ api_key: { id } }: { api_key: { id: string } }) => ({ id }),
  give: async (_app, _request, { id }: { id: string }) => fail('idempotent_secret_unavailable', { id })
}

export const tokens: Domain = async (app) => {
  app.get('/organizations/:organization/api-keys', {
    config: { access: 'api-token:read' },
    schema: {
      operationId: 'listApiTokens',
      summary: 'List API tokens, newest first, without their values',
      description: 'A restricted token sees only tokens inside of its own restrictions.',
      querystring: ListTokensQuery,
      response: { 200: ApiTokenList }
    },
    handler: async (request, reply) => {
      const page = pageOf(request.query)
      const { organization: { id }, slices: { length: restrictions } } = principalOf(request)
      const list = async (pace?: Turn['pace']) => {
        const { organization, slices } = principalOf(request)
        const { rows, total } = await listTokens(app.lists, organization.id, slices, request.query, page, pace)
        return { data: rows, meta: pageMeta(page, total, rows.length) }
      }
      // For a restricted caller, the restrictions of all tokens are compared.
      const isLarge = (page.per_page > PAGE_SIZE.maximum || restrictions > 0) && await areManyRestricted(app.lists, id)
      if (!isLarge) return list()
      const answer = await inTurn(request, ({ pace }) => list(pace))
      const shown = answer.data.reduce((sum, token) => sum + token.restrictions.length, 0)
      reply.type('application/json; charset=utf-8').serializer(JSON.stringify)
      return reply.send(await writeIfLarge(answer, shown * CHARACTERS_OF_RESTRICTION) as typeof answer)
    }
  })

  app.post('/organizations/:organization/api-keys', {
    config: {
      access: 'api-token:create',
      goSdk: 'tokenInObject',
      redactedReplay: VALUE,
      rules: [...ABILITY_RULES, { each: 'restrictions', check: requireRestriction }],
      audit: 'api-token.create',
      errors: ['limit_reached', 'integrity_error']
    },
    schema: {
      operationId: 'createApiToken',
      summary: 'Create an API token; its value is returned only once',
      description: 'The token has at most the scopes, the restrictions and the expiry of its creator.',
      body: CreateTokenBody,
      response: { 201: CreatedToken }
    },
    handler: async (request, reply) => {
      const { restrictions = [], owner, ...sent } = request.body
      const isOrganizations = owner === 'organization'
      if (isOrganizations && !mayMakeForOrganization(request)) {
        refuse('owner', 'Only with a token of the console that has api-token:create, or with a token of the organization')
      }
      const principal = isOrganizations ? asOrganization(request) : principalOf(request)
      const abilities = canonicalList(sent.abilities)
      const token = mintApiToken(principal.organization.id)
      const { body } = await change(app.db, actorOf(request), {
        async load (db) {
          const caller = await withPresentExpiry(db, principal)
          // The default is the latest expiry that the caller may set.
          const expires_at = sent.expires_at === undefined
            ? caller.expires_at
            : await parseExpiry(db, sent.expires_at)
          const { slices, inheriting } = await resolveRestrictions(db, principal, restrictions, 'api-token:create')
          refuseEscalation(caller, { abilities, slices, expires_at }, 'api-token:create')
          await requireQuota(db, principal.organization.id, principal.person?.user_id ?? null)
          return { expires_at, slices, warning: inheritedWarning(inheriting) }
        },
        decide: ({ expires_at, slices, warning }) => ({
          write: async (db) => createToken(db, {
            ...sent,
            organization_id: principal.organization.id,
            ...storedToken(token),
            abilities,
            slices,
            expires_at,
            made_by: makerOf(principal)
          }),
          events: ({ id }) => [eventOf('api-token.create', id, {
            abilities: abilities.join(' '), ...restrictionsIn(slices), ...(isOrganizations && { owner: 'organization' })
          })],
          answer: (api_key) =>
            ({ status: 201, body: { success: true as const, message: NOT_AGAIN, token, api_key, ...warning } })
        })
      })
      return reply.code(201).send(body)
    }
  })

  app.get('/organizations/:organization/api-keys/:id', {
    config: { access: 'api-token:read' },
    schema: {
      operationId: 'getApiToken',
      summary: 'Get an API token without its value',
      description: '`token_suffix`, the end of the value, tells the tokens of an organization apart.',
      params: TokenParams,
      response: { 200: ApiTokenAnswer }
    },
    handler: async (request) => {
      const found = await findToken(app.reads, principalOf(request).organization.id, idOf(request))
      return { data: await showToken(app.reads, requireVisible(request, found)) }
    }
  })

  app.put('/organizations/:organization/api-keys/:id', {
    config: {
      access: 'api-token:update',
      rules: ABILITY_RULES,
      audit: 'api-token.update',
      errors: ['abilities_are_fixed', 'restrictions_are_fixed', 'limit_reached', 'integrity_error']
    },
    schema: {
      operationId: 'updateApiToken',
      summary: 'Change an API token; omitted fields stay unchanged',
      description: 'Scopes and restrictions are fixed: create another token instead. Only `inherited: false` in a restriction is a change.',
      params: TokenParams,
      body: UpdateTokenBody,
      response: { 200: ApiTokenAnswer }
    },
    handler: async (request) => {
      const principal = principalOf(request)
      const { organization } = principal
      const { body } = request
      const { abilities: _, restrictions, ...sent } = body
      const id = idOf(request)
      const changed = await change(app.db, actorOf(request), {
        async load (db) {
          const { token, latest } = await lockForChange(db, request, id)
          refuseFixed(token, body)
          const slices = await newSlices(db, token, restrictions)
          const expires_at = await newExpiry(db, token, body.expires_at)
          // A leaked token must not extend itself.
          if (isOneself(principal, id)) refuseAs(principal, 'api-token:update')
          const next = { ...grantOf(token), ...(expires_at !== undefined && { expires_at }) }
          refuseEscalation(await withPresentExpiry(db, changerOf(request, token)), next, 'api-token:update')
          if (expires_at !== undefined) {
            refuseBeyond(latest, expires_at)
            // An expired token does not count towards the limit until its expiry is extended.
            if (!token.is_live) await requireQuota(db, organization.id, token.user_id, token)
          }
          await requireNewName(body.name, async () => (await findToken(db, organization.id, id))?.name)
          const isInherited = slices !== undefined && await hasMadeInherited(db, token)
          return { expires_at, slices, isInherited }
        },
        decide: ({ expires_at, slices, isInherited }) => ({
          write: async (db) =>
            await updateToken(db, organization.id, id, { ...sent, expires_at, slices }) ?? fail('not_found'),
          events: () =>
            [eventOf('api-token.update', id, { members: Object.keys(body).join(' '), ...restrictionsIn(slices) })],
          answer: (data) => ({ body: { data, ...(isInherited && { warning: STILL_INHERITED }) } })
        })
      })
      return changed.body
    }
  })

  app.post('/organizations/:organization/api-keys/:id/rotate', {
    config: {
      access: ['api-token:create', 'api-token:delete'],
      redactedReplay: VALUE,
      rules: [{ reads: ['overlap_seconds'], check: requireOverlap }],
      audit: 'api-token.rotate',
      errors: ['limit_reached', 'integrity_error']
    },
    schema: {
      operationId: 'rotateApiToken',
      summary: 'Give an API token a new value; with `overlap_seconds` the previous value stays valid for a while',
      description: 'A token that rotates itself with an `Idempotency-Key` needs `overlap_seconds`: with its previous ' +
        'value it can repeat the request and, if the first response was lost, rotate again. A token of the organization ' +
        'stays one if the console or a token of the organization rotates it.',
      params: TokenParams,
      body: RotateTokenBody,
      response: { 200: RotatedToken }
    },
    handler: async (request) => {
      const principal = principalOf(request)
      const { organization } = principal
      const id = idOf(request)
      const { overlap_seconds = 0 } = request.body
      const token = mintApiToken(organization.id)
      const { body } = await change(app.db, actorOf(request), {
        async load (db) {
          const { token: locked } = await lockForChange(db, request, id)
          const rotater = changerOf(request, locked)
          refuseEscalation(await withPresentExpiry(db, rotater), grantOf(locked), 'api-token:create')
          // The rotation moves the token to the caller's grant. The previous value must end then, because the old owner
          // may know that value.
          if (overlap_seconds > 0 && !endsWith(rotater, locked)) {
            refuse('overlap_seconds', 'Only allowed for a token that belongs to your own grant')
          }
          // The rotation makes the caller the owner, so the token counts towards the caller's limit.
          if (!endsWith(rotater, locked) && locked.is_live) {
            await requireQuota(db, organization.id, principal.person!.user_id, locked)
          }
          return { locked, rotater }
        },
        decide: ({ locked, rotater }) => ({
          write: async (db) => await rotateToken(
            db, locked, storedToken(token), overlap_seconds, { ...makerOf(rotater), caller: rotater.caller },
            request.answering !== null
          ) ?? fail('not_found'),
          events: [eventOf('api-token.rotate', id, { overlap_seconds })],
          answer: (api_key) =>
            ({ body: { success: true as const, message: NOT_AGAIN, token, api_key, data: { token, api_key } } })
        })
      })
      return body
    }
  })

  app.delete('/organizations/:organization/api-keys/:id', {
    config: { access: 'api-token:delete', audit: 'api-token.delete' },
    schema: {
      operationId: 'deleteApiToken',
      summary: 'Revoke an API token; it becomes invalid immediately on every instance',
      description: 'Former values that a rotation left valid end as well.',
      params: TokenParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const id = idOf(request)
      const { id: organizationId } = principalOf(request).organization
      await change(app.db, actorOf(request), {
        async load (db) {
          const slices = await findSlices(db, organizationId, id)
          requireVisible(request, slices && { id, slices })
        },
        decide: () => ({
          async write (db) {
            await deleteTokens(db, organizationId, [id])
            return deleteUngiven(db, organizationId)
          },
          events: (withdrawn) => [eventOf('api-token.delete', id), ...withdrawn]
        })
      })
      return reply.code(204).send(null)
    }
  })
}

/**
 * Locks a token; `latest` is the expiry of its grant. 404 if the token's membership or grant has ended. Lock order:
 * membership and grant before the token, as in the transactions that end a membership or grant.
 */
async function lockForChange (
  db: Db, request: FastifyRequest, id: number
): Promise<{ token: LockedToken, latest: Date | null }> {
  const { person, organization } = principalOf(request)
  const latest = await lockTokenSupport(db, organization.id, id, person)
  const token = requireVisible(request, await lockToken(db, organization.id, id))
  return latest === undefined ? fail('not_found') : { token, latest }
}

/**
 * Whether the caller can make tokens that outlive the caller: a token of the organization, and a person with a token of
 * the console. A token of the console with such a scope is issued after a recent sign-in, and valid for five minutes.
 */
const mayMakeForOrganization = (request: FastifyRequest): boolean =>
  principalOf(request).person === null || request.user?.client_id === CONSOLE_CLIENT

/** The caller as the maker of a token of the organization, which need not end with the person's grant. */
function asOrganization (request: FastifyRequest): Principal {
  const principal = principalOf(request)
  return principal.person === null ? principal : { ...principal, person: null, expires_at: null }
}

/** The caller as the one who changes a token. */
const changerOf = (request: FastifyRequest, { user_id }: TokenRow): Principal =>
  user_id === null && mayMakeForOrganization(request) ? asOrganization(request) : principalOf(request)

/** The caller under the lock of the organization: another request may have changed the expiry of a calling token. */
async function withPresentExpiry (db: Db, caller: Principal): Promise<Principal> {
  if (caller.type !== 'api_token') return caller
  const { expires_at } = await findToken(db, caller.organization.id, caller.id) ?? fail('not_found')
  return { ...caller, expires_at }
}

const idOf = ({ params: { id } }: { params: { id: string } }) => parseId(id) ?? fail('not_found')

// Checks the token limits of the organization and the user. `locked` is an existing token, which is not counted twice.
async function requireQuota (db: Db, organizationId: string, userId: number | null, locked?: LockedToken) {
  const limit = await findReachedTokenLimit(db, organizationId, userId, locked)
  if (limit !== undefined) fail('limit_reached', { limit })
}

// If the response is lost, the retry must still authenticate with the previous value.
function requireOverlap (request: FastifyRequest) {
  const { overlap_seconds = 0 } = request.body as RotateTokenBody ?? {}
  const isKeyed = request.headers['idempotency-key'] !== undefined
  const { id } = request.params as { id: string }
  if (isKeyed && overlap_seconds === 0 && isOneself(principalOf(request), parseId(id))) {
    refuse('overlap_seconds', 'Expected at least 1 when a token rotates itself with an Idempotency-Key')
  }
}

const isOneself = ({ type, id }: Principal, token: number | undefined) => type === 'api_token' && id === token

// A restricted token can access itself and tokens inside its restrictions.
function requireVisible<T extends { id: number, slices: Slice[] | null }> (
  request: FastifyRequest, token: T | undefined
): T {
  const principal = principalOf(request)
  if (token === undefined) return fail('not_found')
  return isOneself(principal, token.id) || coversAll(principal.slices, token.slices ?? []) ? token : fail('not_found')
}

const grantOf = ({ abilities, slices, expires_at }: TokenRow) =>
  ({ abilities: abilities as Ability[], slices: slices ?? [], expires_at })

const isSame = (one: readonly string[], other: readonly string[]): boolean => {
  const [all, others] = [new Set(one), new Set(other)]
  return all.size === others.size && [...all].every((each) => others.has(each))
}

// Fixed fields may be sent if they are unchanged, so that clients can send back a token as they read it.
function refuseFixed (token: TokenRow, { abilities }: UpdateTokenBody) {
  if (abilities !== undefined && !isSame(canonicalList(abilities), token.abilities)) {
    refuse('abilities', 'Cannot be changed', 'abilities_are_fixed')
  }
}

const STILL_INHERITED = 'tokens that this token made still have `inherited`: look for them by `created_by`'

// The restrictions without each `inherited` that the request removes; undefined if nothing changes. Restrictions to
// deleted levels are not shown, so the request cannot contain them; they stay.
async function newSlices (
  db: Db, { organization_id, slices }: TokenRow, restrictions: readonly Restriction[] | undefined
): Promise<Slice[] | undefined> {
  if (restrictions === undefined) return undefined
  const present: readonly Slice[] = slices ?? []
  const slugs = await findSlugs(db, organization_id, idsOf(present))
  const shown = present.map((slice) => restrictionOf(slice, slugs).map(named)[0])
  const kept = keepInherited(restrictions.map(named), shown.filter((slice) => slice !== undefined))
  const remaining = new Set(kept.map(textOf))
  const next = present.map((slice, i): Slice => {
    const { inherited: _, ...without } = slice
    return shown[i] === undefined || remaining.has(textOf(shown[i])) ? slice : without
  })
  const after = next.flatMap((slice) => restrictionOf(slice, slugs).map(named)).map(textOf)
  if (!isSame(kept.map(textOf), after)) refuse('restrictions', 'Cannot be changed', 'restrictions_are_fixed')
  return isSame(next.map(textOf), present.map(textOf)) ? undefined : next
}

// A restriction with slugs in place of ids.
const named = ({ project, target, environment, inherited }: Restriction): SentSlice =>
  ({ project_id: project, target_id: target ?? null, environment_id: environment ?? null, inherited })

// Refuses an expiry after the end of the token's grant: the token ends with its grant, so this expiry misleads.
function refuseBeyond (latest: Date | null, expires_at: Date | null) {
  if (latest === null || (expires_at !== null && expires_at <= latest)) return
  refuse('expires_at', `Expected at most ${latest.toISOString()}, when the grant of this token ends`)
}

// Refuses unknown and repeated spellings, and `*` with other abilities, because `*` already includes them.
const ABILITY_RULES: readonly Rule[] = [
  {
    reads: ['abilities'],
    check: ({ body }) => {
      const { abilities = [] } = body as UpdateTokenBody
      if (new Set(abilities).size !== abilities.length) refuse('abilities', 'Contains an ability twice')
      if (abilities.includes('*') && abilities.length > 1) {
        refuse('abilities', '* cannot be combined with other abilities')
      }
    }
  },
  {
    each: 'abilities',
    check: (spelling: string, at) => {
      if (canonicalAbilities(spelling) === undefined) refuse(at, mustBeOneOf(['*', ...SCOPE_NAMES], spelling))
    }
  }
]

async function parseExpiry (db: Db, text: string | null): Promise<Date | null> {
  if (text === null) return null
  const moment = requireTimestamp('expires_at', text)
  return moment.getTime() > await readNow(db) ? moment : refuse('expires_at', 'Expected a time in the future')
}

// Undefined if the expiry is unchanged, so that clients can send back a token as they read it, even an expired one.
async function newExpiry (db: Db, { expires_at: current }: TokenRow, text: string | null | undefined) {
  if (text === undefined) return undefined
  const sent = text === null ? undefined : requireTimestamp('expires_at', text)
  return sent?.getTime() === current?.getTime() ? undefined : await parseExpiry(db, text)
}

// Prevents privilege escalation: a caller cannot create, change or rotate a token with more abilities, wider
// restrictions or a later expiry than its own.
function refuseEscalation (
  caller: Principal, token: { abilities: Ability[], slices: Slice[], expires_at: Date | null }, required: Scope
) {
  refuseWider(caller, token, required)
  const longer = caller.expires_at !== null && (token.expires_at === null || token.expires_at > caller.expires_at)
  if (longer) refuseAs(caller, required)
}
