import type { FastifyContextConfig, FastifyInstance, FastifyRequest } from 'fastify'
import { LRUCache } from 'lru-cache'
import { requireRules } from '../bodies/faults.ts'
import type { Rule } from '../routes/types.ts'
import { principalOf } from '../routes/actor.ts'
import { requireCurrent } from '../repeats/etags.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { LEVELS, type Level, type LevelNames } from '../../../schemas/secrets.ts'
import type { Db } from '../../db/database.ts'
import { findTeamRoles } from '../../db/callers/memberships.ts'
import { findLevel, placeOf, type Include, type LevelState } from '../../repositories/levels/levels.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import { lockProject } from '../../repositories/levels/projects.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import { ApiError, fail, refuse } from '../../rules/api-error.ts'
import { holds, holdsBy, meets, partsWith, scopesBy, slicesBy, type TeamRole } from '../../rules/roles.ts'
import { intersect, isInside, projectsInside, slicesIn, type Place, type Slice } from '../../rules/slices.ts'
import { waitFor } from '../routes/request-deadline.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * The level of a request: the deepest level in the path, or a function that reads the names from the body. The
     * level is looked up before the handler runs; `levelOf` returns it. 404 if the level does not exist or the caller's
     * restrictions exclude it. With `organization`, 404 for a token with restrictions, and for a caller whose scopes
     * come from a team's role.
     */
    at?: 'organization' | Level | ((request: FastifyRequest) => LevelNames)
    /** For a resource with an id: loads the resource before the handler runs. Must call `requireFoundInside`. */
    preload?: (request: FastifyRequest) => Promise<unknown>
    /** The request also concerns the whole organization: 404 for the same callers as with `at: 'organization'`. */
    whole?: true
    /**
     * For reads of a project: the handler leaves out the levels that the caller's restrictions exclude. The request
     * ends with 404 only if the restrictions exclude the whole project.
     */
    filtersLevels?: true
    /**
     * The handler calls `changeDocument`, which looks up the level under the lock of the organization. The level is
     * looked up before the handler, too, for requests that need team roles or have an `Idempotency-Key`: a repeated
     * request skips the handler.
     */
    isFoundByWrite?: true
    /** What to load with the level: documents, their content, the active key. Default: `place`, the level alone. */
    include?: Include | ((request: FastifyRequest) => Include)
  }
  interface FastifyRequest {
    /** The level of the request, as it was before the handler ran. */
    at: LevelState | null
    /** The prefetch of the level, which runs in parallel with the look-up of the caller; used at most once. */
    prefetch: Prefetch | null
    /** The cache key of the prefetch; empty if the route has none. */
    prefetchKey: string
  }
}

interface Prefetch { organizationId: string, include: Include, found: Promise<LevelState | undefined> }

/** 404 for a resource that the caller's restrictions exclude. The response must not name it (`missingPart`). */
export class HiddenResource extends ApiError {
  override readonly name = 'HiddenResource'
  constructor () { super('not_found') }
}

/** Looks up the level of every route that declares `at`. Throws at start if a path names a level without `at`. */
export function installLevelLookup (app: FastifyInstance) {
  app.decorateRequest('at', null)
  app.decorateRequest('prefetch', null)
  app.decorateRequest('prefetchKey', '')
  app.addHook('onRoute', ({ method, url, config }) => {
    const named = LEVELS.filter((level) => url.includes(`/:${level}`)).at(-1)
    if (named !== undefined && config?.at !== named) {
      throw new Error(`${String(method)} ${url} does not declare config.at as '${named}'`)
    }
  })
  app.addHook('preHandler', (request, _reply, done) => {
    const { at, preload } = request.routeOptions.config
    requireRules(request)
    requireWhole(request)
    if (isFoundLater(request)) done()
    else if (namesLevel(at)) locate(app, request).then(() => done(), done)
    else if (preload !== undefined) waitFor(request, preload(request)).then(() => done(), done)
    else done()
  })
}

