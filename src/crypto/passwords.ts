/**
 * Passwords: Argon2id with the OWASP minimum (CR-40), as PHC strings. It guarantees that the Unicode forms of a
 * password are equal (oslo applies NFKC), and that at most four hashes of 19 MiB run at once.
 */
import { createGate, WorkOverloaded } from './bounded.ts'
import { COSTS, type PasswordCost } from './costs.ts'
import { beginPiece } from '../telemetry/spans.ts'
import { random } from './primitives.ts'

/** Readable characters: no i, l, o or u. There are 32, so five bits choose one without bias. */
const READABLE = '0123456789abcdefghjkmnpqrstvwxyz'

/** More than 32 password hashes are waiting. */
export class PasswordWorkOverloaded extends WorkOverloaded {
  constructor () {
    super('too many password hashes are waiting')
  }
}

// Loaded on first use: the native library would slow down every start.
const loadArgon2id = async () => (await import('oslo/password')).Argon2id

const gate = createGate(4, 32, () => new PasswordWorkOverloaded())

/** The PHC string to store for a password. Throws PasswordWorkOverloaded. */
export async function hashPassword (password: string, cost: PasswordCost = COSTS.password): Promise<string> {
  const end = beginPiece('password')
  return await gate(async () => new (await loadArgon2id())(cost).hash(password)).finally(end)
}

/** Whether the PHC string is a hash of the password. Throws for an invalid PHC string, and PasswordWorkOverloaded. */
export async function verifyPassword (hash: string, password: string): Promise<boolean> {
  const end = beginPiece('password')
  return await gate(async () => new (await loadArgon2id())().verify(hash, password)).finally(end)
}

/** A password for a person: six groups of four readable characters, 120 random bits. */
export function generatePassword (): string {
  const characters = Array.from(random(24), (byte) => READABLE[byte & 31]).join('')
  return characters.replace(/(.{4})(?=.)/g, '$1-')
}

/** Whether a hash has another cost than the present one: the next sign-in then replaces it. */
export function isOutdated (
  hash: string, { memorySize, iterations, parallelism }: PasswordCost = COSTS.password
): boolean {
  return !hash.startsWith('$argon2id$') || !hash.includes(`$m=${memorySize},t=${iterations},p=${parallelism}$`)
}

const dummyHashes = new Map<PasswordCost, Promise<string>>()

/** Takes as long as the check of a wrong password, so that timing does not reveal missing accounts (CR-41). */
export async function verifyNobody (password: string, cost: PasswordCost = COSTS.password): Promise<void> {
  const hash = dummyHashes.get(cost) ?? hashPassword(generatePassword(), cost).catch((error: unknown) => {
    // Retry on the next call: otherwise missing accounts would be detectable by time from then on.
    dummyHashes.delete(cost)
    throw error
  })
  dummyHashes.set(cost, hash)
  await verifyPassword(await hash, password)
}
