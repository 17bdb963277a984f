import { IntegrityError } from '../../crypto/at-rest.ts'
import { openBlob } from '../../crypto/blob.ts'
import { MasterKeyMissing, type Keyring } from '../../crypto/keyring.ts'
import { AUTHENTICATED, type AuthenticatedTable } from '../../db/rows/authenticated.ts'
import type { Db } from '../../db/database.ts'
import { verifyTable } from '../../repositories/keys/authenticated-rows.ts'
import type { KeyRow } from '../../repositories/keys/encryption-keys.ts'
import {
  listOwners, listStoredCurrents, listStoredFactors, listStoredKeys, listStoredVersions, type Owner
} from '../../repositories/secrets/sealed.ts'
import { secondFactorContext } from '../keys/contexts.ts'
import { openCurrent, openVersion } from '../documents/documents.ts'
import { dataKeyOf, keyCheckOf, keyStringOf, saltOf, storageKeyOf } from '../keys/keys.ts'

// Decrypts all encrypted values in a database, as the service does on request, to show that a restored backup works.

interface Rehearsed {
  /** The numbers of decrypted values. `of_clients` are client-managed: decrypted with the storage key only. */
  versions: number
  documents: number
  of_clients: number
  /** The number of versions of removed histories, which a background job will delete. */
  removed: number
  keys: number
  rows: number
}

/** The tables whose rows `openEverything` decrypts or verifies. A table is listed twice if both apply. */
export const OPENED: readonly string[] = [
  'second_factors', 'encryption_keys', 'secret_versions', 'secrets', ...Object.keys(AUTHENTICATED)
]

/**
 * Decrypts and verifies all rows. Calls `tell` with a line for each value that cannot be decrypted and for each row
 * with a wrong MAC. Calls `onRow` for each row.
 */
export async function openEverything (
  db: Db, keyring: Keyring, tell: (line: string) => void, onRow: () => void
): Promise<Rehearsed> {
  const found: Rehearsed = { versions: 0, documents: 0, of_clients: 0, removed: 0, keys: 0, rows: 0 }
  const opens = opening(tell)
  for await (const factor of all(0, (after: number) => listStoredFactors(db, after), ({ user_id }) => user_id)) {
    onRow()
    if (opens(`second_factors ${factor.user_id}`, () => keyring.unwrap(factor.secret, secondFactorContext(factor)))) {
      found.keys++
    }
  }
  for await (const owner of all('', (after: string) => listOwners(db, after), ({ id }) => id)) {
    await openOrganization(db, keyring, owner, found, opens, onRow)
  }
  for (const table of Object.keys(AUTHENTICATED) as AuthenticatedTable[]) {
    found.rows += await verifyTable(db, table, (row) => {
      tell(`${table} ${AUTHENTICATED[table].key.map((name) => shown(row[name])).join(' ')}: changed outside the service`)
    }, onRow)
  }
  return found
}

type Opens = (what: string, open: () => unknown) => boolean

async function openOrganization (
  db: Db, keyring: Keyring, owner: Owner, found: Rehearsed, opens: Opens, onRow: () => void
): Promise<void> {
  if (!opens(`organizations ${owner.id}`, () => storageKeyOf(keyring, owner))) return
  found.keys++
  const storageKey = storageKeyOf(keyring, owner)
  for await (const key of all(0, (after: number) => listStoredKeys(db, owner.id, after), ({ id }) => id)) {
    onRow()
    const wrapped = () => [saltOf, keyStringOf, keyCheckOf, key.data_key === null ? () => undefined : dataKeyOf]
      .map((open) => open(keyring, key))
    if (opens(`encryption_keys ${key.id}`, wrapped)) found.keys++
  }
  const { id: organization_id } = owner
  const nextVersions = (after: number) => listStoredVersions(db, organization_id, after)
  for await (const { version, secret, isRemoved, key } of all(0, nextVersions, ({ version }) => version.id)) {
    onRow()
    if (secret === null && isRemoved) found.removed++
    else if (opens(`secret_versions ${organization_id} ${version.id}`, () => {
      if (secret === null) throw new IntegrityError()
      openContent(keyring, key, openVersion(storageKey, organization_id, { version, secret, sealed: version.sealed }))
    })) {
      found.versions++
      if (!isOurs(key)) found.of_clients++
    }
  }
  const nextCurrents = (after: string) => listStoredCurrents(db, organization_id, after)
  for await (const current of all('', nextCurrents, ({ secret }) => secret.id)) {
    onRow()
    const { secret, secret: { sealed }, key, recorded_revision, project_key_version } = current
    if (sealed !== null && opens(`secrets ${organization_id} ${secret.id}`, () => {
      const state = { organization_id, project: { key_version: project_key_version } }
      openContent(keyring, key, openCurrent(storageKey, state, { ...secret, sealed, recorded_revision }))
    })) {
      found.documents++
      if (!isOurs(key)) found.of_clients++
    }
  }
}

// Without a stored data key, the client manages the key, so the server cannot decrypt the content.
const isOurs = (key: KeyRow | null) => key !== null && key.data_key !== null

function openContent (keyring: Keyring, key: KeyRow | null, blob: string): void {
  if (key === null) throw new IntegrityError()
  if (!isOurs(key)) return
  const plain = openBlob(dataKeyOf(keyring, key), blob)
  if (plain === undefined) throw new IntegrityError()
  plain.fill(0)
}

const opening = (tell: (line: string) => void): Opens => (what, open) => {
  try {
    open()
    return true
  } catch (error) {
    if (!(error instanceof IntegrityError || error instanceof MasterKeyMissing)) throw error
    tell(`${what}: ${error instanceof MasterKeyMissing ? error.message : 'does not open'}`)
    return false
  }
}

const shown = (value: unknown) => Buffer.isBuffer(value) ? value.toString('hex').slice(0, 16) : String(value)

// Yields all rows of a list that is loaded in pages.
async function * all<T, K> (first: K, next: (after: K) => Promise<T[]>, idOf: (row: T) => K): AsyncGenerator<T> {
  for (let after = first; ;) {
    const page = await next(after)
    if (page.length === 0) return
    yield * page
    after = idOf(page.at(-1)!)
  }
}
