import { and, asc, eq, gt, sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'
import { matching } from '../../db/rows/matching.ts'
import { idempotency_keys, members, organizations } from '../../db/tables.ts'

/** Whose key it is. `key` is a keyed hash of the header (`lookupHash`). */
export interface KeyOwner { organization_id: string, principal: string, key: string }

/** The first answer to a request with a key, sealed; `request` is a keyed hash of the request (`lookupHash`). */
export interface KeptAnswer { request: Buffer, status: number, sealed: Buffer }

/** Seals answers that are kept, each for the key and the request that it answers. */
export interface AnswerSeal {
  seal (organization: KeptIn, answer: Omit<KeyOwner & KeptAnswer, 'sealed'>, text: string): Buffer
  /** Throws IntegrityError for what was kept for another one, or elsewhere. */
  open (organization: KeptIn, answer: KeyOwner & KeptAnswer): string
}

/** An organization, with the key that its answers are sealed under. */
export interface KeptIn { id: string, storage_key: Buffer }

const isKept = sql`${idempotency_keys.created_at} > now() - interval '24 hours'`
const isOld = sql`${idempotency_keys.created_at} <= now() - interval '24 hours'`
const its = ({ organization_id, principal, key }: KeyOwner) =>
  matching(idempotency_keys, { organization_id, principal, key })

const columns = {
  request: idempotency_keys.request, status: idempotency_keys.status, answer: idempotency_keys.answer
}

const toAnswer = ({ answer, ...row }: { request: Buffer, status: number, answer: { sealed: string } }): KeptAnswer =>
  ({ ...row, sealed: Buffer.from(answer.sealed, 'base64') })

/** What was answered to a key in the last 24 hours. */
export async function findAnswer (db: Db, owner: KeyOwner): Promise<KeptAnswer | undefined> {
  const [row] = await db.select(columns).from(idempotency_keys).where(and(its(owner), isKept))
  return row && toAnswer(row)
}

/**
 * What was answered to a key of somebody who made an organization with it: in which of theirs the answer is kept, the
 * key does not say.
 */
export async function findAnswerOfPerson (
  db: Db, userId: number, { principal, key }: Omit<KeyOwner, 'organization_id'>
): Promise<{ kept: KeptAnswer, organization: KeptIn } | undefined> {
  const { id, storage_key } = organizations
  const [row] = await db.select({ ...columns, organization: { id, storage_key } }).from(members)
    .innerJoin(
      idempotency_keys, matching(idempotency_keys, { organization_id: members.organization_id, principal, key })
    )
    .innerJoin(organizations, eq(organizations.id, members.organization_id))
    .where(and(eq(members.user_id, userId), isKept))
  if (row === undefined) return undefined
  const { organization, ...kept } = row
  return { kept: toAnswer(kept), organization }
}

/** Whether so many answers to one who calls are kept. */
export async function areAnswersFull (
  db: Db, organizationId: string, principal: string, most: number
): Promise<boolean> {
  const own = and(matching(idempotency_keys, { organization_id: organizationId, principal }), isKept)
  const some = db.select({ key: idempotency_keys.key }).from(idempotency_keys).where(own).limit(most).as('some')
  return await db.$count(some) === most
}

/**
 * Stores a response, in the transaction of the change. False when a response to the same key was stored meanwhile: the
 * change has to be undone.
 */
export async function createAnswer (db: Db, owner: KeyOwner, { sealed, ...row }: KeptAnswer): Promise<boolean> {
  const kept = { ...row, answer: { sealed: sealed.toString('base64') } }
  // A response from more than 24 hours ago may still be there.
  const { organization_id, principal, key } = idempotency_keys
  const stored = await db.insert(idempotency_keys).values({ ...owner, ...kept })
    .onConflictDoUpdate({
      target: [organization_id, principal, key], set: { ...kept, created_at: sql`now()` }, setWhere: isOld
    }).returning({ key })
  return stored.length === 1
}

/** The next organizations with answers that are kept no longer, behind one of them: the system's own list. */
export async function listOwnersOfOldAnswers (db: Db, after: string, limit: number): Promise<string[]> {
  const { organization_id } = idempotency_keys
  return (await db.selectDistinct({ organization_id }).from(idempotency_keys)
    .where(and(gt(organization_id, after), isOld)).orderBy(asc(organization_id)).limit(limit))
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
