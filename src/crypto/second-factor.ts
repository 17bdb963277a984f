/**
 * Second factors: codes of an authenticator (TOTP, RFC 6238, with what every such application takes: 6 digits, 30
 * seconds) and recovery codes. It guarantees that a code is compared in constant time and counts in its own time step
 * and the one beside it on either side (CR-43); that it counts once, its caller has to see to. A recovery code has 80
 * random bits, so that its plain hash can be stored.
 */
import { TimeSpan } from 'oslo'
import { base32 } from 'oslo/encoding'
import { createTOTPKeyURI, generateHOTP } from 'oslo/otp'
import { random, sameBytes, sha256 } from './primitives.ts'

const DIGITS = 6
const PERIOD = new TimeSpan(30, 's')
/** As long as what the codes are made with, which RFC 4226, 4 asks for. */
const SECRET_BYTES = 20
const RECOVERY_BYTES = 10

/** The secret that an authenticator shares with the service. */
export function generateFactorSecret (): Buffer {
  return random(SECRET_BYTES)
}

/** The time step of a moment in milliseconds. */
export function stepAt (moment: number): number {
  return Math.floor(moment / PERIOD.milliseconds())
}

/** The code of a time step. */
export function codeAt (secret: Buffer, step: number): Promise<string> {
  return generateHOTP(secret, step, DIGITS)
}

/** The time step that a code is of, at `now` or one beside it; undefined when it is of none. */
export async function findStep (secret: Buffer, text: string, now: number): Promise<number | undefined> {
  const given = Buffer.from(withoutSpaces(text))
  let found: number | undefined
  // The newest of them, should two have the same code: none before the one that was taken counts any more.
  for (const step of [now - 1, now, now + 1]) {
    if (sameBytes(given, Buffer.from(await codeAt(secret, step)))) found = step
  }
  return found
}

/** What an authenticator reads, from a picture or by hand: the address (`otpauth://`), and the secret in base32. */
export function describeFactor (secret: Buffer, account: string): { address: string, secret: string } {
  return {
    address: createTOTPKeyURI('Strongroom', account, secret, { digits: DIGITS, period: PERIOD }),
    secret: base32.encode(secret, { includePadding: false })
  }
}

/** A new recovery code, in groups for reading. Show it once, store its hash. */
export function mintRecoveryCode (): string {
  return base32.encode(random(RECOVERY_BYTES), { includePadding: false }).toLowerCase().match(/.{4}/g)!.join('-')
}

/** What is stored and looked up in place of a recovery code; however it is spelled, with or without its hyphens. */
export function hashRecoveryCode (text: string): Buffer {
  return sha256(`recovery code ${withoutSpaces(text).replace(/-/g, '').toLowerCase()}`)
}

const withoutSpaces = (text: string) => text.replace(/\s/g, '')
