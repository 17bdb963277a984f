import { and, asc, eq, gt, lte, sql } from 'drizzle-orm'
import { authorityOf, type Db } from '../../db/database.ts'
import { matching } from '../../db/rows/matching.ts'
import { columnsOf, idempotency_keys, members, organizations } from '../../db/tables.ts'

/** An idempotency key and its owner. `key` is a keyed hash of the header `Idempotency-Key` (`lookupHash`). */
export interface KeyOwner { organization_id: string, principal: string, key: string }

/** A stored response, encrypted (`sealed`). `request` is a keyed hash of the request (`lookupHash`). */
export interface StoredResponse { request: Buffer, status: number, sealed: Buffer }

/** Encrypts and decrypts stored responses. The encryption context contains the key and the request. */
export interface AnswerSeal {
  seal (organization: KeptIn, answer: Omit<KeyOwner & StoredResponse, 'sealed'>, text: string): Buffer
  /** Throws IntegrityError if the response was encrypted for another key, request or organization. */
  open (organization: KeptIn, answer: KeyOwner & StoredResponse): string
}

/** An organization, with the wrapped key that encrypts its responses. */
export interface KeptIn { id: string, storage_key: Buffer }

const isKept = sql`${idempotency_keys.created_at} > now() - interval '24 hours'`
const DAY = 24 * 60 * 60 * 1000
const isOld = sql`${idempotency_keys.created_at} <= now() - interval '24 hours'`
const its = ({ organization_id, principal, key }: KeyOwner) =>
  matching(idempotency_keys, { organization_id, principal, key })

const columns = columnsOf(idempotency_keys, 'request', 'status', 'answer')

const toAnswer = (
  { request, status, answer }: Pick<typeof idempotency_keys.$inferSelect, keyof typeof columns>
): StoredResponse => ({ request, status, sealed: Buffer.from(answer.sealed, 'base64') })

/** The response that was stored for an idempotency key within the last 24 hours. */
export async function findAnswer (db: Db, owner: KeyOwner): Promise<StoredResponse | undefined> {
  const [row] = await db.select(columns).from(idempotency_keys).where(and(its(owner), isKept))
  return row && toAnswer(row)
}

/**
 * The stored response to a person's request that created an organization. Searches the responses of all organizations
 * of the person, because the request contains no organization id.
 */
export async function findAnswerOfPerson (
  db: Db, userId: number, { principal, key }: Omit<KeyOwner, 'organization_id'>
): Promise<{ kept: StoredResponse, organization: KeptIn } | undefined> {
  const { id, storage_key } = organizations
  const { organization_id } = members
  const [row] = await db.select({ ...columns, organization: { id, storage_key } }).from(members)
    .innerJoin(idempotency_keys, matching(idempotency_keys, { organization_id, principal, key }))
    .innerJoin(organizations, eq(organizations.id, organization_id))
    .where(and(eq(members.user_id, userId), isKept))
  return row && { kept: toAnswer(row), organization: row.organization }
}

/** Whether a caller has reached the limit of stored responses. */
export async function areAnswersFull (
  db: Db, organizationId: string, principal: string, most: number
): Promise<boolean> {
  const own = and(matching(idempotency_keys, { organization_id: organizationId, principal }), isKept)
  const some = db.select({ key: idempotency_keys.key }).from(idempotency_keys).where(own).limit(most).as('some')
  return await db.$count(some) === most
}

/** Stores a response. False if a concurrent request has stored one for the same key; the caller then rolls back. */
export async function createAnswer (db: Db, owner: KeyOwner, { sealed, ...row }: StoredResponse): Promise<boolean> {
  const kept = { ...row, answer: { sealed: sealed.toString('base64') } }
  // Replaces an expired response that the cleanup has not deleted yet.
  const { organization_id, principal, key } = idempotency_keys
  const stored = await db.insert(idempotency_keys).values({ ...owner, ...kept })
    .onConflictDoUpdate({
      target: [organization_id, principal, key],
      set: { request: kept.request, status: kept.status, answer: kept.answer, created_at: sql`excluded.created_at` },
      // Uses the estimated time of the database, because Citus allows no function of the current time here.
      setWhere: lte(idempotency_keys.created_at, new Date(authorityOf(db).chain.now().getTime() - DAY))
    }).returning({ key })
  return stored.length === 1
}

/** A page of all organizations that have expired responses. The page starts after an id. */
export async function listOwnersOfOldAnswers (db: Db, after: string, limit: number): Promise<string[]> {
  const { organization_id } = idempotency_keys
  return (await db.selectDistinct({ organization_id }).from(idempotency_keys)
    .where(and(gt(organization_id, after), isOld)).orderBy(asc(organization_id)).limit(limit))
    .map((row) => row.organization_id)
}

/** Deletes at most `limit` expired responses of an organization. Returns the number of deleted responses. */
export async function deleteOldAnswers (db: Db, organizationId: string, limit: number): Promise<number> {
  const own = eq(idempotency_keys.organization_id, organizationId)
  const old = db.select({ place: sql`ctid` }).from(idempotency_keys).where(and(own, isOld)).limit(limit)
    .for('update', { skipLocked: true })
  const rows = await db.delete(idempotency_keys).where(and(own, sql`ctid IN (${old})`))
    .returning({ principal: idempotency_keys.principal })
  return rows.length
}
