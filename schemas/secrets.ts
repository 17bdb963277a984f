import { Type, type Static, type TObject, type TSchema } from '@sinclair/typebox'
import { WARNINGS } from './documents.ts'
import { DRY_RUN } from './dry-run.ts'
import { EncryptionKey, EncryptionKeyAnswer } from './encryption-keys.ts'
import { LevelName } from './levels.ts'
import {
  Answer, BLOB_BYTES, BLOB_LENGTH, Blob, Body, Example, Flag, KeyProof, Moment, Nullable, OneOf, PublishedAs, Slug,
  Timestamp, ToldApart, Ulid, UnreadableWarning, exampleOf
} from './shapes.ts'

export { LEVELS, LevelName, type Level } from './levels.ts'

/** Values of `merge`: return separate levels, only the merged document, or both. */
export const MERGES = ['false', 'true', 'both'] as const
export type Merge = (typeof MERGES)[number]

/** Media type of responses to `raw=true`, which contain only names and values. */
export const RAW_TYPE = 'application/vnd.strongroom.raw+json'
/** Media type of other reads. It has no charset, because generated clients compare the whole header. */
export const READ_TYPE = 'application/json'

export const ReadSecretsQuery = Type.Object({
  decrypt: Type.Optional(Flag({ description: 'return decrypted documents; needs secret:decrypt' })),
  merge: Type.Optional(OneOf(
    MERGES, { default: 'false', description: 'merge the levels: environment overrides target, target overrides project; needs decrypt=true' }
  )),
  raw: Type.Optional(Flag({ description: `return only the object {KEY: value}, as ${RAW_TYPE}` })),
  at: Type.Optional(Moment({
    description:
      'the state at this time, including writes of that millisecond; needs secret:history. 404 if the level was ' +
      'created later; 422 `version_gone` if a needed version is missing. After a write with `no_backup`, reads ' +
      'return the version before it until the next write; then, every time from that version to the next recorded ' +
      'version, or to the last write, is `version_gone`'
  }))
})
export type ReadSecretsQuery = Static<typeof ReadSecretsQuery>

const Values = Type.Record(Type.String(), Type.String())

const LevelDocument = Type.Object({
  id: Example(Ulid, '01JQZ6VE6B9C2D5F8G1H4J7K0M'),
  encrypted: Example(Type.Boolean(), true),
  content: Example(Type.String({ description: 'the blob, or the document if decrypted' }), Blob.examples[0]),
  source: Example(Slug, 'live'),
  version: Example(Nullable(Type.String()), '1'),
  key_version: Example(Type.String({ description: 'the version of the key that encrypts the content' }), '1'),
  etag: Example(Type.String({
    description: 'send it in If-Match to write only if the document has not changed'
  }), '"m1VJp2b0nQYkWq3S8dT5xg"')
}, { title: 'LevelDocument' })
export type LevelDocument = Static<typeof LevelDocument>

/** In merged reads. Bare responses have the header `Strongroom-Left-Out`. */
export const LeftOut = Type.Optional(Type.Array(LevelName, {
  description: 'the levels above that the restrictions of the caller exclude, so that their values are missing here'
}))

const Secrets = Type.Object({
  type: Type.Literal('secrets'),
  attributes: Type.Object({
    encrypted: Example(Type.Boolean(), true),
    format: Example(OneOf(['env', 'json']), 'env'),
    levels: Type.Optional(Example(Type.Object({
      project: Type.Optional(LevelDocument),
      target: Type.Optional(LevelDocument),
      environment: Type.Optional(LevelDocument)
    }, { title: 'LevelDocuments' }), { environment: exampleOf(LevelDocument.properties) })),
    merged: Type.Optional(Values)
  }, { title: 'SecretsAttributes' }),
  secrets: Type.Optional(Values)
}, { title: 'Secrets' })

const SecretsMeta = Type.Object({
  api_path: Example(Type.String(), '/api/v1/my-organization/orbit/backend/live/secrets'),
  format: Type.Literal('hierarchical'),
  merged: Example(Type.String(), 'false'),
  timestamp: Example(Type.String({ format: 'date-time' }), '2026-03-01T12:00:00.000Z'),
  at: Type.Optional(Timestamp),
  hierarchy: Example(Type.Object(
    { project: Slug, target: Nullable(Slug), environment: Nullable(Slug) }, { title: 'Hierarchy' }
  ), { project: 'orbit', target: 'backend', environment: 'live' }),
  action: Example(Type.String(), 'read'),
  left_out: LeftOut
}, { title: 'SecretsMeta' })

export const SecretsAnswer = Answer('SecretsAnswer', { data: Secrets, meta: SecretsMeta })
export type SecretsAnswer = Static<typeof SecretsAnswer>

const RawSecrets = Type.Record(
  Type.String(), Type.String(), { title: 'RawSecrets', examples: [{ HELLO: 'world', FOO: 'bar' }] }
)

/** A response has one of two media types, because its two forms have different schemas. */
const orRaw = (answer: TSchema) => ({
  content: { [READ_TYPE]: { schema: answer }, [RAW_TYPE]: { schema: RawSecrets } }
})