/** Ends a request about the whole organization with 404 if the caller may access only parts of the organization. */
export function requireWhole (request: FastifyRequest) {
  const { at, whole } = request.routeOptions.config
  // A team's role applies only to projects, never to the whole organization.
  const isRestricted = () => principalOf(request).slices.length > 0 || request.byTeams !== null
  if ((at === 'organization' || whole) && isRestricted()) throw new HiddenResource()
}

function isFoundLater (request: FastifyRequest): boolean {
  const isJudgedBefore = request.byTeams !== null || request.headers['idempotency-key'] !== undefined
  return !isJudgedBefore && request.routeOptions.config.isFoundByWrite === true
}

/** Whether a route has a level to look up. */
export const namesLevel = (at: FastifyContextConfig['at']): at is Exclude<typeof at, 'organization' | undefined> =>
  at !== undefined && at !== 'organization'

// The organization of the last successful look-up, by route, organization in the path, `include` and credential.
const lastOrganizations = new LRUCache<string, string>({ max: 10_000 })

/**
 * Prefetches the level of a path in parallel with the look-up of the caller, which saves a round trip. Uses the
 * organization that `lastOrganizations` has for this credential and route, so unknown and rejected credentials cause no
 * prefetch. The result is used only after the caller is authorized for the same organization.
 */
export function prefetchLevel (
  app: FastifyInstance, request: FastifyRequest, credential: string, mayLook: (organizationId: string) => boolean
) {
  const { at } = request.routeOptions.config
  const names = request.params as LevelNames & { organization?: string }
  // Only for levels in a path: the body with the names of a level is not parsed yet.
  if (!namesLevel(at) || typeof at !== 'string' || request.method !== 'GET') return
  const include = includedBy(request)
  request.prefetchKey = `${request.routeOptions.url} ${names.organization} ${include} ${credential}`
  const organizationId = lastOrganizations.get(request.prefetchKey)
  if (organizationId === undefined || !mayLook(organizationId)) return
  const found = findLevel(app.reads, organizationId, names, include)
  // Avoids an unhandled rejection if the result is not used.
  found.catch(() => {})
  request.prefetch = { organizationId, include, found }
}

/** Ends the prefetches for a credential that turned out to be invalid. */
export const expectNothing = ({ prefetchKey }: FastifyRequest) => lastOrganizations.delete(prefetchKey)

/** Reads the level of a request and stores it for `levelOf`. The default of `include` is what the route declares. */
export async function locate (app: FastifyInstance, request: FastifyRequest, include?: Include): Promise<LevelState> {
  request.at = await find(app.reads, request, include)
  return request.at
}

function includedBy (request: FastifyRequest): Include {
  const { include = 'place' } = request.routeOptions.config
  return typeof include === 'function' ? include(request) : include
}

/** The names of the level of a request; the route must declare `at`. */
export function namesIn (request: FastifyRequest): LevelNames {
  const { at } = request.routeOptions.config
  if (!namesLevel(at)) throw new Error('the route does not declare config.at')
  return typeof at === 'function' ? at(request) : request.params as LevelNames
}

/** Returns the level. 404 if the level is missing or restricted; 403 if the team roles do not grant the scopes. */
export function requireLevel (request: FastifyRequest, level: LevelState | undefined): LevelState {
  if (level === undefined) return fail('not_found')
  requireHeld(request, rolesIn(request.byTeams?.teams ?? [], level))
  if (request.routeOptions.config.filtersLevels) requirePart(request, level)
  else requireInside(request, placeOf(level))
  return level
}

// Ends the request with 404 if the restrictions of the request exclude every level of the project.
function requirePart (request: FastifyRequest, { project }: LevelState) {
  const slices = slicesOf(request)
  if (slices.length > 0 && slicesIn(slices, project.id).length === 0) throw new HiddenResource()
}

const rolesIn = (teams: readonly TeamRole[], { project }: LevelState) =>
  teams.filter(({ project_id }) => project_id === project.id)

