import { sql, type SQL } from 'drizzle-orm'
import { PROJECT_ROLES, type Role } from '../../../schemas/users.ts'
import { isAuthentic } from '../rows/authority.ts'
import { batchLoad, groupByQuery } from '../postgres/batch-load.ts'
import { andOwn, type OfOrganization } from '../postgres/engine.ts'
import type { Db } from '../postgres/handle.ts'
import { lookUp } from '../rows/lists.ts'
import { preparedSql } from '../postgres/prepared.ts'
import { projects, team_projects, type StoredSlice } from '../tables.ts'

/** Selects the team roles that are loaded together with a member; without a field, no roles are loaded. */
export interface TeamQuery {
  /** The slug of a project: load the roles in this project. */
  project?: string | undefined
  /** Load the roles in all projects. */
  anywhere?: boolean
}

/** A role that a team gives a member in a project. `project` is the slug; the MACs are hexadecimal. */
export type TeamRoleFound = [
  team_id: string, project_id: string, role: Role, slices: StoredSlice[] | null, project: string,
  member_mac: string | null, project_mac: string | null
]

/**
 * An SQL expression: the roles that teams give a member in one project, as a JSON array; null without roles.
 *
 * @param member the membership: an alias or a table that has `organization_id` and `user_id`
 * @param which the condition for the project
 * @param more a further condition for the roles
 */
export const teamRoles = (member: SQL, which: SQL, more = sql``): SQL => sql`(
  SELECT jsonb_agg(jsonb_build_array(
    tm.team_id, tp.project_id, tp.role, tp.slices, p.slug, encode(tm.mac, 'hex'), encode(tp.mac, 'hex')))
  FROM ${lookUp('p', projects, sql`organization_id = ${member}.organization_id AND ${which}`)}
  JOIN team_members tm ON tm.organization_id = p.organization_id AND tm.user_id = ${member}.user_id${
    andOwn(sql`tm.organization_id`)}
  CROSS JOIN ${lookUp('tp', team_projects,
    sql`organization_id = tm.organization_id AND team_id = tm.team_id AND project_id = p.id${more}`)})`

/** An SQL expression: a JSON array of the distinct roles from all teams of a member, or null. Verifies no MAC. */
export const rolesInTeams = (member: SQL): SQL => sql`(
  SELECT jsonb_agg(requested.role) FROM unnest(${sql.raw(`ARRAY['${PROJECT_ROLES.join("', '")}']`)}) AS requested (role)
  WHERE EXISTS (
    SELECT FROM team_members tm
    CROSS JOIN ${lookUp('tp', team_projects,
      sql`organization_id = tm.organization_id AND team_id = tm.team_id AND role = requested.role`)}
    WHERE tm.organization_id = ${member}.organization_id AND tm.user_id = ${member}.user_id${
      andOwn(sql`tm.organization_id`)}))`

/** Omits and reports roles whose MACs do not verify. */
export function authenticTeamRoles (
  db: Db, { organization_id, user_id }: { organization_id: string, user_id: number }, roles: TeamRoleFound[] | null
) {
  return (roles ?? []).filter(([team_id, project_id, role, slices, , memberMac, projectMac]) =>
    isAuthentic(db, 'team_members', { organization_id, team_id, user_id, mac: bytesOf(memberMac) }) &&
    isAuthentic(db, 'team_projects', { organization_id, team_id, project_id, role, slices, mac: bytesOf(projectMac) })
  ).map(([team_id, project_id, role, slices, project]) => ({ team_id, project_id, role, slices, project }))
}

interface RoleQuery {
  organization_id: string
  user_id: number
  slug?: string
  id?: string
  /** Omits restricted roles: a member can have too many of them for a list of projects. */
  only_whole?: boolean
}

interface RolesRow { organization_id: string, user_id: string, query_index: number, roles: TeamRoleFound[] | null }

const ASKED_FOR = sql` AND (queries.only_whole IS NOT TRUE OR slices IS NULL)`

const rolesInProject = preparedSql<RolesRow, OfOrganization & { queries: string }>('roles_in_project', ($) => sql`
  SELECT queries.organization_id, queries.user_id, queries.query_index, CASE
    WHEN queries.id IS NULL THEN ${teamRoles(sql`queries`, sql`slug = queries.slug`, ASKED_FOR)}
    ELSE ${teamRoles(sql`queries`, sql`id = queries.id`, ASKED_FOR)} END AS roles
  FROM jsonb_to_recordset(${$('queries')}::jsonb) AS queries (query_index int, organization_id char(26),
    user_id bigint, slug varchar, id char(26), only_whole boolean)`)

/** The authentic roles that teams give a member in a project, which is identified by slug or id. */
export const findTeamRoles = batchLoad({
  keyOf: ({ organization_id, user_id, slug, id, only_whole = false }: RoleQuery) =>
    JSON.stringify([organization_id, user_id, slug, id, only_whole]),
  organizationOf: ({ organization_id }) => organization_id,
  find: async (db, batch, organization_id) => {
    const numbered = batch.map((one, query_index) => ({ query_index, ...one }))
    return groupByQuery(await rolesInProject(db, { organization_id, queries: JSON.stringify(numbered) }), batch.length)
  },
  read: (db, [row]) =>
    authenticTeamRoles(db, { organization_id: row!.organization_id, user_id: Number(row!.user_id) }, row!.roles)
})

const bytesOf = (hex: string | null) => hex === null ? null : Buffer.from(hex, 'hex')
