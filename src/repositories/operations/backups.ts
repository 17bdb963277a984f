import { sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'
import { last_backup } from '../../db/tables.ts'

/** A complete backup: the time of its snapshot, and its size. */
export interface Backup { made_at: string, bytes: number }

/** Stores the time and size of the newest backup, for monitoring. Changes nothing if a newer backup is stored. */
export async function noteBackup (db: Db, { made_at, bytes }: Backup): Promise<void> {
  await db.execute(sql`
    INSERT INTO ${last_backup} (made_at, bytes) VALUES (${made_at}::timestamptz, ${bytes}::bigint)
    ON CONFLICT (id) DO UPDATE SET made_at = excluded.made_at, bytes = excluded.bytes
    WHERE ${last_backup}.made_at < excluded.made_at`)
}
