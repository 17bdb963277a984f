import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { exportEvents, verifyDatabase, verifyFile } from '../../src/commands/audit/audit.ts'
import { Anchors, type Verified } from '../../src/vault/audit/verification.ts'
import type { TestApp } from './app.ts'

/** The results of chain verifications, by organization. */
export async function collect (all: AsyncIterable<Verified>): Promise<Record<string, Verified>> {
  const found: Record<string, Verified> = {}
  for await (const one of all) found[one.organization] = one
  return found
}

/** Verifies the audit chains of a service, in its database and in exports, and tampers with the chains. */
export function chainsOf (service: TestApp, scratch: string) {
  const { database, keyring } = service
  let files = 0
  return {
    inDatabase: (anchors = new Anchors()) => collect(verifyDatabase({ database, keyring }, {}, anchors)),

    async exported (since?: Date): Promise<string> {
      let text = ''
      for await (const lines of exportEvents({ database, keyring }, { since })) text += lines
      return text
    },

    async inFile (text: string, anchors = new Anchors()): Promise<Record<string, Verified>> {
      const file = join(scratch, `export-${++files}.jsonl`)
      writeFileSync(file, text)
      return collect(verifyFile(keyring, file, {}, anchors))
    },

    /** Changes rows with the permissions of the tables' owner, calls `look`, and then restores the rows. */
    async tampered (statements: readonly string[], look: () => Promise<void>): Promise<void> {
      for (const one of [
        'CREATE TABLE kept_events AS SELECT * FROM audit_events',
        'CREATE TABLE kept_counters AS SELECT * FROM organization_counters',
        'CREATE TABLE kept_keys AS SELECT * FROM chain_keys',
        // Citus executes only one subcommand about triggers per statement.
        'ALTER TABLE audit_events DISABLE TRIGGER USER',
        'ALTER TABLE audit_events DROP CONSTRAINT audit_events_numbers', 'ALTER TABLE audit_events ALTER mac DROP NOT NULL',
        ...statements
      ]) await service.sql(one)
      try {
        await look()
      } finally {
        for (const one of [
          'DELETE FROM audit_events', 'INSERT INTO audit_events SELECT * FROM kept_events',
          'DELETE FROM organization_counters', 'INSERT INTO organization_counters SELECT * FROM kept_counters',
          'DELETE FROM chain_keys', 'INSERT INTO chain_keys SELECT * FROM kept_keys',
          'DROP TABLE kept_events, kept_counters, kept_keys',
          'ALTER TABLE audit_events ENABLE TRIGGER USER',
          'ALTER TABLE audit_events ADD CONSTRAINT audit_events_numbers CHECK (seq > 0)',
          'ALTER TABLE audit_events ALTER mac SET NOT NULL'
        ]) await service.sql(one)
      }
    },

    /** Anchors at the current ends of all chains. */
    async anchorsOf (): Promise<Anchors> {
      const anchors = new Anchors()
      for (const { organization_id, next_event, event_head } of await service.sql(
        'SELECT organization_id, next_event::int, event_head FROM organization_counters'
      ) as { organization_id: string, next_event: number, event_head: Buffer }[]) {
        anchors.add({ organization: organization_id, sequence: next_event - 1, mac: event_head })
      }
      return anchors
    }
  }
}
