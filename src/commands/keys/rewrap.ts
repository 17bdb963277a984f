import { setTimeout as sleep } from 'node:timers/promises'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { MasterKeyMissing, type Keyring } from '../../crypto/keyring.ts'
import { loadConfig } from '../../config.ts'
import { transaction } from '../../changes/transaction.ts'
import { DirectoryLocked, type Db } from '../../db/database.ts'
import { countWrapped, deleteCanary, WRAPPED, type WrappedTable } from '../../repositories/keys/master-keys.ts'
import {
  lockCurrentCanary, rewrapChainKey, rewrapFactor, rewrapKey, rewrapServiceKey, rewrapStorageKey, type Rewrapped
} from '../../vault/keys/master-keys.ts'
import { counted } from '../../rules/formats/phrases.ts'
import { refuse } from '../common/command-errors.ts'
import { openedByService, sendCommand } from '../common/in-service.ts'
import { command, withOpened, type Noun } from '../common/noun.ts'
import { openKeyring, type Opened } from '../common/open.ts'
import { DATABASE_TIMEOUT_MS, retryDatabase } from '../common/retry.ts'
import { NO_PROGRESS, withProgress } from '../common/progress.ts'
import { warn, write, writeJson } from '../common/stdio.ts'
import { FLAG, TEXT } from '../common/words.ts'

export const noun: Noun = {
  help: `  rewrap [--onto ID] [--json]             re-wrap every stored key with the newest master key
`,
  isOfInstallation: true,

  run: command({ onto: TEXT, json: FLAG }, ({ onto, json }, env) =>
    withProgress({ json, left: 'No value was re-wrapped.' }, (progress) => withOpened(env, async (opened) => {
      const { currentId } = opened.keyring
      const isInService = openedByService() !== undefined
      if (onto !== undefined && onto !== currentId) {
        refuse(isInService
          ? `The newest master key of the service is ${currentId}, not ${onto}: restart the service with ${onto} first`
          : `The newest master key is ${currentId}, not ${onto}: set MASTER_KEY`)
      }
      if (isInService) warn(`Re-wrapping with the master keys with which the service started; the newest is ${currentId}`)
      const outcome = await rewrap(opened, undefined, progress)
      outcome.failures.forEach(warn)
      await (json ? writeJson({ master_key: currentId, ...outcome }) : write(report(outcome, currentId)))
      return outcome.failures.length > 0 || outcome.older.some(({ values }) => values > 0) ? 1 : 0
    })).catch(async (error: unknown) => {
      if (!(error instanceof DirectoryLocked)) throw error
      // An operator who set a new master key for this command alone expects that the values are wrapped with it.
      const { currentId } = await openKeyring(loadConfig(env))
      return sendCommand(error, ['rewrap', '--onto', onto ?? currentId, ...(json ? ['--json'] : [])])
    }))
}

const BATCH = 200

// Other instances may still wrap new values with an older key. The report counts the values that remain.
const PASSES = 5

export interface Outcome {
  /** Number of values that were re-wrapped with the newest master key. */
  rewrapped: number
  /** One line for each value that could not be unwrapped and is unchanged. */
  failures: string[]
  /** The other master keys of the ring, with the number of values that each still wraps. */
  older: { id: string, values: number }[]
}

const TABLES = [
  passOver(WRAPPED.serviceKeys, rewrapServiceKey), passOver(WRAPPED.chainKeys, rewrapChainKey),
  passOver(WRAPPED.storageKeys, rewrapStorageKey), passOver(WRAPPED.projectKeys, rewrapKey),
  passOver(WRAPPED.factors, rewrapFactor)
]

/**
 * Re-wraps every value with the newest master key, and deletes the canaries of unused master keys. Works in small
 * transactions while the service runs. After an interruption the next run continues.
 *
 * @param timeoutMs how long to retry while a row is locked or the database is unavailable
 */
