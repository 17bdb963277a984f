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

/** The options of a test that only `npm run test:proofs` runs, because a smaller one of its kind is in `npm test`. */
export const IN_PROOFS = { skip: !LONG && 'in npm run test:proofs' }

/** All cases in `npm run test:proofs`; in `npm test` each `step`th one, so that `step` turns together have all. */
export const byTurns = <T>(cases: readonly T[], turn: number, step: number): readonly T[] =>
  LONG ? cases : cases.filter((_, i) => i % step === turn % step)
