/**
 * Second factors: TOTP codes (RFC 6238, 6 digits, 30 seconds) and recovery codes. A TOTP code is compared in constant
 * time, and is valid in its time step and the two adjacent steps (CR-43). The caller ensures that a code is used once.
 * A recovery code has 80 random bits, so a fast hash of the code is safe.
 */
import { TimeSpan } from 'oslo'
import { base32 } from 'oslo/encoding'
import { createTOTPKeyURI, generateHOTP } from 'oslo/otp'
import { random, sameBytes, sha256 } from './primitives.ts'

const DIGITS = 6
const PERIOD = new TimeSpan(30, 's')
// The length of a SHA-1 HMAC, as RFC 4226, 4 recommends.
const SECRET_BYTES = 20
const RECOVERY_BYTES = 10

export function generateFactorSecret (): Buffer {
  return random(SECRET_BYTES)
}

/** The time step at a time in milliseconds. */
export function stepAt (moment: number): number {
  return Math.floor(moment / PERIOD.milliseconds())
}

export function codeAt (secret: Buffer, step: number): Promise<string> {
  return generateHOTP(secret, step, DIGITS)
}

/** The time step of a code: the current step `now` or an adjacent step; undefined for a wrong code. */
export async function findStep (secret: Buffer, text: string, now: number): Promise<number | undefined> {
  const given = Buffer.from(withoutSpaces(text))
  let found: number | undefined
  // If two steps have the same code, returns the later step: the caller then accepts neither step again.
  for (const step of [now - 1, now, now + 1]) {
    if (sameBytes(given, Buffer.from(await codeAt(secret, step)))) found = step
  }
  return found
}

/** The `otpauth://` address for a QR code, and the secret in base32 for manual entry. */
export function describeFactor (secret: Buffer, account: string): { address: string, secret: string } {
  return {
    address: createTOTPKeyURI('Strongroom', account, secret, { digits: DIGITS, period: PERIOD }),
    secret: base32.encode(secret, { includePadding: false })
  }
}

/** A new recovery code, in groups of four characters. Show it once, store its hash. */
export function mintRecoveryCode (): string {
  return base32.encode(random(RECOVERY_BYTES), { includePadding: false }).toLowerCase().match(/.{4}/g)!.join('-')
}

/** The stored hash of a recovery code. Ignores case, hyphens and spaces. */
export function hashRecoveryCode (text: string): Buffer {
  return sha256(`recovery code ${withoutSpaces(text).replace(/-/g, '').toLowerCase()}`)
}

const withoutSpaces = (text: string) => text.replace(/\s/g, '')
