/**
 * Inserts large data sets without the API, in the same form as the service: with wrapped keys, encrypted documents and
 * versions, row MACs, chained audit events and correct counters.
 */
import { sql } from 'drizzle-orm'
import { ulid } from 'ulidx'
import { sealBlob } from '../src/crypto/blob.ts'
import type { Keyring } from '../src/crypto/keyring.ts'
import { findAuthority, macOf, rowsOf, setAuthority, type Database, type Db } from '../src/db/database.ts'
import { lockCounters } from '../src/changes/counter.ts'
import { appendEvents } from '../src/changes/events.ts'
import { eventRow } from '../src/db/events.ts'
import { systemOf } from '../src/repositories/audit/audit.ts'
import { createProject } from '../src/repositories/levels/projects.ts'
import { keyContext } from '../src/vault/keys/contexts.ts'
import { sealCurrent, sealVersion, sizeOf } from '../src/vault/documents/documents.ts'
import { makeServerKey, storageKeyOf } from '../src/vault/keys/keys.ts'

/** The size of a project. The project, each target and each environment has a document with `versions` versions. */
export interface Shape {
  slug: string
  targets: number
  /** Environments per target. */
  environments: number
  versions: number
  /** The names of the levels; default: their slugs. */
  nameOf?: (slug: string) => string
  format?: 'env' | 'json' | 'yaml'
  /** The document of a level, by its number in the order project, targets, environments; default: a small one. */
  documentOf?: (level: number) => string
  /** The document of a level in all versions before the last; default: the same. */
  earlierOf?: (level: number) => string
}

export const levelsOf = ({ targets, environments }: Shape): number => 1 + targets * (1 + environments)

// A low number, because no client derives these keys.
const ITERATIONS = 1000
// Rows per statement, which are some megabytes of JSON.
const TOGETHER = 5000
// Characters of documents per statement.
const MAX_BATCH = 32 * 1024 * 1024
const DOCUMENT = 'SETTING=filled'

interface Level {
  level: 'project' | 'target' | 'environment'
  level_id: string
  target_id: string | null
  environment_id: string | null
}

/** Creates a project in one transaction. No other process may write to the organization meanwhile. */
export async function makeProject (
  { database, keyring }: { database: Database, keyring: Keyring },
  organization: { id: string, storage_key: Buffer }, shape: Shape
): Promise<void> {
  const project_id = ulid()
  const keyId = { organization_id: organization.id, project_id, version: 1 }
  const key = await makeServerKey(keyring, keyId, undefined, ITERATIONS)
  const { versions, nameOf = (slug) => slug, documentOf = () => DOCUMENT, earlierOf } = shape
  const dataKey = keyring.unwrapKey(key.data_key!, keyContext(keyId, 'data_key'))
  const blobsOf = (textOf: (level: number) => string) =>
    Array.from({ length: versions > 0 ? levelsOf(shape) : 0 }, (_, i) => sealBlob(dataKey, textOf(i)))
  const blobs = blobsOf(documentOf)
  const earlier = earlierOf === undefined ? blobs : blobsOf(earlierOf)
  await database.maintain(async (db) => {
    setAuthority(db, findAuthority(database.db))
    await db.execute(sql`SET LOCAL synchronous_commit = off`)
    await createProject(db, {
      id: project_id,
      organization_id: organization.id,
      name: nameOf(shape.slug),
      slug: shape.slug,
      description: null,
      secret_format: shape.format ?? 'env',
      encryption_type: 'server',
      history_policy: 'keep'
    }, key)
    const levels = await makeLevels(db, organization.id, project_id, shape)
    if (versions > 0) await makeDocuments(db, { keyring, organization, project_id, levels, blobs, earlier, versions })
  })
}

async function makeLevels (
  db: Db, organization_id: string, project_id: string,
  { targets, environments, versions, nameOf = (slug) => slug }: Shape
): Promise<Level[]> {
  const documents = (levels: number) => versions > 0 ? levels : 0
  const made = Array.from({ length: targets }, (_, i) => {
    const row = { id: ulid(), organization_id, project_id, slug: `target-${i}` }
    return { ...row, name: nameOf(row.slug), mac: macOf(db, 'targets', row) }
  })
  const below = made.flatMap(({ id: target_id }) => Array.from({ length: environments }, (_, i) => {
    const row = {
      id: ulid(), organization_id, project_id, target_id, slug: `env-${i}`, status: 'development', is_production: false
    }
    return { ...row, name: nameOf(row.slug), mac: macOf(db, 'environments', row) }
  }))
  await inBatches(made, (rows) => db.execute(sql`
    INSERT INTO targets (organization_id, id, project_id, name, slug, environment_count, secret_count, mac)
    SELECT organization_id, id, project_id, name, slug, ${environments}::int, ${documents(environments + 1)}::int,
      decode(mac, 'base64')
    FROM ${rowsOf(organization_id, rows, sql`id char(26), project_id char(26), name varchar, slug varchar, mac text`)} r`))
  await inBatches(below, (rows) => db.execute(sql`
    INSERT INTO environments (organization_id, id, project_id, target_id, name, slug, status, is_production, mac)
    SELECT organization_id, id, project_id, target_id, name, slug, status, is_production, decode(mac, 'base64')
    FROM ${rowsOf(organization_id, rows, ENVIRONMENT)} r`))
  await db.execute(sql`
    UPDATE project_counts SET target_count = ${targets}::int, environment_count = ${below.length}::int,
      secret_count = ${documents(1 + targets + below.length)}::int
    WHERE organization_id = ${organization_id} AND project_id = ${project_id}`)
  return [
    { level: 'project', level_id: project_id, target_id: null, environment_id: null },
    ...made.map(({ id }) => ({ level: 'target' as const, level_id: id, target_id: id, environment_id: null })),
    ...below.map(({ id, target_id }) =>
      ({ level: 'environment' as const, level_id: id, target_id, environment_id: id }))
  ]
}

