import { Type, type Static } from '@sinclair/typebox'
import { WARNINGS } from './documents.ts'
import { DRY_RUN } from './dry-run.ts'
import { KeyDescriptor } from './encryption-keys.ts'
import { CREATED_BY, CREATED_THROUGH } from './last-change.ts'
import { OrganizationInPath } from './organizations.ts'
import { LevelName, type Level, type LevelNames } from './secrets.ts'
import {
  Answer, Blob, Body, Described, Example, Flag, KeyProof, Moment, Nullable, OneOf, Page, PagedMeta, PerPage, Slug,
  Timestamp, Ulid, UnreadableWarning
} from './shapes.ts'

/** Actions that create a version. */
export const VERSION_ACTIONS = ['create', 'update', 'delete', 'restore', 'rotate', 're_encrypt'] as const
export type VersionAction = (typeof VERSION_ACTIONS)[number]

/** The handler validates `version`: a value that is not an integer below 2^53 causes 404. */
export const VersionParams = Type.Object({
  organization: OrganizationInPath,
  version: Type.String({ maxLength: 128, description: 'an integer', examples: ['1'] })
})

const fields = {
  type: Type.Literal('secret-versions'),
  id: Example(Type.String(), '1'),
  attributes: Type.Object({
    action: Example(OneOf(VERSION_ACTIONS), 'create'),
    size_bytes: Example(Type.Integer(), 48),
    is_client_encrypted: Example(Type.Boolean(), false),
    encryption_key_version: Example(Type.String(), '1'),
    key_version: Example(Type.String(), '1'),
    created_at: Timestamp,
    created_by: CREATED_BY,
    created_through: CREATED_THROUGH,
    metadata: Type.Object({
      level: Example(LevelName, 'environment'), restored_from: Example(Nullable(Type.String()), null)
    }, { title: 'VersionMetadata' }),
    locked: Example(Type.Boolean(), false),
    locked_reason: Example(Nullable(Type.String()), null)
  }, { title: 'VersionAttributes' })
}
const Version = Type.Object(fields, { title: 'Version' })
export type Version = Static<typeof Version>

export const VersionPage = Answer('VersionPage', { data: Type.Array(Version), meta: PagedMeta })

/** A version with its encrypted content and its key descriptor. */
export const VersionAnswer = Answer('VersionAnswer', {
  data: Type.Object({
    ...fields,
    content: Example(Type.String({ description: 'the blob as it was written' }), Blob.examples[0]),
    key: KeyDescriptor
  }, { title: 'VersionWithContent' })
})

/** Identifies the level whose history is listed or purged. */
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

export const RestoreAnswer = Answer('RestoreAnswer', {
  data: Type.Object({
    type: Type.Literal('secrets'),
    secret_id: Example(Ulid, '01JQZ6VE6B9C2D5F8G1H4J7K0M'),
    restored_from: Example(Type.String(), '1')
  }),
  message: Example(Type.String(), 'Restored version 1 as version 2.'),
  warning: UnreadableWarning,
  ...WARNINGS,
  dry_run: DRY_RUN
})

export const DeleteVersionQuery = Type.Object({
  force: Type.Optional(Flag({
    description: 'delete the version even if it is the only restore snapshot of a deleted secret'
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

export const RestoreToAnswer = Answer('RestoreToAnswer', {
  data: Type.Object({
    type: Type.Literal('projects'),
    id: Example(Ulid, '01JQZ6VB2N7Q4W8E1R5T9Y3K6H'),
    at: Timestamp,
    restored: Example(Type.Integer({
      description: 'documents that were restored; a document stored with `no_backup` is replaced without a version'
    }), 0),
    emptied: Example(Type.Integer({
      description: 'documents that were deleted, because their level had none at this time'
    }), 0)
  }),
  message: Example(Type.String(), 'All documents are already in this state. Nothing was changed.'),
  warning: UnreadableWarning,
  dry_run: DRY_RUN
})

export const PurgeBody = Body({
  ...level,
  scope: Type.Optional(OneOf(['level', 'project'], {
    default: 'level', description: '`level`: the level that the slugs name; `project`: every level of the project'
  })),
  confirmed: Type.Literal(true, { description: 'must be true' }),
  force: Type.Optional(Type.Boolean({
    default: false, description: 'has no effect: a purge always deletes restore snapshots'
  }))
}, { title: 'PurgeBody', examples: [{ project: 'orbit', target: 'backend', environment: 'live', confirmed: true }] })
export type PurgeBody = Static<typeof PurgeBody>

export const PurgeAnswer = Answer('PurgeAnswer', {
  data: Type.Object({ purged_count: Example(Type.Integer(), 4) }),
  message: Example(Type.String(), 'Purged 4 versions.')
})
