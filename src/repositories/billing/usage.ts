import { sql } from 'drizzle-orm'
import { preparedSql, type Db } from '../../db/database.ts'
import { byOrganization, rowsIn, type OfOrganization } from '../../db/postgres/engine.ts'

const addCalls = preparedSql<object, OfOrganization & { calls: string }>('add_calls', ($) => sql`
  INSERT INTO api_usage (organization_id, month, calls)
  SELECT counted.organization_id, date_trunc('month', now() AT TIME ZONE 'UTC')::date, counted.calls
  FROM (${rowsIn($('calls'), sql`calls bigint`)}) AS counted
  JOIN organizations o ON o.id = counted.organization_id ORDER BY counted.organization_id
  ON CONFLICT (organization_id, month) DO UPDATE SET calls = api_usage.calls + excluded.calls`)

/**
 * Adds API calls to the current month, by the database's clock. Calls of deleted organizations are dropped. Removes the
 * recorded organizations from `calls`; on Citus, an error can leave those of a node that does not respond.
 */
export async function recordCalls (db: Db, calls: Map<string, number>): Promise<void> {
  const rows = [...calls].map(([organization_id, calls]) => ({ organization_id, calls }))
  const results = await Promise.allSettled(byOrganization(db, rows).map(async (part) => {
    await addCalls(db, { organization_id: part[0]!.organization_id, calls: JSON.stringify(part) })
    for (const { organization_id } of part) calls.delete(organization_id)
  }))
  const failed = results.find((result) => result.status === 'rejected')
  if (failed !== undefined) throw failed.reason
}

/** The recorded calls of an organization in the current month, and its current projects, members and bytes. */
export type Usage = Record<'period_start' | 'period_end', Date> & Record<'calls' | 'projects' | 'members' | 'bytes', number>

const usage = preparedSql<Record<keyof Usage, string>, { organization_id: string }>('usage', ($) => sql`
  SELECT month AT TIME ZONE 'UTC' AS period_start, (month + interval '1 month') AT TIME ZONE 'UTC' AS period_end,
    coalesce((
      SELECT calls FROM api_usage
      WHERE organization_id = ${$('organization_id')}::char(26) AND api_usage.month = its.month::date
    ), 0) AS calls,
    (SELECT count(*) FROM projects WHERE organization_id = ${$('organization_id')}::char(26)) AS projects,
    (SELECT count(*) FROM members WHERE organization_id = ${$('organization_id')}::char(26)) AS members,
    (SELECT stored_bytes FROM organization_counters
      WHERE organization_id = ${$('organization_id')}::char(26)) AS bytes
  FROM (SELECT date_trunc('month', now() AT TIME ZONE 'UTC') AS month) AS its`)

export async function findUsage (db: Db, organization_id: string): Promise<Usage> {
  const [row] = await usage(db, { organization_id })
  const { period_start, period_end, calls, projects, members, bytes } = row!
  return {
    period_start: new Date(period_start),
    period_end: new Date(period_end),
    calls: Number(calls),
    projects: Number(projects),
    members: Number(members),
    bytes: Number(bytes)
  }
}
