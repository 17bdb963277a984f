import { and, desc, eq } from 'drizzle-orm'
import type { Managed } from '../../schemas/projects.ts'
import type { Db } from '../db/database.ts'
import { encryption_keys, keyColumns, projects } from '../db/tables.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'

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
  const [row] = await db.select(keyColumns).from(encryption_keys).innerJoin(projects, eq(projects.id, encryption_keys.project_id))
    .where(and(ofProject(organizationId, project), eq(encryption_keys.is_active, true)))
  return row
}

/** Every key the project ever had: the active one first, then newest first. */
export async function listKeys (db: Db, organizationId: string, project: string, page: PageRequest): Promise<{ rows: KeyRow[], total: number }> {
  const rows = await db.select(keyColumns).from(encryption_keys).innerJoin(projects, eq(projects.id, encryption_keys.project_id))
    .where(ofProject(organizationId, project)).orderBy(desc(encryption_keys.is_active), desc(encryption_keys.version))
    .limit(page.per_page).offset(offsetOf(page))
  const [counted] = await db.select({ total: db.$count(encryption_keys, eq(encryption_keys.project_id, projects.id)) }).from(projects).where(ofProject(organizationId, project))
  return { rows, total: counted?.total ?? 0 }
}
