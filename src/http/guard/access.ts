import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { LRUCache } from 'lru-cache'
import { hashToken, isCredential, isWorkloadToken, MAX_TOKEN_LENGTH, parseApiToken } from '../../crypto/bearer.ts'
import { placeOf, type LevelState } from '../../repositories/levels/levels.ts'
import { findUserCall, type UserCall } from '../../repositories/people/oauth.ts'
import {
  findPrincipal, findWorkloadPrincipal, readWorkloadToken, updateTokenUse, type Organization, type Principal
} from '../../repositories/people/principals.ts'
import { databaseError } from '../../db/database.ts'
import type { TeamQuery } from '../../db/callers/memberships.ts'
import { findDevice } from '../../repositories/people/attempts.ts'
import { Gate, WorkOverloaded } from '../../gate.ts'
import { fail } from '../../rules/api-error.ts'
import {
  effectiveScopes, grants, isOfFactor, holds, meets, scopesBy, type AnyOf, type TeamRole
} from '../../rules/roles.ts'
import { workloadIdOf } from '../../rules/formats/ids.ts'
import type { EventName } from '../../../schemas/events.ts'
import { isReserved, isWordOfRoute } from '../../rules/formats/slugs.ts'
import { beginPiece } from '../../telemetry/spans.ts'
import { documentAccess, scopesOf } from './access-document.ts'
import { principalOf } from '../routes/actor.ts'
import { addressKey } from '../routes/addresses.ts'
import { expectNothing, locate, prefetchLevel, namesLevel, requireInside, requireWhole } from './level-lookup.ts'
import type { Counters } from '../limits/counters.ts'
import { isDryRun } from '../routes/params.ts'
import { installLimits, LIMITS, type Consume } from '../limits/limits.ts'
import { readCookie } from '../pages/pages.ts'
import { bearerIn, headerValues, missingToken, requestFormatError } from '../bodies/request-format.ts'
import { hooksOf } from '../routes/routes.ts'
import { waitFor } from '../routes/request-deadline.ts'

// If the body arrives later than this, or a read takes longer, the caller is checked again, because access may have
// been revoked meanwhile.
const RECHECK_AFTER_MS = 200

/** The events of requests that reveal something and change nothing. */
const OF_READS: readonly (EventName | 'none')[] =
  ['none', 'secret.decrypt', 'secret.names', 'version.read', 'key.retrieve']

/** Whether the request changed nothing. A stored response of a repeated change is also only read. */
function onlyReads (request: FastifyRequest, reply: FastifyReply): boolean {
  const { audit = [] } = request.routeOptions.config
  const events = [audit].flat()
  return ['GET', 'HEAD'].includes(request.method) || isDryRun(request) || reply.hasHeader('idempotent-replayed') ||
    (events.length > 0 && events.every((event) => OF_READS.includes(event)))
}

/**
 * Enforces and documents each route's `access`, `limit` and `errors`. Throws at start if a route does not declare
 * `access`. Order of the checks (S-2.4): token (401), organization visible (404), rate limit (429), status of the
 * organization (403), second factor (403), scope (403).
 */
