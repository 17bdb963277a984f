import type { Static } from '@sinclair/typebox'
import type { FastifyRequest } from 'fastify'
import { ulid } from 'ulidx'
import { NamedListQuery, NoContent } from '../../schemas/shapes.ts'
import {
  AddTeamMemberBody, CreateTeamBody, SetTeamProjectBody, Team, TEAM_LIMITS, TeamMemberParams, TeamParams,
  TeamProjectParams, UpdateTeamBody, WholeTeamAnswer, type TeamRestriction
} from '../../schemas/teams.ts'
import type { Role } from '../../schemas/users.ts'
import type { Db } from '../db/database.ts'
import { actorOf, principalOf } from '../http/routes/actor.ts'
import { requireCurrent } from '../http/repeats/etags.ts'
import { inOrganization } from '../http/routes/in-organization.ts'
import { levelOf, requireTarget } from '../http/guard/level-lookup.ts'
import { chooseSlug, orSlugTaken } from '../http/routes/slugs.ts'
import type { Domain } from '../http/routes/types.ts'
import { recordEvent, type AuditEvent } from '../repositories/audit/audit.ts'
import { findMember } from '../repositories/people/members.ts'
import type { Principal } from '../repositories/people/principals.ts'
import type { LevelState } from '../repositories/levels/levels.ts'
import { lockProject } from '../repositories/levels/projects.ts'
import {
  countTeamMembers, countTeams, createTeam, createTeamMember, deleteTeam, deleteTeamMember, deleteTeamProject, findTeam,
  listTeamMembers, listTeamProjects, listTeams, setTeamProject, updateTeam, type TeamRow
} from '../repositories/people/teams.ts'
import { findSlice } from '../repositories/people/tokens.ts'
import { fail, refuse } from '../rules/errors.ts'
import { requireNewName } from '../rules/formats/names.ts'
import { parseId } from '../rules/formats/ids.ts'
import { answerPage } from '../rules/pagination.ts'
import { canonicalRole, holds, scopesInProject } from '../rules/roles.ts'
import { textOf, type SentSlice } from '../rules/slices.ts'
import { inheritedWarning } from '../vault/documents/open-documents.ts'

const toItem = ({ id, ...attributes }: TeamRow) => ({ type: 'teams' as const, id, attributes })

const CHANGE = { access: 'team:update', changes: wholeTeam } as const

