import { and, desc, eq, isNotNull, lte, sql } from 'drizzle-orm'
import type { HistoryPolicy, Managed } from '../../../schemas/projects.ts'
import { updateAuthentic, tampered, type Db } from '../../db/database.ts'
import { makeId } from '../../db/rows/ids.ts'
import { matching } from '../../db/rows/matching.ts'
import { encryption_keys, keyColumns, projects } from '../../db/tables.ts'
import { offsetOf, type PageRequest } from '../../rules/pagination.ts'

/** A key of a project; buffers are wrapped by a master key. */
export interface KeyRow {
  id: number
  organization_id: string
  project_id: string
  version: number
  managed: Managed
  key_string: Buffer | null
  data_key: Buffer | null
  key_check: Buffer | null
  salt: Buffer
  iterations: number
  is_active: boolean
  created_at: Date
  rotated_at: Date | null
}

/** The columns of a new key; its buffers are wrapped. */
export type NewKey = Pick<KeyRow,
  'version' | 'managed' | 'key_string' | 'data_key' | 'key_check' | 'salt' | 'iterations'> & {
    key_check_hash: Buffer | null
    hint: string | null
  }

/** The columns of a project that concern its key. */
export interface KeyState {
  id: string
  organization_id: string
  encryption_type: Managed
  key_version: number
  history_policy: HistoryPolicy
}

const keysOf = ({ organization_id, id }: Pick<KeyState, 'organization_id' | 'id'>) =>
  matching(encryption_keys, { organization_id, project_id: id })

/** The active key of a locked project. */
export async function findActiveKeyOf (db: Db, project: KeyState): Promise<KeyRow> {
  const [row] = await db.select(keyColumns).from(encryption_keys)
    .where(and(keysOf(project), matching(encryption_keys, { is_active: true, version: project.key_version })))
  return row ?? tampered()
}

/** Whether one of the project's client-managed keys has this proof hash. */
export async function hasCheckHash (
  db: Db, project: Pick<KeyState, 'organization_id' | 'id'>, hash: Buffer
): Promise<boolean> {
  const found = await db.select({ id: encryption_keys.id }).from(encryption_keys)
    .where(and(
      keysOf(project), isNotNull(encryption_keys.key_check), eq(encryption_keys.key_check_hash, hash)
    )).limit(1)
  return found.length > 0
}

/** Retires the active key of a locked project and activates a new key. */
export async function replaceActiveKey (db: Db, project: KeyState, key: NewKey): Promise<KeyRow> {
  await db.update(encryption_keys).set({ is_active: false, rotated_at: sql`now()` })
    .where(and(keysOf(project), eq(encryption_keys.is_active, true)))
  const [row] = await db.insert(encryption_keys).overridingSystemValue().values({
    id: makeId(), ...key, organization_id: project.organization_id, project_id: project.id, is_active: true
  }).returning(keyColumns)
  const its = matching(projects, { organization_id: project.organization_id, id: project.id })
  await updateAuthentic(db, 'projects', its, { key_version: key.version }, { updated_at: sql`now()` }) ?? tampered()
  return row!
}

/** Changes who manages the active key of a locked project. The key itself stays the same. */
export async function changeCustody (
  db: Db, project: KeyState, key: Pick<NewKey, 'managed' | 'key_string' | 'data_key' | 'key_check' | 'key_check_hash'>
): Promise<void> {
  const { managed, key_string, data_key, key_check, key_check_hash } = key
  await db.update(encryption_keys).set({ managed, key_string, data_key, key_check, key_check_hash })
    .where(and(keysOf(project), eq(encryption_keys.is_active, true)))
  const its = matching(projects, { organization_id: project.organization_id, id: project.id })
  await updateAuthentic(db, 'projects', its, { encryption_type: managed }, { updated_at: sql`now()` }) ?? tampered()
}

/** Deletes the key material of the project's former server-managed keys. */
export async function forgetRotatedKeys (db: Db, project: KeyState): Promise<void> {
  await db.update(encryption_keys).set({ key_string: null, data_key: null })
    .where(and(keysOf(project), matching(encryption_keys, { is_active: false, managed: 'server' })))
}

/**
 * All keys of a project: the active one first, then newest first. Keys are numbered without gaps, so the highest number
 * is the total.
 */
export async function listKeys (
  db: Db, project: KeyState, page: PageRequest
): Promise<{ rows: KeyRow[], total: number }> {
  const newest = project.key_version - offsetOf(page)
  const rows = newest < 1
    ? []
    : await db.select(keyColumns).from(encryption_keys)
      .where(and(
        keysOf(project), lte(encryption_keys.version, newest)
      )).orderBy(desc(encryption_keys.version)).limit(page.per_page)
  return { rows, total: project.key_version }
}
