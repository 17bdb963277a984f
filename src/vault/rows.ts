import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import { IntegrityError } from '../crypto/at-rest.ts'
import { makeCanary, MasterKeyMissing, openCanary, type Keyring } from '../crypto/keyring.ts'
import { random, sameBytes, takeKey } from '../crypto/primitives.ts'
import { createRowChecker, rowKeyFingerprint, rowMac } from '../crypto/row-mac.ts'
import { AUTHENTICATED, fieldsOf, type AuthenticatedTable } from '../db/authenticated.ts'
import {
  databaseError, setAuthority, type Database, type Db, type RowAuthority, type Violation, type ViolationLog
} from '../db/database.ts'
import {
  authenticateSeeds, authenticateTable, listOrganizationIds, lockAuthenticatedTables, lockCanaries, nameMakers
} from '../repositories/adoption.ts'
import { recordEvent, systemOf } from '../repositories/audit.ts'
import {
  createCanary, createServiceKey, findServiceKey, listCanaries, replaceCanary
} from '../repositories/master-keys.ts'
import { deleteTokens, lockTokensOfNothing } from '../repositories/tokens.ts'
import { listMemberships } from '../repositories/users.ts'
import { serviceKeyContext } from './contexts.ts'
import { endingsOf } from './removals.ts'

/** The name of the row key among the keys of the service. */
const ROWS = 'rows'

/** The key that authenticates rows is not the one that the canaries name: nothing can be told from a row any more. */
export class RowKeyError extends Error {
  override readonly name = 'RowKeyError'
}

/**
 * Opens the row key, so that the database's handles make and check MACs. The first start on an empty database makes it.
 * A database from before rows were authenticated, which a canary from then shows, is brought along here, once and in
 * one transaction: afterwards its canaries say so, which nobody can make without the master key, and a row without a
 * MAC is a violation.
 *
 * Answers how many rows were brought along. Throws RowKeyError when the key is missing, does not open or is another
 * one.
 */
export async function openRows (database: Database, keyring: Keyring): Promise<number> {
  // Looked at without a lock, what another start is just doing may be seen in halves: the lock then tells.
  const found = await findRowKey(database.db, keyring).catch((error: unknown): undefined => {
    if (!(error instanceof RowKeyError)) throw error
  })
  const { key, rows } = found === undefined
    ? await database.maintain((db) => adopt(db, keyring))
    : { key: found, rows: 0 }
  database.authenticate(authorityFor(key, database.db))
  await createCanary(database.db, keyring.currentId, makeCanary(keyring, rowKeyFingerprint(key)))
  return rows
}

// The key that the canaries name; undefined when no row was ever authenticated here.
async function findRowKey (db: Db, keyring: Keyring): Promise<KeyObject | undefined> {
  const canaries = (await listCanaries(db)).map(({ canary }) => openCanary(keyring, canary))
  const named = canaries.filter((fingerprint) => fingerprint !== undefined)
  const wrapped = await findServiceKey(db, ROWS)
  if (named.length === 0) {
    if (wrapped !== undefined) {
      throw new RowKeyError(
        'There is a key of rows that no canary knows: the table master_key_canaries was changed, restore it from a backup'
      )
    }
    return undefined
  }
  if (wrapped === undefined) {
    throw new RowKeyError('The key that authenticates rows is missing: restore the table service_keys from a backup')
  }
  const key = openRowKey(keyring, wrapped.wrapped)
  if (key === undefined || !named.every((fingerprint) => sameBytes(fingerprint, rowKeyFingerprint(key)))) {
    throw new RowKeyError(
      'The key that authenticates rows is not the one that was used here: restore the table service_keys from a backup'
    )
  }
  return key
}

function openRowKey (keyring: Keyring, wrapped: Buffer): KeyObject | undefined {
  try {
    return takeKey(keyring.unwrap(wrapped, serviceKeyContext(ROWS)))
  } catch (error) {
    if (error instanceof IntegrityError || error instanceof MasterKeyMissing) return undefined
    throw error
  }
}

