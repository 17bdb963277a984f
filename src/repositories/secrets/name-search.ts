import { sql, type SQL } from 'drizzle-orm'
import { preparedSql, type Db, type Value } from '../../db/database.ts'
import { andOwn } from '../../db/postgres/engine.ts'
import type { Slice } from '../../rules/slices.ts'

/** A current document of a search. Not verified: the levels are loaded by the id, and verified then. */
export interface SearchedDocument { id: string, project_id: string, size_bytes: number }

// The list is sorted first, so that the incremental sort ends the statement at the limit, before the last project.
const documents = (name: string, which: (value: Value) => SQL) =>
  preparedSql<SearchedDocument, Record<string, unknown>>(name, ($) => sql`
    SELECT s.id, queries.project_id, s.size_bytes
    FROM (
      SELECT * FROM jsonb_to_recordset(${$('queries')}::jsonb)
        AS its (organization_id char(26), project_id char(26), after char(26))
      ORDER BY project_id
    ) queries CROSS JOIN LATERAL (
      SELECT s.id, s.size_bytes FROM secrets s
      WHERE s.organization_id = queries.organization_id AND s.project_id = queries.project_id AND s.id > queries.after
        AND s.sealed IS NOT NULL${which($)}${andOwn(sql`s.organization_id`)}
      ORDER BY s.id LIMIT ${$('limit')}::int
    ) s
    ORDER BY queries.project_id, s.id LIMIT ${$('limit')}::int`)

const all = documents('searched_documents', () => sql``)
// The same rule as `isInside`. In SQL, because the limit counts only documents that the caller can see.
const restricted = documents('searched_documents_inside', ($) => sql` AND EXISTS (
  SELECT 1 FROM jsonb_to_recordset(${$('slices')}::jsonb)
    AS slice (project_id char(26), target_id char(26), environment_id char(26))
  WHERE slice.project_id = s.project_id AND (slice.target_id IS NULL OR slice.target_id = s.target_id)
    AND (slice.environment_id IS NULL OR slice.environment_id = s.environment_id))`)

/**
 * The first documents of these projects that the restrictions allow, sorted by project id, then document id.
 * `after`: only documents of the project with a higher id.
 */
export async function listSearchedDocuments (
  db: Db, organization_id: string, projects: readonly { project_id: string, after: string }[],
  slices: readonly Slice[], limit: number
): Promise<SearchedDocument[]> {
  if (projects.length === 0) return []
  const queries = JSON.stringify(projects.map((project) => ({ organization_id, ...project })))
  return slices.length === 0
    ? all(db, { organization_id, queries, limit })
    : restricted(db, { organization_id, queries, slices: JSON.stringify(slices), limit })
}
