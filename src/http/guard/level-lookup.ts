import type { FastifyContextConfig, FastifyInstance, FastifyRequest } from 'fastify'
import { LRUCache } from 'lru-cache'
import { actorOf, principalOf } from '../routes/actor.ts'
import { requireCurrent } from '../repeats/etags.ts'
import { LEVELS, type Level, type LevelNames } from '../../../schemas/secrets.ts'
import { transaction, type Db } from '../../db/database.ts'
import { findTeamRoles } from '../../db/callers/memberships.ts'
import { findLevel, placeOf, type Brings, type LevelState } from '../../repositories/levels/levels.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import { lockProject } from '../../repositories/levels/projects.ts'
import { ApiError, fail, refuse } from '../../rules/errors.ts'
import { holdsBy, scopesBy, type TeamRole } from '../../rules/roles.ts'
import { isInside, type Place } from '../../rules/slices.ts'
import { waitFor } from '../routes/request-deadline.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * The level that a request is about: the deepest that its path names, or what a function reads from its body. It is
     * looked up before the handler, which finds it by `levelOf`; what does not exist, or lies outside the part of the
     * hierarchy that the token is narrowed to, is 404. The `organization` as a whole lies outside every such part.
     */
    at?: 'organization' | Level | ((request: FastifyRequest) => LevelNames)
    /**
     * Of a route that declares no `at`, because its resource has an id and no name: finds the resource before the
     * handler, and ends with `requireFoundInside`.
     */
    finds?: (request: FastifyRequest) => Promise<unknown>
    /** What it is about beside its level is the organization as a whole. */
    whole?: true
    /**
     * Judges what the schemas of a request cannot say of it, or of its caller, before its level is looked up: ends it
     * with 422, a repeat too.
     */
    judge?: (request: FastifyRequest) => void
    /**
     * Whether the handler makes a write (`writeLevel`), which looks up the level itself, under the lock of the
     * organization. The level is then looked up before the handler only for what is judged there: roles through teams,
     * and a request that may be a repeat.
     */
    isFoundByWrite?: true
    /** What of the level the handler needs beside the place. */
    brings?: Brings | ((request: FastifyRequest) => Brings)
  }
  interface FastifyRequest {
    /** The level that the request is about, as it was when the handler began. */
    at: LevelState | null
    /** A look-up of it that began while the caller was still looked up, for the first who needs it. */
    ahead: Ahead | null
    /** What such a look-up of the next request like this is remembered by; empty where there is none. */
    expectation: string
  }
}

interface Ahead { organizationId: string, brings: Brings, found: Promise<LevelState | undefined> }

/**
 * Finds the level of every route that declares `at`; a route whose path names a level and declares none does not boot.
 */
export function installPlaces (app: FastifyInstance) {
  app.decorateRequest('at', null)
  app.decorateRequest('ahead', null)
  app.decorateRequest('expectation', '')
  app.addHook('onRoute', ({ method, url, config }) => {
    const named = LEVELS.filter((level) => url.includes(`/:${level}`)).at(-1)
    if (named !== undefined && config?.at !== named) {
      throw new Error(`${String(method)} ${url} does not declare config.at as '${named}'`)
    }
  })
  app.addHook('preHandler', (request, _reply, done) => {
    const { at, finds, whole, judge } = request.routeOptions.config
    const isOfWhole = at === 'organization' || whole
    if (isOfWhole && principalOf(request).slices.length > 0) {
      done(new ApiError('not_found'))
      return
    }
    judge?.(request)
    if (isFoundLater(request)) done()
    else if (namesLevel(at)) locate(app, request).then(() => done(), done)
    else if (finds !== undefined) waitFor(request, finds(request)).then(() => done(), done)
    else done()
  })
}

function isFoundLater (request: FastifyRequest): boolean {
  const isJudgedBefore = request.byTeams !== null || request.headers['idempotency-key'] !== undefined
  return !isJudgedBefore && request.routeOptions.config.isFoundByWrite === true
}

