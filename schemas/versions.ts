import { Type, type Static } from '@sinclair/typebox'
import { KeyDescriptor } from './encryption-keys.ts'
import { OrganizationInPath } from './organizations.ts'
import { LevelName, type Level, type LevelNames } from './secrets.ts'
import {
  Blob, Body, Described, KeyProof, Moment, Nullable, OneOf, PAGED, Page, PageMeta, PerPage, Slug, Timestamp, Ulid
} from './shapes.ts'

/** Actions that create a version. */
export const VERSION_ACTIONS = ['create', 'update', 'delete', 'restore', 'rotate', 're_encrypt'] as const
export type VersionAction = (typeof VERSION_ACTIONS)[number]

/** The handler validates `version`: anything but an integer below 2^53 is 404. */
export const VersionParams = Type.Object({
  organization: OrganizationInPath,
  version: Type.String({ maxLength: 128, description: 'an integer', examples: ['1'] })
})

const Creator = Type.Unsafe<{ id: number, name: string } | null>({
  type: ['object', 'null'],
  properties: { id: { type: 'integer' }, name: { type: 'string' } },
  required: ['id', 'name']
})

const VersionAttributes = Type.Object({
  action: OneOf(VERSION_ACTIONS),
  size_bytes: Type.Integer(),
  is_client_encrypted: Type.Boolean(),
  encryption_key_version: Type.String(),
  key_version: Type.String(),
  created_at: Timestamp,
  created_by: Creator,
  metadata: Type.Object(
    { level: LevelName, restored_from: Nullable(Type.String()) }, { title: 'VersionMetadata' }
  ),
  locked: Type.Boolean(),
  locked_reason: Nullable(Type.String())
}, { title: 'VersionAttributes' })
export type VersionAttributes = Static<typeof VersionAttributes>

const versionFields = { type: Type.Literal('secret-versions'), id: Type.String(), attributes: VersionAttributes }
const versionExample = {
  type: 'secret-versions',
  id: '1',
  attributes: {
    action: 'create',
    size_bytes: 48,
    is_client_encrypted: false,
    encryption_key_version: '1',
    key_version: '1',
    created_at: '2026-03-01T12:00:00.000Z',
    created_by: { id: 1, name: 'First token' },
    metadata: { level: 'environment', restored_from: null },
    locked: false,
    locked_reason: null
  }
}

export const Version = Type.Object(versionFields, { title: 'Version' })
export type Version = Static<typeof Version>

export const VersionPage = Type.Object({ data: Type.Array(Version), meta: PageMeta }, {
  title: 'VersionPage',
  examples: [{ data: [versionExample], meta: PAGED }]
})

/** A version with its encrypted content and its key descriptor. */
export const VersionAnswer = Type.Object({
  data: Type.Object(
    { ...versionFields, content: Type.String({ description: 'the blob as it was written' }), key: KeyDescriptor },
    { title: 'VersionWithContent' }
  )
}, {
  title: 'VersionAnswer',
  examples: [{
    data: {
      ...versionExample,
      content: 'AAECAwQFBgcICQoLGoZMPg1bEXppyGxlIihs+2Dc2Ly9kEgGW5+j/+uzhCPCe6E=',
      key: {
        version: '1', managed: 'server', is_active: true, created_at: '2026-03-01T12:00:00.000Z', rotated_at: null
      }
    }
  }]
})

/** The level whose history is meant, named by its slugs. */
const level = {
  project: Slug,
  target: Type.Optional(Slug),
  environment: Type.Optional(Slug),
  level: Type.Optional(Described(LevelName, {
    default: 'environment',
    description:
      'the level of the document: its slugs and those above are required, those below are rejected; for a `User-Agent` that starts with `dotenv-go-sdk/`, the deepest slug is the level'
  }))
}
export interface LevelOfHistory extends LevelNames { level?: Level | undefined }

export const ListVersionsBody = Body({ ...level, page: Type.Optional(Page), per_page: Type.Optional(PerPage) }, {
  title: 'ListVersionsBody',
  examples: [{ project: 'orbit', target: 'backend', environment: 'live', page: 1, per_page: 25 }]
})

export const RestoreBody = Body({
  content: Type.Optional(Blob),
  key_proof: Type.Optional(KeyProof)
}, { title: 'RestoreBody', default: {}, examples: [{}] })
export type RestoreBody = Static<typeof RestoreBody>

export const RestoreAnswer = Type.Object({
  data: Type.Object({ type: Type.Literal('secrets'), secret_id: Ulid, restored_from: Type.String() }),
  message: Type.String()
}, {
  title: 'RestoreAnswer',
  examples: [{
    data: { type: 'secrets', secret_id: '01JQZ6VE6B9C2D5F8G1H4J7K0M', restored_from: '1' },
    message: 'Restored version 1 as version 2.'
  }]
})

export const DeleteVersionQuery = Type.Object({
  force: Type.Optional(Type.Boolean({
    default: false, description: 'delete the version even if it is the only restore snapshot of a deleted secret'
  }))
})
export const DeleteVersionBody = Body({ force: Type.Optional(Type.Boolean({ default: false })) }, {
  title: 'DeleteVersionBody', default: {}, examples: [{ force: true }]
})

export const RestoreToBody = Body({
  at: Moment({
    description: 'including writes of that millisecond; 422 `version_gone` as for a read at this time', examples: ['2026-03-01T12:00:00.000Z']
  }),
  confirmed: Type.Literal(true, { description: 'must be true' })
}, { title: 'RestoreToBody', examples: [{ at: '2026-03-01T12:00:00.000Z', confirmed: true }] })

export const RestoreToAnswer = Type.Object({
  data: Type.Object({
    type: Type.Literal('projects'),
    id: Ulid,
    at: Timestamp,
    restored: Type.Integer({
      description: 'documents that were restored; a document stored with `no_backup` is replaced without a version'
    }),
    emptied: Type.Integer({ description: 'documents that were deleted, because their level had none at this time' })
  }),
  message: Type.String()
}, {
  title: 'RestoreToAnswer',
  examples: [{
    data: {
      type: 'projects', id: '01JQZ6VB2N7Q4W8E1R5T9Y3K6H', at: '2026-03-01T12:00:00.000Z', restored: 0, emptied: 0
    },
    message: 'All documents are already in this state. Nothing was changed.'
  }]
})

export const PURGE_SCOPES = ['level', 'project'] as const

export const PurgeBody = Body({
  ...level,
  scope: Type.Optional(OneOf(PURGE_SCOPES, {
    default: 'level', description: '`level`: the level that the slugs name; `project`: every level of the project'
  })),
  confirmed: Type.Literal(true, { description: 'must be true' }),
  force: Type.Optional(Type.Boolean({
    default: false, description: 'has no effect: a purge always deletes restore snapshots'
  }))
}, { title: 'PurgeBody', examples: [{ project: 'orbit', target: 'backend', environment: 'live', confirmed: true }] })
export type PurgeBody = Static<typeof PurgeBody>

export const PurgeAnswer = Type.Object({
  data: Type.Object({ purged_count: Type.Integer() }), message: Type.String()
}, {
  title: 'PurgeAnswer',
  examples: [{ data: { purged_count: 3 }, message: 'Purged 3 versions.' }]
})
