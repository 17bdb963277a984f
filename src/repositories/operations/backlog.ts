import { isNull, sql, type SQL } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'
import { queryRow } from '../../db/rows/query.ts'
import {
  histories, last_backup, late_events, organization_removals, re_encryptions, token_removals
} from '../../db/tables.ts'

/**
 * The backlog of background jobs in all organizations, and the newest backup. `late_seconds` is the age of the oldest
 * of the counted late events. An event that was not counted may be older, because no index sorts late events by time.
 */
type Backlog = Record<'late_events' | 'late_seconds' | 'reencryptions' | 'versions_left' | 'organizations' |
  'histories' | 'tokens', number> & Record<'backup_seconds' | 'backup_bytes', number | null>

/** The maximum number of rows to count for each kind of job. A larger backlog is reported as this number. */
export const MAX_COUNTED = 10_000

const counted = sql`LIMIT ${sql.raw(String(MAX_COUNTED))}`
const countOf = (from: SQL) => sql`(SELECT count(*)::int FROM (SELECT 1 FROM ${from} ${counted}) counted)`

export async function readBacklog (db: Db): Promise<Backlog> {
  return queryRow<Backlog>(db, sql`
    SELECT late.*, again.*, ${countOf(sql`${organization_removals}`)} AS organizations,
      ${countOf(sql`${histories} WHERE ${histories.removed_at} IS NOT NULL`)} AS histories,
      ${countOf(sql`${token_removals}`)} AS tokens,
      (SELECT extract(epoch FROM made_at)::float8 FROM ${last_backup}) AS backup_seconds,
      (SELECT bytes::float8 FROM ${last_backup}) AS backup_bytes
    FROM (
      SELECT count(*)::int AS late_events,
        coalesce(extract(epoch FROM now() - min(occurred_at)), 0)::float8 AS late_seconds
      FROM (SELECT occurred_at FROM ${late_events} ${counted}) l
    ) late, (
      SELECT count(*)::int AS reencryptions, coalesce(sum(total - moved), 0)::float8 AS versions_left
      FROM (SELECT total, moved FROM ${re_encryptions} WHERE ${isNull(re_encryptions.finished_at)} ${counted}) r
    ) again`)
}

/** A complete backup: the time of its snapshot, and its size. */
export interface Backup { made_at: string, bytes: number }

/** Stores the time and size of the newest backup, for monitoring. Changes nothing if a newer backup is stored. */
export async function noteBackup (db: Db, { made_at, bytes }: Backup): Promise<void> {
  await db.execute(sql`
    INSERT INTO ${last_backup} (made_at, bytes) VALUES (${made_at}::timestamptz, ${bytes}::bigint)
    ON CONFLICT (id) DO UPDATE SET made_at = excluded.made_at, bytes = excluded.bytes
    WHERE ${last_backup}.made_at < excluded.made_at`)
}