const ENVIRONMENT = sql`id char(26), project_id char(26), target_id char(26), name varchar, slug varchar,
  status varchar,
  is_production boolean, mac text`
const DOCUMENT_COLUMNS = sql`id char(26), project_id char(26), target_id char(26), environment_id char(26),
  level varchar, level_id char(26), revision bigint, key_version int, sealed text, size_bytes int, version bigint,
  version_bytes bigint, mac text`
const VERSION_COLUMNS = sql`id bigint, history_id char(26), action varchar, revision bigint, sealed text,
  size_bytes int`

async function makeDocuments (db: Db, { keyring, organization, project_id, levels, blobs, earlier, versions }: {
  keyring: Keyring
  organization: { id: string, storage_key: Buffer }
  project_id: string
  levels: readonly Level[]
  blobs: readonly string[]
  earlier: readonly string[]
  versions: number
}): Promise<void> {
  const { id: organization_id } = organization
  const storageKey = storageKeyOf(keyring, organization)
  const actor = systemOf(organization_id)
  const counters = await lockCounters(db, [organization_id], 'all')
  const counter = counters.get(organization_id)!
  const first = counter.next_version
  const documents = levels.map((level, i) => {
    const id = ulid()
    const context = { organization_id, secret_id: id, level_id: level.level_id, key_version: 1 }
    const blob = blobs[i]!
    const size_bytes = sizeOf(blob)
    const row = {
      ...level,
      id,
      organization_id,
      project_id,
      revision: versions,
      key_version: 1,
      sealed: sealCurrent(storageKey, context, versions, blob),
      size_bytes
    }
    return {
      ...row,
      version: first + (versions - 1) * levels.length + i,
      version_bytes: size_bytes + (versions - 1) * sizeOf(earlier[i]!),
      mac: macOf(db, 'secrets', row)
    }
  })
  const longest = Math.max(...blobs.map((blob) => blob.length), ...earlier.map((blob) => blob.length))
  const together = Math.max(1, Math.min(TOGETHER, Math.floor(MAX_BATCH / longest)))
  await inBatches(documents, (rows) => db.execute(sql`
    WITH its AS (SELECT * FROM ${rowsOf(organization_id, rows, DOCUMENT_COLUMNS)} r),
    history AS (INSERT INTO histories (organization_id, id) SELECT organization_id, id FROM its)
    INSERT INTO secrets (organization_id, id, project_id, target_id, environment_id, level, level_id, revision,
      key_version, sealed, size_bytes, version, history_id, version_count, version_bytes, mac)
    SELECT organization_id, id, project_id, target_id, environment_id, level, level_id, revision, key_version,
      decode(sealed, 'base64'), size_bytes, version, id, ${versions}::int, version_bytes, decode(mac, 'base64')
    FROM its`), together)
  // In chunks, to limit memory for a long history.
  const total = levels.length * versions
  for (let from = 0; from < total; from += together) {
    const rows = Array.from({ length: Math.min(together, total - from) }, (_, i) => {
      const number = (from + i) % levels.length
      const { id: history_id, level_id } = documents[number]!
      // As in the service, the times of revisions grow with the ids.
      const revision = Math.floor((from + i) / levels.length) + 1
      const context = { organization_id, secret_id: history_id, level_id, key_version: 1 }
      const id = first + from + i
      const blob = (revision === versions ? blobs : earlier)[number]!
      return {
        id,
        history_id,
        action: revision === 1 ? 'create' : 'update',
        revision,
        sealed: sealVersion(storageKey, context, id, revision, blob),
        size_bytes: sizeOf(blob)
      }
    })
    await db.execute(sql`
      INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes)
      SELECT organization_id, id, history_id, action, revision, 1, decode(sealed, 'base64'), size_bytes
      FROM ${rowsOf(organization_id, rows, VERSION_COLUMNS)} r`)
    const events = rows.map(({ history_id }) =>
      eventRow(actor, { action: 'secret.store', resource_type: 'secret', resource_id: history_id }))
    counter.next_version += rows.length
    for (const { size_bytes } of from === 0 ? [...rows, ...documents] : rows) counter.stored_bytes += size_bytes
    await appendEvents(db, counters, events)
  }
}

async function inBatches<T> (
  rows: readonly T[], insert: (rows: readonly T[]) => Promise<unknown>, together = TOGETHER
): Promise<void> {
  for (let from = 0; from < rows.length; from += together) await insert(rows.slice(from, from + together))
}
