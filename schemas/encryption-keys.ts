import { Type, type Static } from '@sinclair/typebox'
import { Custody, HistoryPolicyName, keyCheckFields } from './projects.ts'
import {
  Answer, Blob, Body, Described, Example, KeyProof, Nullable, OneOf, PageMeta, Timestamp, exampleOf
} from './shapes.ts'

/** Identifies the key of a version for clients. Contains no key material of the server. */
const descriptor = {
  version: Example(Type.String(), '1'),
  managed: Example(Custody, 'server'),
  is_active: Example(Type.Boolean(), true),
  created_at: Timestamp,
  rotated_at: Example(Nullable(Timestamp), null),
  key_check_salt: Type.Optional(Type.String()),
  key_check_iterations: Type.Optional(Type.Integer()),
  key_check: Type.Optional(Type.String(
    { description: 'only for retired client-managed keys: the check of the active key would serve as its proof' }
  ))
}
export const KeyDescriptor = Answer('KeyDescriptor', descriptor)
export type KeyDescriptor = Static<typeof KeyDescriptor>

const ReEncryption = Type.Object({
  state: Example(OneOf(['running', 'done']), 'running'),
  total: Example(Type.Integer({ description: 'versions to be re-encrypted with the active key' }), 40),
  moved: Example(Type.Integer(), 25),
  remaining: Example(Type.Integer({ description: 'versions still encrypted with an older key' }), 15),
  started_at: Timestamp,
  finished_at: Example(Nullable(Timestamp), null)
}, { title: 'ReEncryption' })

export const KeyHistoryAnswer = Answer('KeyHistoryAnswer', {
  data: Example(Type.Array(KeyDescriptor), [{ ...exampleOf(descriptor), version: '2' }]),
  meta: PageMeta,
  re_encryption: Example(Type.Unsafe<Static<typeof ReEncryption> | null>({
    ...ReEncryption,
    type: ['object', 'null'],
    description: 'the last requested re-encryption of the history; null if there was none'
  }), exampleOf(ReEncryption.properties))
})

const KEY_STRING = '9f3c5a0e7b1d4286c4f8a2e6d0b3957181f2c6e4a8d0b7359c1e5f7a3b8d2046'
const checkFields = {
  key_check_salt: Example(Type.String(), 'AAECAwQFBgcICQoLDA0ODw=='),
  key_check_iterations: Example(Type.Integer(), 600000),
  created_at: Timestamp
}

/** The active key. Existing clients read `content`: a string that contains a JSON document with the field `key`. */
export const EncryptionKey = Type.Object({
  type: Type.Literal('encryption-keys'),
  id: Example(Type.String(), '5'),
  attributes: Type.Object({
    format: Type.Literal('json'),
    encrypted: Example(Type.Boolean(), false),
    content: Example(Type.String(), `{"key":{"managed":"server","key":"${KEY_STRING}","version":1,"key_check_salt":"AAECAwQFBgcICQoLDA0ODw==","key_check_iterations":600000,"created_at":"2026-03-01T12:00:00.000Z"}}`),
    managed: Example(Custody, 'server'),
    key: Type.Optional(Example(Type.String({ description: 'the key string; server-managed only' }), KEY_STRING)),
    version: Example(Type.Integer(), 1),
    ...checkFields,
    is_active: Example(Type.Boolean(), true)
  }, { title: 'EncryptionKeyAttributes' })
}, { title: 'EncryptionKey' })
export const EncryptionKeyAnswer = Answer('EncryptionKeyAnswer', { data: EncryptionKey })
export type EncryptionKeyAnswer = Static<typeof EncryptionKeyAnswer>

const HistoryPolicy = Type.Optional(Described(HistoryPolicyName, {
  description:
    "only for this rotation; default: the project's policy. A running re-encryption continues in any case"
}))

export const RotateBody = Body(
  { history_policy: HistoryPolicy }, { title: 'RotateBody', default: {}, examples: [{ history_policy: 're_encrypt' }] }
)

