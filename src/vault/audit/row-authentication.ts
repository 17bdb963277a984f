import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import { deriveWorkloadKey, openWorkloadToken, sealWorkloadToken } from '../../crypto/bearer.ts'
import { makeCanary, openCanary, type Keyring } from '../../crypto/keyring.ts'
import { sameBytes, takeKey } from '../../crypto/primitives.ts'
import {
  chainKeyFingerprint, createRowChecker, createRowEncoder, deriveLookupKey, rowKeyFingerprint, rowMac
} from '../../crypto/row-mac.ts'
import { AUTHENTICATED } from '../../db/rows/authenticated.ts'
import { readClock } from '../../db/rows/authority.ts'
import {
  databaseError, setAuthority, type Database, type Db, type RowAuthority, type Violation, type ViolationLog
} from '../../db/database.ts'
import { authenticateSeeds } from '../../repositories/keys/authenticated-rows.ts'
import {
  createCanary, createServiceKey, findServiceKey, listCanaries, lockCanaries
} from '../../repositories/keys/master-keys.ts'
import { escapeUnprintable } from '../../../schemas/unprintable.ts'
import { createChain, FIRST_CHAIN_KEY, openChainKey } from './chain.ts'
import { serviceKeyContext } from '../keys/contexts.ts'
import { makeKey, unlessTampered } from '../keys/keys.ts'

const ENCODERS = new Map(Object.entries(AUTHENTICATED).map(([name, format]) => [name, createRowEncoder(name, format)]))

const ROWS = 'rows'

const WHAT = { [ROWS]: 'authenticates rows', [FIRST_CHAIN_KEY]: 'chains events' }

/** The key for the MACs of rows (row key) or the first chain key is missing or wrong, so no row can be verified. */
export class RowKeyError extends Error {
  override readonly name = 'RowKeyError'
}

/** Records violations as audit events, and calls `failed` for each organization that cannot record its events now. */
type RecordViolations = (
  db: Db, violations: readonly Violation[], failed: (error: unknown) => void
) => Promise<void>

interface Keys { rows: KeyObject, chain: KeyObject }

const fingerprintOf = ({ rows, chain }: Keys) => Buffer.concat([rowKeyFingerprint(rows), chainKeyFingerprint(chain)])
const FINGERPRINT_BYTES = 32

/**
 * Unwraps the row key and the first chain key for all handles. Creates the keys if the database is empty. Throws
 * RowKeyError if a key is missing, cannot be unwrapped, or does not match the canaries. Throws MasterKeyMissing or
 * IntegrityError if a canary cannot be unwrapped. `record` is called for rows with a wrong MAC.
 */
export async function openRowKeys (database: Database, keyring: Keyring, record: RecordViolations): Promise<void> {
  // Reads without a lock, so another instance may create the keys between two of the reads. `createKeys` reads again.
  const found = await findKeys(database.db, keyring).catch((error: unknown): undefined => {
    if (!(error instanceof RowKeyError)) throw error
  })
  const keys = found ?? await database.maintain((db) => createKeys(db, keyring, record))
  await database.authenticate(authorityFor(keys, keyring, database.db, record))
  await readClock(database.db)
  await createCanary(database.db, keyring.currentId, makeCanary(keyring, fingerprintOf(keys)))
}

// The stored keys, verified against the fingerprints in the canaries; undefined without canaries and keys.
async function findKeys (db: Db, keyring: Keyring): Promise<Keys | undefined> {
  const named = (await listCanaries(db)).map(({ canary }) => openCanary(keyring, canary))
  const ofRows = named.map((fingerprint) => fingerprint.subarray(0, FINGERPRINT_BYTES))
  const ofEvents = named.map((fingerprint) => fingerprint.subarray(FINGERPRINT_BYTES))
  const rows = await findKey(db, keyring, ROWS, ofRows, rowKeyFingerprint)
  const chain = await findKey(db, keyring, FIRST_CHAIN_KEY, ofEvents, chainKeyFingerprint)
  return rows && chain && { rows, chain }
}

async function findKey (
  db: Db, keyring: Keyring, name: keyof typeof WHAT, named: readonly Buffer[], toFingerprint: (key: KeyObject) => Buffer
): Promise<KeyObject | undefined> {
  const stored = await findServiceKey(db, name)
  if (stored === undefined) {
    if (named.length === 0) return undefined
    throw new RowKeyError(`The key that ${WHAT[name]} is missing: restore the table service_keys from a backup`)
  }
  if (named.length === 0) {
    throw new RowKeyError(
      `The key of ${name} matches no canary: the table master_key_canaries was changed, restore it from a backup`
    )
  }
  const key = unlessTampered(() => takeKey(keyring.unwrap(stored.wrapped, serviceKeyContext(name))))
  if (key === undefined || !named.every((fingerprint) => sameBytes(fingerprint, toFingerprint(key)))) {
    throw new RowKeyError(
      `The key that ${WHAT[name]} is not the one that was used here: restore the table service_keys from a backup`
    )
  }
  return key
}

