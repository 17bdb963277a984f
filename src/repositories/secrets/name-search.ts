import { sql, type SQL } from 'drizzle-orm'
import { preparedSql, type Db } from '../../db/database.ts'
import { andOwn } from '../../db/postgres/engine.ts'
import { isInsideSlices } from '../../db/rows/slices.ts'
import type { Slice } from '../../rules/slices.ts'

/** A current document for a search. The MAC is verified later, when the level is loaded by this id. */
export interface SearchedDocument { id: string, project_id: string, size_bytes: number }

// The list of projects is sorted first. So PostgreSQL can sort incrementally and stop at the limit before it reads the
// documents of the last projects.
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
// Each project has its own list of restrictions, because a person can have many restrictions in many projects.
const restricted = documents('searched_documents_inside', sql`, slices jsonb`, sql` AND ${isInsideSlices(
  sql`queries.slices`, {
    target_id: sql`s.target_id`,
    environment_id: sql`s.environment_id`,
    hasOtherStatus: sql`EXISTS (SELECT 1 FROM environments e
      WHERE e.organization_id = s.organization_id AND e.id = s.environment_id AND e.status <> slice.except_status${
        andOwn(sql`e.organization_id`)})`
  })}`)

/**
 * The first documents of these projects that the restrictions allow, sorted by project id, then by document id.
 * `after`: lists only documents of the project with a higher id. `slices`: the restrictions in the project. Either all
 * projects have restrictions, or none has.
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
