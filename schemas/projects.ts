import { Type, type Static } from '@sinclair/typebox'
import { LastChangeOfList } from './last-change.ts'
import {
  Body, CREATE_NAMED, Described, Example, KeyProof, ListOf, NullableDescription, OneOf, Patterned, Resource, Slug,
  Timestamp, Ulid, UPDATE_NAMED
} from './shapes.ts'

/** Formats in which the server parses a decrypted document. */
export const SECRET_FORMATS = ['env', 'json', 'yaml', 'text'] as const
export type SecretFormat = (typeof SECRET_FORMATS)[number]
export const SecretFormat = OneOf(SECRET_FORMATS, {
  title: 'SecretFormat',
  description: 'the format in which `decrypt` with `merge`, `raw` or `filters` parses documents: `env` (lines of NAME=value), a `json` or `yaml` object; `text` is not parsed'
})

/** Who holds the key of a project: the server, or only the clients. */
export const MANAGED = ['server', 'client'] as const
export type Managed = (typeof MANAGED)[number]
// This schema has no title: with one, oapi-codegen generates a constant `Client` that conflicts with its type `Client`.
export const Custody = OneOf(MANAGED)
const CUSTODY = '`server`: the server holds the key and can decrypt; `client`: the server never sees the key'

export const HISTORY_POLICIES = ['keep', 're_encrypt'] as const
export type HistoryPolicy = (typeof HISTORY_POLICIES)[number]
export const HistoryPolicyName = OneOf(HISTORY_POLICIES, {
  title: 'HistoryPolicy',
  description: 'what a rotation does with versions under older keys: `keep` keeps these versions and keys, `re_encrypt` re-encrypts the versions with the new key'
})

const attributes = {
  ulid: Example(Ulid, '01JQZ6VB2N7Q4W8E1R5T9Y3K6H'),
  organization_id: Ulid,
  name: Example(Type.String(), 'Orbit'),
  slug: Example(Slug, 'orbit'),
  description: Example(NullableDescription, 'Everything that flies'),
  secret_format: Example(SecretFormat, 'env'),
  encryption_type: Example(Custody, 'server'),
  history_policy: Example(HistoryPolicyName, 'keep'),
  has_secrets: Example(Type.Boolean(), true),
  secret_count: Example(Type.Integer(), 1),
  environment_count: Example(Type.Integer(), 1),
  target_count: Example(Type.Integer(), 1),
  created_at: Timestamp,
  updated_at: Timestamp
}
const ID = '01JQZ6VB2N7Q4W8E1R5T9Y3K6H'
export const Project = Resource('projects', { title: 'Project', id: ID }, attributes)
export type ProjectAttributes = Static<typeof Project.attributes>

const ProjectItem = Resource('projects', { title: 'ProjectItem', id: ID }, {
  ...attributes,
  last_change: LastChangeOfList
})
export type ListedProject = Static<typeof ProjectItem.attributes>
export const ProjectList = ListOf('ProjectList', ProjectItem.item)

/** Fields that register a client-managed key: the key proof and the parameters of the key derivation. */
export const keyCheckFields = {
  key_check: Patterned('^[A-Za-z0-9+/]{43}=$', `base64 of 32 bytes, such as ${KeyProof.examples[0]}`, {
    minLength: 44, maxLength: 44, description: 'base64 of the 32-byte key proof'
  }),
  key_check_salt: Patterned('^[A-Za-z0-9+/]+={0,2}$', 'base64 of 16 to 64 bytes, such as AAAAAAAAAAAAAAAAAAAAAA==', {
    minLength: 24, maxLength: 88, description: 'base64 of 16 to 64 bytes'
  }),
  key_check_iterations: Type.Integer({
    minimum: 1000, maximum: 10_000_000, description: 'PBKDF2 iterations; clients use 600000'
  })
}

/** Optional in the schema; the handler requires all three fields if `storage_mode` is `client`. */
const keyCheckMembers = Type.Partial(Type.Object(keyCheckFields)).properties

export const CreateProjectBody = Body({
  ...CREATE_NAMED,
  secret_format: Type.Optional(Described(SecretFormat, { default: 'env' })),
  storage_mode: Type.Optional(OneOf(MANAGED, { default: 'server', description: CUSTODY })),
  history_policy: Type.Optional(Described(HistoryPolicyName, { default: 'keep' })),
  encryption_key: Type.Optional(Type.String({
    minLength: 16, maxLength: 1024, description: 'server-managed only: use this key string instead of a new one'
  })),
  key_hint: Type.Optional(Type.String({ maxLength: 255 })),
  ...keyCheckMembers
}, { title: 'CreateProjectBody', examples: [{ name: 'Orbit', secret_format: 'env' }] })
export type CreateProjectBody = Static<typeof CreateProjectBody>

export const UpdateProjectBody = Body({
  ...UPDATE_NAMED,
  secret_format: Type.Optional(SecretFormat),
  history_policy: Type.Optional(HistoryPolicyName),
  storage_mode: Type.Optional(OneOf(
    MANAGED, { description: 'changes who holds the key; the key stays the same, so no document is re-encrypted' }
  )),
  encryption_key: Type.Optional(Type.String({
    minLength: 1,
    maxLength: 1024,
    description: 'only for a change to `server`: the current key string, which the server stores'
  })),
  ...keyCheckMembers,
  key_proof: Type.Optional(KeyProof)
}, { title: 'UpdateProjectBody', examples: [{ name: 'Orbit', description: 'Everything that flies' }] })
export type UpdateProjectBody = Static<typeof UpdateProjectBody>
