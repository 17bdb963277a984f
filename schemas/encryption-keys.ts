import { Type, type Static } from '@sinclair/typebox'
import { Custody, HistoryPolicyName, keyCheckFields } from './projects.ts'
import { Blob, Body, Described, KeyProof, Nullable, OneOf, PageMeta, Timestamp } from './shapes.ts'

const descriptor = {
  version: Type.String(),
  managed: Custody,
  is_active: Type.Boolean(),
  created_at: Timestamp,
  rotated_at: Nullable(Timestamp),
  key_check_salt: Type.Optional(Type.String()),
  key_check_iterations: Type.Optional(Type.Integer()),
  key_check: Type.Optional(Type.String(
    { description: 'only for retired client-managed keys: the check of the active key would serve as its proof' }
  ))
}

/** Describes the key of a version, so that a client can identify it. Contains no key material of the server. */
export const KeyDescriptor = Type.Object(descriptor, {
  title: 'KeyDescriptor',
  examples: [{
    version: '1', managed: 'server', is_active: true, created_at: '2026-03-01T12:00:00.000Z', rotated_at: null
  }]
})
export type KeyDescriptor = Static<typeof KeyDescriptor>

const ReEncryption = Type.Object({
  state: OneOf(['running', 'done']),
  total: Type.Integer({ description: 'versions to be re-encrypted with the active key' }),
  moved: Type.Integer(),
  remaining: Type.Integer({ description: 'versions still encrypted with an older key' }),
  started_at: Timestamp,
  finished_at: Nullable(Timestamp)
}, { title: 'ReEncryption' })

export const KeyHistoryAnswer = Type.Object({
  data: Type.Array(KeyDescriptor),
  meta: PageMeta,
  re_encryption: Type.Unsafe<Static<typeof ReEncryption> | null>({
    ...ReEncryption,
    type: ['object', 'null'],
    description: 'the last requested re-encryption of the history; null if there was none'
  })
}, {
  title: 'KeyHistoryAnswer',
  examples: [{
    data: [{
      version: '2', managed: 'server', is_active: true, created_at: '2026-03-01T12:00:00.000Z', rotated_at: null
    }],
    meta: PageMeta.examples[0],
    re_encryption: {
      state: 'running', total: 40, moved: 25, remaining: 15, started_at: '2026-03-01T12:00:00.000Z', finished_at: null
    }
  }]
})

const keyFields = {
  managed: Custody,
  key: Type.Optional(Type.String({ description: 'the key string; server-managed only' })),
  version: Type.Integer(),
  key_check_salt: Type.String(),
  key_check_iterations: Type.Integer(),
  created_at: Timestamp
}

/**
 * The active key. `content` is a JSON document in a string with the member `key`: existing clients read it.
 */
export const EncryptionKey = Type.Object({
  type: Type.Literal('encryption-keys'),
  id: Type.String(),
  attributes: Type.Object({
    format: Type.Literal('json'),
    encrypted: Type.Boolean(),
    content: Type.String(),
    ...keyFields,
    is_active: Type.Boolean()
  }, { title: 'EncryptionKeyAttributes' })
}, { title: 'EncryptionKey' })
export const EncryptionKeyAnswer = Type.Object({ data: EncryptionKey }, {
  title: 'EncryptionKeyAnswer',
  examples: [{
    data: {
      type: 'encryption-keys',
      id: '5',
      attributes: {
        format: 'json',
        encrypted: false,
        content:
          '{"key":{"managed":"server","key":"9f3c5a0e7b1d4286c4f8a2e6d0b3957181f2c6e4a8d0b7359c1e5f7a3b8d2046","version":1,"key_check_salt":"AAECAwQFBgcICQoLDA0ODw==","key_check_iterations":600000,"created_at":"2026-03-01T12:00:00.000Z"}}',
        managed: 'server',
        key: '9f3c5a0e7b1d4286c4f8a2e6d0b3957181f2c6e4a8d0b7359c1e5f7a3b8d2046',
        version: 1,
        key_check_salt: 'AAECAwQFBgcICQoLDA0ODw==',
        key_check_iterations: 600000,
        created_at: '2026-03-01T12:00:00.000Z',
        is_active: true
      }
    }
  }]
})
export type EncryptionKeyAnswer = Static<typeof EncryptionKeyAnswer>

const HistoryPolicy = Type.Optional(Described(HistoryPolicyName, {
  description:
    "only for this rotation; default: the project's policy. A running re-encryption continues in any case"
}))

export const RotateBody = Body(
  { history_policy: HistoryPolicy }, { title: 'RotateBody', default: {}, examples: [{ history_policy: 're_encrypt' }] }
)

