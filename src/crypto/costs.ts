/**
 * The cost of key derivations and password hashes, and the minimum duration of a response. Only tests pass other costs
 * to `buildApp`.
 */
export const COSTS = {
  /** PBKDF2 iterations for keys that the server makes, as in existing clients (S-8.3). */
  keyIterations: 600_000,
  /** The OWASP minimum for Argon2id (CR-40). */
  password: { memorySize: 19456, iterations: 2, parallelism: 1 },
  /** The minimum duration of a request for a reset link, so that the duration does not reveal an account (CR-49). */
  resetResponseMs: 300
}

export type Costs = typeof COSTS
export type PasswordCost = Costs['password']
