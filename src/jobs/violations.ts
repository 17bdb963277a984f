import { change } from '../changes/change.ts'
import type { Keyring } from '../crypto/keyring.ts'
import { isAway, type Database, type Db, type Violation } from '../db/database.ts'
import { CallerEnded } from '../db/rows/caller.ts'
import { systemOf, type AuditEvent } from '../repositories/audit/audit.ts'
import { listOrganizationsOf } from '../repositories/people/members.ts'
import { openRowKeys } from '../vault/audit/row-authentication.ts'

/** Opens the keys of the rows (`openRowKeys`). Rows with a wrong MAC are then recorded as audit events. */
export const openRows = async (database: Database, keyring: Keyring): Promise<void> =>
  openRowKeys(database, keyring, recordViolations)

// Records violations in the organization of the row. If the row names no organization, records them in all
// organizations of its user. If the row names no user either, the violation is only in the log.
async function recordViolations (
  db: Db, violations: readonly Violation[], failed: (error: unknown) => void
): Promise<void> {
  const eventsOf = new Map<string, AuditEvent[]>()
  for (const violation of violations) {
    const { table, row, about } = violation
    const id = row.id ?? about.user_id ?? row.user_id
    for (const organization of await organizationsOf(db, violation)) {
      const events = eventsOf.get(organization) ?? []
      eventsOf.set(organization, events)
      events.push({
        action: 'integrity.violation',
        resource_type: table,
        resource_id: id === undefined ? null : String(id).slice(0, 64),
        details: { table }
      })
    }
  }
  for (const [organization, events] of eventsOf) {
    try {
      await change(db, systemOf(organization), { decide: () => ({ write: async () => {}, events }) })
    } catch (error) {
      if (isAway(error)) throw error
      // The row names an organization that does not exist.
      if (!(error instanceof CallerEnded)) failed(error)
    }
  }
}

async function organizationsOf (db: Db, { table, row, about }: Violation): Promise<string[]> {
  const { organization_id = row.organization_id, user_id = table === 'users' ? row.id : row.user_id } = about
  if (typeof organization_id === 'string') return [organization_id]
  return typeof user_id === 'number' ? listOrganizationsOf(db, user_id) : []
}
