import type { Static } from '@sinclair/typebox'
import type { FastifyRequest } from 'fastify'
import { ulid } from 'ulidx'
import { NamedListQuery, NoContent } from '../../../schemas/shapes.ts'
import {
  AddTeamMemberBody, CreateTeamBody, SetTeamProjectBody, Team, TEAM_LIMITS, TeamMemberParams, TeamParams,
  TeamProjectParams, UpdateTeamBody, WholeTeamAnswer, type TeamRestriction
} from '../../../schemas/teams.ts'
import type { Role } from '../../../schemas/users.ts'
import { change } from '../../changes/change.ts'
import type { Db } from '../../db/database.ts'
import { actorOf, principalOf } from '../../http/routes/actor.ts'
import { requireCurrent } from '../../http/repeats/etags.ts'
import { levelOf, requireTarget } from '../../http/guard/level-lookup.ts'
import { chooseSlug, orSlugTaken } from '../../http/routes/slugs.ts'
import type { Domain } from '../../http/routes/types.ts'
import type { AuditEvent } from '../../repositories/audit/audit.ts'
import { findMember } from '../../repositories/people/members.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import type { LevelState } from '../../repositories/levels/levels.ts'
import { lockProject } from '../../repositories/levels/projects.ts'
import {
  countTeamMembers, countTeams, createTeam, createTeamMember, deleteTeam, deleteTeamMember, deleteTeamProject,
  endUseForPlace, findTeam, listTeamMembers, listTeamProjects, listTeams, setTeamProject, updateTeam, type TeamRow
} from '../../repositories/people/teams.ts'
import { findSlice } from '../../repositories/people/tokens.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { requireNewName } from '../../rules/formats/names.ts'
import { parseId } from '../../rules/formats/ids.ts'
import { answerPage } from '../../rules/pagination.ts'
import { canonicalRole, holdsProjectRole, scopesInProject } from '../../rules/roles.ts'
import { textOf, type SentSlice } from '../../rules/slices.ts'
import { inheritedWarning } from '../../vault/documents/open-documents.ts'

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
      const { id: organization_id } = principalOf(request).organization
      const id = ulid()
      const created = await orSlugTaken(() => change(app.db, actorOf(request), {
        async load (db) {
          if (await countTeams(db, organization_id) >= TEAM_LIMITS.teams) {
            fail('limit_reached', { limit: TEAM_LIMITS.teams })
          }
          return chooseSlug(db, 'team', { organization_id, team: true }, body)
        },
        decide: (slug) => ({
          async write (db) {
            await createTeam(db, { ...body, id, organization_id, slug, is_of_place: null })
            return foundTeam(db, organization_id, id)
          },
          events: [teamEvent('team.create', id, { slug })],
          answer: (team) => ({ status: 201, body: { data: toItem(team) } })
        })
      }))
      return reply.code(201).send(created.body)
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
      const updated = await orSlugTaken(() => change(app.db, actorOf(request), {
        async load (db) {
          const team = await loadTeam(db, request)
          await requireNewName(body.name, async () => (await findTeam(db, team.organization_id, team.id))?.name)
          return team
        },
        decide: ({ id, organization_id }) => ({
          async write (db) {
            await updateTeam(db, organization_id, id, body)
            return foundTeam(db, organization_id, id)
          },
          events: [teamEvent('team.update', id, { members: Object.keys(body).join(' ') })],
          answer: (team) => ({ body: { data: toItem(team) } })
        })
      }))
      return updated.body
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
      await change(app.db, actorOf(request), {
        load: async (db) => loadHeldTeam(db, request),
        decide: ({ id, slug, organization_id }) => ({
          write: async (db) => deleteTeam(db, organization_id, id),
          events: [teamEvent('team.delete', id, { slug })]
        })
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
      const { body } = await change(app.db, actorOf(request), {
        async load (db) {
          const { id: team_id, organization_id } = await loadTeam(db, request)
          if (await findMember(db, organization_id, user_id) === undefined) fail('not_found')
          await requireRolesOf(db, principalOf(request), team_id)
          const one = { organization_id, team_id, user_id }
          return { one, ...await countTeamMembers(db, one) }
        },
        decide ({ one, members, teams, is_in }) {
          const { members: most, teamsOfMember } = TEAM_LIMITS
          if (!is_in && members >= most) fail('limit_reached', { limit: most })
          if (!is_in && teams >= teamsOfMember) fail('limit_reached', { limit: teamsOfMember })
          return {
            async write (db) {
              if (!is_in) {
                await createTeamMember(db, one)
                await endUseForPlace(db, one.organization_id, one.team_id)
              }
              return wholeTeam(db, one.organization_id, one.team_id)
            },
            events: [teamEvent('team-member.create', one.team_id, { user_id })],
            answer: (data) => ({ body: { data } })
          }
        }
      })
      return body
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
      await change(app.db, actorOf(request), {
        load: async (db) => loadHeldTeam(db, request),
        decide: ({ id: team_id, organization_id }) => ({
          async write (db) {
            if (!await deleteTeamMember(db, { organization_id, team_id, user_id })) fail('not_found')
          },
          events: [teamEvent('team-member.delete', team_id, { user_id })]
        })
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
      const isInherited = body.restrictions?.some(({ inherited }) => inherited) === true
      const changed = await change(app.db, actorOf(request), {
        async load (db) {
          const { id: team_id, organization_id } = await loadTeam(db, request)
          await lockProject(db, organization_id, { id: project_id }, 'share') ?? fail('not_found')
          await requireRolesOf(db, principal, team_id, project_id)
          const sent = body.restrictions && await slicesIn(db, levelOf(request), body.restrictions)
          return { one: { organization_id, team_id, project_id }, sent }
        },
        decide: ({ one, sent }) => ({
          async write (db) {
            const set = await setTeamProject(db, one, { role, sent }) ??
              fail('limit_reached', { limit: TEAM_LIMITS.projects })
            await endUseForPlace(db, one.organization_id, one.team_id)
            return { set, data: await wholeTeam(db, one.organization_id, one.team_id) }
          },
          events ({ set }) {
            const restrictions = set.slices?.map(textOf).join(' ')
            return [teamEvent('team-project.update', one.team_id, {
              project_id,
              project: levelOf(request).project.slug,
              role: set.role,
              ...(restrictions !== undefined && { restrictions })
            })]
          },
          answer: ({ data }) =>
            ({ body: { data, ...(isInherited && inheritedWarning([levelOf(request).project])) } })
        })
      })
      return changed.body
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
      const { id: project_id, slug: project } = levelOf(request).project
      await change(app.db, actorOf(request), {
        load: async (db) => loadHeldTeam(db, request, project_id),
        decide: ({ id: team_id, organization_id }) => ({
          async write (db) {
            if (!await deleteTeamProject(db, { organization_id, team_id, project_id })) fail('not_found')
            await endUseForPlace(db, organization_id, team_id)
          },
          events: [teamEvent('team-project.delete', team_id, { project_id, project })]
        })
      })
      return reply.code(204).send(null)
    }
  })
}

