import { makeCanary, type Keyring } from '../../crypto/keyring.ts'
import { authorityOf, type Db } from '../../db/database.ts'
import {
  lockCanary, type FactorRow, type NamedChainKeyRow, type ServiceKeyRow, type StorageKeyRow, type WrappedKeyRow
} from '../../repositories/keys/master-keys.ts'
import {
  chainKeyContext, keyContext, secondFactorContext, serviceKeyContext, storageKeyContext, type KeyColumn
} from './contexts.ts'

/**
 * Locks the canary of the current master key. Every transaction that stores a newly wrapped value calls this first. So
 * a re-wrap cannot miss the new row and retire the master key.
 */
export async function lockCurrentCanary (db: Db, keyring: Keyring): Promise<void> {
  await lockCanary(db, keyring.currentId, makeCanary(keyring, authorityOf(db).fingerprint))
}

/** A row under the newest master key, and the number of changed values. */
export interface Rewrapped<Row> { row: Row, values: number }

/** Throws MasterKeyMissing or IntegrityError when the value cannot be unwrapped. */
export function rewrapStorageKey (keyring: Keyring, row: StorageKeyRow): Rewrapped<StorageKeyRow> {
  const storage_key = rewrapValue(keyring, row.storage_key, storageKeyContext(row.id))
  return { row: { ...row, storage_key }, values: storage_key === row.storage_key ? 0 : 1 }
}

/** Throws MasterKeyMissing or IntegrityError when the value cannot be unwrapped. */
export function rewrapServiceKey (keyring: Keyring, row: ServiceKeyRow): Rewrapped<ServiceKeyRow> {
  const wrapped = rewrapValue(keyring, row.wrapped, serviceKeyContext(row.id))
  return { row: { ...row, wrapped }, values: wrapped === row.wrapped ? 0 : 1 }
}

/** Throws MasterKeyMissing or IntegrityError when the value cannot be unwrapped. */
export function rewrapChainKey (keyring: Keyring, row: NamedChainKeyRow): Rewrapped<NamedChainKeyRow> {
  const wrapped = rewrapValue(keyring, row.wrapped, chainKeyContext(row))
  return { row: { ...row, wrapped }, values: wrapped === row.wrapped ? 0 : 1 }
}

/** Throws MasterKeyMissing or IntegrityError when the value cannot be unwrapped. */
export function rewrapFactor (keyring: Keyring, row: FactorRow): Rewrapped<FactorRow> {
  const secret = rewrapValue(keyring, row.secret, secondFactorContext({ user_id: row.id, id: row.factor_id }))
  return { row: { ...row, secret }, values: secret === row.secret ? 0 : 1 }
}

/** Throws MasterKeyMissing or IntegrityError when a value cannot be unwrapped. */
export function rewrapKey (keyring: Keyring, row: WrappedKeyRow): Rewrapped<WrappedKeyRow> {
  const again = (column: KeyColumn) =>
    row[column] === null ? null : rewrapValue(keyring, row[column], keyContext(row, column))
  const wrapped = {
    key_string: again('key_string'),
    data_key: again('data_key'),
    key_check: again('key_check'),
    salt: rewrapValue(keyring, row.salt, keyContext(row, 'salt'))
  }
  const changed = (Object.keys(wrapped) as KeyColumn[]).filter((column) => wrapped[column] !== row[column])
  return { row: { ...row, ...wrapped }, values: changed.length }
}

// Returns the same buffer when it is already under the newest master key.
function rewrapValue (keyring: Keyring, wrapped: Buffer, context: Buffer): Buffer {
  return keyring.idOf(wrapped) === keyring.currentId ? wrapped : keyring.wrap(keyring.unwrap(wrapped, context), context)
}
