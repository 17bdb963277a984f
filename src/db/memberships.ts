import { eq, sql, type SQL } from 'drizzle-orm'
import { MOST_OWNED } from '../../schemas/organizations.ts'
import type { Role } from '../../schemas/users.ts'
import { isAuthentic } from './authority.ts'
import type { Db } from './handle.ts'
import { former_slugs, members, users } from './tables.ts'

/** How many organizations a person can be in, and how many of these the person can own. */
export const MEMBERSHIP_LIMITS = { joined: 1000, owned: MOST_OWNED } as const

/** How many organizations a person is in, and owns; a deleted one counts as owned while its slug is reserved. */
export interface Memberships { joined: number, owned: number }

/**
 * Locks an account until the end of the transaction and counts its memberships, so that two transactions cannot both
 * take the last place. Every transaction that makes a person a member or an owner calls this.
 */
export async function lockMemberships (db: Db, userId: number): Promise<Memberships> {
  await db.select({ id: users.id }).from(users).where(eq(users.id, userId)).for('no key update')
  const [row] = await db.select({
    joined: sql<number>`count(*)::int`,
    owned: sql<number>`count(*) FILTER (WHERE ${members.role} = 'owner')::int + (
      SELECT count(DISTINCT f.organization_id)::int FROM ${former_slugs} f
      WHERE f.owner_id = ${userId}::bigint AND f.reserved_until > now())`
  }).from(members).where(eq(members.user_id, userId))
  return row!
}

/** The limit that a person has reached who would get one more membership with this role; undefined below the limits. */
export function reachedLimit ({ joined, owned }: Memberships, role: Role): number | undefined {
  if (joined >= MEMBERSHIP_LIMITS.joined) return MEMBERSHIP_LIMITS.joined
  return role === 'owner' && owned >= MEMBERSHIP_LIMITS.owned ? MEMBERSHIP_LIMITS.owned : undefined
}

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
