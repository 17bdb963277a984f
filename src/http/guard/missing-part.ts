import type { FastifyInstance, FastifyRequest } from 'fastify'
import { LEVELS, type LevelNames } from '../../../schemas/secrets.ts'
import { findLevel, placeOf } from '../../repositories/levels/levels.ts'
import { findTeam } from '../../repositories/people/teams.ts'
import { isWordOfRoute } from '../../rules/formats/slugs.ts'
import { isInside } from '../../rules/slices.ts'
import { waitFor } from '../routes/request-deadline.ts'
import { namesIn, namesLevel, slicesOf } from './level-lookup.ts'

// Parameters whose name is not the name of the resource.
const RESOURCES: Readonly<Record<string, string>> = { id: 'api-token', payment_method: 'payment-method' }

/**
 * The first part of a path, or of the level in a body, that a request with 404 did not find. Undefined outside of an
 * organization that the caller can see, and if a restriction of the caller may be the reason: then a missing resource
 * and a hidden one must get the same response.
 */
export async function missingPart (app: FastifyInstance, request: FastifyRequest): Promise<string | undefined> {
  const { principal, byTeams } = request
  const { at } = request.routeOptions.config
  const params = request.params as Record<string, string>
  // No resource can have a word of a route as its slug.
  if (principal === null || Object.entries(params).some(([name, word]) => isWordOfRoute(name, word))) return undefined
  try {
    const { team } = params
    const { id } = principal.organization
    if (team !== undefined && await waitFor(request, findTeam(app.reads, id, team)) === undefined) return 'team'
    if (namesLevel(at)) return await missingLevel(app, request, namesIn(request))
  } catch {
    // The response must be sent even if the reason is unknown.
    return undefined
  }
  // Without a level in the path, the resource may be in a project that the caller cannot see.
  const last = Object.keys(params).at(-1)!
  return principal.slices.length > 0 || byTeams !== null || last === 'organization' ? undefined : RESOURCES[last] ?? last
}

/** The first of the levels with these names that does not exist; undefined if a restriction may hide this level. */
export async function missingLevel (
  app: FastifyInstance, request: FastifyRequest, { project, target, environment }: LevelNames
): Promise<string | undefined> {
  const { organization } = request.principal!
  const slices = slicesOf(request)
  const paths = [{ project }, ...target === undefined ? [] : [{ project, target }],
    ...environment === undefined ? [] : [{ project, target, environment }]]
  // In one statement, whatever exists: the duration must not reveal a hidden level.
  const found = await waitFor(request, Promise.all(paths.map((names) =>
    findLevel(app.reads, organization.id, names, 'place'))))
  const missing = found.indexOf(undefined)
  const depth = missing === -1 ? paths.length - 1 : missing
  const parent = depth === 0 ? undefined : found[depth - 1]
  const isVisible = missing === -1
    // The level exists now, but was deleted or replaced while the request ran.
    ? isInside(slices, placeOf(found[depth]!))
    : parent === undefined ? slices.length === 0 : isInside(slices, placeOf(parent))
  return isVisible ? LEVELS[depth] : undefined
}
