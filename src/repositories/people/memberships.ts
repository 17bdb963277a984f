import { eq, sql } from 'drizzle-orm'
import { MAX_OWNED } from '../../../schemas/organizations.ts'
import type { Role } from '../../../schemas/users.ts'
import { waitUnlessCounter } from '../../db/changes/chain.ts'
import type { Db } from '../../db/database.ts'
import { former_slugs, members, users } from '../../db/tables.ts'

/** Maximum memberships of a person, and maximum organizations that a person owns. */
export const MEMBERSHIP_LIMITS = { joined: 1000, owned: MAX_OWNED } as const

/** The number of memberships and of owned organizations, including deleted ones while their slugs are reserved. */
export interface Memberships { joined: number, owned: number }

/**
 * Locks an account until the commit, so that concurrent transactions cannot exceed a limit together. Under a counter,
 * does not wait for an account that is being closed (`waitUnlessCounter`).
 */
export async function lockMemberships (db: Db, userId: number): Promise<Memberships> {
  await db.select({ id: users.id }).from(users).where(eq(users.id, userId)).for('no key update', waitUnlessCounter(db))
  const [row] = await db.select({
    joined: sql<number>`count(*)::int`,
    owned: sql<number>`count(*) FILTER (WHERE ${members.role} = 'owner')::int + (
      SELECT count(DISTINCT f.organization_id)::int FROM ${former_slugs} f
      WHERE f.owner_id = ${userId}::bigint AND f.reserved_until > now())`
  }).from(members).where(eq(members.user_id, userId))
  return row!
}

/** The limit that another membership with this role would exceed; undefined if there is none. */
export function reachedLimit ({ joined, owned }: Memberships, role: Role): number | undefined {
  if (joined >= MEMBERSHIP_LIMITS.joined) return MEMBERSHIP_LIMITS.joined
  return role === 'owner' && owned >= MEMBERSHIP_LIMITS.owned ? MEMBERSHIP_LIMITS.owned : undefined
}
