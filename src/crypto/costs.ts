/**
 * The cost of key derivations. The service always uses `COSTS`; tests can pass lower costs to `buildApp`. No
 * environment variable changes them.
 */

/** Parameters of Argon2id. */
export interface PasswordCost { memorySize: number, iterations: number, parallelism: number }

export interface Costs {
  /** PBKDF2 iterations of every key that the server makes (S-8.3). */
  keyIterations: number
  password: PasswordCost
}

/** What the service runs with: PBKDF2 as existing clients, and the OWASP minimum for Argon2id (CR-40). */
export const COSTS: Costs = {
  keyIterations: 600_000,
  password: { memorySize: 19456, iterations: 2, parallelism: 1 }
}
