import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Scope } from '../../../schemas/scopes.ts'
import { LRUCache } from 'lru-cache'
import { hashToken, isCredential, parseApiToken } from '../../crypto/bearer.ts'
import { createGates, WorkOverloaded, type Gate } from '../../crypto/bounded.ts'
import type { LevelState } from '../../repositories/levels/levels.ts'
import { findUserCall, type UserCall } from '../../repositories/people/oauth.ts'
import { findPrincipal, updateTokenUse, type Organization, type Principal } from '../../repositories/people/principals.ts'
import { databaseError } from '../../db/database.ts'
import type { TeamQuery } from '../../db/callers/memberships.ts'
import { findDevice } from '../../repositories/people/attempts.ts'
import { fail } from '../../rules/errors.ts'
import { effectiveScopes, isOfFactor, holds, holdsBy, scopesBy, type TeamRole } from '../../rules/roles.ts'
import { isReserved, isWordOfRoute } from '../../rules/formats/slugs.ts'
import { beginPiece } from '../../telemetry/spans.ts'
import { documentAccess, scopesOf } from './access-document.ts'
import { principalOf } from '../routes/actor.ts'
import { addressKey } from '../routes/addresses.ts'
import { expectNothing, locateAhead, namesLevel } from './level-lookup.ts'
import type { Counters } from '../limits/counters.ts'
import { installLimits, LIMITS, replacedBy, type Consume } from '../limits/limits.ts'
import { readCookie } from '../pages/pages.ts'
import { headerValues, requestFormatError } from '../bodies/request-format.ts'
import { hooksOf } from '../routes/routes.ts'
import { waitFor } from '../routes/request-deadline.ts'

const MOST_TOKEN = 512

// Milliseconds. Whoever sends a body slower than that was judged by what held when its headers came.
const JUDGED_FOR = 200

/**
 * Reads each route's `access`, `limit` and `errors` once: the guard enforces them and the document publishes them.
 * A route that does not declare `access` does not boot. The order of checks is that of S-2.4: token (401),
 * organization visible (404), its rate limit (429), its status (403), a second factor (403), scope (403).
 */
export async function installAccess (app: FastifyInstance, judgedFor = JUDGED_FOR, counters?: Counters) {
  const consume = await installLimits(app, counters)
  app.decorateRequest('principal', null)
  app.decorateRequest('user', null)
  app.decorateRequest('waited', 0)
  app.decorateRequest('judgedAt', 0)
  app.decorateRequest('byTeams', null)

  app.addHook('onRoute', (route) => {
    documentAccess(route)
    const { limit = 'api', limitOfEffect } = route.config ?? {}
    const replaced = limitOfEffect && replacedBy(limitOfEffect)
    if (replaced === undefined) return
    if (replaced !== limit) throw new Error(`${limitOfEffect} is not counted instead of ${limit}`)
    // Behind the hook that commits the response of a request with an `Idempotency-Key`.
    route.onSend = [...hooksOf(route.onSend), (request, _reply, payload, done) => {
      countOnce(consume, request).then(() => done(null, payload), done)
    }]
  })

  app.decorateRequest('isEffectCounted', false)
  app.decorate('countEffect', async (request: FastifyRequest, reply: FastifyReply) => {
    const { limitOfEffect, audit } = request.routeOptions.config
    if (limitOfEffect === undefined) throw new Error('the route declares no config.limitOfEffect')
    if (request.answering?.hasBegun === false) throw new Error('the effect is counted before its key is looked at')
    // A transaction that is tried again has one effect.
    if (request.isEffectCounted) return
    request.isEffectCounted = true
    // What an action is, its event says: two paths of it are one.
    const action = 'isPerAction' in LIMITS[limitOfEffect] ? `:${[audit].flat().join()}` : ''
    const key = `org:${principalOf(request).organization.id}${action}`
    request.countedEffect = await consume(limitOfEffect, key, 0, request, reply) ?? null
  })

  // Whoever has an account of their own is a stranger to the others: the guard has counted their browser, not their
  // address.
  app.decorate('countStranger', async (request: FastifyRequest, reply: FastifyReply) => {
    const { limit } = request.routeOptions.config
    const from = addressKey(request.ip)
    if (limit === 'sign_in' && request.limitKey !== from) await consume(limit, from, 0, request, reply)
  })

  const recordUse = useRecorder(app)
  app.addHook('onRequest', (request, reply, done) => {
    // Health checks are neither authenticated nor limited.
    const { access, limit } = request.routeOptions.config
    if (access === 'public' && limit === 'none') return done(requestFormatError(request))
    const end = beginPiece('guard')
    guard(app, consume, request, reply).then(() => {
      end()
      if (request.principal?.type === 'api_token') recordUse(request, request.principal)
      done()
    }, (error: Error) => {
      end()
      done(error)
    })
  })

  // A change holds its caller until it commits (`recordEvent`). This is for what a late body would only read.
  app.addHook('preValidation', (request, _reply, done) => {
    const isGuarded = request.user !== null || request.principal !== null
    if (isGuarded && performance.now() - request.judgedAt > judgedFor) {
      judgeAgain(app, request).then(() => done(), done)
    } else done()
  })
}