/** Whether a route is about a level, which is looked up for it: neither about nothing there nor about the whole. */
export const namesLevel = (at: FastifyContextConfig['at']): at is Exclude<typeof at, 'organization' | undefined> =>
  at !== undefined && at !== 'organization'

// The organization that a credential came this far in last, by route and what that needed.
const cameFarIn = new LRUCache<string, string>({ max: 10_000 })

/**
 * Begins to look up the level that a path names while its caller is looked up: the two are one wait. Where, is a guess
 * from the last time that this credential had the same looked up, which is after everything was judged that could
 * refuse it. So nothing is looked up for a stranger, nor for whoever is refused; and what is found goes to nobody
 * before the caller is judged, and is dropped where that says something else.
 */
export function locateAhead (
  app: FastifyInstance, request: FastifyRequest, credential: string, mayLook: (organizationId: string) => boolean
) {
  const { at } = request.routeOptions.config
  const names = request.params as LevelNames & { organization?: string }
  // The body is not parsed yet.
  const isInPath = namesLevel(at) && typeof at === 'string'
  if (!isInPath || request.method !== 'GET') return
  const brings = broughtBy(request)
  request.expectation = `${request.routeOptions.url} ${names.organization} ${brings} ${credential}`
  const organizationId = cameFarIn.get(request.expectation)
  if (organizationId === undefined || !mayLook(organizationId)) return
  const found = findLevel(app.reads, organizationId, names, brings)
  // It fails for whoever waits for it, or for nobody.
  found.catch(() => {})
  request.ahead = { organizationId, brings, found }
}

/** Of a credential that has ended nothing is expected any more. */
export function expectNothing ({ expectation }: FastifyRequest) {
  if (expectation !== '') cameFarIn.delete(expectation)
}

/**
 * Looks up the level that a request names, as it is now, for whoever needs it before the handler or again; with what
 * the route declares, or with something else.
 */
export async function locate (app: FastifyInstance, request: FastifyRequest, brings?: Brings): Promise<LevelState> {
  request.at = await find(app.reads, request, brings)
  return request.at
}

function broughtBy (request: FastifyRequest): Brings {
  const { brings = 'place' } = request.routeOptions.config
  return typeof brings === 'function' ? brings(request) : brings
}

/** The names of the level that a request is about, of a route that declares `at`. */
export function namesIn (request: FastifyRequest): LevelNames {
  const { at } = request.routeOptions.config
  if (!namesLevel(at)) throw new Error('the route does not declare config.at')
  return typeof at === 'function' ? at(request) : request.params as LevelNames
}

/**
 * The level that was found for a request, if the caller may reach the level; else 404 as for a level that does not
 * exist, or 403 where the roles through teams, which were looked up before, are roles in another project.
 */
export function requireLevel (request: FastifyRequest, level: LevelState | undefined): LevelState {
  if (level === undefined) return fail('not_found')
  requireHeld(request, request.byTeams?.teams?.filter(({ project_id }) => project_id === level.project.id) ?? [])
  requireInside(request, placeOf(level))
  return level
}

async function find (db: Db, request: FastifyRequest, brings = broughtBy(request)): Promise<LevelState> {
  const names = namesIn(request)
  const organizationId = principalOf(request).organization.id
  const { ahead } = request
  request.ahead = null
  const isKnown = ahead !== null && ahead.organizationId === organizationId && ahead.brings === brings
  const [level, teams] = await waitFor(request, Promise.all([
    isKnown ? ahead.found : findLevel(db, organizationId, names, brings), teamsIn(db, request, { slug: names.project })
  ]))
  requireHeld(request, level === undefined ? teams : teams.filter(({ project_id }) => project_id === level.project.id))
  const reached = requireLevel(request, level)
  if (request.expectation !== '') cameFarIn.set(request.expectation, organizationId)
  return reached
}

/** The names of a level as a body has them: 422 for an environment of no target. */
export function namesOf ({ project, target, environment }: LevelNames): LevelNames {
  if (environment !== undefined && target === undefined) refuse('target', 'Required with environment')
  return { project, target, environment }
}

