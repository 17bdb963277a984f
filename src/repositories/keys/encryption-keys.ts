import { and, desc, eq, isNotNull, lte, sql } from 'drizzle-orm'
import { updateAuthentic, tampered, type Db } from '../../db/database.ts'
import type { AuthenticatedRow } from '../../db/rows/authenticated.ts'
import { makeId } from '../../db/rows/ids.ts'
import { matching } from '../../db/rows/query.ts'
import { encryption_keys, keyColumns, projects } from '../../db/tables.ts'
import { offsetOf, type PageRequest } from '../../rules/pagination.ts'

/** A key of a project. A master key wraps the values of all Buffer columns. */
export type KeyRow = Pick<typeof encryption_keys.$inferSelect, keyof typeof keyColumns>

/** The columns of a new key, with wrapped values. */
export type NewKey = Pick<typeof encryption_keys.$inferSelect, 'version' | 'managed' | 'key_string' | 'data_key' |
  'key_check' | 'key_check_hash' | 'salt' | 'iterations' | 'hint'>

export type KeyState = Pick<AuthenticatedRow<'projects'>,
  'id' | 'organization_id' | 'slug' | 'secret_format' | 'encryption_type' | 'key_version' | 'history_policy'>

const keysOf = ({ organization_id, id }: Pick<KeyState, 'organization_id' | 'id'>) =>
  matching(encryption_keys, { organization_id, project_id: id })

/** The active key of a project whose row is locked. */
export async function findActiveKeyOf (db: Db, project: KeyState): Promise<KeyRow> {
  const [row] = await db.select(keyColumns).from(encryption_keys)
    .where(and(keysOf(project), matching(encryption_keys, { is_active: true, version: project.key_version })))
  return row ?? tampered()
}

/** Whether one of the project's client-managed keys has this hash of its key proof. */
export async function hasCheckHash (
  db: Db, project: Pick<KeyState, 'organization_id' | 'id'>, hash: Buffer
): Promise<boolean> {
  const found = await db.select({ id: encryption_keys.id }).from(encryption_keys)
    .where(and(keysOf(project), isNotNull(encryption_keys.key_check), eq(encryption_keys.key_check_hash, hash)))
    .limit(1)
  return found.length > 0
}

const isActive = (project: KeyState) => and(keysOf(project), eq(encryption_keys.is_active, true))

/** Retires the active key of a locked project and stores a new active key. */
export async function replaceActiveKey (db: Db, project: KeyState, key: NewKey): Promise<KeyRow> {
  await db.update(encryption_keys).set({ is_active: false, rotated_at: sql`now()` }).where(isActive(project))
  const [row] = await db.insert(encryption_keys).overridingSystemValue().values({
    id: makeId(), ...key, organization_id: project.organization_id, project_id: project.id, is_active: true
  }).returning(keyColumns)
  await updateProject(db, project, { key_version: key.version })
  return row!
}

async function updateProject (
  db: Db, { organization_id, id }: KeyState, changes: Partial<Pick<KeyState, 'key_version' | 'encryption_type'>>
): Promise<void> {
  const its = matching(projects, { organization_id, id })
  await updateAuthentic(db, 'projects', its, { ...changes, updated_at: sql`now()` }) ?? tampered()
}

/** Changes who manages the active key of a locked project. The key itself stays the same. */
export async function changeCustody (
  db: Db, project: KeyState, key: Pick<NewKey, 'managed' | 'key_string' | 'data_key' | 'key_check' | 'key_check_hash'>
): Promise<void> {
  const { managed, key_string, data_key, key_check, key_check_hash } = key
  await db.update(encryption_keys).set({ managed, key_string, data_key, key_check, key_check_hash })
    .where(isActive(project))
  await updateProject(db, project, { encryption_type: managed })
}

/** Deletes the key material of the project's former server-managed keys. */
export async function forgetRotatedKeys (db: Db, project: KeyState): Promise<void> {
  await db.update(encryption_keys).set({ key_string: null, data_key: null })
    .where(and(keysOf(project), matching(encryption_keys, { is_active: false, managed: 'server' })))
}

/** A page of a project's keys, newest first. Key versions have no gaps, so the highest version is the total. */
export async function listKeys (
  db: Db, project: KeyState, page: PageRequest
): Promise<{ rows: KeyRow[], total: number }> {
  const total = project.key_version
  const newest = total - offsetOf(page)
  if (newest < 1) return { rows: [], total }
  const rows = await db.select(keyColumns).from(encryption_keys)
    .where(and(keysOf(project), lte(encryption_keys.version, newest)))
    .orderBy(desc(encryption_keys.version)).limit(page.per_page)
  return { rows, total }
}
