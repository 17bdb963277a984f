import type { FastifyInstance, FastifyRequest } from 'fastify'
import { LEVELS, type LevelNames } from '../../../schemas/secrets.ts'
import { findLevel, placeOf } from '../../repositories/levels/levels.ts'
import { findTeam } from '../../repositories/people/teams.ts'
import { isWordOfRoute } from '../../rules/formats/slugs.ts'
import { isInside } from '../../rules/slices.ts'
import { waitFor } from '../routes/request-deadline.ts'
import { namesIn, namesLevel, slicesOf } from './level-lookup.ts'

// The name of the resource, for path parameters with another name.
const RESOURCES: Readonly<Record<string, string>> = { id: 'api-token', payment_method: 'payment-method' }

/**
 * For a request that ends with 404: the first part of the path, or of the level in the body, that does not exist.
 * Undefined if the caller sees no organization, or if a restriction may be the reason for the 404: missing and hidden
 * resources must get the same response.
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
  // The path has no level, so the resource may belong to a project that the caller cannot see.
  const last = Object.keys(params).at(-1)!
  return principal.slices.length > 0 || byTeams !== null || last === 'organization' ? undefined : RESOURCES[last] ?? last
}

/** The first level of the path in `names` that does not exist; undefined if a restriction may hide this level. */
export async function missingLevel (
  app: FastifyInstance, request: FastifyRequest, { project, target, environment }: LevelNames
): Promise<string | undefined> {
  const { organization } = request.principal!
  const slices = slicesOf(request)
  const paths = [{ project }, ...target === undefined ? [] : [{ project, target }],
    ...environment === undefined ? [] : [{ project, target, environment }]]
  // One statement looks up all levels, even if the first does not exist: the duration must not reveal a hidden level.
  const found = await waitFor(request, Promise.all(paths.map((names) =>
    findLevel(app.reads, organization.id, names, 'place'))))
  const missing = found.indexOf(undefined)
  const depth = missing === -1 ? paths.length - 1 : missing
  const parent = depth === 0 ? undefined : found[depth - 1]
  const isVisible = missing === -1
    // All levels exist now, but one of them was missing or replaced when the request looked it up.
    ? isInside(slices, placeOf(found[depth]!))
    : parent === undefined ? slices.length === 0 : isInside(slices, placeOf(parent))
  return isVisible ? LEVELS[depth] : undefined
}
