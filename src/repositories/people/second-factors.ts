import { and, desc, eq, gt, isNull, lt, or, sql } from 'drizzle-orm'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import { isAuthentic, macOf, readNow, tampered, updateAuthentic, type Db } from '../../db/database.ts'
import { deleteExpired, deleteInPieces } from '../../db/callers/expired.ts'
import { makeId } from '../../db/rows/ids.ts'
import { matching } from '../../db/rows/matching.ts'
import { oauth_grants, recovery_codes, second_factors, sessions, sign_in_steps, users } from '../../db/tables.ts'

// Second factors of people. Whoever changes one holds the account's row first (`lockUser`), as everything does that
// ends something of a person.

/** What makes the codes of a second factor; it counts when the account names its id. */
export interface Factor {
  user_id: number
  id: number
  /** Wrapped, for account and id. */
  secret: Buffer
  last_step: number | null
  created_at: Date
}

/**
 * An id for a second factor of somebody, larger than that of everything that they granted before, by whichever instance
 * that was (`isOfFactor`). The caller holds the account.
 */
export async function makeFactorId (db: Db, userId: number): Promise<number> {
  const [newest] = await db.select({ id: oauth_grants.id }).from(oauth_grants).where(eq(oauth_grants.user_id, userId))
    .orderBy(desc(oauth_grants.id)).limit(1)
  return makeId(newest?.id)
}

/** Keeps what is being set up, in place of what was before; an account that has a second factor keeps that. */
export async function prepareFactor (db: Db, factor: Pick<Factor, 'user_id' | 'id' | 'secret'>): Promise<void> {
  const row = { ...factor, last_step: null }
  const values = { ...row, mac: macOf(db, 'second_factors', row) }
  await db.insert(second_factors).values(values)
    .onConflictDoUpdate({ target: second_factors.user_id, set: { ...values, created_at: sql`now()` } })
}

/** What makes the codes of an account, in use or being set up. */
export async function findFactor (db: Db, user_id: number): Promise<Factor | undefined> {
  const [row] = await db.select({
    ...authenticatedColumns('second_factors'), secret: second_factors.secret, created_at: second_factors.created_at
  }).from(second_factors).where(eq(second_factors.user_id, user_id))
  return row !== undefined && isAuthentic(db, 'second_factors', row) ? row : undefined
}

/**
 * Makes what was being set up the account's second factor, under an id of now: what has a smaller one was made without
 * it. Every session that was begun without it ends. False, and nothing changed, when there is one already, or the
 * account is closed.
 */
export async function takeUpFactor (
  db: Db, from: Factor, { id, secret, last_step }: Pick<Factor, 'id' | 'secret' | 'last_step'>
): Promise<boolean> {
  const open = and(eq(users.id, from.user_id), isNull(users.second_factor_id), isNull(users.disabled_at))
  // The account first: where it has one, nothing of that one changes.
  if (await updateAuthentic(db, 'users', open, { second_factor_id: id }, { updated_at: sql`now()` }) === undefined) {
    return false
  }
  const pending = matching(second_factors, { user_id: from.user_id, id: from.id })
  await updateAuthentic(db, 'second_factors', pending, { id, last_step }, { secret }) ?? tampered()
  await deleteInPieces(db, sessions, sessions.token_hash, eq(sessions.user_id, from.user_id))
  return true
}

/** Takes the second factor away with all that belongs to it. False when the account was changed outside the service. */
export async function deleteFactor (db: Db, user_id: number): Promise<boolean> {
  const changed = await updateAuthentic(
    db, 'users', eq(users.id, user_id), { second_factor_id: null }, { updated_at: sql`now()` }
  )
  if (changed === undefined) return false
  await db.delete(second_factors).where(eq(second_factors.user_id, user_id))
  await db.delete(recovery_codes).where(eq(recovery_codes.user_id, user_id))
  await deleteInPieces(db, sign_in_steps, sign_in_steps.token_hash, eq(sign_in_steps.user_id, user_id))
  return true
}

