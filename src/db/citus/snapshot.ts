import { sql } from 'drizzle-orm'
import type { Db } from '../postgres/handle.ts'
import { COLOCATED_WITH, REFERENCE } from './placement.ts'

/**
 * On Citus, takes the snapshot of a REPEATABLE READ transaction on each node. Call it before the first query of the
 * transaction. The snapshots differ in time, so a change of several organizations can be missing in some snapshots. The
 * rows of one organization are on one node, so these rows are consistent. `holder`, another connection, blocks changes
 * of reference tables until all snapshots are taken, so the users and grants that rows refer to are in the snapshots.
 */
export async function takeSnapshots (db: Db, holder: Db): Promise<void> {
  await holder.transaction(async (tx) => {
    // Waits longer for changes of these tables than the service does with its own lock timeout.
    await tx.execute(sql`SET LOCAL lock_timeout = '20s'`)
    await tx.execute(sql.raw(`LOCK TABLE ${REFERENCE.join(', ')} IN SHARE MODE`))
    // Uses one connection to each node, which keeps its snapshot until the end of the transaction.
    await db.execute(sql`SET LOCAL citus.max_adaptive_executor_pool_size = 1`)
    await db.execute(sql`SELECT count(*) FROM ${sql.identifier(COLOCATED_WITH)}`)
  })
}
