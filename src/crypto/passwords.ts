/**
 * Passwords: Argon2id with the OWASP minimum (CR-40), as PHC strings. The library oslo normalizes passwords to NFKC, so
 * equivalent Unicode forms match. At most four hashes, of 19 MiB each, are computed at once.
 */
import { Gate } from '../gate.ts'
import { COSTS, type PasswordCost } from './costs.ts'
import { beginPiece } from '../telemetry/spans.ts'
import { random } from './primitives.ts'

/** Without i, l, o and u, which are easily misread. Five random bits select one of 32 characters without bias. */
const READABLE = '0123456789abcdefghjkmnpqrstvwxyz'

// Loaded on first use: the native library would slow down every start.
const loadArgon2id = async () => (await import('oslo/password')).Argon2id

const gate = new Gate([{ running: 4, waiting: 32 }], { work: 'password hashes' })

/** The PHC string to store for a password. Throws WorkOverloaded. */
export async function hashPassword (password: string, cost: PasswordCost = COSTS.password): Promise<string> {
  const end = beginPiece('password')
  return await gate.run([], async () => new (await loadArgon2id())(cost).hash(password)).finally(end)
}

/** Whether the PHC string is a hash of the password. Throws for an invalid PHC string, and WorkOverloaded. */
export async function verifyPassword (hash: string, password: string): Promise<boolean> {
  const end = beginPiece('password')
  return await gate.run([], async () => new (await loadArgon2id())().verify(hash, password)).finally(end)
}

/** A random password: six groups of four readable characters, 120 random bits. */
export function generatePassword (): string {
  const characters = Array.from(random(24), (byte) => READABLE[byte & 31]).join('')
  return characters.replace(/(.{4})(?=.)/g, '$1-')
}

/** Whether a hash was made with another algorithm or cost. The next sign-in then replaces the hash. */
export function isOutdated (
  hash: string, { memorySize, iterations, parallelism }: PasswordCost = COSTS.password
): boolean {
  return !hash.startsWith('$argon2id$') || !hash.includes(`$m=${memorySize},t=${iterations},p=${parallelism}$`)
}

const dummyHashes = new Map<PasswordCost, Promise<string>>()

/** For an unknown account: takes as long as `verifyPassword`, so that the time does not reveal accounts (CR-41). */
export async function verifyNobody (password: string, cost: PasswordCost = COSTS.password): Promise<void> {
  const hash = dummyHashes.get(cost) ?? hashPassword(generatePassword(), cost).catch((error: unknown) => {
    // The next call tries again. A cached failure would reject at once, which would reveal that there is no account.
    dummyHashes.delete(cost)
    throw error
  })
  dummyHashes.set(cost, hash)
  await verifyPassword(await hash, password)
}
