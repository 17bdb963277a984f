import type { Costs } from '../../src/crypto/costs.ts'

/** Derivations that cost next to nothing, for tests that are about something else: the fewest iterations that the contract allows. */
export const QUICK: Costs = { keyIterations: 1000, password: { memorySize: 8, iterations: 1, parallelism: 1 } }