/** Teams: members of an organization who share roles in projects. */
export const teams: Domain = async (app) => {
  app.get('/organizations/:organization/teams', {
    config: { access: 'team:read', at: 'organization' },
    schema: {
      operationId: 'listTeams',
      summary: 'List teams',
      description: 'A team gives its members roles in projects.',
      querystring: NamedListQuery,
      response: { 200: Team.list }
    },
    handler: async (request) => answerPage(request.query, toItem, (page) =>
      listTeams(app.lists, principalOf(request).organization.id, page))
  })

  app.get('/organizations/:organization/teams/:team', {
    config: { access: 'team:read', at: 'organization', etag: true },
    schema: {
      operationId: 'getTeam',
      summary: 'Get a team with its members and its roles in projects',
      description: 'The path takes the id or the slug.',
      params: TeamParams,
      response: { 200: WholeTeamAnswer }
    },
    handler: async (request) =>
      ({ data: await wholeTeam(app.reads, principalOf(request).organization.id, request.params.team) })
  })

  app.post('/organizations/:organization/teams', {
    config: { access: 'team:create', at: 'organization', audit: 'team.create', errors: ['slug_taken', 'limit_reached'] },
    schema: {
      operationId: 'createTeam',
      summary: 'Create a team',
      description: 'A new team has no members and no roles.',
      body: CreateTeamBody,
      response: { 201: Team.one }
    },
    handler: async (request, reply) => {
      const { body } = request
      const created = await orSlugTaken(() => inOrganization(app, request, async (db, organization_id) => {
        if (await countTeams(db, organization_id) >= TEAM_LIMITS.teams) {
          fail('limit_reached', { limit: TEAM_LIMITS.teams })
        }
        const slug = await chooseSlug(db, 'team', { organization_id, team: true }, body)
        const id = ulid()
        await createTeam(db, { id, organization_id, name: body.name, slug, description: body.description ?? null })
        await record(db, request, 'team.create', id, { slug })
        return findTeam(db, organization_id, id)
      }))
      return reply.code(201).send({ data: toItem(created!) })
    }
  })

  app.patch('/organizations/:organization/teams/:team', {
    config: {
      access: 'team:update', at: 'organization', changes: wholeTeam, audit: 'team.update', errors: ['slug_taken']
    },
    schema: {
      operationId: 'updateTeam',
      summary: 'Change a team; omitted fields stay unchanged',
      description: 'Members and roles have operations of their own.',
      params: TeamParams,
      body: UpdateTeamBody,
      response: { 200: Team.one }
    },
    handler: async (request) => {
      const { body } = request
      const updated = await orSlugTaken(() => changeTeam(request, async (db, team, organizationId) => {
        const { name, slug, description } = body
        await requireNewName(name, async () => (await findTeam(db, organizationId, team.id))?.name)
        await updateTeam(db, organizationId, team.id, { name, slug, description })
        await record(db, request, 'team.update', team.id, { members: Object.keys(body).join(' ') })
        return findTeam(db, organizationId, team.id)
      }))
      return { data: toItem(updated!) }
    }
  })

  app.delete('/organizations/:organization/teams/:team', {
    config: {
      access: 'team:delete', at: 'organization', changes: wholeTeam, audit: 'team.delete', errors: ['role_not_held']
    },
    schema: {
      operationId: 'deleteTeam',
      summary: 'Delete a team; its members lose its roles immediately',
      description: 'The members stay in the organization.',
      params: TeamParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      await changeTeam(request, async (db, { id, slug }, organizationId) => {
        await requireRolesOf(db, principalOf(request), id)
        await deleteTeam(db, organizationId, id)
        await record(db, request, 'team.delete', id, { slug })
      })
      return reply.code(204).send(null)
    }
  })

  app.put('/organizations/:organization/teams/:team/members/:member', {
    config: {
      ...CHANGE,
      at: 'organization',
      // There is no duplicate with PATCH, because a membership has no fields to change.
      onlyMethod: true,
      etag: true,
      audit: 'team-member.create',
      errors: ['role_not_held', 'limit_reached']
    },
    schema: {
      operationId: 'addTeamMember',
      summary: 'Add a member of the organization to a team',
      description: 'The member gets the roles of the team in all its projects.',
      params: TeamMemberParams,
      body: AddTeamMemberBody,
      response: { 200: WholeTeamAnswer }
    },
    handler: async (request) => {
      const user_id = parseId(request.params.member) ?? fail('not_found')
      const data = await changeTeam(request, async (db, team, organization_id) => {
        if (await findMember(db, organization_id, user_id) === undefined) fail('not_found')
        await requireRolesOf(db, principalOf(request), team.id)
        const one = { organization_id, team_id: team.id, user_id }
        const { members, teams, is_in } = await countTeamMembers(db, one)
        if (!is_in) {
          const { members: most, teamsOfMember } = TEAM_LIMITS
          if (members >= most) fail('limit_reached', { limit: most })
          if (teams >= teamsOfMember) fail('limit_reached', { limit: teamsOfMember })
          await createTeamMember(db, one)
        }
        await record(db, request, 'team-member.create', team.id, { user_id })
        return wholeTeam(db, organization_id, team.id)
      })
      return { data }
    }
  })

  app.delete('/organizations/:organization/teams/:team/members/:member', {
    config: { ...CHANGE, at: 'organization', audit: 'team-member.delete', errors: ['role_not_held'] },
    schema: {
      operationId: 'removeTeamMember',
      summary: 'Remove a member from a team',
      description: 'The member stays in the organization, and in other teams.',
      params: TeamMemberParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const user_id = parseId(request.params.member) ?? fail('not_found')
      await changeTeam(request, async (db, { id: team_id }, organization_id) => {
        await requireRolesOf(db, principalOf(request), team_id)
        if (!await deleteTeamMember(db, { organization_id, team_id, user_id })) fail('not_found')
        await record(db, request, 'team-member.delete', team_id, { user_id })
      })
      return reply.code(204).send(null)
    }
  })

  app.put('/organizations/:organization/teams/:team/projects/:project', {
    config: {
      ...CHANGE,
      at: 'project',
      whole: true,
      rules: [{ reads: ['role'], check: ({ body }) => { requireProjectRole(body as SetTeamProjectBody) } }, {
        each: 'restrictions',
        check: (restriction: TeamRestriction, at, { params }) => {
          requirePart(restriction, at, (params as Static<typeof TeamProjectParams>).project)
        }
      }],
      etag: true,
      audit: 'team-project.update',
      errors: ['role_not_held', 'limit_reached']
    },
    schema: {
      operationId: 'setTeamProject',
      summary: 'Give the members of a team a role in a project, or in parts of it; omitted fields stay unchanged',
      description: '`restrictions` limits the role to targets, environments or what is not in production.',
      params: TeamProjectParams,
      body: SetTeamProjectBody,
      response: { 200: WholeTeamAnswer }
    },
    handler: async (request) => {
      const principal = principalOf(request)
      const { id: project_id } = levelOf(request).project
      const { body } = request
      const role = body.role && canonicalRole(body.role)
      requireRole(principal, role ?? 'member')
      const data = await changeTeam(request, async (db, { id: team_id }, organization_id) => {
        await lockProject(db, organization_id, { id: project_id }, 'share') ?? fail('not_found')
        await requireRolesOf(db, principal, team_id, project_id)
        const sent = body.restrictions && await slicesIn(db, levelOf(request), body.restrictions)
        const set = await setTeamProject(db, { organization_id, team_id, project_id }, { role, sent }) ??
          fail('limit_reached', { limit: TEAM_LIMITS.projects })
        const restrictions = set.slices?.map(textOf).join(' ')
        await record(db, request, 'team-project.update', team_id, {
          project_id, role: set.role, ...(restrictions !== undefined && { restrictions })
        })
        return wholeTeam(db, organization_id, team_id)
      })
      const isInherited = body.restrictions?.some(({ inherited }) => inherited) === true
      return { data, ...(isInherited && inheritedWarning([levelOf(request).project])) }
    }
  })

  app.delete('/organizations/:organization/teams/:team/projects/:project', {
    config: { ...CHANGE, at: 'project', whole: true, audit: 'team-project.delete', errors: ['role_not_held'] },
    schema: {
      operationId: 'removeTeamProject',
      summary: "Remove a team's role in a project",
      description: 'The members keep the roles that they have there otherwise.',
      params: TeamProjectParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const { id: project_id } = levelOf(request).project
      await changeTeam(request, async (db, { id: team_id }, organization_id) => {
        await requireRolesOf(db, principalOf(request), team_id, project_id)
        if (!await deleteTeamProject(db, { organization_id, team_id, project_id })) fail('not_found')
        await record(db, request, 'team-project.delete', team_id, { project_id })
      })
      return reply.code(204).send(null)
    }
  })

  // Locks the organization, so that a team cannot get a stronger role while another request adds a member.
  async function changeTeam<T> (
    request: FastifyRequest, work: (db: Db, team: TeamRow, organizationId: string) => Promise<T>
  ): Promise<T> {
    return inOrganization(app, request, async (db, organizationId) => {
      const { team: name } = request.params as Static<typeof TeamParams>
      const team = await findTeam(db, organizationId, name) ?? fail('not_found')
      await requireCurrent(db, request, team.id)
      return work(db, team, organizationId)
    })
  }
}

