import { and, desc, eq, sql } from 'drizzle-orm'
import type { Managed } from '../../schemas/projects.ts'
import type { Db } from '../db/database.ts'
import { encryption_keys, keyColumns, keyIsNewest, projects } from '../db/tables.ts'
import { fail } from '../rules/errors.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'
import type { KeyState, NewKey } from './projects.ts'

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

const ofProject = (organizationId: string, slug: string) => and(eq(projects.organization_id, organizationId), eq(projects.slug, slug))

export async function findActiveKey (db: Db, organizationId: string, project: string): Promise<KeyRow | undefined> {
  const [row] = await db.select({ key: keyColumns, key_is_newest: keyIsNewest }).from(encryption_keys).innerJoin(projects, eq(projects.id, encryption_keys.project_id))
    .where(and(ofProject(organizationId, project), eq(encryption_keys.is_active, true)))
  if (row?.key_is_newest === false) fail('integrity_error')
  return row?.key
}

/** Every key of a locked project, newest first. */
export async function listKeysOf (db: Db, project: KeyState): Promise<KeyRow[]> {
  return db.select(keyColumns).from(encryption_keys).where(eq(encryption_keys.project_id, project.id)).orderBy(desc(encryption_keys.version))
}

/** Retires the active key of a locked project and makes the new one its active key. */
export async function replaceActiveKey (db: Db, project: KeyState, key: NewKey): Promise<KeyRow> {
  await db.update(encryption_keys).set({ is_active: false, rotated_at: sql`now()` })
    .where(and(eq(encryption_keys.project_id, project.id), eq(encryption_keys.is_active, true)))
  const [row] = await db.insert(encryption_keys).values({ ...key, organization_id: project.organization_id, project_id: project.id, is_active: true }).returning(keyColumns)
  await db.update(projects).set({ key_version: key.version, updated_at: sql`now()` }).where(eq(projects.id, project.id))
  return row!
}

/** Hands the active key of a locked project to its new holder. The key itself stays: only who can know it changes. */
export async function changeCustody (db: Db, project: KeyState, key: Pick<NewKey, 'managed' | 'key_string' | 'data_key' | 'key_check'>): Promise<void> {
  const { managed, key_string, data_key, key_check } = key
  await db.update(encryption_keys).set({ managed, key_string, data_key, key_check })
    .where(and(eq(encryption_keys.project_id, project.id), eq(encryption_keys.is_active, true)))
  await db.update(projects).set({ encryption_type: managed, updated_at: sql`now()` }).where(eq(projects.id, project.id))
}

/** Forgets what the server knew of the project's earlier keys. */
export async function forgetRotatedKeys (db: Db, project: KeyState): Promise<void> {
  await db.update(encryption_keys).set({ key_string: null, data_key: null })
    .where(and(eq(encryption_keys.project_id, project.id), eq(encryption_keys.is_active, false), eq(encryption_keys.managed, 'server')))
}

/** Every key the project ever had: the active one first, then newest first. */
export async function listKeys (db: Db, organizationId: string, project: string, page: PageRequest): Promise<{ rows: KeyRow[], total: number }> {
  const rows = await db.select(keyColumns).from(encryption_keys).innerJoin(projects, eq(projects.id, encryption_keys.project_id))
    .where(ofProject(organizationId, project)).orderBy(desc(encryption_keys.is_active), desc(encryption_keys.version))
    .limit(page.per_page).offset(offsetOf(page))
  const [counted] = await db.select({ total: db.$count(encryption_keys, eq(encryption_keys.project_id, projects.id)) }).from(projects).where(ofProject(organizationId, project))
  return { rows, total: counted?.total ?? 0 }
}
