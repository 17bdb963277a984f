import type { Costs } from '../../src/crypto/costs.ts'

/**
 * Derivations that cost next to nothing, for tests that are about something else: the fewest iterations that the
 * contract allows.
 */
export const QUICK: Costs = { keyIterations: 1000, password: { memorySize: 8, iterations: 1, parallelism: 1 } }

/** Derivations of keys that take some tens of milliseconds: for tests about what others do meanwhile. */
export const SLOW: Costs = { ...QUICK, keyIterations: 150_000 }