/** Uses the code of a time step up, and those before it: of two at once with the same code, one does. */
export async function useStep (db: Db, { user_id, id }: Factor, step: number): Promise<boolean> {
  const { last_step } = second_factors
  const unused = and(matching(second_factors, { user_id, id }), or(isNull(last_step), lt(last_step, step)))
  return await updateAuthentic(db, 'second_factors', unused, { last_step: step }) !== undefined
}

/** Recovery codes in place of all from before. */
export async function createRecoveryCodes (
  db: Db, { user_id, id: factor_id }: Pick<Factor, 'user_id' | 'id'>, hashes: readonly Buffer[]
): Promise<void> {
  await db.delete(recovery_codes).where(eq(recovery_codes.user_id, user_id))
  await db.insert(recovery_codes).values(hashes.map((code_hash) => {
    const row = { user_id, code_hash, factor_id }
    return { ...row, mac: macOf(db, 'recovery_codes', row) }
  }))
}

/** Uses a recovery code up: of two at once, one does. */
export async function takeRecoveryCode (
  db: Db, { user_id, id }: Pick<Factor, 'user_id' | 'id'>, code_hash: Buffer
): Promise<boolean> {
  const [row] = await db.delete(recovery_codes).where(matching(recovery_codes, { user_id, code_hash }))
    .returning(authenticatedColumns('recovery_codes'))
  return row !== undefined && isAuthentic(db, 'recovery_codes', row) && row.factor_id === id
}

/** How many recovery codes are left. */
export async function countRecoveryCodes (db: Db, user_id: number): Promise<number> {
  return db.$count(recovery_codes, eq(recovery_codes.user_id, user_id))
}

// Sign-ins that wait for the second factor

const MINUTE = 60_000
const MOST_WRONG = 5

/**
 * Remembers for ten minutes that somebody has given the right password. False when it was changed meanwhile, or the
 * account closed; whoever changes it then ends this, too.
 */
export async function createSignInStep (
  db: Db, token_hash: Buffer, { id, password_hash }: { id: number, password_hash: string }
): Promise<boolean> {
  await deleteExpired(db, sign_in_steps, sign_in_steps.token_hash, sql`${sign_in_steps.expires_at} < now()`)
  const row = { token_hash, user_id: id, expires_at: new Date(await readNow(db) + 10 * MINUTE) }
  const rows = await db.execute(sql`
    INSERT INTO sign_in_steps (token_hash, user_id, expires_at, mac)
    SELECT ${token_hash}::bytea, id, ${row.expires_at.toISOString()}::timestamptz,
      ${macOf(db, 'sign_in_steps', row)}::bytea
    FROM users WHERE id = ${id} AND password_hash = ${password_hash} AND disabled_at IS NULL FOR SHARE
    RETURNING user_id`) as unknown as unknown[]
  return rows.length === 1
}

/** Who has given the right password and not yet a code. */
export async function findSignInStep (db: Db, token_hash: Buffer): Promise<number | undefined> {
  const [row] = await db.select(authenticatedColumns('sign_in_steps')).from(sign_in_steps).where(and(
    eq(sign_in_steps.token_hash, token_hash), gt(sign_in_steps.expires_at, sql`now()`)
  ))
  return row !== undefined && isAuthentic(db, 'sign_in_steps', row) ? row.user_id : undefined
}

/** Uses a sign-in up that waits for a code: of two at once, one goes on. */
export async function takeSignInStep (db: Db, token_hash: Buffer): Promise<boolean> {
  const [row] = await db.delete(sign_in_steps).where(and(
    eq(sign_in_steps.token_hash, token_hash), gt(sign_in_steps.expires_at, sql`now()`)
  )).returning(authenticatedColumns('sign_in_steps'))
  return row !== undefined && isAuthentic(db, 'sign_in_steps', row)
}

/** Counts a wrong code: after five, the password has to be given again. False when that is so. */
export async function countWrongCode (db: Db, token_hash: Buffer): Promise<boolean> {
  const step = eq(sign_in_steps.token_hash, token_hash)
  const [row] = await db.update(sign_in_steps).set({ wrong_codes: sql`${sign_in_steps.wrong_codes} + 1` }).where(step)
    .returning({ wrong: sign_in_steps.wrong_codes })
  if (row !== undefined && row.wrong < MOST_WRONG) return true
  await db.delete(sign_in_steps).where(step)
  return false
}