/**
 * Leaves the request counted in one of its two groups, before the response is sent: in the group of its effect if the
 * effect began, even if it failed afterwards, and otherwise in the group of its route. A request whose effect has begun
 * counts in both groups until then, so concurrent requests cannot get past either limit.
 */
async function countOnce (consume: Consume, request: FastifyRequest) {
  const { counted, countedEffect } = request
  if (countedEffect === null) return
  // A response that cannot be sent is followed by another one.
  request.countedEffect = null
  if (counted !== null) await consume.giveBack(counted)
}

async function guard (app: FastifyInstance, consume: Consume, request: FastifyRequest, reply: FastifyReply) {
  const { access, limit = 'api' } = request.routeOptions.config
  // Read now, which the socket remembers: of a client that has gone it could not be told any more, and the audit asks.
  const from = addressKey(request.ip)
  const lookUp = limit !== 'none' && consume.isPast(limit, from) ? gateOf(from) : undefined
  const address = async () => {
    if (limit === 'none') return
    // Strangers at the same address use up nothing of a browser that has signed in before. Whom it tries is not known
    // yet (`countStranger`).
    const key = limit === 'sign_in' ? await knownDevice(app, request, lookUp) ?? from : from
    await consume(limit, key, 0, request, reply)
  }
  const formatError = requestFormatError(request)
  if (formatError !== undefined) {
    await address()
    throw formatError
  }
  if (access === undefined || access === 'public') return address()

  const params = request.params as Record<string, string>
  let caller: Caller | undefined
  try {
    caller = await authenticate(app, request, params.organization, lookUp, (credential) => {
      // Not for who is past a limit.
      if (lookUp !== undefined) return
      locateAhead(app, request, credential, (id) => limit === 'none' || !consume.isPast(limit, `org:${id}`))
    })
  } catch (error) {
    if (!(error instanceof TooManyLookUps)) throw error
  }
  if (caller === undefined) {
    expectNothing(request)
    await address()
    return fail('unauthenticated')
  }
  request.user = caller.user ?? null
  request.judgedAt = performance.now()
  if (params.organization === undefined && caller.user !== undefined) {
    // Not about any one organization: the user's own count.
    if (limit !== 'none') await consume(limit, `user:${caller.user.user.id}`, 0, request, reply)
    for (const scope of scopesOf(access)) requireGranted(caller.user, scope)
    return
  }
  const { principal } = caller
  if (principal === undefined ||
    (params.organization !== undefined && !names(params.organization, principal.organization))) {
    await address()
    return isReserved('organization', params.organization ?? '') ? app.refuseRoute(request, reply) : fail('not_found')
  }
  request.principal = principal
  const { organization } = principal
  if (limit !== 'none') {
    const key = `org:${organization.id}`
    request.counted = await consume(limit, key, organization.plan.api_per_minute, request, reply) ?? null
  }
  // A reserved word in a slug's place is a path of its own that has no such method, never a resource.
  if (hasReservedWord(params)) return app.refuseRoute(request, reply)
  requireAccess(app, request, principal)
}