/** The new server-managed key. */
export const RotateAnswer = Answer('RotateAnswer', {
  message: Example(
    Type.String(),
    'Rotated to key version 2 with 1 document. 2 versions of the history are being re-encrypted.'
  ),
  data: Type.Object({
    key: Type.Object({
      type: Type.Literal('encryption-keys'),
      id: Example(Type.String(), '6'),
      attributes: Type.Object({
        id: Example(Type.Integer(), 6),
        managed: Example(Custody, 'server'),
        key: Example(Type.String(), KEY_STRING),
        version: Example(Type.String(), '2'),
        ...checkFields,
        is_active: Example(Type.Boolean(), true)
      }, { title: 'NewKeyAttributes' })
    }, { title: 'NewKey' })
  })
})

/** Maximum number of documents or versions in one request. */
const MAX_DOCUMENTS = 10_000
const MAX_VERSIONS = 500

export const RotateClientKeysBody = Body({
  secrets: Type.Array(Body({
    id: Type.String({ minLength: 1, maxLength: 64, description: 'the `id` of the level, as read' }),
    content: Blob,
    etag: Type.Optional(Type.String({
      minLength: 1,
      maxLength: 128,
      description: 'the `etag` of the level when it was read; 412 if the level has changed since'
    }))
  }, { title: 'RotatedSecret', examples: [] }), {
    maxItems: MAX_DOCUMENTS, description: 'every current document of the project, encrypted with the new key'
  }),
  ...keyCheckFields,
  key_proof: Type.Optional(Type.String({
    ...KeyProof, description: 'the proof of the previous key; if sent and wrong: 422 `key_proof_mismatch`'
  })),
  history_policy: HistoryPolicy
}, {
  title: 'RotateClientKeysBody',
  examples: [{
    secrets: [{ id: '01JQZ6VE6B9C2D5F8G1H4J7K0M', content: Blob.examples[0] }],
    key_check: KeyProof.examples[0],
    key_check_salt: 'AAECAwQFBgcICQoLDA0ODw==',
    key_check_iterations: 600000
  }]
})

export const RotateClientKeysAnswer = Answer('RotateClientKeysAnswer', {
  success: Example(Type.Boolean(), true),
  message: Example(Type.String(), 'Rotated to key version 2 with 1 document.'),
  data: Type.Object({ count: Example(Type.Integer(), 1) })
})

export const PendingBody = Body({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_VERSIONS, default: 50 })),
  after: Type.Optional(Type.Integer({
    minimum: 0,
    maximum: Number.MAX_SAFE_INTEGER,
    default: 0,
    description: 'only versions with a higher id, to skip versions that cannot be decrypted'
  }))
}, {
  title: 'PendingBody', default: {}, examples: [{ limit: 50 }]
})

export const PendingAnswer = Answer('PendingAnswer', {
  data: Type.Array(Type.Object({
    id: Example(Type.Integer(), 42),
    content: Example(Type.String(), Blob.examples[0]),
    key_version: Example(Type.String(), '1')
  }, { title: 'PendingVersion' })),
  meta: Type.Object({
    remaining: Example(Type.Integer({ description: 'all pending versions, including the returned versions' }), 1)
  })
})

export const ReEncryptBody = Body({
  versions: Type.Array(Body(
    { id: Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER }), content: Blob },
    { title: 'ReEncryptedVersion', examples: [] }
  ), { minItems: 1, maxItems: MAX_VERSIONS }),
  key_proof: KeyProof
}, {
  title: 'ReEncryptBody',
  examples: [{
    versions: [{ id: 42, content: Blob.examples[0] }],
    key_proof: KeyProof.examples[0]
  }]
})

export const ReEncryptAnswer = Answer('ReEncryptAnswer', {
  data: Type.Object({ updated: Example(Type.Integer(), 1), remaining: Example(Type.Integer(), 0) })
})