async function find (db: Db, request: FastifyRequest, include = includedBy(request)): Promise<LevelState> {
  const names = namesIn(request)
  const organizationId = principalOf(request).organization.id
  const { prefetch } = request
  request.prefetch = null
  const isKnown = prefetch !== null && prefetch.organizationId === organizationId && prefetch.include === include
  const [level, teams] = await waitFor(request, Promise.all([
    isKnown ? prefetch.found : findLevel(db, organizationId, names, include),
    teamsIn(db, request, { slug: names.project })
  ]))
  requireHeld(request, level === undefined ? teams : rolesIn(teams, level))
  const reached = requireLevel(request, level)
  if (request.prefetchKey !== '') lastOrganizations.set(request.prefetchKey, organizationId)
  return reached
}

/** The names of a level in a body. */
export const namesOf = ({ project, target, environment }: LevelNames): LevelNames => ({ project, target, environment })

/** 422 for an environment without its target. `at` is the path of the names in the body. */
export function requireTarget ({ target, environment }: Omit<LevelNames, 'project'>, at = '') {
  if (environment !== undefined && target === undefined) refuse(`${at}target`, 'Required with environment')
}

/** A body names an environment only with its target. */
export const TARGET_RULE: Rule = { reads: [], check: ({ body }) => { requireTarget(body as LevelNames) } }

/** The level of a request; the route must declare `at`. */
export function levelOf (request: FastifyRequest): LevelState {
  if (request.at === null) throw new Error('the route does not declare config.at')
  return request.at
}

// The caller's team roles in a project; empty if the caller's own role is enough. If the path names the project, the
// guard has loaded the roles.
async function teamsIn (
  db: Db, request: FastifyRequest, which: { slug: string } | { id: string }
): Promise<readonly TeamRole[]> {
  if (request.byTeams === null) return []
  const { person, teams, organization } = principalOf(request)
  const { project } = request.params as { project?: string }
  if (project !== undefined) return teams.inProject
  return findTeamRoles(db, { organization_id: organization.id, user_id: person!.user_id, ...which })
}

// Ends the request with 403 if the team roles in this project do not grant the scopes of the request. The guard has
// accepted the scopes because of team roles in any project. The response does not depend on whether the project exists.
function requireHeld (request: FastifyRequest, teams: readonly TeamRole[]) {
  if (request.byTeams === null) return
  const { needs } = request.byTeams
  const principal = principalOf(request)
  const missing = needs.find((need) => !meets(principal, teams, need))
  if (missing !== undefined) {
    fail('insufficient_permissions', { required_scope: missing[0], granted_scopes: scopesBy(principal, teams) })
  }
  request.byTeams = { needs, teams }
}

/**
 * The restrictions of the request: those of the token, and those of the team roles that give the caller the scopes of
 * the request. Empty: no restrictions. 404 if these restrictions have no level in common. Call this after checking team
 * roles.
 */
export function slicesOf (request: FastifyRequest): readonly Slice[] {
  const { byTeams } = request
  const principal = principalOf(request)
  if (byTeams === null) return principal.slices
  if (byTeams.teams === null) throw new Error('the roles through teams were not checked')
  const slices = withinToken(principal, slicesBy(principal, byTeams.teams, byTeams.needs))
  // An empty list means that there are no restrictions, so it must not be returned here.
  if (slices.length === 0) throw new HiddenResource()
  return slices
}

/** The intersection of `slices` with the restrictions of the caller's token. An empty result includes no level. */
export const withinToken = (principal: Pick<Principal, 'slices'>, slices: readonly Slice[]): readonly Slice[] =>
  principal.slices.length === 0 ? slices : intersect(principal.slices, slices)

/** Whether the caller has a scope at a place, a level in the hierarchy. */
export type Reach = (place: Place) => boolean

/** Tells where below the level of the path the caller has a scope, which the request itself need not require. */
export function reachBelow (request: FastifyRequest, scope: Scope): Reach {
  const principal = principalOf(request)
  return reachOf(principal, rolesIn(principal.teams.inProject, levelOf(request)), scope)
}