export async function rewrap (
  { database, keyring }: Opened, timeoutMs = DATABASE_TIMEOUT_MS, progress = NO_PROGRESS
): Promise<Outcome> {
  let rewrapped = 0
  let total = 0
  for (const id of keyring.ids) if (id !== keyring.currentId) total += await countWrapped(database.db, id)
  progress.begin('Re-wrapping', 'values', total)
  // Called after each commit.
  const onMoved = (values: number) => {
    rewrapped += values
    progress.leaves(`${counted(rewrapped, 'value')} re-wrapped onto master key ${keyring.currentId} and stay so. ` +
      'Run rewrap again for the others; keep MASTER_KEYS_PREVIOUS until then.')
    progress.advance(values)
  }
  let failures: string[] = []
  for (let pass = 1; pass <= PASSES; pass++) {
    failures = []
    let moved = 0
    for (const pass of TABLES) moved += await pass(database.db, keyring, failures, timeoutMs, progress.signal, onMoved)
    if (moved === 0) break
  }
  const older: Outcome['older'] = []
  for (const id of keyring.ids) {
    if (id === keyring.currentId) continue
    // Keep all canaries after a failure: a value restored from a backup may need any of these keys.
    const count = () =>
      failures.length > 0 ? countWrapped(database.db, id) : deleteUnusedCanary(database.longTransactions, id)
    older.push({ id, values: await retryDatabase(count, timeoutMs) })
  }
  return { rewrapped, failures, older }
}

export function report ({ rewrapped, failures, older }: Outcome, newest: string): string {
  return [
    `${counted(rewrapped, 'value')} re-wrapped onto master key ${newest}`,
    ...older.map(({ id, values }) => values > 0
      ? `Master key ${id} still wraps ${counted(values, 'value')}: keep it in MASTER_KEYS_PREVIOUS, and run rewrap again when no instance uses it as MASTER_KEY`
      : failures.length > 0
        ? `Master key ${id} wraps no readable value: keep it in MASTER_KEYS_PREVIOUS until the unreadable values are restored or deleted`
        : `Master key ${id} wraps nothing any more: remove it from MASTER_KEYS_PREVIOUS`)
  ].map((line) => `${line}\n`).join('')
}

function passOver<Row extends { id: string | number }> (
  table: WrappedTable<Row>, rewrapRow: (keyring: Keyring, row: Row) => Rewrapped<Row>
) {
  return async (
    handle: Db, keyring: Keyring, failures: string[], timeoutMs: number, signal: AbortSignal,
    onMoved: (values: number) => void
  ): Promise<number> => {
    let moved = 0
    for (let after: Row['id'] = table.first; ;) {
      let started = 0
      const { next, values, broken } = await retryDatabase(() => transaction(handle, async (db) => {
        signal.throwIfAborted()
        started = performance.now()
        await lockCurrentCanary(db, keyring)
        const { rows, next } = await table.lock(db, keyring.currentId, after, BATCH)
        const broken: string[] = []
        const done = rows.flatMap((row) => {
          try {
            return [rewrapRow(keyring, row)]
          } catch (error) {
            broken.push(`${table.name} ${row.id}: ${reasonOf(error)}; left as it is`)
            return []
          }
        })
        if (done.length > 0) await table.update(db, done.map(({ row }) => row))
        return { next, values: done.reduce((sum, { values }) => sum + values, 0), broken }
      }), timeoutMs)
      moved += values
      onMoved(values)
      failures.push(...broken)
      if (next === undefined) return moved
      after = next
      // Pause as long as the last transaction took, so that the service can use the database half of the time.
      await sleep(performance.now() - started)
    }
  }
}

function reasonOf (error: unknown): string {
  if (error instanceof MasterKeyMissing) return error.message
  if (error instanceof IntegrityError) return 'the wrapped value fails authentication (changed or moved in the database)'
  throw error
}

// Counts again after the deletion. Transactions that store a wrapped value lock the canary until they commit, so the
// deletion waits for them, and the second count includes their values.
async function deleteUnusedCanary (handle: Db, keyId: string): Promise<number> {
  const left = await countWrapped(handle, keyId)
  if (left > 0) return left
  try {
    await transaction(handle, async (db) => {
      await deleteCanary(db, keyId)
      const values = await countWrapped(db, keyId)
      if (values > 0) throw new StillWraps(values)
    })
    return 0
  } catch (error) {
    if (error instanceof StillWraps) return error.values
    throw error
  }
}

/** Rolls back the deletion of a canary. */
class StillWraps extends Error {
  readonly values: number
  constructor (values: number) {
    super('the master key still wraps something')
    this.values = values
  }
}