export async function installAccess (app: FastifyInstance, counters: Counters, recheckAfter = RECHECK_AFTER_MS) {
  const consume = await installLimits(app, counters)
  app.decorateRequest('principal', null)
  app.decorateRequest('user', null)
  app.decorateRequest('waited', 0)
  app.decorateRequest('validatedAt', 0)
  app.decorateRequest('byTeams', null)
  app.decorateRequest('required', null)

  app.addHook('onRoute', (route) => {
    documentAccess(route)
    const { limit = 'api', limitOfEffect } = route.config ?? {}
    const replaced = limitOfEffect && LIMITS[limitOfEffect].insteadOf
    if (replaced === undefined) return
    if (replaced !== limit) throw new Error(`${limitOfEffect} is not counted instead of ${limit}`)
    route.onSend = [...hooksOf(route.onSend), (request, _reply, payload, done) => {
      countOnce(request).then(() => done(null, payload), done)
    }]
  })

  app.decorateRequest('isEffectCounted', false)
  app.decorate('countEffect', async (request: FastifyRequest, reply: FastifyReply) => {
    const { limitOfDryRun, audit, ...config } = request.routeOptions.config
    const limitOfEffect = (isDryRun(request) ? limitOfDryRun : undefined) ?? config.limitOfEffect
    if (limitOfEffect === undefined) throw new Error('the route does not declare the limit of its effect')
    if (request.answering?.isKeyChecked === false) throw new Error('the effect is counted before its key is checked')
    // A retried transaction counts only once.
    if (request.isEffectCounted) return
    // The audit event identifies the action, so that the two paths of a route with `config.also` share one count.
    const action = LIMITS[limitOfEffect].isPerAction ? `:${[audit].flat().join()}` : ''
    const key = `org:${principalOf(request).organization.id}${action}`
    request.isEffectCounted = await consume(limitOfEffect, key, 0, request, reply) !== undefined
  })

  // `guard` counts a sign-in by the device cookie if it knows the device, otherwise by address. Call this to also count
  // the address if the device has not signed in to this account before.
  app.decorate('countStranger', async (request: FastifyRequest, reply: FastifyReply) => {
    const { limit } = request.routeOptions.config
    const from = addressKey(request.ip)
    if (limit === 'sign_in' && request.limit?.key !== from) await consume(limit, from, 0, request, reply)
  })

  const isLate = ({ validatedAt }: FastifyRequest) => performance.now() - validatedAt > recheckAfter
  app.decorate('authorizeAgain', async (request: FastifyRequest) => {
    if (isLate(request)) await authorizeAgain(app, request)
  })

  const recordUse = useRecorder(app)
  app.addHook('onRequest', (request, reply, done) => {
    // Public routes without a limit, such as health checks, are not guarded.
    const { access, limit } = request.routeOptions.config
    if (access === 'public' && limit === 'none') return done(requestFormatError(request))
    const end = beginPiece('guard')
    guard(app, consume, counters, request, reply).then(() => {
      end()
      if (request.principal?.type === 'api_token') recordUse(request, request.principal)
      done()
    }, (error: Error) => {
      end()
      done(error)
    })
  })

  // After a slow body, checks the caller again. Only reads need this: a change locks its caller until the commit.
  app.addHook('preValidation', (request, _reply, done) => {
    const isGuarded = request.user !== null || request.principal !== null
    // Routes of the documentation are registered before the guard: `validatedAt` is undefined and the comparison false.
    if (isGuarded && isLate(request)) {
      checkAgain(app, request).then(() => done(), done)
    } else done()
  })

  // A read may have waited for its event, a lock or a large table. Checks the caller again before the response.
  app.addHook('onSend', (request, reply, payload, done) => {
    const isGuarded = request.user != null || request.principal != null
    if (isGuarded && reply.statusCode < 400 && isLate(request) && onlyReads(request, reply)) {
      authorizeAgain(app, request).then(() => done(null, payload), done)
    } else done(null, payload)
  })
}

/**
 * If the effect was counted, also if it failed later, removes the request from the group of the route (`limit`) before
 * the response is sent. Until then the request counts in both groups, so that concurrent requests cannot exceed either
 * limit.
 */
async function countOnce (request: FastifyRequest) {
  const { giveBack, isEffectCounted } = request
  if (giveBack === null || !isEffectCounted) return
  // If a response cannot be sent, Fastify runs `onSend` again for the error response.
  request.giveBack = null
  await giveBack()
}

