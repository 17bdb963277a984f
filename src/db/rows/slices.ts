import { sql, type SQL } from 'drizzle-orm'
import { ownOf } from '../postgres/engine.ts'

/**
 * An SQL condition on a row `t` with `organization_id` and `slices`: the row has restrictions, and all its restrictions
 * refer to deleted levels. Does not verify MACs, so that a manipulated row does not block a deletion.
 */
export function namesNoLevel (organizationId: string): SQL {
  const own = ownOf(organizationId)
  return sql`jsonb_typeof(t.slices) = 'array'
      AND NOT EXISTS (
      SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(t.slices) = 'array' THEN t.slices END) AS slice
      WHERE CASE
        WHEN slice->>'environment_id' IS NOT NULL THEN EXISTS (SELECT FROM environments e
          WHERE e.organization_id = t.organization_id AND e.id = (slice->>'environment_id')::char(26)${own(sql`e`)})
        WHEN slice->>'target_id' IS NOT NULL THEN EXISTS (SELECT FROM targets g
          WHERE g.organization_id = t.organization_id AND g.id = (slice->>'target_id')::char(26)${own(sql`g`)})
        ELSE EXISTS (SELECT FROM projects p WHERE p.organization_id = t.organization_id
          AND p.id = (slice->>'project_id')::char(26)${own(sql`p`)})
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
