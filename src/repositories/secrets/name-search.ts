import { sql, type SQL } from 'drizzle-orm'
import { preparedSql, type Db } from '../../db/database.ts'
import { andOwn } from '../../db/postgres/engine.ts'
import { isInsideSlices } from '../../db/rows/slices.ts'
import type { Slice } from '../../rules/slices.ts'

/** A current document of a search. Not verified: the levels are loaded by the id, and verified then. */
export interface SearchedDocument { id: string, project_id: string, size_bytes: number }

// The list is sorted first, so that the incremental sort ends the statement at the limit, before the last project.
const documents = (name: string, columns: SQL, which: SQL) =>
  preparedSql<SearchedDocument, Record<string, unknown>>(name, ($) => sql`
    SELECT s.id, queries.project_id, s.size_bytes
    FROM (
      SELECT * FROM jsonb_to_recordset(${$('queries')}::jsonb)
        AS its (organization_id char(26), project_id char(26), after char(26)${columns})
      ORDER BY project_id
    ) queries CROSS JOIN LATERAL (
      SELECT s.id, s.size_bytes FROM secrets s
      WHERE s.organization_id = queries.organization_id AND s.project_id = queries.project_id AND s.id > queries.after
        AND s.sealed IS NOT NULL${which}${andOwn(sql`s.organization_id`)}
      ORDER BY s.id LIMIT ${$('limit')}::int
    ) s
    ORDER BY queries.project_id, s.id LIMIT ${$('limit')}::int`)

const all = documents('searched_documents', sql``, sql``)
// Restrictions are divided by project, because a person can have many in many projects.
const restricted = documents('searched_documents_inside', sql`, slices jsonb`, sql` AND ${isInsideSlices(
  sql`queries.slices`, {
    target_id: sql`s.target_id`,
    environment_id: sql`s.environment_id`,
    hasOtherStatus: sql`EXISTS (SELECT 1 FROM environments e
      WHERE e.organization_id = s.organization_id AND e.id = s.environment_id AND e.status <> slice.except_status${
        andOwn(sql`e.organization_id`)})`
  })}`)

/**
 * The first documents of these projects that the restrictions allow, sorted by project id, then document id.
 * `after`: only documents of the project with a higher id. `slices`: the restrictions of the project; empty in all
 * projects, or in none.
 */
export async function listSearchedDocuments (
  db: Db, organization_id: string, projects: readonly { project_id: string, after: string, slices: readonly Slice[] }[],
  limit: number
): Promise<SearchedDocument[]> {
  if (projects.length === 0) return []
  const isRestricted = projects.some(({ slices }) => slices.length > 0)
  const queries = JSON.stringify(projects.map((project) => ({ organization_id, ...project })))
  return (isRestricted ? restricted : all)(db, { organization_id, queries, limit })
}
