import { Type, type Static, type TObject, type TSchema } from '@sinclair/typebox'
import { EncryptionKey, EncryptionKeyAnswer } from './encryption-keys.ts'
import {
  BLOB_BYTES, BLOB_LENGTH, Blob, Body, Flag, KeyProof, Moment, Nullable, OneOf, PublishedAs, Slug, Timestamp, ToldApart,
  Ulid
} from './shapes.ts'

/** The levels of the hierarchy that can have a document. */
export const LEVELS = ['project', 'target', 'environment'] as const
export type Level = (typeof LEVELS)[number]
export const LevelName = OneOf(LEVELS, { title: 'Level' })

/** Values of `merge`: separate levels, merged only, or both. */
export const MERGES = ['false', 'true', 'both'] as const
export type Merge = (typeof MERGES)[number]

/** Media type of responses to `raw=true`: only the values. */
export const RAW_TYPE = 'application/vnd.strongroom.raw+json'
/** Media type of other reads. No charset: with two media types, generated clients compare the whole header. */
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
  id: Ulid,
  encrypted: Type.Boolean(),
  content: Type.String({ description: 'the blob, or the document if decrypted' }),
  source: Slug,
  version: Nullable(Type.String()),
  key_version: Type.String({ description: 'the version of the key that encrypts the content' }),
  etag: Type.String({ description: 'send it in If-Match to write only if the document has not changed' })
}, { title: 'LevelDocument' })
export type LevelDocument = Static<typeof LevelDocument>

const levelExample = {
  id: '01JQZ6VE6B9C2D5F8G1H4J7K0M',
  encrypted: true,
  content: 'AAECAwQFBgcICQoLGoZMPg1bEXppyGxlIihs+2Dc2Ly9kEgGW5+j/+uzhCPCe6E=',
  source: 'live',
  version: '1',
  key_version: '1',
  etag: '"m1VJp2b0nQYkWq3S8dT5xg"'
}

const Secrets = Type.Object({
  type: Type.Literal('secrets'),
  attributes: Type.Object({
    encrypted: Type.Boolean(),
    format: OneOf(['env', 'json']),
    levels: Type.Optional(Type.Object({
      project: Type.Optional(LevelDocument),
      target: Type.Optional(LevelDocument),
      environment: Type.Optional(LevelDocument)
    }, { title: 'LevelDocuments' })),
    merged: Type.Optional(Values)
  }, { title: 'SecretsAttributes' }),
  secrets: Type.Optional(Values)
}, { title: 'Secrets' })

const SecretsMeta = Type.Object({
  api_path: Type.String(),
  format: Type.Literal('hierarchical'),
  merged: Type.String(),
  timestamp: Type.String({ format: 'date-time' }),
  at: Type.Optional(Timestamp),
  hierarchy: Type.Object(
    { project: Slug, target: Nullable(Slug), environment: Nullable(Slug) }, { title: 'Hierarchy' }
  ),
  action: Type.String()
}, { title: 'SecretsMeta' })

export const SecretsAnswer = Type.Object({ data: Secrets, meta: SecretsMeta }, {
  title: 'SecretsAnswer',
  examples: [{
    data: { type: 'secrets', attributes: { encrypted: true, format: 'env', levels: { environment: levelExample } } },
    meta: {
      api_path: '/api/v1/my-organization/orbit/backend/live/secrets',
      format: 'hierarchical',
      merged: 'false',
      timestamp: '2026-03-01T12:00:00.000Z',
      hierarchy: { project: 'orbit', target: 'backend', environment: 'live' },
      action: 'read'
    }
  }]
})
export type SecretsAnswer = Static<typeof SecretsAnswer>

const RawSecrets = Type.Record(
  Type.String(), Type.String(), { title: 'RawSecrets', examples: [{ HELLO: 'world', FOO: 'bar' }] }
)

/** Two media types, so that each has one schema. */
const orRaw = (answer: TSchema) => ({
  content: { [READ_TYPE]: { schema: answer }, [RAW_TYPE]: { schema: RawSecrets } }
})

/** The documents; with `raw=true` only the values. */
export const ReadAnswer = orRaw(SecretsAnswer)

const RETRIEVED = {
  data: {
    type: 'secrets',
    attributes: { encrypted: false, format: 'env', merged: { HELLO: 'world', FOO: 'bar' } },
    secrets: { HELLO: 'world', FOO: 'bar' }
  },
  meta: {
    ...SecretsAnswer.examples[0].meta,
    api_path: '/api/v1/my-organization/secrets/retrieve',
    merged: 'true',
    action: 'decrypt'
  }
}

/** The response of a read, or the key. The discriminator is `data.type`, so the published schema puts it on `data`. */
export const RetrieveAnswer = orRaw(PublishedAs(
  Type.Union([SecretsAnswer, EncryptionKeyAnswer], { examples: [RETRIEVED] }),
  Type.Object({
    data: ToldApart<TObject>('type', [Secrets, EncryptionKey], { title: 'Retrieved' }),
    meta: Type.Optional(SecretsMeta)
  }, { title: 'RetrieveAnswer', examples: [RETRIEVED] })
))

/** Names a level in a body: the deepest slug decides. */
const level = { project: Slug, target: Type.Optional(Slug), environment: Type.Optional(Slug) }
export interface LevelNames { project: string, target?: string | undefined, environment?: string | undefined }

export const RETRIEVE_ACTIONS = ['read', 'decrypt', 'key:retrieve'] as const

export const RetrieveBody = Body({
  ...level,
  action: Type.Optional(OneOf(RETRIEVE_ACTIONS, {
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
    Type.Union([OneOf(MERGES), Type.Boolean()]), OneOf(MERGES, { default: 'false', description: 'needs action decrypt' })
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
    maxLength: BLOB_BYTES - 28, description: `the document itself; server-managed projects only; ${ONE_OF_BOTH}`
  })),
  key_proof: Type.Optional(KeyProof),
  no_backup: Type.Optional(Type.Boolean({ default: false, description: 'do not record a version of this write' }))
}, {
  title: 'StoreBody',
  examples: [{ project: 'orbit', target: 'backend', environment: 'live', plaintext: 'HELLO=world\nFOO=bar\n' }]
})
export type StoreBody = Static<typeof StoreBody>

export const StoreAnswer = Type.Object({
  data: Type.Object({
    type: Type.Literal('secrets'),
    level: LevelName,
    source: Slug,
    bytes: Type.Integer({ description: 'size of the blob, decoded' }),
    secret_id: Ulid,
    version: Nullable(Type.String({ description: 'the recorded version; null with no_backup' }))
  }),
  message: Type.String()
}, {
  title: 'StoreAnswer',
  examples: [{
    data: {
      type: 'secrets',
      level: 'environment',
      source: 'live',
      bytes: 48,
      secret_id: '01JQZ6VE6B9C2D5F8G1H4J7K0M',
      version: '1'
    },
    message: 'Stored as version 1.'
  }]
})

export const DeleteBody = Body({
  ...level,
  no_backup: Type.Optional(Type.Boolean({
    default: false, description: 'do not keep a restore snapshot, and purge the history of the level'
  })),
  confirmed: Type.Optional(Type.Boolean({ description: 'must be true with no_backup' }))
}, { title: 'DeleteBody', examples: [{ project: 'orbit', target: 'backend', environment: 'live' }] })
export type DeleteBody = Static<typeof DeleteBody>