export const ReadAnswer = orRaw(SecretsAnswer)

const RETRIEVED = {
  data: {
    type: 'secrets',
    attributes: { encrypted: false, format: 'env', merged: { HELLO: 'world', FOO: 'bar' } },
    secrets: { HELLO: 'world', FOO: 'bar' }
  },
  meta: {
    ...exampleOf(SecretsMeta.properties),
    api_path: '/api/v1/my-organization/secrets/retrieve',
    merged: 'true',
    action: 'decrypt'
  }
}

/** Documents or a key. The discriminator is `data.type`, so in the published schema the union is the type of `data`. */
export const RetrieveAnswer = orRaw(PublishedAs(
  Type.Union([SecretsAnswer, EncryptionKeyAnswer], { examples: [RETRIEVED] }),
  Type.Object({
    data: ToldApart<TObject>('type', [Secrets, EncryptionKey], { title: 'Retrieved' }),
    meta: Type.Optional(SecretsMeta)
  }, { title: 'RetrieveAnswer', examples: [RETRIEVED] })
))

/** Identifies a level in a body: the deepest slug that is sent determines the level. */
const level = { project: Slug, target: Type.Optional(Slug), environment: Type.Optional(Slug) }
export interface LevelNames { project: string, target?: string | undefined, environment?: string | undefined }

export const RetrieveBody = Body({
  ...level,
  action: Type.Optional(OneOf(['read', 'decrypt', 'key:retrieve'], {
    default: 'read', description: '`read` returns documents as stored, `decrypt` decrypted documents, `key:retrieve` the key'
  })),
  filters: Type.Optional(Type.Object({
    names: Type.Optional(Type.Array(Type.String({ maxLength: 255 }), { maxItems: 1000 })),
    tags: Type.Optional(Type.Array(Type.String({ maxLength: 255 }), { maxItems: 100 })),
    search: Type.Optional(Type.String({ maxLength: 255 }))
  }, {
    additionalProperties: false,
    description: 'filters `data.secrets`; documents have no tags, so `tags` matches nothing'
  })),
  merge: Type.Optional(PublishedAs(
    Type.Union([OneOf(MERGES), Type.Boolean()]), OneOf(MERGES, { default: 'false', description: 'ignored without action decrypt' })
  )),
  raw: Type.Optional(Type.Boolean({ default: false }))
}, {
  title: 'RetrieveBody',
  examples: [{ project: 'orbit', target: 'backend', environment: 'live', action: 'decrypt', merge: 'true' }]
})
export type RetrieveBody = Static<typeof RetrieveBody>

const ONE_OF_BOTH = 'send either `content` or `plaintext`'

export const StoreBody = Body({
  ...level,
  // The vault validates the blob, because the error depends on who holds the project's key.
  content: Type.Optional(Type.String({
    maxLength: BLOB_LENGTH, description: `${Blob.description}; ${ONE_OF_BOTH}`, examples: Blob.examples
  })),
  plaintext: Type.Optional(Type.String({
    maxLength: BLOB_BYTES - 28, description: `the document itself; server-managed projects only; 422 \`document_unreadable\` if it does not parse in the project's \`secret_format\`; ${ONE_OF_BOTH}`
  })),
  unchecked: Type.Optional(Type.Boolean({
    default: false, description: 'store a `plaintext` that does not parse, or that other programs read differently; the response has `warnings`'
  })),
  key_proof: Type.Optional(KeyProof),
  no_backup: Type.Optional(Type.Boolean({ default: false, description: 'do not record a version of this write' }))
}, {
  title: 'StoreBody',
  examples: [{ project: 'orbit', target: 'backend', environment: 'live', plaintext: 'HELLO=world\nFOO=bar\n' }]
})
export type StoreBody = Static<typeof StoreBody>

export const StoreAnswer = Answer('StoreAnswer', {
  data: Type.Object({
    type: Type.Literal('secrets'),
    level: Example(LevelName, 'environment'),
    source: Example(Slug, 'live'),
    bytes: Example(Type.Integer({ description: 'size of the blob, decoded' }), 48),
    secret_id: Example(Nullable(Type.String({
      pattern: Ulid.pattern!, description: 'null in a dry run for a level that never had a document'
    })), '01JQZ6VE6B9C2D5F8G1H4J7K0M'),
    version: Example(Nullable(Type.String({
      description: 'the recorded version; null with no_backup, and in a dry run'
    })), '1')
  }),
  message: Example(Type.String(), 'Stored as version 1.'),
  warning: UnreadableWarning,
  ...WARNINGS,
  dry_run: DRY_RUN
})

export const DeleteBody = Body({
  ...level,
  no_backup: Type.Optional(Type.Boolean({
    default: false, description: 'do not keep a restore snapshot, and purge the history of the level'
  })),
  confirmed: Type.Optional(Type.Boolean({ description: 'must be true with no_backup' }))
}, { title: 'DeleteBody', examples: [{ project: 'orbit', target: 'backend', environment: 'live' }] })
export type DeleteBody = Static<typeof DeleteBody>
