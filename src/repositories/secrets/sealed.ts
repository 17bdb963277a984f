import { and, asc, eq, gt, lte, sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'
import { matching, queryRow } from '../../db/rows/query.ts'
import {
  encryption_keys, histories, keyColumns, organizations, projects, second_factors, secret_versions, secrets
} from '../../db/tables.ts'
import type { KeyRow } from '../keys/encryption-keys.ts'

// Reads all encrypted values in pages, sorted by id. `PAGE` limits the rows and the bytes of a page.

const PAGE = { rows: 500, bytes: 4 * 1024 * 1024 }

type Secret = typeof secrets.$inferSelect
type Version = typeof secret_versions.$inferSelect

/** A version with its secret and its key, if they exist. */
interface StoredVersion {
  version: Pick<Version, 'id' | 'revision' | 'key_version' | 'sealed'>
  secret: Pick<Secret, 'id' | 'level_id'> | null
  /** The history of the version was removed, so a background job will delete the version. */
  isRemoved: boolean
  key: KeyRow | null
}

/** A secret with its key, if the key exists; `sealed` is null if the secret is deleted. */
interface StoredCurrent {
  secret: Pick<Secret, 'id' | 'level_id' | 'revision' | 'key_version' | 'sealed'>
  recorded_revision: number | null
  project_key_version: number
  key: KeyRow | null
}

export type Owner = Pick<typeof organizations.$inferSelect, 'id' | 'storage_key'>

export async function listOwners (db: Db, after: string): Promise<Owner[]> {
  const { id, storage_key } = organizations
  return db.select({ id, storage_key }).from(organizations).where(gt(id, after)).orderBy(asc(id)).limit(PAGE.rows)
}

export async function listStoredVersions (db: Db, organizationId: string, after: number): Promise<StoredVersion[]> {
  const { organization_id, id, revision, key_version, sealed, history_id } = secret_versions
  const last = await endOfPage(db, secret_versions, organizationId, after)
  if (last === null) return []
  return db.select({
    version: { id, revision, key_version, sealed },
    secret: { id: secrets.id, level_id: secrets.level_id },
    isRemoved: sql<boolean>`${histories.removed_at} IS NOT NULL`,
    key: keyColumns
  }).from(secret_versions)
    .leftJoin(histories, matching(histories, { organization_id, id: history_id }))
    .leftJoin(secrets, matching(secrets, { organization_id, history_id }))
    .leftJoin(encryption_keys, matching(encryption_keys, {
      organization_id, project_id: secrets.project_id, version: key_version
    }))
    .where(and(eq(organization_id, organizationId), gt(id, after), lte(id, Number(last)))).orderBy(asc(id))
}

export async function listStoredCurrents (db: Db, organizationId: string, after: string): Promise<StoredCurrent[]> {
  const { organization_id, id, level_id, revision, key_version, sealed, project_id, history_id } = secrets
  const last = await endOfPage(db, secrets, organizationId, after)
  if (last === null) return []
  return db.select({
    secret: { id, level_id, revision, key_version, sealed },
    recorded_revision: sql<number | null>`(
      SELECT max(v.revision) FROM secret_versions v
      WHERE v.organization_id = ${organization_id} AND v.history_id = ${history_id})`.mapWith(revision),
    project_key_version: projects.key_version,
    key: keyColumns
  }).from(secrets)
    .innerJoin(projects, matching(projects, { organization_id, id: project_id }))
    .leftJoin(encryption_keys, matching(encryption_keys, { organization_id, project_id, version: key_version }))
    .where(and(eq(organization_id, organizationId), gt(id, after), lte(id, last))).orderBy(asc(id))
}

export async function listStoredKeys (db: Db, organizationId: string, after: number): Promise<KeyRow[]> {
  const { organization_id, id } = encryption_keys
  return db.select(keyColumns).from(encryption_keys).where(and(eq(organization_id, organizationId), gt(id, after)))
    .orderBy(asc(id)).limit(PAGE.rows)
}

export async function listStoredFactors (
  db: Db, after: number
): Promise<Pick<typeof second_factors.$inferSelect, 'user_id' | 'id' | 'secret'>[]> {
  const { user_id, id, secret } = second_factors
  return db.select({ user_id, id, secret }).from(second_factors).where(gt(user_id, after)).orderBy(asc(user_id))
    .limit(PAGE.rows)
}

// The last id of the next page, from the stored sizes (`size_bytes`), so that no content is read.
async function endOfPage (
  db: Db, table: typeof secrets | typeof secret_versions, organizationId: string, after: string | number
): Promise<string | null> {
  const { last } = await queryRow<{ last: string | null }>(db, sql`
    SELECT max(id)::text AS last FROM (
      SELECT id, sum(size_bytes) OVER (ORDER BY id) - size_bytes AS bytes_before FROM (
        SELECT id, size_bytes FROM ${table}
        WHERE organization_id = ${organizationId} AND id > ${after} ORDER BY id LIMIT ${PAGE.rows}::int
      ) part
    ) page WHERE bytes_before < ${PAGE.bytes}::int`)
  return last
}