/** The team of the request, read under the lock of the organization. Checks the preconditions of the request. */
async function loadTeam (db: Db, request: FastifyRequest): Promise<TeamRow & { organization_id: string }> {
  const { id: organization_id } = principalOf(request).organization
  const { team: name } = request.params as Static<typeof TeamParams>
  const team = await findTeam(db, organization_id, name) ?? fail('not_found')
  await requireCurrent(db, request, team.id)
  return { ...team, organization_id }
}

/** Like `loadTeam`, for a caller who grants or revokes the roles of the team (`requireRolesOf`). */
async function loadHeldTeam (db: Db, request: FastifyRequest, projectId?: string) {
  const team = await loadTeam(db, request)
  await requireRolesOf(db, principalOf(request), team.id, projectId)
  return team
}

const foundTeam = async (db: Db, organizationId: string, id: string): Promise<TeamRow> =>
  await findTeam(db, organizationId, id) ?? fail('not_found')

async function wholeTeam (db: Db, organizationId: string, name: string) {
  const { type, id, attributes } = toItem(await foundTeam(db, organizationId, name))
  const members = await listTeamMembers(db, organizationId, id)
  return { type, id, attributes: { ...attributes, members, projects: await listTeamProjects(db, organizationId, id) } }
}

const teamEvent = (action: AuditEvent['action'], id: string, details: NonNullable<AuditEvent['details']>): AuditEvent =>
  ({ action, resource_type: 'team', resource_id: id, details })

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

function requireRole (principal: Principal, role: Role) {
  if (!holdsProjectRole(principal, role)) fail('role_not_held', { role })
}
