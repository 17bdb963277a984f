import { sql } from 'drizzle-orm'
import { DAYS_OF_USAGE } from '../../../schemas/billing.ts'
import { preparedSql, type Db } from '../../db/database.ts'
import { preparedChanges } from '../../db/postgres/changes-together.ts'
import { andOwn, byOrganization, rowsIn } from '../../db/postgres/engine.ts'
import { daysUntil } from '../../rules/formats/timestamps.ts'

const TODAY = sql`(now() AT TIME ZONE 'UTC')::date`
const isOld = sql`day <= ${TODAY} - ${sql.raw(String(DAYS_OF_USAGE))}`

const addCalls = preparedChanges<{ calls: string }>('add_calls', ($) => ({
  lists: { counted: rowsIn($('calls'), sql`calls bigint`) },
  changes: (from) => [
    ['old', sql`
      DELETE FROM api_usage u USING ${from.counted}
      WHERE u.organization_id = counted.organization_id AND u.${isOld}${andOwn(sql`u.organization_id`)}`],
    ['added', sql`
      INSERT INTO api_usage (organization_id, day, calls)
      SELECT counted.organization_id, ${TODAY}, counted.calls FROM ${from.counted}
      JOIN organizations o ON o.id = counted.organization_id ORDER BY counted.organization_id
      ON CONFLICT (organization_id, day) DO UPDATE SET calls = api_usage.calls + excluded.calls`]
  ]
}))

/**
 * Adds API calls to the current day by the database's clock, and deletes days that are no longer shown. Drops calls of
 * deleted organizations. Removes the recorded organizations from `calls`. If a Citus node does not respond, its
 * organizations stay in `calls` and the function throws.
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

/**
 * The API calls of an organization in the current month and on each day; its current projects, members,
 * open invitations and bytes.
 */
export interface Usage extends Record<'period_start' | 'period_end', Date>,
  Record<'calls' | 'projects' | 'members' | 'invitations' | 'bytes', number> {
  /** The last 31 days, oldest first. */
  days: { date: string, api_calls: number }[]
}

type Found = Record<'today' | 'period_start' | 'period_end' | 'projects' | 'members' | 'invitations' | 'bytes', string> &
  { calls_by_day: Record<string, number> | null }

const usage = preparedSql<Found, { organization_id: string }>('usage', ($) => sql`
  SELECT its.today::text AS today, month AT TIME ZONE 'UTC' AS period_start,
    (month + interval '1 month') AT TIME ZONE 'UTC' AS period_end,
    (SELECT jsonb_object_agg(day, calls) FROM api_usage
      WHERE organization_id = ${$('organization_id')}::char(26) AND NOT ${isOld}) AS calls_by_day,
    (SELECT count(*) FROM projects WHERE organization_id = ${$('organization_id')}::char(26)) AS projects,
    (SELECT count(*) FROM members WHERE organization_id = ${$('organization_id')}::char(26)) AS members,
    (SELECT count(*) FROM invitations
      WHERE organization_id = ${$('organization_id')}::char(26) AND expires_at > now()) AS invitations,
    (SELECT stored_bytes FROM organization_counters
      WHERE organization_id = ${$('organization_id')}::char(26)) AS bytes
  FROM (SELECT ${TODAY} AS today, date_trunc('month', now() AT TIME ZONE 'UTC') AS month) AS its`)

export async function findUsage (db: Db, organization_id: string): Promise<Usage> {
  const [row] = await usage(db, { organization_id })
  const { today, period_start, period_end, calls_by_day, projects, members, invitations, bytes } = row!
  const days = daysUntil(today, DAYS_OF_USAGE).map((date) => ({ date, api_calls: calls_by_day?.[date] ?? 0 }))
  const month = today.slice(0, 'YYYY-MM'.length)
  return {
    period_start: new Date(period_start),
    period_end: new Date(period_end),
    calls: days.reduce((sum, { date, api_calls }) => sum + (date.startsWith(month) ? api_calls : 0), 0),
    projects: Number(projects),
    members: Number(members),
    invitations: Number(invitations),
    bytes: Number(bytes),
    days
  }
}