async function judgeAgain (app: FastifyInstance, request: FastifyRequest) {
  request.ahead = null
  request.byTeams = null
  const caller = await authenticate(app, request, (request.params as { organization?: string }).organization)
  // Who is no member any more is refused as whoever has ended.
  if (caller === undefined || (request.principal !== null && caller.principal === undefined)) {
    return fail('unauthenticated')
  }
  request.user = caller.user ?? null
  request.principal = caller.principal ?? null
  if (request.principal !== null) requireAccess(app, request, request.principal)
}

// The organization's status (403), what it requires of its members (403), then the scopes of the route (403).
function requireAccess (app: FastifyInstance, request: FastifyRequest, principal: Principal) {
  const { access, whenInactive, asksForSecondFactor } = request.routeOptions.config
  const { status, require_second_factor } = principal.organization
  if (status !== 'active' && !whenInactive) fail('organization_inactive', { status })
  if (require_second_factor && !asksForSecondFactor) requireSecondFactor(app, principal)
  for (const scope of scopesOf(access)) requireScope(request, scope)
}

// Outside an organization nobody has a role: what was granted counts alone.
function requireGranted ({ granted }: UserCall, scope: Scope) {
  if (granted.includes('*') || granted.includes(scope)) return
  fail('insufficient_permissions', { required_scope: scope, granted_scopes: [...granted] })
}

/** Refuses a person without a second factor, whatever they act through; a token of nobody's has nobody to ask. */
export function requireSecondFactor (app: FastifyInstance, { person }: Pick<Principal, 'person'>) {
  if (person?.has_second_factor === false) {
    fail('second_factor_required', { enroll_url: `${app.issuer()}/account` })
  }
}

// What a browser is counted by that somebody has signed in with; undefined for a stranger's.
async function knownDevice (
  app: FastifyInstance, request: FastifyRequest, lookUp: Gate = atOnce
): Promise<string | undefined> {
  const device = readCookie(app, request, 'device')
  if (device === undefined) return undefined
  const hash = hashToken(device)
  try {
    const id = await lookUp(() => findDevice(app.reads, hash))
    return id === undefined ? undefined : `device:${id}`
  } catch (error) {
    if (error instanceof TooManyLookUps) return undefined
    throw error
  }
}

interface Caller { principal: Principal | undefined, user?: UserCall }

class TooManyLookUps extends WorkOverloaded {
  override readonly name = 'TooManyLookUps'
}

// What an address that is past its limit may have looked up: one token at a time, good or forged; a few wait in line,
// and the rest is past the limit without a look.
const gateOf = createGates(1, 20, () => new TooManyLookUps())
/** For who is not past any limit. */
const atOnce: Gate = (work) => work()

async function authenticate (
  app: FastifyInstance, request: FastifyRequest, organization: string | undefined, lookUp: Gate = atOnce,
  begin: (credential: string) => void = () => {}
): Promise<Caller | undefined> {
  const sent = headerValues(request, 'authorization')
  const [, token] = /^Bearer ([\x21-\x7e]+)$/i.exec(sent.length === 1 ? sent[0] ?? '' : '') ?? []
  if (token === undefined || token.length > MOST_TOKEN) return undefined
  // The checksum is judged first, so that garbage costs no query.
  const isApiToken = parseApiToken(token) !== undefined
  if (!isApiToken && !isCredential('at', token)) return undefined
  const hash = hashToken(token)
  const teams = teamsAskedFor(request)
  const looked = lookUp(async (): Promise<Caller | undefined> => {
    if (isApiToken) {
      const principal = await findPrincipal(app.reads, hash, teams)
      return principal && { principal }
    }
    const user = await findUserCall(app.reads, hash, organization, teams)
    return user && { principal: principalFor(user), user }
  })
  begin(hash.toString('latin1'))
  return waitFor(request, looked)
}

