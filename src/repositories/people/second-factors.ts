import { and, desc, eq, gt, isNull, lt, or, sql } from 'drizzle-orm'
import { STATEMENT_TIME } from '../../db/columns.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import { macOf, readNow, tampered, updateAuthentic, type Db } from '../../db/database.ts'
import { deleteExpired, deleteInPieces } from '../../db/callers/expired.ts'
import { makeId } from '../../db/rows/ids.ts'
import { andRowsAlone } from '../../db/postgres/engine.ts'
import { authenticRow, matching } from '../../db/rows/query.ts'
import { oauth_grants, recovery_codes, second_factors, sign_in_steps, users } from '../../db/tables.ts'

// Lock the account (`lockUser`) before every change of a second factor, because the change ends sessions.

/** A second factor with its wrapped TOTP secret. The factor is active if its id is in `users.second_factor_id`. */
export type Factor = Omit<typeof second_factors.$inferSelect, 'mac'>

/** A new factor id, larger than the ids of the person's grants (`isOfFactor`). The caller has locked the account. */
export async function makeFactorId (db: Db, userId: number): Promise<number> {
  const [newest] = await db.select({ id: oauth_grants.id }).from(oauth_grants).where(eq(oauth_grants.user_id, userId))
    .orderBy(desc(oauth_grants.id)).limit(1)
  return makeId(newest?.id)
}

/** Stores a second factor for setup. The caller has locked the account, which has no active second factor. */
export async function prepareFactor (db: Db, factor: Pick<Factor, 'user_id' | 'id' | 'secret'>): Promise<void> {
  const row = { ...factor, last_step: null }
  const values = { ...row, mac: macOf(db, 'second_factors', row) }
  await db.insert(second_factors).values(values)
    .onConflictDoUpdate({ target: second_factors.user_id, set: { ...values, created_at: sql`excluded.created_at` } })
}

/** The second factor of an account, which is active or in setup. */
export async function findFactor (db: Db, user_id: number): Promise<Factor | undefined> {
  const [row] = await db.select({
    ...authenticatedColumns('second_factors'), secret: second_factors.secret, created_at: second_factors.created_at
  }).from(second_factors).where(eq(second_factors.user_id, user_id))
  return authenticRow(db, 'second_factors', row)
}

/**
 * Activates the second factor of a setup under a new id. Grants with smaller ids were approved without the factor. The
 * caller then deletes all sessions, because they began without the factor. Returns false without changes if a factor is
 * already active, or if the account is closed.
 */
export async function takeUpFactor (
  db: Db, from: Factor, { id, secret, last_step }: Pick<Factor, 'id' | 'secret' | 'last_step'>
): Promise<boolean> {
  const open = and(eq(users.id, from.user_id), isNull(users.second_factor_id), isNull(users.disabled_at))
  // Updates the account first: if a factor is already active, the row in `second_factors` stays unchanged.
  if (await updateAuthentic(db, 'users', open, { second_factor_id: id, updated_at: sql`now()` }) === undefined) {
    return false
  }
  const pending = matching(second_factors, { user_id: from.user_id, id: from.id })
  await updateAuthentic(db, 'second_factors', pending, { id, last_step, secret }) ?? tampered()
  return true
}

/** Deletes the second factor, its recovery codes and pending sign-ins. False if the account has a wrong MAC. */
export async function deleteFactor (db: Db, user_id: number): Promise<boolean> {
  const its = eq(users.id, user_id)
  const changed = await updateAuthentic(db, 'users', its, { second_factor_id: null, updated_at: sql`now()` })
  if (changed === undefined) return false
  await db.delete(second_factors).where(eq(second_factors.user_id, user_id))
  await db.delete(recovery_codes).where(eq(recovery_codes.user_id, user_id))
  await deleteInPieces(db, sign_in_steps.token_hash, eq(sign_in_steps.user_id, user_id))
  return true
}

