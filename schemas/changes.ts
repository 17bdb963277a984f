import { Type, type Static, type TSchema } from '@sinclair/typebox'
import { WARNINGS } from './documents.ts'
import { DRY_RUN } from './dry-run.ts'
import { LevelName } from './secrets.ts'
import { Answer, Body, Example, NameList, Nullable, Slug, Ulid } from './shapes.ts'

/**
 * Limits of one request: names to set or to remove, characters of all names and values together, nested levels of a
 * value, and members and list elements of the body.
 */
export const CHANGE_LIMITS = { names: 1_000, characters: 256 * 1024, depth: 100, members: 4_000 } as const

/** Maximum length of a name in a request that changes the name or reads its history. Encoded, it fits into a URL. */
export const SECRET_NAME_LENGTH = 512

/** Media type of RFC 7396. */
export const MERGE_PATCH_TYPE = 'application/merge-patch+json'

/** An object with arbitrary names, whose values all have the schema `value`. */
const Named = <T extends TSchema>(
  value: T, options: { title?: string, description?: string, examples?: unknown[] } = {}
) => Type.Unsafe<Record<string, Static<T>>>(
    Type.Object({}, { additionalProperties: value, maxProperties: CHANGE_LIMITS.names, ...options })
  )

/** Any JSON value. The limits of values are checked together. */
const Value = Type.Unknown()
const UnsetName = Type.String({ maxLength: SECRET_NAME_LENGTH })

const ChangeBody = Body({
  set: Type.Optional(Named(Value, {
    description: `the names to add or change, with their values: texts, in JSON and YAML projects any JSON; a name has at most ${SECRET_NAME_LENGTH} characters, and all together, with \`unset\`, 256 KiB`
  })),
  unset: Type.Optional(Type.Array(UnsetName, {
    maxItems: CHANGE_LIMITS.names, description: 'the names to remove; a name that the document does not have is ignored'
  })),
  replace: Type.Optional(Type.Array(UnsetName, {
    maxItems: CHANGE_LIMITS.names,
    description: 'names of `set` whose text may replace an object, a list, or a number or boolean that reads the same'
  }))
}, { title: 'ChangeBody', default: {}, examples: [{ set: { HELLO: 'again' }, unset: ['FOO'] }] })
export type ChangeBody = Static<typeof ChangeBody>

const MergePatch = Named(Value, {
  title: 'MergePatch',
  description: `RFC 7396; in \`env\` projects with texts and null alone. A name has at most ${SECRET_NAME_LENGTH} characters`,
  examples: [{ HELLO: 'again', FOO: null }]
})

/** Fastify selects the schema of the body by the media type of the request. */
export const ChangeBodies = {
  content: { 'application/json': { schema: ChangeBody }, [MERGE_PATCH_TYPE]: { schema: MergePatch } }
}

export const ChangeAnswer = Answer('ChangeAnswer', {
  data: Type.Object({
    type: Type.Literal('secrets'),
    level: Example(LevelName, 'environment'),
    source: Example(Slug, 'live'),
    bytes: Example(Type.Integer({ description: 'size of the blob, decoded; 0 without a document' }), 40),
    secret_id: Example(Nullable(Type.String({
      pattern: Ulid.pattern!, description: 'null if the level still has no document'
    })), '01JQZ6VE6B9C2D5F8G1H4J7K0M'),
    version: Example(Nullable(Type.String({ description: 'the recorded version; null if nothing was changed, and in a dry run' })), '4'),
    unchanged: Example(Type.Boolean({ description: 'true if the document already was as requested' }), false),
    added: Example(NameList('the names that the document did not have'), []),
    changed: Example(NameList('the names with another value than before'), ['HELLO']),
    removed: Example(NameList('the names that were removed'), ['FOO'])
  }, { title: 'ChangedNames' }),
  message: Example(Type.String(), 'Changed 2 names as version 4.'),
  ...WARNINGS,
  dry_run: DRY_RUN
})