// Through an application a member may do what was granted and what the role allows, whichever is narrower, for as long
// as the grant lasts: a token made with it cannot last longer.
function principalFor ({ id, grant_id, user, granted, expires_at, membership }: UserCall): Principal | undefined {
  if (membership === undefined) return undefined
  const { role, teams, organization } = membership
  const scopes = effectiveScopes(granted, role, isOfFactor(grant_id, user.second_factor_id))
  return {
    type: 'user',
    id: user.id,
    name: user.name,
    scopes,
    granted,
    teams,
    slices: [],
    expires_at,
    caller: { access_token: id, user_id: user.id, role },
    person: { user_id: user.id, grant_id, has_second_factor: user.second_factor_id !== null },
    organization
  }
}

// At most once a minute for a token, and nobody waits for it: no request depends on it.
function useRecorder (app: FastifyInstance) {
  const lately = new LRUCache<number, true>({ max: 10_000, ttl: 60_000 })
  return (request: FastifyRequest, principal: Principal) => {
    if (lately.has(principal.id)) return
    lately.set(principal.id, true)
    updateTokenUse(app.db, principal).catch((error: unknown) =>
      request.log.warn({ err: databaseError(error) }, 'the use of a token was not recorded'))
  }
}

function names (text: string, organization: Organization): boolean {
  return text === organization.slug || text.toUpperCase() === organization.id
}

function hasReservedWord (params: Record<string, string>): boolean {
  return Object.entries(params).some(([name, word]) => name !== 'organization' && isWordOfRoute(name, word))
}

/**
 * Demands a scope that the route declares as `access` or in `mayNeed`; `*` holds every one. The scope is held in the
 * whole organization, or by roles through teams in the project of the request. Where the path does not name the
 * project, a caller who holds the scope in any project passes, and the look-up of the project decides (`requireHeld`,
 * `requireFoundInside`).
 */
export function requireScope (request: FastifyRequest, scope: Scope) {
  const { access, mayNeed = [] } = request.routeOptions.config
  if (!scopesOf(access).includes(scope) && !mayNeed.includes(scope)) {
    throw new Error(`${scope} is not declared by the route`)
  }
  const principal = principalOf(request)
  if (holds(principal, scope)) return
  const teams = teamsThatCount(request, principal)
  if (!holdsBy(principal, teams, scope)) {
    // Roles in any project are looked up without their MACs, so no response tells what they are.
    const shown = projectInPath(request) === undefined ? [] : teams
    fail('insufficient_permissions', { required_scope: scope, granted_scopes: scopesBy(principal, shown) })
  }
  const inProject = request.at === null ? null : rolesAt(principal, request.at)
  request.byTeams = { scopes: [...request.byTeams?.scopes ?? [], scope], teams: inProject }
}

// What is looked up with the caller: the roles through teams in the project that the path names, or, where a body or an
// id names the project, which roles there are in any project.
function teamsAskedFor (request: FastifyRequest): TeamQuery {
  const { at, finds, boundsItself } = request.routeOptions.config
  const project = projectInPath(request)
  if (project !== undefined) return { project }
  return namesLevel(at) || finds !== undefined || boundsItself ? { anywhere: true } : {}
}

const projectInPath = ({ params }: FastifyRequest) => (params as { project?: string }).project

// The roles through teams by which a scope may be held, as far as the project of the request is known.
function teamsThatCount (request: FastifyRequest, principal: Principal): readonly Pick<TeamRole, 'role'>[] {
  const { at } = request
  const isInPath = projectInPath(request) !== undefined
  if (!isInPath && at !== null) throw new Error('a scope is demanded after the project of a body was found')
  if (at !== null) return rolesAt(principal, at)
  return isInPath ? principal.teams.inProject : principal.teams.anywhere.map((role) => ({ role }))
}

const rolesAt = ({ teams }: Principal, { project }: LevelState) =>
  teams.inProject.filter(({ project_id }) => project_id === project.id)