async function createKeys (db: Db, keyring: Keyring, record: RecordViolations): Promise<Keys> {
  await lockCanaries(db)
  // Another instance may have created the keys.
  const known = await findKeys(db, keyring)
  if (known !== undefined) return known
  const create = async (id: string) => {
    const { key, wrapped } = makeKey(keyring, serviceKeyContext(id))
    await createServiceKey(db, { id, wrapped })
    return key
  }
  const keys = { rows: await create(ROWS), chain: await create(FIRST_CHAIN_KEY) }
  setAuthority(db, authorityFor(keys, keyring, db, record))
  await createCanary(db, keyring.currentId, makeCanary(keyring, fingerprintOf(keys)))
  // An empty database has only the rows that migrations insert. If there are other rows, the error rolls the
  // transaction back, so that these rows get no MAC.
  if (!await authenticateSeeds(db)) {
    throw new RowKeyError(
      'The database has rows, but no canary of a master key: the table master_key_canaries was emptied, restore it from a backup'
    )
  }
  return keys
}

// Limits for reports: one report of the same state of a row within `SAME_ROW_MS`, and a total per minute.
const SAME_ROW_MS = 10 * 60_000
const MINUTE = 60_000
const MAX_PER_MINUTE = 600
const MAX_BATCH = 100

const toStandardError: ViolationLog = {
  warn: (details, message) => { process.stderr.write(`${message}: ${escapeUnprintable(JSON.stringify(details))}\n`) }
}

/** Computes and verifies MACs under the keys. Passes rows with a wrong MAC to `record`, with `db`. */
function authorityFor (keys: Keys, keyring: Keyring, db: Db, record: RecordViolations): RowAuthority {
  const { rows: key } = keys
  const reported = new LRUCache<string, true>({ max: 10_000, ttl: SAME_ROW_MS })
  const checker = createRowChecker(key)
  const lookupKey = deriveLookupKey(key)
  const workloadKey = deriveWorkloadKey(key)
  let waiting: Violation[] = []
  let recording: Promise<void> | undefined
  // Runs one transaction at a time, because parallel transactions for many wrong rows could use all connections.
  async function recordAll () {
    while (waiting.length > 0) {
      try {
        await record(db, waiting.splice(0, MAX_BATCH), unrecorded)
      } catch (error) {
        unrecorded(error)
        // The database is unavailable. Drops the other violations, because each would wait until its deadline.
        waiting = []
      }
    }
    recording = undefined
  }
  let log = toStandardError
  const unrecorded = (error: unknown) => {
    log.warn({ err: databaseError(error) }, 'the integrity violation could not be recorded')
  }
  let minute = { began: -MINUTE, reports: 0 }
  let reports = 0

  function isDue ({ table, row }: Violation): boolean {
    const mac = Buffer.isBuffer(row.mac) ? row.mac.toString('hex') : 'none'
    const seen = `${table} ${authority.mac(table, row).toString('base64')} ${mac}`
    if (reported.has(seen)) return false
    if (performance.now() - minute.began > MINUTE) minute = { began: performance.now(), reports: 0 }
    if (++minute.reports > MAX_PER_MINUTE) return false
    reported.set(seen, true)
    return true
  }

  const authority: RowAuthority = {
    fingerprint: fingerprintOf(keys),
    chain: createChain(FIRST_CHAIN_KEY, keys.chain, (row) => openChainKey(keyring, row)),
    mac: (table, row) => checker.mac(ENCODERS.get(table)!(row)),
    verifies: (table, row, mac) => mac !== null && checker.matches(ENCODERS.get(table)!(row), mac),
    hash: (purpose, values) => rowMac(lookupKey, purpose, values),
    sealToken: (organizationId, content) => sealWorkloadToken(workloadKey, organizationId, content),
    openToken: (token) => openWorkloadToken(workloadKey, token),
    report (violation) {
      if (!isDue(violation)) return
      reports++
      log.warn(describe(violation), 'a row was changed outside the service and is refused')
      waiting.push(violation)
      recording ??= recordAll()
    },
    reports: () => reports,
    logTo (to) { log = to },
    async settled () { await recording }
  }
  return authority
}

// The columns that identify the row. Other columns may contain hashes, or text of an attacker.
function describe ({ table, row, about }: Violation) {
  const { id, organization_id, user_id, grant_id } = row
  return { table, id, organization_id, user_id, grant_id, ...about }
}
