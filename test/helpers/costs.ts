import type { Costs } from '../../src/crypto/costs.ts'

/** Key derivations with the minimum number of iterations, for tests that do not test key derivations. */
export const QUICK: Costs = {
  keyIterations: 1000, password: { memorySize: 8, iterations: 1, parallelism: 1 }, resetResponseMs: 0
}

/** Key derivations of some tens of milliseconds, for tests of other requests during a derivation. */
export const SLOW: Costs = { ...QUICK, keyIterations: 150_000 }
