import { change } from '../changes/change.ts'
import { transaction } from '../changes/transaction.ts'
import type { Keyring } from '../crypto/keyring.ts'
import type { Db } from '../db/database.ts'
import { systemOf } from '../repositories/audit/audit.ts'
import { listReEncryptions, START, type Cursor, type Waiting } from '../repositories/secrets/re-encryption.ts'
import type { Log } from '../telemetry/log.ts'
import { endReEncryption, moveBatch } from '../vault/operations/re-encryption.ts'
import type { Background } from './background.ts'
import { createRoundRobin, type StepResult } from './round-robin.ts'

const REPORT_INTERVAL_MS = 5_000
const MAX_LOGGED_IDS = 10

/** One pass over the versions of a project: the cursor, and the numbers of versions. */
interface Pass { after: Cursor, moved: number, locked: number, unreadable: number, named: number[], reported: number }

/** Re-encrypts versions in the background, one batch of each project in turn. Several instances share the work. */
export function createHistoryWorker ({ db, keyring, log }: { db: Db, keyring: Keyring, log: Log }): Background {
  const begin = (): Pass =>
    ({ after: START, moved: 0, locked: 0, unreadable: 0, named: [], reported: performance.now() })
  const about = ({ organization, project_id }: Waiting) => ({ organization: organization.id, project: project_id })

  // After the last batch, ends the re-encryption if no versions are left. If versions are left, another instance may
  // have locked them. If this pass has re-encrypted any version, the next pass starts at once. If this pass has only
  // skipped locked versions, the next pass starts later.
  async function take (one: Waiting, pass = begin()): Promise<StepResult<Pass>> {
    const of = about(one)
    const { organization, project_id } = one
    const { last: after, end, left, ...batch } = await transaction(db, async (db) =>
      moveBatch(db, keyring, organization, project_id, pass))
    const named = [...pass.named, ...batch.unreadable].slice(0, MAX_LOGGED_IDS)
    const unreadable = pass.unreadable + batch.unreadable.length
    const moved = pass.moved + batch.moved
    const locked = pass.locked + batch.locked
    if (!end) {
      const isTime = performance.now() - pass.reported >= REPORT_INTERVAL_MS
      if (isTime) log.info({ ...of, moved }, 'history is being re-encrypted')
      return { more: { after, moved, locked, unreadable, named, reported: isTime ? performance.now() : pass.reported } }
    }
    const done = left && (await change(db, systemOf(organization.id), {
      decide: () => ({
        write: async (db) => endReEncryption(db, organization.id, project_id, left, unreadable),
        events: (done) => done === undefined ? [] : [done.event]
      })
    })).written
    if (done !== undefined) log.info({ ...of, moved: done.moved, unreadable }, 'history re-encrypted')
    else if (moved > 0) return { more: begin() }
    else if (locked > 0) return 'locked'
    if (unreadable > 0) log.warn({ ...of, unreadable, versions: named }, 'unreadable versions stay under their old key')
    return 'nothing'
  }

  return createRoundRobin<Waiting, Pass>({
    list: (after, limit) => listReEncryptions(db, after, limit),
    nameOf: ({ organization, project_id }) => `${organization.id} ${project_id}`,
    step: take,
    log,
    failure: 're-encryption failed; will retry',
    about
  })
}