/** Marks the time step of a code and all earlier steps as used. Of two concurrent uses of a code, one succeeds. */
export async function useStep (db: Db, { user_id, id }: Factor, step: number): Promise<boolean> {
  const { last_step } = second_factors
  const unused = and(matching(second_factors, { user_id, id }), or(isNull(last_step), lt(last_step, step)))
  return await updateAuthentic(db, 'second_factors', unused, { last_step: step }) !== undefined
}

/** Replaces all recovery codes of a person. */
export async function createRecoveryCodes (
  db: Db, { user_id, id: factor_id }: Pick<Factor, 'user_id' | 'id'>, hashes: readonly Buffer[]
): Promise<void> {
  await db.delete(recovery_codes).where(eq(recovery_codes.user_id, user_id))
  await db.insert(recovery_codes).values(hashes.map((code_hash) => {
    const row = { user_id, code_hash, factor_id }
    return { ...row, mac: macOf(db, 'recovery_codes', row) }
  }))
}

/** Deletes a recovery code. Of two concurrent uses, one succeeds. */
export async function takeRecoveryCode (
  db: Db, { user_id, id }: Pick<Factor, 'user_id' | 'id'>, code_hash: Buffer
): Promise<boolean> {
  const [row] = await db.delete(recovery_codes).where(matching(recovery_codes, { user_id, code_hash }))
    .returning(authenticatedColumns('recovery_codes'))
  return authenticRow(db, 'recovery_codes', row)?.factor_id === id
}

/** The number of unused recovery codes. */
export async function countRecoveryCodes (db: Db, user_id: number): Promise<number> {
  return db.$count(recovery_codes, eq(recovery_codes.user_id, user_id))
}

// Sign-ins that wait for the second factor

const MINUTE = 60_000
const MAX_WRONG_CODES = 5

/** Records for ten minutes that the password was verified. False if the password was changed or the account closed. */
export async function createSignInStep (
  db: Db, token_hash: Buffer, { id, password_hash }: { id: number, password_hash: string }
): Promise<boolean> {
  await deleteExpired(db, sign_in_steps.token_hash, sql`${sign_in_steps.expires_at} < now()`)
  const row = { token_hash, user_id: id, expires_at: new Date(await readNow(db) + 10 * MINUTE) }
  const unchanged = await db.select({ id: users.id }).from(users)
    .where(and(matching(users, { id, password_hash }), sql`${isNull(users.disabled_at)}${andRowsAlone}`)).for('share')
  if (unchanged.length > 0) await db.insert(sign_in_steps).values({ ...row, mac: macOf(db, 'sign_in_steps', row) })
  return unchanged.length > 0
}

const isValidStep = (token_hash: Buffer) =>
  and(eq(sign_in_steps.token_hash, token_hash), gt(sign_in_steps.expires_at, STATEMENT_TIME))

/** The id of the user whose sign-in waits for a code. */
export async function findSignInStep (db: Db, token_hash: Buffer): Promise<number | undefined> {
  const [row] = await db.select(authenticatedColumns('sign_in_steps')).from(sign_in_steps)
    .where(isValidStep(token_hash))
  return authenticRow(db, 'sign_in_steps', row)?.user_id
}

/** Deletes a sign-in that waits for a code. Of two concurrent attempts, one succeeds. */
export async function takeSignInStep (db: Db, token_hash: Buffer): Promise<boolean> {
  const [row] = await db.delete(sign_in_steps).where(isValidStep(token_hash))
    .returning(authenticatedColumns('sign_in_steps'))
  return authenticRow(db, 'sign_in_steps', row) !== undefined
}

/** Counts a wrong code. Returns false after five wrong codes; the user then has to sign in again. */
export async function countWrongCode (db: Db, token_hash: Buffer): Promise<boolean> {
  const step = eq(sign_in_steps.token_hash, token_hash)
  const [row] = await db.update(sign_in_steps).set({ wrong_codes: sql`${sign_in_steps.wrong_codes} + 1` }).where(step)
    .returning({ wrong: sign_in_steps.wrong_codes })
  if (row !== undefined && row.wrong < MAX_WRONG_CODES) return true
  await db.delete(sign_in_steps).where(step)
  return false
}
