import neostandard from 'neostandard'

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
  }
]
