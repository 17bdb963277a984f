/**
 * Whether to run the exhaustive form of tests (`npm run test:proofs`): the same checks with more cases, kills or
 * clients.
 */
export const LONG = process.env.TEST_LONG === '1'

/**
 * All cases in `npm run test:proofs`; in `npm test` each `step`th case, so that `step` turns together cover all cases.
 */
export const byTurns = <T>(cases: readonly T[], turn: number, step: number): readonly T[] =>
  LONG ? cases : cases.filter((_, i) => i % step === turn % step)

/** The first turn of `byTurns`. The order of the cases must ensure that it contains each kind. */
export const sample = <T>(cases: readonly T[], step: number): readonly T[] => byTurns(cases, 0, step)

/**
 * The options of a test that only `npm run test:proofs` runs, because `npm test` has a smaller test of the same kind.
 */
export const IN_PROOFS = { skip: !LONG && 'in npm run test:proofs' }
