import {
  findStep, generateFactorSecret, hashRecoveryCode, mintRecoveryCode, stepAt
} from '../../crypto/second-factor.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { readNow, tampered, type Db } from '../../db/database.ts'
import {
  createRecoveryCodes, findFactor, makeFactorId, prepareFactor, takeRecoveryCode, takeUpFactor, useStep
} from '../../repositories/people/second-factors.ts'
import { deleteSessions } from '../../repositories/people/sessions.ts'
import { secondFactorContext } from './contexts.ts'
import { lockCurrentCanary } from './master-keys.ts'

const RECOVERY_CODES = 10

/** An account and the id of its active second factor (null: no active second factor). */
export interface Holder { id: number, second_factor_id: number | null }

/** Begins the setup of a second factor and returns its TOTP secret. Replaces an unfinished setup. */
export async function beginFactor (db: Db, keyring: Keyring, user_id: number): Promise<Buffer> {
  const secret = generateFactorSecret()
  const factor = { user_id, id: await makeFactorId(db, user_id) }
  await lockCurrentCanary(db, keyring)
  await prepareFactor(db, { ...factor, secret: keyring.wrap(secret, secondFactorContext(factor)) })
  return secret
}

/**
 * Completes the setup, ends all sessions, and returns the recovery codes. Undefined if the code is wrong or if no setup
 * has begun.
 */
export async function confirmFactor (
  db: Db, keyring: Keyring, user_id: number, code: string
): Promise<string[] | undefined> {
  await lockCurrentCanary(db, keyring)
  const begun = await findFactor(db, user_id)
  if (begun === undefined) return undefined
  const secret = keyring.unwrap(begun.secret, secondFactorContext(begun))
  const last_step = await findStep(secret, code, stepAt(await readNow(db)))
  if (last_step === undefined) return undefined
  const factor = { user_id, id: await makeFactorId(db, user_id) }
  const taken = await takeUpFactor(
    db, begun, { id: factor.id, secret: keyring.wrap(secret, secondFactorContext(factor)), last_step }
  )
  if (!taken) return undefined
  await deleteSessions(db, user_id)
  return renewRecoveryCodes(db, factor)
}

/** Replaces all recovery codes. Returns the new codes, which are shown only once. */
export async function renewRecoveryCodes (db: Db, factor: { user_id: number, id: number }): Promise<string[]> {
  const codes = Array.from({ length: RECOVERY_CODES }, mintRecoveryCode)
  await createRecoveryCodes(db, factor, codes.map(hashRecoveryCode))
  return codes
}

/**
 * Marks a TOTP or recovery code as used. Undefined if the code is wrong or was used before. Throws TamperedRow if the
 * factor is missing or has a wrong MAC, so that an attacker with access to the database cannot remove a second factor.
 */
export async function useCode (
  db: Db, keyring: Keyring, { id: user_id, second_factor_id }: Holder, code: string
): Promise<'code' | 'recovery_code' | undefined> {
  const factor = await findFactor(db, user_id)
  if (factor === undefined || factor.id !== second_factor_id) return tampered()
  const secret = keyring.unwrap(factor.secret, secondFactorContext(factor))
  const step = await findStep(secret, code, stepAt(await readNow(db)))
  if (step !== undefined) return await useStep(db, factor, step) ? 'code' : undefined
  return await takeRecoveryCode(db, factor, hashRecoveryCode(code)) ? 'recovery_code' : undefined
}
