import { Type, type Static } from '@sinclair/typebox'
import { LevelName } from './levels.ts'
import { Answer, Example, Flag, NameList, Nullable, OneOf, Slug, exampleOf } from './shapes.ts'

/**
 * Limits of a dry run of several levels, which ends after `levels` levels, or after the level that reaches `bytes`, and
 * looks at `written` of the levels that were written after a moment.
 */
export const DRY_RUN_LIMITS = { levels: 200, bytes: 8 * 1024 * 1024, written: 10_000 } as const

export const DryRunQuery = Type.Object({
  dry_run: Type.Optional(Flag({
    description: 'change nothing, and return in `dry_run` what would change; also needs secret:decrypt'
  }))
})

const PlannedNames = Type.Object({
  added: Example(NameList('the names that the document would gain, sorted'), []),
  changed: Example(NameList('the names that would have another value, sorted'), ['HELLO']),
  removed: Example(NameList('the names that the document would lose, sorted'), [])
}, {
  title: 'PlannedNames',
  description: 'null if the server cannot read the names: in a client-managed project, in the format `text`, or if a document does not parse'
})

const PlannedLevel = Type.Object({
  level: Example(LevelName, 'environment'),
  target: Example(Nullable(Slug), 'backend'),
  environment: Example(Nullable(Slug), 'live'),
  change: Example(OneOf(['create', 'update', 'delete', 'none'], {
    description: 'what would happen to the document'
  }), 'update'),
  records_version: Example(Type.Boolean({ description: 'whether a version would be recorded' }), true),
  etag: Example(Nullable(Type.String({
    description: 'of the present document, for If-Match of the request without `dry_run`; null without a document'
  })), '"m1VJp2b0nQYkWq3S8dT5xg"'),
  names: Example(Nullable(PlannedNames), exampleOf(PlannedNames.properties))
}, { title: 'PlannedLevel' })
export type PlannedLevel = Static<typeof PlannedLevel>

const DryRun = Type.Object({
  levels: Type.Array(PlannedLevel),
  more: Example(Type.Integer({
    description: 'further levels that would change or may change, which were not compared; only of a project'
  }), 0)
}, { title: 'DryRun', description: 'only with `dry_run=true`' })
export type DryRun = Static<typeof DryRun>

/** The field of a response to a change that supports dry runs. */
export const DRY_RUN = Type.Optional(DryRun)

/** The response to a dry run of an operation whose other responses have no body. */
export const DryRunAnswer = Answer('DryRunAnswer', {
  message: Example(Type.String(), 'Dry run: nothing was changed. The request would delete the document: 0 names added, 0 changed, 2 removed.'),
  dry_run: Example(DryRun, {
    levels: [{
      ...exampleOf(PlannedLevel.properties),
      change: 'delete',
      names: { added: [], changed: [], removed: ['FOO', 'HELLO'] }
    }],
    more: 0
  })
})