/**
 * Tells in which of the given projects the caller has a scope in the whole project. For responses that list several
 * projects: does not load restricted roles, of which a member can have very many.
 */
export async function reachOfWhole (
  app: FastifyInstance, request: FastifyRequest, projectIds: readonly string[], scope: Scope
): Promise<(projectId: string) => boolean> {
  const principal = principalOf(request)
  const { person, teams: { anywhere }, organization } = principal
  const isByTeams = !holds(principal, scope) && holdsBy(principal, anywhere.map((role) => ({ role })), scope)
  const found = person === null || !isByTeams
    ? []
    : await waitFor(request, Promise.all(projectIds.map((id) => findTeamRoles(app.reads, {
      organization_id: organization.id, user_id: person.user_id, id, only_whole: true
    }))))
  const parts = partsWith(principal, found.flat(), scope)
  const slices = parts === null ? principal.slices : withinToken(principal, parts)
  if (parts === null && slices.length === 0) return () => true
  const projects = new Set(projectsInside(slices))
  return (projectId) => projects.has(projectId)
}

function reachOf (principal: Principal, teams: readonly TeamRole[], scope: Scope): Reach {
  const parts = partsWith(principal, teams, scope)
  if (parts === null) return (place) => isInside(principal.slices, place)
  const slices = withinToken(principal, parts)
  return (place) => slices.length > 0 && isInside(slices, place)
}

/** Ends the request with 404 if the restrictions of the request exclude the place. */
export function requireInside (request: FastifyRequest, place: Place) {
  if (!isInside(slicesOf(request), place)) throw new HiddenResource()
}

/**
 * Ends a change of a level's slug with 404 if the level may have siblings that the caller cannot see: the error
 * `slug_taken` reveals a sibling. A creation needs no such check, because it requires access to the parent.
 */
export function requireSiblings (request: FastifyRequest, level: LevelState, slug: string | undefined) {
  if (slug === undefined || slug === level.slug) return
  const project_id = level.project.id
  if (level.level === 'environment') return requireInside(request, { project_id, target_id: level.target!.id })
  if (level.level === 'target') return requireInside(request, { project_id })
  // A team's role never shows all projects, but the caller's role in the organization may.
  const principal = principalOf(request)
  const seesAll = principal.slices.length === 0 && (request.byTeams === null || holds(principal, 'project:read'))
  if (!seesAll) throw new HiddenResource()
}

/** Like `requireInside`, for `preload`. Also 404 if the team roles in the project do not grant the scopes. */
export async function requireFoundInside (app: FastifyInstance, request: FastifyRequest, place: Place): Promise<void> {
  if (request.byTeams !== null) {
    const { needs } = request.byTeams
    const teams = await teamsIn(app.reads, request, { id: place.project_id })
    const principal = principalOf(request)
    if (!needs.every((need) => meets(principal, teams, need))) throw new HiddenResource()
    request.byTeams = { needs, teams }
  }
  requireInside(request, place)
}

/**
 * Locks a project of the request against writes, rotations and deletions. 404 if the project no longer exists, 412 if a
 * precondition of the request fails.
 */
export async function lockProjectOf (db: Db, request: FastifyRequest, projectId: string): Promise<KeyState> {
  const { id } = principalOf(request).organization
  const project = await lockProject(db, id, { id: projectId }) ?? fail('not_found')
  await requireCurrent(db, request, project.id)
  return project
}

/** Like `lockProjectOf`, with the level of the request, which is read again under the lock. */
export async function lockLevel (db: Db, request: FastifyRequest): Promise<LevelState> {
  const { id } = principalOf(request).organization
  const project = await lockProject(db, id, { id: levelOf(request).project.id }) ?? fail('not_found')
  const level = await find(db, request)
  // Since the first look-up, the slug may have passed to another project, which this transaction has not locked.
  if (level.project.id !== project.id) fail('not_found')
  await requireCurrent(db, request, level.level_id)
  return level
}
