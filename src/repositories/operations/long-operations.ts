import { sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'

/**
 * Locks the long operations of an organization until the end of the transaction, so that only one runs at a time. This
 * must be the first lock of the transaction, so that a waiting transaction holds no other locks. Waits up to the lock
 * timeout.
 */
export async function lockLongOperations (db: Db, organizationId: string): Promise<void> {
  await db.execute(sql`
    INSERT INTO long_operations (organization_id) VALUES (${organizationId})
    ON CONFLICT (organization_id) DO UPDATE SET began_at = excluded.began_at`)
}
