import { Type, type Static } from '@sinclair/typebox'
import { MANAGED } from './projects.ts'
import { Nullable, OneOf, PageMeta, Timestamp } from './shapes.ts'

const descriptor = {
  version: Type.String(),
  managed: OneOf(MANAGED),
  is_active: Type.Boolean(),
  created_at: Timestamp,
  rotated_at: Nullable(Timestamp),
  key_check_salt: Type.Optional(Type.String()),
  key_check_iterations: Type.Optional(Type.Integer()),
  key_check: Type.Optional(Type.String({ description: 'client-managed and rotated keys only: whoever has the active one can pass for knowing the key' }))
}

/** What a client needs to find and recognise the key of a version; never key material of the server. */
export const KeyDescriptor = Type.Object(descriptor, {
  title: 'KeyDescriptor',
  examples: [{ version: '1', managed: 'server', is_active: true, created_at: '2026-03-01T12:00:00.000Z', rotated_at: null }]
})
export type KeyDescriptor = Static<typeof KeyDescriptor>

export const KeyHistoryAnswer = Type.Object({ data: Type.Array(KeyDescriptor), meta: PageMeta }, {
  title: 'KeyHistoryAnswer',
  examples: [{ data: [{ version: '2', managed: 'server', is_active: true, created_at: '2026-03-01T12:00:00.000Z', rotated_at: null }], meta: PageMeta.examples[0] }]
})

const keyFields = {
  managed: OneOf(MANAGED),
  key: Type.Optional(Type.String({ description: 'the key string; server-managed only' })),
  version: Type.Integer(),
  key_check_salt: Type.String(),
  key_check_iterations: Type.Integer(),
  created_at: Timestamp
}

/** The active key. `content` is a JSON document inside a string with one member `key`, as clients in the field read it. */
export const EncryptionKeyAnswer = Type.Object({
  data: Type.Object({
    type: Type.Literal('encryption-keys'),
    id: Type.String(),
    attributes: Type.Object({ format: Type.Literal('json'), encrypted: Type.Boolean(), content: Type.String(), ...keyFields, is_active: Type.Boolean() })
  })
}, {
  title: 'EncryptionKeyAnswer',
  examples: [{
    data: {
      type: 'encryption-keys',
      id: '5',
      attributes: {
        format: 'json',
        encrypted: false,
        content: '{"key":{"managed":"client","version":1,"key_check_salt":"AAECAwQFBgcICQoLDA0ODw==","key_check_iterations":600000,"created_at":"2026-03-01T12:00:00.000Z"}}',
        managed: 'client',
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
