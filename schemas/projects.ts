import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import {
  Body, Described, Description, KeyProof, Name, NewSlug, NullableDescription, OneOf, ProjectInPath, Resource, Slug,
  Timestamp, Ulid
} from './shapes.ts'

/** Formats in which the server parses a decrypted document. */
export const SECRET_FORMATS = ['env', 'json', 'yaml', 'text'] as const
export type SecretFormat = (typeof SECRET_FORMATS)[number]
const SecretFormat = OneOf(SECRET_FORMATS, {
  title: 'SecretFormat',
  description: 'the format in which `decrypt` with `merge`, `raw` or `filters` parses documents: `env` (lines of NAME=value), a `json` or `yaml` object; `text` is not parsed'
})

/** The key of a project is held by the server, or by the clients only. */
export const MANAGED = ['server', 'client'] as const
export type Managed = (typeof MANAGED)[number]
// No title: oapi-codegen would generate a constant `Client` that conflicts with its type `Client`.
export const Custody = OneOf(MANAGED)
const CUSTODY = '`server`: the server holds the key and can decrypt; `client`: the server never sees the key'

/** What a key rotation does with versions under older keys. */
export const HISTORY_POLICIES = ['keep', 're_encrypt'] as const
export type HistoryPolicy = (typeof HISTORY_POLICIES)[number]
export const HistoryPolicyName = OneOf(HISTORY_POLICIES, {
  title: 'HistoryPolicy',
  description: 'what a rotation does with versions under older keys: `keep` keeps these versions and keys, `re_encrypt` re-encrypts the versions with the new key'
})

export const ProjectParams = Type.Object({ organization: OrganizationInPath, project: ProjectInPath })

const ProjectAttributes = Type.Object({
  ulid: Ulid,
  organization_id: Ulid,
  name: Type.String(),
  slug: Slug,
  description: NullableDescription,
  secret_format: SecretFormat,
  encryption_type: Custody,
  history_policy: HistoryPolicyName,
  has_secrets: Type.Boolean(),
  secret_count: Type.Integer(),
  environment_count: Type.Integer(),
  target_count: Type.Integer(),
  created_at: Timestamp,
  updated_at: Timestamp
}, { title: 'ProjectAttributes' })
export type ProjectAttributes = Static<typeof ProjectAttributes>

export const Project = Resource('projects', ProjectAttributes, {
  title: 'Project',
  id: '01JQZ6VB2N7Q4W8E1R5T9Y3K6H',
  example: {
    ulid: '01JQZ6VB2N7Q4W8E1R5T9Y3K6H',
    organization_id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC',
    name: 'Orbit',
    slug: 'orbit',
    description: 'Everything that flies',
    secret_format: 'env',
    encryption_type: 'server',
    history_policy: 'keep',
    has_secrets: true,
    secret_count: 1,
    environment_count: 1,
    target_count: 1,
    created_at: '2026-03-01T12:00:00.000Z',
    updated_at: '2026-03-01T12:00:00.000Z'
  }
})

export const KEY_ITERATIONS = { minimum: 1000, maximum: 10_000_000 } as const

/** Fields that register a client-managed key: its proof and the parameters of the derivation. */
export const keyCheckFields = {
  key_check: Type.String({
    minLength: 44, maxLength: 44, pattern: '^[A-Za-z0-9+/]{43}=$', description: 'base64 of the 32-byte key proof'
  }),
  key_check_salt: Type.String({
    minLength: 24, maxLength: 88, pattern: '^[A-Za-z0-9+/]+={0,2}$', description: 'base64 of 16 to 64 bytes'
  }),
  key_check_iterations: Type.Integer({ ...KEY_ITERATIONS, description: 'PBKDF2 iterations; clients use 600000' })
}

/** Optional in the schema; the handler requires all three if `storage_mode` is `client`. */
const keyCheckMembers = {
  key_check: Type.Optional(keyCheckFields.key_check),
  key_check_salt: Type.Optional(keyCheckFields.key_check_salt),
  key_check_iterations: Type.Optional(keyCheckFields.key_check_iterations)
}

export const CreateProjectBody = Body({
  name: Name,
  slug: Type.Optional(NewSlug),
  description: Type.Optional(Type.Union([Description, Type.Null()])),
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
  name: Type.Optional(Name),
  slug: Type.Optional(Slug),
  description: Type.Optional(Type.Union([Description, Type.Null()])),
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
