import {
  MAX_ACCESS_PAGE, MemberAccessAnswer, MemberAccessQuery, type ProjectAccess
} from '../../../schemas/member-access.ts'
import { MemberParams, type MemberAttributes } from '../../../schemas/members.ts'
import { SCOPE_NAMES } from '../../../schemas/scopes.ts'
import { findTeamRoles } from '../../db/callers/memberships.ts'
import type { Db } from '../../db/database.ts'
import { findSlugs, idsOf } from '../../db/rows/slugs.ts'
import { requireScope } from '../../http/guard/access.ts'
import { inTurn, type Turn } from '../../http/guard/turns.ts'
import { writeIfLarge } from '../../http/responses/large-responses.ts'
import { principalOf } from '../../http/routes/actor.ts'
import type { Domain } from '../../http/routes/types.ts'
import { listProjectsOfTeams } from '../../repositories/levels/projects.ts'
import { findMember } from '../../repositories/people/members.ts'
import { findTeamNames } from '../../repositories/people/teams.ts'
import { fail } from '../../rules/api-error.ts'
import { parseId } from '../../rules/formats/ids.ts'
import { pageMeta, type PageRequest } from '../../rules/pagination.ts'
import { holds, powersOfRole, rightsIn, type TeamRole } from '../../rules/roles.ts'
import { CHARACTERS_OF_RESTRICTION, restrictionOf, shownRestrictions, type LevelsById } from '../../rules/slices.ts'

/** Shows what a member can do. The functions of `rules/roles.ts` that compute this also authorize requests. */
export const memberAccess: Domain = async (app) => {
  app.get('/organizations/:organization/members/:member/access', {
    config: { access: 'organization:read', at: 'organization', mayNeed: ['member:read', 'team:read'] },
    schema: {
      operationId: 'getMemberAccess',
      summary: 'Get what a member can do: roles, teams with restrictions, and the resulting scopes in each project',
      description: 'Every member can read the own access; that of others also needs the scopes below. Applications ' +
        'and tokens of the member may have been granted less.',
      params: MemberParams,
      querystring: MemberAccessQuery,
      response: { 200: MemberAccessAnswer }
    },
    handler: async (request, reply) => {
      const { organization, person } = principalOf(request)
      const { page = 1, per_page = MAX_ACCESS_PAGE } = request.query
      const id = parseId(request.params.member)
      if (person === null || person.user_id !== id) {
        requireScope(request, 'member:read')
        requireScope(request, 'team:read')
      }
      const access = await inTurn(request, async (turn) => {
        const member = await findMember(app.lists, organization.id, id ?? fail('not_found')) ?? fail('not_found')
        return accessOf(app.lists, organization.id, member, { page, per_page }, turn)
      })
      reply.type('application/json; charset=utf-8').serializer(JSON.stringify)
      const size = access.data.attributes.projects.reduce((sum, { rights, teams }) =>
        sum + [...rights, ...teams].reduce((sum, { restrictions }) => sum + restrictions.length, 0), 0)
      return reply.send(await writeIfLarge(access, size * CHARACTERS_OF_RESTRICTION) as typeof access)
    }
  })
}

/** What a member can do in the organization, and by team roles in each project of one page. */
async function accessOf (
  db: Db, organization_id: string, { user_id, role }: MemberAttributes, page: PageRequest, { pace }: Pick<Turn, 'pace'>
) {
  const powers = powersOfRole(role)
  const { rows, total } = await listProjectsOfTeams(db, { organization_id, user_id }, page)
  const roles = await Promise.all(rows.map(({ id }) => findTeamRoles(db, { organization_id, user_id, id })))
  const all = roles.flat()
  const slugs = await findSlugs(db, organization_id, idsOf(all.flatMap(({ slices }) => slices ?? [])), pace)
  const teams = await findTeamNames(db, organization_id, [...new Set(all.map(({ team_id }) => team_id))])
  const projects: ProjectAccess[] = []
  for (const [i, project] of rows.entries()) {
    const began = performance.now()
    const held = roles[i]!.map((role) => withoutDeleted(role, slugs)).filter((role) => role.slices?.length !== 0)
    // `listProjectsOfTeams` does not verify the MACs of team roles, so it can list a project without a valid role.
    if (held.length === 0) continue
    projects.push({
      ...project,
      teams: held.flatMap(({ team_id, role, slices }) => {
        const team = teams.get(team_id)
        return team === undefined ? [] : [{ ...team, role, ...shownRestrictions(slices, slugs) }]
      }),
      rights: rightsIn(powers, held).map(({ scopes, slices }) =>
        ({ scopes, ...shownRestrictions(slices, slugs) }))
    })
    await pace(began)
  }
  const scopes = SCOPE_NAMES.filter((scope) => holds(powers, scope))
  return {
    data: { type: 'member-access' as const, id: String(user_id), attributes: { role, scopes, projects } },
    meta: pageMeta(page, total, rows.length)
  }
}

// Removes restrictions to levels that were deleted between the statements. Such a restriction includes nothing.
const withoutDeleted = (role: TeamRole, slugs: LevelsById): TeamRole =>
  ({ ...role, slices: role.slices?.filter((slice) => restrictionOf(slice, slugs).length > 0) ?? null })
