import { LRUCache } from 'lru-cache'
import { ulid } from 'ulidx'
import type { VersionAction } from '../../schemas/versions.ts'
import type { Keyring } from '../crypto/keyring.ts'
import { databaseError, DatabaseUnavailable, isLockTimeout, LOCK_TIMEOUT, type Db } from '../db/database.ts'
import type { Actor, AuditEvent } from '../repositories/audit.ts'
import { ownSecret, type LevelState, type SecretRow } from '../repositories/levels.ts'
import { writeSecret } from '../repositories/secrets.ts'
import type { Organization } from '../repositories/tokens.ts'
import { fail } from '../rules/errors.ts'
import { sealCurrent, sealVersion, sizeOf } from './documents.ts'
import { storageKeyOf } from './keys.ts'

/** What a write does to a level: the blob becomes its document (null: it has none any more). */
export interface Change {
  blob: string | null
  /** The version to record and what it holds; null with `no_backup`. */
  record: { action: VersionAction, blob: string, restored_from?: number } | null
  event: AuditEvent['action']
  /** The proof gave the client's key away, and the operator allows that: the event says so. */
  revealed?: boolean
}

export interface Written { state: LevelState, secret: { id: string, revision: number }, version: number | null, bytes: number }

// Writes of several instances into one organization can take turns in losing; each loss is another's success.
const MOST_ATTEMPTS = 100

// Milliseconds in line, before a write's own deadlines begin.
const MOST_WAIT = 5_000

/**
 * Writes a level: looks (`find`), decides (`decide`, which applies the rules to what was seen), seals, and swaps if
 * nothing moved meanwhile; else looks again. Writes of one organization stand in line within a process, because each
 * would otherwise spoil the version id that the others sealed for.
 */
export async function writeLevel (
  { db, keyring }: { db: Db, keyring: Keyring },
  organization: Organization,
  actor: Actor,
  find: () => Promise<LevelState | undefined>,
  decide: (state: LevelState, secret: SecretRow | undefined) => Promise<Change> | Change
): Promise<Written> {
  const storageKey = storageKeyOf(keyring, organization)
  return inLine(organization.id, async () => {
    for (let attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
      const state = await find() ?? fail('not_found')
      const held = heldProjects.get(state.project.id)
      if (held !== undefined && held > Date.now()) throw new DatabaseUnavailable('The project is held by a change of its key', LOCK_TIMEOUT)
      const secret = ownSecret(state)
      const { blob, record, event, revealed = false } = await decide(state, secret)
      const place = {
        organization_id: organization.id, secret_id: secret?.id ?? ulid(), level_id: state.level_id, key_version: state.project.key_version
      }
      const revision = (secret?.revision ?? 0) + 1
      const bytes = blob === null ? 0 : sizeOf(blob)
      const version = record && {
        id: state.next_version,
        action: record.action,
        sealed: sealVersion(storageKey, place, state.next_version, revision, record.blob),
        size_bytes: sizeOf(record.blob),
        restored_from: record.restored_from ?? null
      }
      const written = await hold(state.project.id, writeSecret(db, {
        state,
        secret_id: place.secret_id,
        revision,
        key_version: place.key_version,
        sealed: blob === null ? null : sealCurrent(storageKey, place, revision, blob),
        size_bytes: bytes,
        version,
        actor,
        event: {
          action: event,
          resource_type: 'secret',
          resource_id: place.secret_id,
          details: {
            level: state.level,
            revision,
            key_version: place.key_version,
            version: version?.id ?? null,
            bytes,
            restored_from: version?.restored_from ?? null,
            ...(revealed && { key_proof_reveals_key: true })
          }
        }
      }))
      if (written) return { state, secret: { id: place.secret_id, revision }, version: version?.id ?? null, bytes }
    }
    return fail('service_unavailable')
  })
}

const HELD_FOR = 2_000
const heldProjects = new LRUCache<string, number>({ max: 1_000 })

// Whoever waited in vain for a project that is being rotated has held up the line for a second. Those behind who want
// the same project need not find out the same way.
async function hold<T> (projectId: string, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (isLockTimeout(error)) heldProjects.set(projectId, Date.now() + HELD_FOR)
    throw error
  }
}

type Outage = DatabaseUnavailable | undefined
const lines = new Map<string, Promise<Outage>>()

// Nobody stands in line for ever: whoever waited too long is refused, and so are all behind one for whom the database
// was not there, instead of each finding that out by a deadline of its own.
function inLine<T> (key: string, work: () => Promise<T>): Promise<T> {
  const before = lines.get(key) ?? Promise.resolve(undefined)
  let gaveUp = false
  const late = new Promise<Outage>((resolve) => {
    const timer = setTimeout(() => {
      gaveUp = true
      resolve(new DatabaseUnavailable('Too many writes of the organization are waiting'))
    }, MOST_WAIT)
    before.then(() => clearTimeout(timer))
  })
  const mine = Promise.race([before, late]).then((outage) => {
    if (outage) throw outage
    return work()
  })
  // Who gave up keeps the place: the next one's turn comes after the one before.
  const end = mine.then(() => undefined, (error: unknown) => {
    if (gaveUp) return before
    const known = databaseError(error)
    // A lock that was held too long says nothing about the next one's level.
    return known instanceof DatabaseUnavailable && !isLockTimeout(known) ? known : undefined
  })
  lines.set(key, end)
  end.then(() => { if (lines.get(key) === end) lines.delete(key) })
  return mine
}
