import { sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'
import { last_backup } from '../../db/tables.ts'

/** A backup that was written whole: the moment that it is of, and how large it is. */
export interface Backup { made_at: string, bytes: number }

/** Keeps that there is a backup, for who watches over them. An older one than is known changes nothing. */
export async function noteBackup (db: Db, { made_at, bytes }: Backup): Promise<void> {
  await db.execute(sql`
    INSERT INTO ${last_backup} (made_at, bytes) VALUES (${made_at}::timestamptz, ${bytes}::bigint)
    ON CONFLICT (id) DO UPDATE SET made_at = excluded.made_at, bytes = excluded.bytes
    WHERE ${last_backup}.made_at < excluded.made_at`)
}
