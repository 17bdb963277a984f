import type { FastifyRequest } from 'fastify'
import { SEARCH_LIMITS, SearchNamesAnswer, SearchNamesQuery, type FoundName } from '../../../schemas/names.ts'
import { findTeamRoles } from '../../db/callers/memberships.ts'
import { withinToken } from '../../http/guard/level-lookup.ts'
import { inTurn, type Turn } from '../../http/guard/turns.ts'
import { sendRead } from '../../http/responses/large-responses.ts'
import { actorOf, principalOf } from '../../http/routes/actor.ts'
import type { Domain } from '../../http/routes/types.ts'
import { listProjectIdsOfTeams } from '../../repositories/levels/projects.ts'
import { nameFilter } from '../../rules/documents/entries.ts'
import { MAX_WORK, WORK } from '../../rules/documents/work.ts'
import { slicesBy, type TeamRole } from '../../rules/roles.ts'
import { projectsInside, type Slice } from '../../rules/slices.ts'
import {
  projectsAfter, SEARCH_START, searchNames, type SearchPosition, type SearchScope
} from '../../vault/documents/name-search.ts'
import { eventOfReading } from '../../vault/documents/read.ts'
import { storageKeyOf } from '../../vault/keys/keys.ts'

/** The number of projects whose roles are loaded together. */
const PART = 10

/** Searches for a name in all projects of an organization. */
export const nameSearch: Domain = async (app) => {
  app.get('/:organization/secrets/names', {
    config: {
      access: ['secret:read', 'secret:decrypt'],
      filtersInHandler: true,
      audit: 'secret.names',
      errors: ['integrity_error']
    },
    schema: {
      operationId: 'searchNames',
      summary: 'Find the projects and levels in which a name occurs, without values; server-managed projects only',
      description: 'Looks only where the caller can decrypt. Continue with `after` until `meta.next` is null.',
      querystring: SearchNamesQuery,
      response: { 200: SearchNamesAnswer }
    },
    handler: async (request, reply) => {
      const answer = await inTurn(request, async (turn) => search(request, request.query, turn))
      const characters = answer.data.reduce((sum, { attributes }) => sum + charactersOf(attributes), 0)
      return sendRead(reply, answer, characters)
    }
  })

  async function search (request: FastifyRequest, query: SearchNamesQuery, turn: Turn) {
    const { search, prefix = '', after } = query
    const { organization } = principalOf(request)
    const position = positionOf(after)
    const scope = await searchScope(request, position, turn)
    const storageKey = storageKeyOf(app.keyring, organization)
    const context = { ...turn, db: app.lists, keyring: app.keyring, storageKey }
    const { found, opened, next, ...counts } = await searchNames(context, scope, position, nameFilter(prefix, search))
    const meta = { documents: opened.length, ...counts, next: next && cursorOf(next) }
    const { event, bytes } = eventOfReading({ level: 'organization', level_id: organization.id }, opened, 'secret.names')
    await app.recordRead(actorOf(request), event, bytes)
    return { data: found, meta }
  }

  // The projects that the caller can search: the projects in the token's restrictions, or all projects (null). If the
  // caller has a scope only by team roles, only the projects in which these roles grant the scopes. If there are none,
  // `projects` is an empty list: `slices` is empty then, which without `projects` means all levels.
  async function searchScope (request: FastifyRequest, position: SearchPosition, turn: Turn): Promise<SearchScope> {
    const { byTeams } = request
    const principal = principalOf(request)
    const { organization: { id: organization_id }, slices } = principal
    const restricted = slices.length === 0 ? null : [...new Set(slices.map(({ project_id }) => project_id))]
    if (byTeams === null) return { organization_id, slices, projects: restricted }
    const member = { organization_id, user_id: principal.person!.user_id }
    const listed = restricted === null
      ? await turn.waitFor(listProjectIdsOfTeams(app.lists, member, projectsAfter(position), SEARCH_LIMITS.projects))
      : restricted.filter((id) => id >= position.project_id).sort()
    const teams: TeamRole[] = []
    const inside: Slice[] = []
    let looked = 0
    // The roles of a project can have very many restrictions, so the projects are looked up in parts, up to half of the
    // budget.
    while (looked < listed.length && turn.work.done < MAX_WORK / 2) {
      const part = listed.slice(looked, looked += PART)
      const roles = await turn.waitFor(Promise.all(part.map((id) => findTeamRoles(app.reads, { ...member, id }))))
      const began = performance.now()
      const found = roles.flat()
      turn.work.done += found.reduce((sum, { slices }) => sum + (slices?.length ?? 0), 0) * WORK.restriction
      teams.push(...found)
      inside.push(...withinToken(principal, slicesBy(principal, found, byTeams.needs)))
      await turn.pace(began)
    }
    request.byTeams = { ...byTeams, teams }
    const projects = [...new Set(inside.map(({ project_id }) => project_id))]
    // If every project is included as a whole, the list of projects is enough, and `slices` can be empty.
    const wholeProjects = new Set(projectsInside(inside))
    const isWhole = projects.every((id) => wholeProjects.has(id))
    const isCut = looked < listed.length || (restricted === null && listed.length === SEARCH_LIMITS.projects)
    const lastProject = listed.slice(0, looked).at(-1)
    return { organization_id, slices: isWhole ? [] : inside, projects, ...(isCut && { lastProject }) }
  }
}

// A name of a level can be longer than the name that is found, and is repeated with each.
const charactersOf = ({ name, project_name, target_name, environment_name }: FoundName['attributes']) =>
  [name, project_name, target_name, environment_name].join().length

function positionOf (after: string | undefined): SearchPosition {
  if (after === undefined) return SEARCH_START
  const [project_id, secret_id = null] = after.split('.') as [string, string?]
  return { project_id, secret_id }
}

const cursorOf = ({ project_id, secret_id }: SearchPosition) =>
  secret_id === null ? project_id : `${project_id}.${secret_id}`
