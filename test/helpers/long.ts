/**
 * Whether to run the long form of tests (`npm run test:proofs`): the same checks at more points, with more kills or more
 * clients.
 */
export const LONG = process.env.TEST_LONG === '1'