async function adopt (db: Db, keyring: Keyring): Promise<{ key: KeyObject, rows: number }> {
  await lockCanaries(db)
  // Of several starts at once, one got here first.
  const known = await findRowKey(db, keyring)
  if (known !== undefined) return { key: known, rows: 0 }
  const bytes = random(32)
  const wrapped = keyring.wrap(bytes, serviceKeyContext(ROWS))
  const key = takeKey(bytes)
  setAuthority(db, authorityFor(key, db))
  await lockAuthenticatedTables(db)
  await createServiceKey(db, { id: ROWS, wrapped })
  const canaries = await listCanaries(db)
  // A canary that does not say it yet, under whichever master key, would let all of this be done again.
  for (const { key_id } of canaries) {
    await replaceCanary(db, key_id, makeCanary(keyring, rowKeyFingerprint(key), key_id))
  }
  await createCanary(db, keyring.currentId, makeCanary(keyring, rowKeyFingerprint(key)))
  // Only a canary from before, which nobody makes without the master key, shows that rows are from before too. Without
  // one, what is here was written by nobody: whether organizations are to be seen is up to whoever can write.
  if (canaries.length === 0) {
    if (await authenticateSeeds(db)) return { key, rows: 0 }
    throw new RowKeyError(
      'The database holds rows and no canary of a master key: the table master_key_canaries was emptied, restore it from a backup'
    )
  }
  const organizations = (await listOrganizationIds(db)).sort()
  await nameMakers(db)
  for (const id of organizations) await endTokensOfNothing(db, id)
  let rows = 0
  for (const table of Object.keys(AUTHENTICATED) as AuthenticatedTable[]) rows += await authenticateTable(db, table)
  for (const id of organizations) {
    await recordEvent(
      db, systemOf(id), { action: 'integrity.adopt', resource_type: 'organization', resource_id: id, details: { rows } }
    )
  }
  return { key, rows }
}

// Today a token ends with the last part of the hierarchy that it was narrowed to; before, it stayed and was listed
// without any.
async function endTokensOfNothing (db: Db, organizationId: string) {
  const tokens = await lockTokensOfNothing(db, organizationId)
  if (tokens.length === 0) return
  await recordEvent(db, systemOf(organizationId), ...endingsOf(tokens, 'integrity.adopt'))
  await deleteTokens(db, organizationId, tokens)
}

// A row that stays as it is is reported once in a while, and no more in a minute than somebody can read.
const SAME_ROW = 10 * 60_000
const MINUTE = 60_000
const MOST_A_MINUTE = 600

const toStandardError: ViolationLog = {
  warn: (details, message) => {
    process.stderr.write(`${message}: ${JSON.stringify(details)}\n`)
  }
}

/** Makes and checks MACs under a row key; what does not verify is recorded through `db`. */
function authorityFor (key: KeyObject, db: Db): RowAuthority {
  const reported = new LRUCache<string, true>({ max: 10_000, ttl: SAME_ROW })
  const pending = new Set<Promise<void>>()
  const matches = createRowChecker(key)
  let log = toStandardError
  let minute = { began: 0, reports: 0 }

  function isDue ({ table, row }: Violation): boolean {
    const { mac } = row
    const seen =
      `${table} ${authority.mac(table, row).toString('base64')} ${Buffer.isBuffer(mac) ? mac.toString('hex') : 'none'}`
    if (reported.has(seen)) return false
    if (Date.now() - minute.began > MINUTE) minute = { began: Date.now(), reports: 0 }
    if (++minute.reports > MOST_A_MINUTE) return false
    reported.set(seen, true)
    return true
  }

  const authority: RowAuthority = {
    fingerprint: rowKeyFingerprint(key),
    mac: (table, row) => rowMac(key, table, fieldsOf(table, row)),
    verifies: (table, row, mac) => mac !== null && matches(table, fieldsOf(table, row), mac),
    report (violation) {
      if (!isDue(violation)) return
      log.warn(describe(violation), 'a row was changed outside the service and is refused')
      const work = record(db, violation)
        .catch((error: unknown) => {
          log.warn({ err: databaseError(error) }, 'the integrity violation could not be recorded')
        })
        .finally(() => { pending.delete(work) })
      pending.add(work)
    },
    logTo (to) { log = to },
    async settled () { await Promise.all(pending) }
  }
  return authority
}

// What it is about, without hashes and whatever else somebody put into it.
function describe ({ table, row, about }: Violation) {
  const { id, organization_id, user_id, grant_id } = row
  return { table, id, organization_id, user_id, grant_id, ...about }
}

// In the organization that it concerns, or in those of the user. What is about neither, as a client, is in the log
// alone.
async function record (db: Db, { table, row, about }: Violation): Promise<void> {
  const { organization_id = row.organization_id, user_id = table === 'users' ? row.id : row.user_id } = about
  const organizations = typeof organization_id === 'string'
    ? [organization_id]
    : typeof user_id === 'number' ? (await listMemberships(db, user_id)).map(({ id }) => id) : []
  const id = row.id ?? about.user_id ?? row.user_id
  for (const organization of [...organizations].sort()) {
    await recordEvent(db, systemOf(organization), {
      action: 'integrity.violation',
      resource_type: table,
      resource_id: id === undefined ? null : String(id).slice(0, 64),
      details: { table }
    })
  }
}