/** The new key of the server. */
export const RotateAnswer = Type.Object({
  message: Type.String(),
  data: Type.Object({
    key: Type.Object({
      type: Type.Literal('encryption-keys'),
      id: Type.String(),
      attributes: Type.Object({
        id: Type.Integer(), ...keyFields, key: Type.String(), version: Type.String(), is_active: Type.Boolean()
      }, { title: 'NewKeyAttributes' })
    }, { title: 'NewKey' })
  })
}, {
  title: 'RotateAnswer',
  examples: [{
    message: 'Rotated to key version 2 with 1 document. 2 versions of the history are being re-encrypted.',
    data: {
      key: {
        type: 'encryption-keys',
        id: '6',
        attributes: {
          id: 6,
          key: '9f3c5a0e7b1d4286c4f8a2e6d0b3957181f2c6e4a8d0b7359c1e5f7a3b8d2046',
          version: '2',
          managed: 'server',
          is_active: true,
          key_check_salt: 'AAECAwQFBgcICQoLDA0ODw==',
          key_check_iterations: 600000,
          created_at: '2026-03-01T12:00:00.000Z'
        }
      }
    }
  }]
})

/** Maximum number of documents or versions in one request. */
export const MOST_DOCUMENTS = 10_000
export const MOST_VERSIONS = 500

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
    maxItems: MOST_DOCUMENTS, description: 'every current document of the project, encrypted with the new key'
  }),
  ...keyCheckFields,
  key_proof: Type.Optional(Type.String({
    ...KeyProof, description: 'the proof of the previous key; if sent and wrong: 422 `key_proof_mismatch`'
  })),
  history_policy: HistoryPolicy
}, {
  title: 'RotateClientKeysBody',
  examples: [{
    secrets: [{
      id: '01JQZ6VE6B9C2D5F8G1H4J7K0M', content: 'AAECAwQFBgcICQoLGoZMPg1bEXppyGxlIihs+2Dc2Ly9kEgGW5+j/+uzhCPCe6E='
    }],
    key_check: 'Ky6v4WQhYV5SeZQBXs6dO4s+JghJb/9GV7I9EHGj7dk=',
    key_check_salt: 'AAECAwQFBgcICQoLDA0ODw==',
    key_check_iterations: 600000
  }]
})

export const RotateClientKeysAnswer = Type.Object({
  success: Type.Boolean(), message: Type.String(), data: Type.Object({ count: Type.Integer() })
}, {
  title: 'RotateClientKeysAnswer',
  examples: [{ success: true, message: 'Rotated to key version 2 with 1 document.', data: { count: 1 } }]
})

export const PendingBody = Body({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MOST_VERSIONS, default: 50 })),
  after: Type.Optional(Type.Integer({
    minimum: 0,
    maximum: Number.MAX_SAFE_INTEGER,
    default: 0,
    description: 'only versions with a higher id, to skip versions that cannot be decrypted'
  }))
}, {
  title: 'PendingBody', default: {}, examples: [{ limit: 50 }]
})

export const PendingAnswer = Type.Object({
  data: Type.Array(Type.Object(
    { id: Type.Integer(), content: Type.String(), key_version: Type.String() }, { title: 'PendingVersion' }
  )),
  meta: Type.Object({ remaining: Type.Integer({ description: 'all pending versions, including the returned versions' }) })
}, {
  title: 'PendingAnswer',
  examples: [{
    data: [{ id: 42, content: 'AAECAwQFBgcICQoLGoZMPg1bEXppyGxlIihs+2Dc2Ly9kEgGW5+j/+uzhCPCe6E=', key_version: '1' }],
    meta: { remaining: 1 }
  }]
})

export const ReEncryptBody = Body({
  versions: Type.Array(Body(
    { id: Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER }), content: Blob },
    { title: 'ReEncryptedVersion', examples: [] }
  ), { minItems: 1, maxItems: MOST_VERSIONS }),
  key_proof: KeyProof
}, {
  title: 'ReEncryptBody',
  examples: [{
    versions: [{ id: 42, content: 'AAECAwQFBgcICQoLGoZMPg1bEXppyGxlIihs+2Dc2Ly9kEgGW5+j/+uzhCPCe6E=' }],
    key_proof: KeyProof.examples[0]
  }]
})

export const ReEncryptAnswer = Type.Object({
  data: Type.Object({ updated: Type.Integer(), remaining: Type.Integer() })
}, {
  title: 'ReEncryptAnswer',
  examples: [{ data: { updated: 1, remaining: 0 } }]
})
