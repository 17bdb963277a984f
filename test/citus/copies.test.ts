// runs: Citus
import { setTimeout as pause } from 'node:timers/promises'
import { sql } from 'drizzle-orm'
import t from 'tap'
import { startIsolatedApp } from '../helpers/app.ts'
import { onEachNode, useOwnCitus } from '../helpers/citus.ts'
import { issuePair, makePerson } from '../helpers/people.ts'

t.setTimeout(240_000)
await useOwnCitus(t)

t.test('a cleanup of grants deletes the same rows on each node, also if one is locked on its node', async (t) => {
  // This test has its own database, because it reads the copies of tables on all nodes.
  const service = await startIsolatedApp(t)
  const { organization } = await service.organization()
  const rosa = await makePerson(service, { [organization]: 'owner' })
  const [locked] = [await issuePair(service, rosa, ['project:read']), await issuePair(service, rosa, ['project:read'])]
  await service.sql('DELETE FROM oauth_tokens')
  await service.sql("UPDATE oauth_grants SET revoked_at = now() - interval '2 days'")
  const { next } = await service.database.longTransactions.transaction(async (db) => {
    // Locks the row like the check of a caller, in the copy on the organization's node.
    const rows = await db.execute(sql`SELECT g.id FROM organization_counters AS own CROSS JOIN LATERAL (
        SELECT id FROM oauth_grants WHERE id = ${String(locked!.grant)}::bigint AND own.organization_id <> '' LIMIT 1
        FOR SHARE
      ) AS g WHERE own.organization_id = ${organization}::char(26)`) as unknown as unknown[]
    t.equal(rows.length, 1)
    const next = issuePair(service, rosa, ['project:read'])
    await pause(300)
    return { next }
  })
  const { grant } = await next
  const copies = await onEachNode(service.sql, 'SELECT id::text FROM oauth_grants')
  t.same(copies, Array.from({ length: 3 }, () => ({ id: String(grant) })))
})
