import { sql, type SQL } from 'drizzle-orm'
import type { LastChange } from '../../../schemas/last-change.ts'
import type { Db } from '../postgres/handle.ts'
import { andOwn } from '../postgres/engine.ts'
import { lookUp } from './lists.ts'
import { secret_versions, secrets } from '../tables.ts'

/** The columns of the newest version, which `lastVersionOfProject` or `lastVersionOfLevel` joins. */
export const LAST_CHANGE = sql`last.id AS last_id, last.created_at AS last_at, last.created_by_id AS last_by_id,
  last.created_by_name AS last_by_name`

export type LastChangeFound = Record<'last_id' | 'last_at' | 'last_by_id' | 'last_by_name', string | null>

export function lastChangeOf ({ last_id, last_at, last_by_id, last_by_name }: LastChangeFound): LastChange | null {
  if (last_id === null || last_at === null) return null
  const created_by = last_by_id === null ? null : { id: Number(last_by_id), name: last_by_name ?? '' }
  return { version: last_id, created_at: new Date(last_at), created_by }
}

/** Joins the newest version of a project, whose id is stored in `project_counts` (alias `c`). */
export const lastVersionOfProject: SQL = sql`LEFT JOIN ${
  lookUp('last', secret_versions, sql`organization_id = c.organization_id AND id = c.last_version`)} ON true`

/** Joins the newest version of the document of a level (alias `p`). */
export const lastVersionOfLevel: SQL = sql`LEFT JOIN ${
  lookUp('s', secrets, sql`organization_id = p.organization_id AND level_id = p.id`)} ON true
  LEFT JOIN LATERAL (
    SELECT v.id, v.created_at, v.created_by_id, v.created_by_name FROM secret_versions v
    WHERE v.organization_id = s.organization_id AND v.history_id = s.history_id${andOwn(sql`v.organization_id`)}
    ORDER BY v.id DESC LIMIT 1
  ) AS last ON true`

/**
 * Updates the stored newest version of a project, if that version was deleted. Call this after each deletion of
 * versions or levels. The caller has locked the project.
 */
export async function renewLastVersion (db: Db, organizationId: string, projectId: string): Promise<void> {
  const own = (alias: string) => sql`${sql.raw(alias)}.organization_id = ${organizationId}`
  await db.execute(sql`
    UPDATE project_counts c SET last_version = (
      SELECT max(newest.id) FROM secrets s CROSS JOIN LATERAL (
        SELECT v.id FROM secret_versions v
        WHERE v.organization_id = s.organization_id AND v.history_id = s.history_id${
          andOwn(sql`v.organization_id`, organizationId)}
        ORDER BY v.id DESC LIMIT 1
      ) newest
      WHERE ${own('s')} AND s.project_id = ${projectId}
    )
    WHERE ${own('c')} AND c.project_id = ${projectId} AND c.last_version IS NOT NULL AND NOT EXISTS (
      SELECT FROM secret_versions v JOIN secrets s ON s.organization_id = v.organization_id
        AND s.history_id = v.history_id${andOwn(sql`s.organization_id`, organizationId)}
      WHERE ${own('v')} AND v.id = c.last_version)`)
}
