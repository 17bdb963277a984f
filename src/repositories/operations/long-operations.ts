import { sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'

/**
 * Waits until no other instance runs a long operation of the organization, and keeps others waiting until the end of
 * the transaction. The first lock of its transaction, so no transaction that waits here has another lock. Waits no
 * longer than the lock timeout.
 */
export async function lockLongOperations (db: Db, organizationId: string): Promise<void> {
  await db.execute(sql`
    INSERT INTO long_operations (organization_id) VALUES (${organizationId})
    ON CONFLICT (organization_id) DO UPDATE SET began_at = now()`)
}
