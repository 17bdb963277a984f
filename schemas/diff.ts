import { Type, type SchemaOptions, type Static } from '@sinclair/typebox'
import { Answer, Example, Flag, PublishedAs, SLUG_LENGTH, SLUG_PATTERN } from './shapes.ts'

const SLUG = SLUG_PATTERN.slice(1, -1)
const LEVEL = `project|target(:${SLUG})?|environment(:(${SLUG}/)?${SLUG})?`
const TIME =
  '[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})'
const MAX_LENGTH = 'environment:'.length + 2 * SLUG_LENGTH + 1

/** A version, a level or a moment. The route parses the text, because its errors explain more than a pattern. */
const Side = (options: SchemaOptions & { 'x-named': string }) => PublishedAs(
  Type.String({ maxLength: MAX_LENGTH, ...options }),
  Type.String({
    maxLength: MAX_LENGTH, pattern: `^([1-9][0-9]{0,14}|${LEVEL}|${TIME})$`, 'x-named': options['x-named']
  })
)

export const DiffQuery = Type.Object({
  from: Side({
    description:
      'a version of the level; or a level: `project`, `target` or `environment` of the path, `target:SLUG`, ' +
      '`environment:SLUG` (in the target of the path) or `environment:TARGET/SLUG`; or a time (RFC 3339). Versions ' +
      'and times need secret:history',
    examples: ['project'],
    'x-named': 'from_of_diff'
  }),
  to: Side({
    description: 'of the same kind as `from`', examples: ['environment:backend/live'], 'x-named': 'to_of_diff'
  }),
  merge: Type.Optional(Flag({
    description: 'compare the documents merged with the levels above; not for versions', 'x-named': 'merge_of_diff'
  })),
  values: Type.Optional(Flag({ description: 'also return the values', 'x-named': 'values_of_diff' }))
})
export type DiffQuery = Static<typeof DiffQuery>

const names = (description: string) => Type.Array(Type.String(), { description })

const DifferentValue = Type.Object({
  name: Type.String(),
  from: Type.Optional(Type.String({ description: 'absent if the name was added' })),
  to: Type.Optional(Type.String({ description: 'absent if the name was removed' }))
}, { title: 'DifferentValue' })
export type DifferentValue = Static<typeof DifferentValue>

const Differences = Type.Object({
  type: Type.Literal('secret-differences'),
  attributes: Type.Object({
    added: Example(names('the names that only `to` has, sorted'), ['FOO', 'HELLO']),
    removed: Example(names('the names that only `from` has, sorted'), []),
    changed: Example(names('the names with another value in `to`, sorted'), []),
    values: Type.Optional(Type.Array(DifferentValue, {
      description: 'the values of these names, sorted by name; only with `values=true`'
    }))
  }, { title: 'SecretDifferencesAttributes' })
}, { title: 'SecretDifferences' })
export type Differences = Static<typeof Differences>

export const DiffAnswer = Answer('SecretDifferencesAnswer', { data: Differences })
