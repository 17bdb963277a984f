import { and, asc, eq, gt, sql } from 'drizzle-orm'
import { lookUp, preparedSql, type Db } from '../../db/database.ts'
import { andOwn, findByOrganization, rowsIn, type OfOrganization } from '../../db/postgres/engine.ts'
import { matching } from '../../db/rows/query.ts'
import { columnsOf, idempotency_keys, members, organizations } from '../../db/tables.ts'

/** An idempotency key and its owner. `key` is a keyed hash of the header `Idempotency-Key` (`lookupHash`). */
export interface KeyOwner { organization_id: string, principal: string, key: string }

/** A response. With an `Idempotency-Key`, the response is stored in the transaction of the change. */
export interface Answer<Body = object | null> { status?: number, headers?: Record<string, string>, body: Body }

/** A request with an `Idempotency-Key`. */
export interface Repeatable {
  /** Whether a transaction has looked for a stored response. */
  isKeyChecked: boolean
  /** Throws the error that sends the stored response, which a person got in any organization. Sets `isKeyChecked`. */
  refuseRepeat (db: Db): Promise<void>
  ownerIn (organizationId: string): KeyOwner
  /** Loads the key of the organization. Call this before `repeated` and `seal`. */
  prepare (db: Db, organizationId: string): Promise<void>
  /** The error that sends a stored response again. Throws `idempotency_key_reused` for another request. */
  repeated (stored: StoredResponse): Error
  /** Encrypts the response. */
  seal (answer: Answer): StoredResponse
  /** Whether both requests have the same caller and the same key. */
  repeats (other: Repeatable | null | undefined): boolean
}

/** Maximum number of stored responses per API token, or per user in an organization. */
export const MAX_RESPONSES = 20_000

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
const isOld = sql`${idempotency_keys.created_at} <= now() - interval '24 hours'`
const columns = columnsOf(idempotency_keys, 'request', 'status', 'answer')

const toAnswer = (
  { request, status, answer }: Pick<typeof idempotency_keys.$inferSelect, keyof typeof columns>
): StoredResponse => ({ request, status, sealed: Buffer.from(answer.sealed, 'base64') })

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

const NOT_OLD = sql`created_at > now() - interval '24 hours'`

const answersOfKeys = preparedSql<{
  query_index: number, request: Buffer, status: number, answer: { sealed: string }
}, OfOrganization & { owners: string }>('answers_of_keys', ($) => sql`
  SELECT owner.query_index, stored.request, stored.status, stored.answer
  FROM jsonb_to_recordset(${$('owners')}::jsonb)
    AS owner (query_index int, organization_id char(26), principal varchar, key varchar)
  CROSS JOIN ${lookUp('stored', idempotency_keys, sql`organization_id = owner.organization_id
    AND principal = owner.principal AND key = owner.key AND ${NOT_OLD}`)}`)

/** The responses that were stored for idempotency keys within the last 24 hours: one for each owner, or undefined. */
export async function findAnswers (db: Db, owners: readonly KeyOwner[]): Promise<(StoredResponse | undefined)[]> {
  const queries = owners.map((owner, query_index) => ({ query_index, ...owner }))
  const rows = await findByOrganization(db, queries, (organization_id, owners) =>
    answersOfKeys(db, { organization_id, owners }))
  const byIndex = new Map(rows.map((row) => [row.query_index, toAnswer(row)]))
  return owners.map((_, index) => byIndex.get(index))
}

type Principal = Pick<KeyOwner, 'organization_id' | 'principal'>

const answersOfPrincipals = preparedSql<Principal & { stored: number }, OfOrganization & { principals: string }>(
  'answers_of_principals', ($) => sql`
  SELECT caller.organization_id, caller.principal, (SELECT count(*)::int FROM (
    SELECT FROM idempotency_keys k WHERE k.organization_id = caller.organization_id AND k.principal = caller.principal
      AND ${NOT_OLD}${andOwn(sql`k.organization_id`)} LIMIT ${MAX_RESPONSES}) AS live) AS stored
  FROM jsonb_to_recordset(${$('principals')}::jsonb) AS caller (organization_id char(26), principal varchar)`)

/** Counts the stored responses of callers, each up to `MAX_RESPONSES`. */
export async function countAnswers (
  db: Db, principals: readonly Principal[]
): Promise<(Principal & { stored: number })[]> {
  return findByOrganization(db, principals, (organization_id, principals) =>
    answersOfPrincipals(db, { organization_id, principals }))
}

const insertAnswers = preparedSql<object, OfOrganization & { answers: string }>('insert_answers', ($) => sql`
  INSERT INTO idempotency_keys (organization_id, principal, key, request, status, answer)
  SELECT organization_id, principal, key, decode(request, 'hex'), status, answer
  FROM (${rowsIn($('answers'),
    sql`principal varchar, key varchar, request text, status int, answer jsonb`)}) AS stored
  ON CONFLICT (organization_id, principal, key) DO UPDATE SET request = excluded.request, status = excluded.status,
    answer = excluded.answer, created_at = excluded.created_at`)

/**
 * Stores responses. The caller has locked the counter rows of the organizations, and has found no response for these
 * keys. So a row with one of these keys has an expired response, which is replaced.
 */
export async function createAnswers (db: Db, answers: readonly (KeyOwner & StoredResponse)[]): Promise<void> {
  const rows = answers.map(({ sealed, request, ...row }) =>
    ({ ...row, request: request.toString('hex'), answer: { sealed: sealed.toString('base64') } }))
  await findByOrganization(db, rows, (organization_id, answers) => insertAnswers(db, { organization_id, answers }))
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
