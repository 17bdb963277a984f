/**
 * Whether the long form of a test was asked for (`npm run test:long`). Tests that import this have one: the same proof,
 * at more points, with more kills or more clients.
 */
export const LONG = process.env.TEST_LONG === '1'
