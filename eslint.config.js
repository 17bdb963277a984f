import neostandard from 'neostandard'

// Loops of tests that only wait, except those whose condition has a time.
const WAIT = 'WhileStatement:not(:has(MemberExpression[property.name="now"]))'
const PAUSE = 'AwaitExpression > :matches(CallExpression[callee.name=/^(?:pause|sleep)$/], NewExpression)'
const UNBOUNDED_WAITS = [
  `${WAIT} > ExpressionStatement > ${PAUSE}`,
  `${WAIT} > BlockStatement[body.length=1] > ExpressionStatement > ${PAUSE}`,
  `${WAIT}:has(AwaitExpression) > EmptyStatement`
]

export default [
  { ignores: ['dist/', 'data/'] },
  ...neostandard({ ts: true, filesTs: ['console/**/*.tsx'], noJsx: true }),
  {
    rules: {
      // Wire, row and column fields are snake_case, and a field is spelled once.
      camelcase: 'off',
      // A schema and its type share their name; the compiler refuses what is really declared twice.
      '@typescript-eslint/no-redeclare': 'off',
      '@stylistic/max-len': ['error', {
        code: 120, ignoreUrls: true, ignoreStrings: true, ignoreTemplateLiterals: true, ignoreRegExpLiterals: true
      }]
    }
  },
  {
    files: ['test/**/*.ts'],
    rules: {
      'no-restricted-syntax': ['error', ...UNBOUNDED_WAITS.map((selector) =>
        ({ selector, message: 'This loop has no bound: wait with `until` (test/helpers/until.ts).' }))]
    }
  }
]