async function guard (
  app: FastifyInstance, consume: Consume, counters: Counters, request: FastifyRequest, reply: FastifyReply
) {
  const { access, limit = 'api' } = request.routeOptions.config
  // Read the address now: after a disconnect, a socket returns the address only if it was read before.
  const from = addressKey(request.ip)
  const lookUp = limit !== 'none' && counters.pastUntil(limit, from) > 0 ? lookUpInTurn(from) : undefined
  const address = async () => {
    if (limit === 'none') return
    // A known device has its own limit. Whether the device belongs to the account is checked later (`countStranger`).
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
  const caller = await unlessTooMany(authenticate(app, request, params.organization, lookUp, (credential) => {
    // There is no prefetch if the address or the organization of the caller has exceeded its limit.
    if (lookUp !== undefined) return
    prefetchLevel(app, request, credential, (id) => limit === 'none' || counters.pastUntil(limit, `org:${id}`) === 0)
  }))
  if (caller === undefined) {
    expectNothing(request)
    await address()
    return fail('unauthenticated', missingToken(request))
  }
  request.user = caller.user ?? null
  request.validatedAt = performance.now()
  if (params.organization === undefined && caller.user !== undefined) {
    if (limit !== 'none') await consume(limit, `user:${caller.user.user.id}`, 0, request, reply)
    // Outside of an organization a user has no role, so only the scopes granted to the application count.
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
    request.giveBack = await consume(limit, key, organization.plan.api_per_minute, request, reply) ?? null
  }
  // No resource has a reserved word as its slug, so the response is the same as for a path without a route.
  if (hasReservedWord(params)) return app.refuseRoute(request, reply)
  requireAccess(app, request, principal)
}

async function checkAgain (app: FastifyInstance, request: FastifyRequest) {
  request.prefetch = null
  request.byTeams = null
  const caller = await authenticate(app, request, (request.params as { organization?: string }).organization)
  // A caller that is no longer a member gets the same error as a revoked token.
  if (caller === undefined || (request.principal !== null && caller.principal === undefined)) {
    return fail('unauthenticated')
  }
  request.user = caller.user ?? null
  request.principal = caller.principal ?? null
  request.validatedAt = performance.now()
  if (request.principal !== null) requireAccess(app, request, request.principal)
}

// Checks the caller, all scopes that were required so far, and the access to the level again.
async function authorizeAgain (app: FastifyInstance, request: FastifyRequest) {
  const { required } = request
  request.required = null
  request.at = null
  await checkAgain(app, request)
  const isRequired = (need: AnyOf) => request.required?.some((known) => known.join() === need.join())
  for (const need of required ?? []) if (!isRequired(need)) requireAnyOf(request, need)
  requireWhole(request)
  if (namesLevel(request.routeOptions.config.at)) await locate(app, request)
}

function requireAccess (app: FastifyInstance, request: FastifyRequest, principal: Principal) {
  const { access, lessAccess, whenInactive, asksForSecondFactor } = request.routeOptions.config
  const { status, require_second_factor } = principal.organization
  if (status !== 'active' && !whenInactive) fail('organization_inactive', { status })
  if (require_second_factor && !asksForSecondFactor) requireSecondFactor(app, principal)
  if (lessAccess?.when(request)) return requireAnyOf(request, lessAccess.anyOf)
  for (const scope of scopesOf(access)) requireScope(request, scope)
}

function requireGranted ({ granted }: UserCall, scope: Scope) {
  if (grants(granted, scope)) return
  fail('insufficient_permissions', { required_scope: scope, granted_scopes: [...granted] })
}

/** Ends the request with 403 if its user has no second factor. Tokens without a user pass. */
export function requireSecondFactor (app: FastifyInstance, { person }: Pick<Principal, 'person'>) {
  if (person?.has_second_factor === false) {
    fail('second_factor_required', { enroll_url: `${app.issuer()}/account` })
  }
}

// The limit key of a known device; undefined for other browsers.
async function knownDevice (
  app: FastifyInstance, request: FastifyRequest, lookUp: LookUp = atOnce
): Promise<string | undefined> {
  const device = readCookie(app, request, 'device')
  if (device === undefined) return undefined
  const id = await unlessTooMany(lookUp(() => findDevice(app.reads, hashToken(device))))
  return id === undefined ? undefined : `device:${id}`
}

interface Caller { principal: Principal | undefined, user?: UserCall }

class TooManyLookUps extends WorkOverloaded {}

// An address that exceeded its limit has one token look-up at a time and a queue of 20; if the queue is full, 429.
const lookUps = new Gate([{}, { running: 1, waiting: 20 }], { refuse: () => new TooManyLookUps() })
type LookUp = <T>(find: () => Promise<T>) => Promise<T>
const lookUpInTurn = (address: string): LookUp => (find) => lookUps.run([address], find)
const atOnce: LookUp = (find) => find()

async function unlessTooMany<T> (look: Promise<T>): Promise<T | undefined> {
  try {
    return await look
  } catch (error) {
    if (error instanceof TooManyLookUps) return undefined
    throw error
  }
}

async function authenticate (
  app: FastifyInstance, request: FastifyRequest, organization: string | undefined, lookUp: LookUp = atOnce,
  begin: (credential: string) => void = () => {}
): Promise<Caller | undefined> {
  const sent = headerValues(request, 'authorization')
  const token = bearerIn(sent.length === 1 ? sent[0] : undefined)
  if (token === undefined || token.length > MAX_TOKEN_LENGTH) return undefined
  // The checksum or the seal is checked first, so that random strings cost no query.
  const apiToken = parseApiToken(token)
  const workload = isWorkloadToken(token) ? readWorkloadToken(app.reads, token) : undefined
  if (apiToken === undefined && workload === undefined && !isCredential('at', token)) return undefined
  const hash = hashToken(token)
  const teams = teamsAskedFor(request)
  const looked = lookUp(async (): Promise<Caller | undefined> => {
    if (apiToken !== undefined) return callerBy(await findPrincipal(app.reads, { ...apiToken, hash }, teams))
    if (workload !== undefined) return callerBy(await findWorkloadPrincipal(app.reads, workload))
    const user = await findUserCall(app.reads, hash, organization, teams)
    if (user?.client_id === CONSOLE_CLIENT && !app.config.console) return undefined
    return user && { principal: principalFor(user), user }
  })
  // A workload often has a new token for each request.
  begin(workload === undefined ? hash.toString('latin1') : workloadIdOf(workload.organizationId, workload.id))
  return waitFor(request, looked)
}

const callerBy = (principal: Principal | undefined): Caller | undefined => principal && { principal }

// An application has the scopes that the user granted and that the user's role contains. `expires_at` is the end of the
// grant: an API token that the application creates must expire by then.
function principalFor (
  { id, grant_id, user, application, granted, expires_at, membership }: UserCall
): Principal | undefined {
  if (membership === undefined) return undefined
  const { role, teams, organization } = membership
  const scopes = effectiveScopes(granted, role, isOfFactor(grant_id, user.second_factor_id))
  return {
    type: 'user',
    id: user.id,
    name: user.name,
    application,
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

// Updates `last_used_at` at most once a minute per token, in the background.
function useRecorder (app: FastifyInstance) {
  const lately = new LRUCache<number, true>({ max: 10_000, ttl: 60_000 })
  return (request: FastifyRequest, principal: Principal) => {
    if (lately.has(principal.id)) return
    lately.set(principal.id, true)
    updateTokenUse(app.db, principal).catch((error: unknown) =>
      request.log.warn({ err: databaseError(error) }, 'recording token use failed'))
  }
}

const names = (text: string, { slug, id }: Organization) => text === slug || text.toUpperCase() === id

const hasReservedWord = (params: Record<string, string>) =>
  Object.entries(params).some(([name, word]) => name !== 'organization' && isWordOfRoute(name, word))

/**
 * Ends the request with 403 if neither the caller's own scopes nor a team's role in the project of the request contain
 * the scope. Throws if the route does not declare the scope. If the path names no project, a team's role in any project
 * is enough; the look-up of the project checks the scope again (`requireHeld`, `requireFoundInside`).
 */
export function requireScope (request: FastifyRequest, scope: Scope) {
  const { access, mayNeed = [] } = request.routeOptions.config
  if (!scopesOf(access).includes(scope) && !mayNeed.includes(scope)) {
    throw new Error(`${scope} is not declared by the route`)
  }
  requireAnyOf(request, [scope])
}

function requireAnyOf (request: FastifyRequest, need: AnyOf) {
  const principal = principalOf(request)
  request.required = [...request.required ?? [], need]
  if (need.some((scope) => holds(principal, scope))) return
  const teams = teamsThatCount(request, principal)
  if (!meets(principal, teams, need)) {
    // The MACs of team roles in other projects are not verified, so the response must not show their scopes.
    const shown = projectInPath(request) === undefined ? [] : teams
    fail('insufficient_permissions', { required_scope: need[0], granted_scopes: scopesBy(principal, shown) })
  }
  const inProject = request.at === null ? null : rolesAt(principal, request.at)
  request.byTeams = { needs: [...request.byTeams?.needs ?? [], need], teams: inProject }
  // The team role with this scope may be restricted to levels that do not include the level of the request.
  if (request.at !== null) requireInside(request, placeOf(request.at))
}

// The team roles to load with the caller: in the project of the path, or in any project if the path names no project.
function teamsAskedFor (request: FastifyRequest): TeamQuery {
  const { at, preload, filtersInHandler } = request.routeOptions.config
  const project = projectInPath(request)
  if (project !== undefined) return { project }
  return namesLevel(at) || preload !== undefined || filtersInHandler ? { anywhere: true } : {}
}

const projectInPath = ({ params }: FastifyRequest) => (params as { project?: string }).project

// The team roles that may grant a scope: in the project of the request, or in any project while that is unknown.
function teamsThatCount (request: FastifyRequest, principal: Principal): readonly Pick<TeamRole, 'role'>[] {
  const { at } = request
  const isInPath = projectInPath(request) !== undefined
  if (!isInPath && at !== null) throw new Error('a scope is required after the project of a body was found')
  if (at !== null) return rolesAt(principal, at)
  return isInPath ? principal.teams.inProject : principal.teams.anywhere.map((role) => ({ role }))
}

const rolesAt = ({ teams }: Principal, { project }: LevelState) =>
  teams.inProject.filter(({ project_id }) => project_id === project.id)
