import { and, eq, sql } from 'drizzle-orm'
import type { Db } from '../db/database.ts'
import { idempotency_keys } from '../db/tables.ts'

/** Whose key it is. `key` is a hash of what was sent. */
export interface KeyOwner { organization_id: string, principal: string, key: string }

/** The first answer to a request that came with a key. */
export interface KnownAnswer { request: Buffer, status: number, answer: object }

const isKept = sql`${idempotency_keys.created_at} > now() - interval '24 hours'`
const isOld = sql`${idempotency_keys.created_at} <= now() - interval '24 hours'`
const its = ({ organization_id, principal, key }: KeyOwner) => and(
  eq(idempotency_keys.organization_id, organization_id), eq(idempotency_keys.principal, principal),
  eq(idempotency_keys.key, key)
)

/**
 * Holds a key until the end of the transaction; false where somebody else does. Nobody waits: a repeat that comes while
 * the first is under way is told so.
 */
export async function tryLockKey (db: Db, { organization_id, principal, key }: KeyOwner): Promise<boolean> {
  const name = `${organization_id} ${principal} ${key}`
  const [row] = await db.execute(sql`
    SELECT pg_try_advisory_xact_lock(hashtextextended(${name}::text, 0)) AS held`) as unknown as { held: boolean }[]
  return row!.held
}

/** What was answered to a key in the last 24 hours. */
export async function findAnswer (db: Db, owner: KeyOwner): Promise<KnownAnswer | undefined> {
  const { request, status, answer } = idempotency_keys
  const [row] = await db.select({ request, status, answer }).from(idempotency_keys).where(and(its(owner), isKept))
  return row
}

/** Keeps an answer, in the transaction of what it tells of. */
export async function createAnswer (db: Db, owner: KeyOwner, answer: KnownAnswer): Promise<void> {
  // An older one may still be there.
  const { organization_id, principal, key } = idempotency_keys
  await db.insert(idempotency_keys).values({ ...owner, ...answer })
    .onConflictDoUpdate({ target: [organization_id, principal, key], set: { ...answer, created_at: sql`now()` } })
}

/** Organizations with answers that are kept no longer, some of them: the system's own list. */
export async function listOwnersOfOldAnswers (db: Db): Promise<string[]> {
  const { organization_id } = idempotency_keys
  return (await db.selectDistinct({ organization_id }).from(idempotency_keys).where(isOld).limit(1000))
    .map((row) => row.organization_id)
}

/** Takes answers of an organization that are kept no longer, so many at most, and counts them. */
export async function deleteOldAnswers (db: Db, organizationId: string, limit: number): Promise<number> {
  const own = eq(idempotency_keys.organization_id, organizationId)
  const old = db.select({ place: sql`ctid` }).from(idempotency_keys).where(and(own, isOld)).limit(limit)
    .for('update', { skipLocked: true })
  const rows = await db.delete(idempotency_keys).where(and(own, sql`ctid IN (${old})`))
    .returning({ principal: idempotency_keys.principal })
  return rows.length
}
