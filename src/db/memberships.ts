import { sql, type SQL } from 'drizzle-orm'
import type { Role } from '../../schemas/users.ts'
import { isAuthentic } from './authority.ts'
import type { Db } from './handle.ts'

/** A role in a project through a team, as `teamRoles` selects it: with the project's slug, and MACs as hexadecimal. */
export type TeamRoleFound = [
  team_id: string, project_id: string, role: Role, project: string,
  member_mac: string | null, project_mac: string | null
]

/**
 * An expression for the roles that a member has through teams, as JSON; null where there are none. How many there can
 * be is bounded by what a team holds, and by how many of them somebody is in.
 *
 * @param member the membership, by its alias or table
 */
export const teamRoles = (member: SQL): SQL => sql`(
  SELECT jsonb_agg(jsonb_build_array(
    tm.team_id, tp.project_id, tp.role, p.slug, encode(tm.mac, 'hex'), encode(tp.mac, 'hex')))
  FROM team_members tm
  JOIN team_projects tp ON tp.organization_id = tm.organization_id AND tp.team_id = tm.team_id
  JOIN projects p ON p.organization_id = tp.organization_id AND p.id = tp.project_id
  WHERE tm.organization_id = ${member}.organization_id AND tm.user_id = ${member}.user_id)`

/** Those of the roles whose rows the service wrote: any other is reported, and counts for nothing. */
export function authenticTeamRoles (
  db: Db, { organization_id, user_id }: { organization_id: string, user_id: number }, found: TeamRoleFound[] | null
) {
  return (found ?? []).filter(([team_id, project_id, role, , memberMac, projectMac]) =>
    isAuthentic(db, 'team_members', { organization_id, team_id, user_id, mac: bytesOf(memberMac) }) &&
    isAuthentic(db, 'team_projects', { organization_id, team_id, project_id, role, mac: bytesOf(projectMac) })
  ).map(([team_id, project_id, role, project]) => ({ team_id, project_id, role, project }))
}

const bytesOf = (hex: string | null) => hex === null ? null : Buffer.from(hex, 'hex')
