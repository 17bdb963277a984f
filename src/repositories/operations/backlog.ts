import { isNull, sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'
import { histories, last_backup, late_events, organization_removals, re_encryptions, token_removals } from '../../db/tables.ts'

/** The backlog of background jobs in all organizations, and the newest backup, with null values when there is none. */
export interface Backlog {
  late_events: number
  /**
   * The largest age among the counted rows. There is no index by time, but a backlog beyond the count is old anyway.
   */
  late_seconds: number
  reencryptions: number
  versions_left: number
  organizations: number
  histories: number
  tokens: number
  backup_seconds: number | null
  backup_bytes: number | null
}

/** Maximum rows to count for each kind. A larger backlog is reported as this number. */
export const MOST_COUNTED = 10_000

const counted = sql`LIMIT ${sql.raw(String(MOST_COUNTED))}`

/** Reads the backlog of each kind. The counts are bounded and name no organization. */
export async function readBacklog (db: Db): Promise<Backlog> {
  const [row] = await db.execute(sql`
    SELECT late.*, again.*, (SELECT count(*)::int FROM (SELECT FROM ${organization_removals} ${counted}) o) AS organizations,
      (SELECT count(*)::int FROM (SELECT FROM ${histories} WHERE ${histories.removed_at} IS NOT NULL ${counted}) h) AS histories,
      (SELECT count(*)::int FROM (SELECT FROM ${token_removals} ${counted}) t) AS tokens,
      (SELECT extract(epoch FROM made_at)::float8 FROM ${last_backup}) AS backup_seconds,
      (SELECT bytes::float8 FROM ${last_backup}) AS backup_bytes
    FROM (
      SELECT count(*)::int AS late_events,
        coalesce(extract(epoch FROM now() - min(occurred_at)), 0)::float8 AS late_seconds
      FROM (SELECT occurred_at FROM ${late_events} ${counted}) l
    ) late, (
      SELECT count(*)::int AS reencryptions, coalesce(sum(total - moved), 0)::float8 AS versions_left
      FROM (SELECT total, moved FROM ${re_encryptions} WHERE ${isNull(re_encryptions.finished_at)} ${counted}) r
    ) again`) as unknown as Backlog[]
  return row!
}
