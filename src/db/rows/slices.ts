import { sql, type SQL } from 'drizzle-orm'
import { ownOf } from '../postgres/engine.ts'
import type { StoredSlice } from '../tables.ts'

/**
 * An SQL condition on a row `t` with `organization_id` and `slices`: the row has restrictions, and all its restrictions
 * refer to deleted levels. Does not verify MACs, so that a manipulated row does not block a deletion.
 *
 * @param deleted the id of the level that is being deleted: looks only at rows with a restriction to it or below it
 */
export function namesNoLevel (organizationId: string, deleted?: Readonly<Record<string, string>>): SQL {
  const own = ownOf(organizationId)
  const names = deleted === undefined ? sql`` : sql` AND t.slices @> ${JSON.stringify([deleted])}::jsonb`
  // `OFFSET 0` makes one look-up for each restriction. Otherwise PostgreSQL reads all levels for each row.
  const isThere = (table: string, column: keyof StoredSlice) => sql`EXISTS (SELECT FROM ${sql.raw(table)} l
          WHERE l.organization_id = t.organization_id AND l.id = (slice->>${sql.raw(`'${column}'`)})::char(26)${
            own(sql`l`)} OFFSET 0)`
  return sql`jsonb_typeof(t.slices) = 'array'${names}
      AND NOT EXISTS (
      SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(t.slices) = 'array' THEN t.slices END) AS slice
      WHERE CASE
        WHEN slice->>'environment_id' IS NOT NULL THEN ${isThere('environments', 'environment_id')}
        WHEN slice->>'target_id' IS NOT NULL THEN ${isThere('targets', 'target_id')}
        ELSE ${isThere('projects', 'project_id')}
      END)`
}

/**
 * The rule of `isInside` as an SQL condition, for a statement with a LIMIT that counts only levels that a caller can
 * see. The level and the restrictions in the JSON array `slices` must be of the same project. `hasOtherStatus`: whether
 * the environment of the level has another status than `slice.except_status`; false or null for other levels.
 */
export const isInsideSlices = (slices: SQL, level: Record<'target_id' | 'environment_id' | 'hasOtherStatus', SQL>): SQL =>
  sql`EXISTS (
    SELECT 1 FROM jsonb_to_recordset(${slices})
      AS slice (target_id char(26), environment_id char(26), except_status varchar)
    WHERE (slice.target_id IS NULL OR slice.target_id = ${level.target_id})
      AND (slice.environment_id IS NULL OR slice.environment_id = ${level.environment_id})
      AND (slice.except_status IS NULL OR ${level.hasOtherStatus}))`