/** The level that a request is about, of a route that declares `at`. */
export function levelOf (request: FastifyRequest): LevelState {
  if (request.at === null) throw new Error('the route does not declare config.at')
  return request.at
}

// The caller's roles through teams in a project: the guard has found those in the project that a path names. None where
// the caller's own role is enough.
async function teamsIn (
  db: Db, request: FastifyRequest, which: { slug: string } | { id: string }
): Promise<readonly TeamRole[]> {
  if (request.byTeams === null) return []
  const { person, teams, organization } = principalOf(request)
  const { project } = request.params as { project?: string }
  if (project !== undefined) return teams.inProject
  return findTeamRoles(db, { organization_id: organization.id, user_id: person!.user_id, ...which })
}

// The scopes that the guard let pass by roles of teams have to be held by the roles in this project. Without them the
// answer is 403, whether the project exists or not.
function requireHeld (request: FastifyRequest, teams: readonly TeamRole[]) {
  if (request.byTeams === null) return
  const { scopes } = request.byTeams
  const principal = principalOf(request)
  const missing = scopes.find((scope) => !holdsBy(principal, teams, scope))
  if (missing !== undefined) {
    fail('insufficient_permissions', { required_scope: missing, granted_scopes: scopesBy(principal, teams) })
  }
  request.byTeams = { scopes, teams }
}

/**
 * Answers 404 for a place outside of the restrictions of the token. The caller's roles through teams are judged before
 * (`locate`, `requireFoundInside`).
 */
export function requireInside (request: FastifyRequest, place: Place) {
  if (request.byTeams?.teams === null) throw new Error('the roles through teams were not judged')
  if (!isInside(principalOf(request).slices, place)) fail('not_found')
}

/**
 * The same for a resource that a route found by its id (`finds`): answers 404 also where the caller's roles through
 * teams in its project do not hold the scopes.
 */
export async function requireFoundInside (app: FastifyInstance, request: FastifyRequest, place: Place): Promise<void> {
  if (request.byTeams !== null) {
    const { scopes } = request.byTeams
    const teams = await teamsIn(app.reads, request, { id: place.project_id })
    const principal = principalOf(request)
    if (!scopes.every((scope) => holdsBy(principal, teams, scope))) fail('not_found')
    request.byTeams = { scopes, teams }
  }
  requireInside(request, place)
}

/**
 * Runs a change in a transaction that has locked a project exclusively: no write, rotation or deletion comes between.
 * 404 when the project is gone, 412 when the route changes it and it is not what the caller expects.
 */
export async function inProject<T> (
  app: FastifyInstance, request: FastifyRequest, projectId: string, change: (db: Db, project: KeyState) => Promise<T>,
  run: RunInProject = inTransaction(app, request)
): Promise<T> {
  return run(projectId, async (db, project) => {
    await requireCurrent(db, request, project.id)
    return change(db, project)
  })
}

/** Runs a change in a transaction that has locked the project. */
export type RunInProject = <T>(projectId: string, change: (db: Db, project: KeyState) => Promise<T>) => Promise<T>

const inTransaction = (app: FastifyInstance, request: FastifyRequest): RunInProject => (projectId, change) => {
  const { id } = principalOf(request).organization
  return transaction(app.db, async (db) =>
    change(db, await lockProject(db, id, { id: projectId }) ?? fail('not_found')), actorOf(request))
}

/** The same for the level that the request is about, which nothing else changes until the transaction ends. */
export async function inLevel<T> (
  app: FastifyInstance, request: FastifyRequest, change: (db: Db, level: LevelState) => Promise<T>,
  run: RunInProject = inTransaction(app, request)
): Promise<T> {
  return run(levelOf(request).project.id, async (db, project) => {
    const level = await find(db, request)
    // Another project has the slug since the look-up: that project is not locked.
    if (level.project.id !== project.id) fail('not_found')
    await requireCurrent(db, request, level.level_id)
    return change(db, level)
  })
}
