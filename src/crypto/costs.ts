/**
 * What one derivation costs: the service, and whoever guesses. The service always runs with `COSTS`; tests that are
 * about something else give `buildApp` smaller ones. An operator cannot: no variable leads here.
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
