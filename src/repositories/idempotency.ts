import { and, eq, lt, sql } from 'drizzle-orm'
import type { Db } from '../db/database.ts'
import { idempotency_keys } from '../db/tables.ts'

/** Whose key it is. `key` is a hash of what was sent. */
export interface KeyOwner { organization_id: string, principal: string, key: string }

/** The first answer to a request that came with a key. */
export interface KnownAnswer { request: Buffer, status: number, answer: object }

const isKept = sql`${idempotency_keys.created_at} > now() - interval '24 hours'`
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

const AT_ONCE = 200

/** Keeps an answer, in the transaction of what it tells of; older ones of the organization go. */
export async function createAnswer (db: Db, owner: KeyOwner, answer: KnownAnswer): Promise<void> {
  const own = eq(idempotency_keys.organization_id, owner.organization_id)
  const old = db.select({ place: sql`ctid` }).from(idempotency_keys)
    .where(and(own, lt(idempotency_keys.created_at, sql`now() - interval '24 hours'`))).limit(AT_ONCE)
    .for('update', { skipLocked: true })
  await db.delete(idempotency_keys).where(and(own, sql`ctid IN (${old})`))
  // Its own may be among the older ones that are still there.
  const { organization_id, principal, key } = idempotency_keys
  await db.insert(idempotency_keys).values({ ...owner, ...answer })
    .onConflictDoUpdate({ target: [organization_id, principal, key], set: { ...answer, created_at: sql`now()` } })
}