async function wholeTeam (db: Db, organizationId: string, name: string) {
  const team = await findTeam(db, organizationId, name) ?? fail('not_found')
  const { type, id, attributes } = toItem(team)
  const members = await listTeamMembers(db, organizationId, id)
  return { type, id, attributes: { ...attributes, members, projects: await listTeamProjects(db, organizationId, id) } }
}

async function record (
  db: Db, request: FastifyRequest, action: AuditEvent['action'], id: string, details: NonNullable<AuditEvent['details']>
) {
  await recordEvent(db, actorOf(request), { action, resource_type: 'team', resource_id: id, details })
}

function requireProjectRole ({ role }: SetTeamProjectBody) {
  if (role !== undefined && scopesInProject(canonicalRole(role)).size === 0) {
    refuse('role', 'This role grants no permissions in a project')
  }
}

function requirePart ({ project: named, except_status, ...level }: TeamRestriction, at: string, project: string) {
  if (named !== undefined && named !== project) refuse(`${at}.project`, 'Expected the project of the path')
  requireTarget(level, `${at}.`)
  if (level.target === undefined && except_status === undefined) {
    refuse(at, 'Expected a target, an environment or except_status')
  }
}

// Converts the restrictions of a role from slugs to ids.
async function slicesIn (
  db: Db, { organization_id, project }: LevelState, restrictions: readonly TeamRestriction[]
): Promise<SentSlice[]> {
  const slices: SentSlice[] = []
  for (const [i, { project: named = project.slug, except_status, inherited, ...level }] of restrictions.entries()) {
    const at = `restrictions.${i}`
    const found = await findSlice(db, organization_id, { project: named, ...level })
    if (typeof found === 'string') return refuse(`${at}.${found}`, `There is no such ${found}`)
    if (found.project.id !== project.id) return refuse(`${at}.project`, 'There is no such project')
    slices.push({ ...found.slice, ...(except_status !== undefined && { except_status }), inherited })
  }
  return slices
}

// Callers who grant or revoke the roles of a team, in all its projects or in the given project, need all permissions of
// these roles.
async function requireRolesOf (db: Db, principal: Principal, teamId: string, projectId?: string) {
  for (const { id, role } of await listTeamProjects(db, principal.organization.id, teamId)) {
    if (projectId === undefined || id === projectId) requireRole(principal, role)
  }
}

// Does not check team roles of the caller: every role in the organization that may change teams already includes all
// scopes in projects.
function requireRole (principal: Principal, role: Role) {
  for (const scope of scopesInProject(role)) {
    if (!holds(principal, scope)) fail('role_not_held', { role })
  }
}
