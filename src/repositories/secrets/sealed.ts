import { and, asc, eq, gt, lte, sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'
import { matching } from '../../db/rows/matching.ts'
import {
  encryption_keys, histories, keyColumns, organizations, projects, second_factors, secret_versions, secrets
} from '../../db/tables.ts'
import type { KeyRow } from '../keys/encryption-keys.ts'

// All that is sealed or wrapped in an organization, for who opens all of it: so many rows or bytes at a time.

const PAGE = { rows: 500, bytes: 4 * 1024 * 1024 }

/** An organization, with the key that seals what it stores. */
export interface Owner { id: string, storage_key: Buffer }

/** A version as it is stored, with its secret and its key where these are there. */
export interface StoredVersion {
  version: { id: number, revision: number, key_version: number, sealed: Buffer }
  secret: { id: string, level_id: string } | null
  /** Whether it waits for its removal: no secret has it any more. */
  isRemoved: boolean
  key: KeyRow | null
}

/** A secret as it is stored, without content where it was deleted, with its key where that is there. */
export interface StoredCurrent {
  secret: { id: string, level_id: string, revision: number, key_version: number, sealed: Buffer | null }
  recorded_revision: number | null
  project_key_version: number
  key: KeyRow | null
}

/** A wrapped secret of a second factor. */
export interface WrappedFactor { user_id: number, id: number, secret: Buffer }

/** The next organizations, by id. */
export async function listOwners (db: Db, after: string): Promise<Owner[]> {
  const { id, storage_key } = organizations
  return db.select({ id, storage_key }).from(organizations).where(gt(id, after)).orderBy(asc(id)).limit(PAGE.rows)
}

/** The next versions of an organization, by id. */
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

/** The next secrets of an organization, by id. */
export async function listStoredCurrents (db: Db, organizationId: string, after: string): Promise<StoredCurrent[]> {
  const { organization_id, id, level_id, revision, key_version, sealed, project_id, history_id } = secrets
  const last = await endOfPage(db, secrets, organizationId, after)
  if (last === null) return []
  const rows = await db.select({
    secret: { id, level_id, revision, key_version, sealed },
    recorded_revision: sql<string | null>`(
      SELECT max(v.revision) FROM secret_versions v
      WHERE v.organization_id = ${organization_id} AND v.history_id = ${history_id})`,
    project_key_version: projects.key_version,
    key: keyColumns
  }).from(secrets)
    .innerJoin(projects, matching(projects, { organization_id, id: project_id }))
    .leftJoin(encryption_keys, matching(encryption_keys, { organization_id, project_id, version: key_version }))
    .where(and(eq(organization_id, organizationId), gt(id, after), lte(id, last))).orderBy(asc(id))
  return rows.map(({ recorded_revision, ...row }) =>
    ({ ...row, recorded_revision: recorded_revision === null ? null : Number(recorded_revision) }))
}

/** The next keys of an organization's projects, by id. */
export async function listStoredKeys (db: Db, organizationId: string, after: number): Promise<KeyRow[]> {
  const { organization_id, id } = encryption_keys
  return db.select(keyColumns).from(encryption_keys).where(and(eq(organization_id, organizationId), gt(id, after)))
    .orderBy(asc(id)).limit(PAGE.rows)
}

/** The next second factors, by account. */
export async function listStoredFactors (db: Db, after: number): Promise<WrappedFactor[]> {
  const { user_id, id, secret } = second_factors
  return db.select({ user_id, id, secret }).from(second_factors).where(gt(user_id, after)).orderBy(asc(user_id))
    .limit(PAGE.rows)
}

// The id that the next page ends with: how much the rows hold is known without reading it.
async function endOfPage (
  db: Db, table: typeof secrets | typeof secret_versions, organizationId: string, after: string | number
): Promise<string | null> {
  const [page] = await db.execute(sql`
    SELECT max(id)::text AS last FROM (
      SELECT id, sum(size_bytes) OVER (ORDER BY id) - size_bytes AS bytes_before FROM (
        SELECT id, size_bytes FROM ${table}
        WHERE organization_id = ${organizationId} AND id > ${after} ORDER BY id LIMIT ${PAGE.rows}::int
      ) part
    ) page WHERE bytes_before < ${PAGE.bytes}::int`) as unknown as [{ last: string | null }]
  return page.last
}
