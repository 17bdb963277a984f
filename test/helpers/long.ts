/**
 * Whether to run the exhaustive form of tests (`npm run test:proofs`): the same checks at more points, with more kills
 * or more clients.
 */
export const LONG = process.env.TEST_LONG === '1'

/**
 * All cases in `npm run test:proofs`; in `npm test` each `step`th one, from the first on. The cases must be in an order
 * in which this sample has each kind.
 */
export const sample = <T>(cases: readonly T[], step: number): readonly T[] =>
  LONG ? cases : cases.filter((_, i) => i % step === 0)
