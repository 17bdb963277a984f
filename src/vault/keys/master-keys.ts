import { makeCanary, type Keyring } from '../../crypto/keyring.ts'
import { authorityOf, type Db } from '../../db/database.ts'
import {
  lockCanary, type FactorRow, type NamedChainKeyRow, type ServiceKeyRow, type StorageKeyRow, type WrappedKeyRow
} from '../../repositories/keys/master-keys.ts'
import { chainKeyContext, keyContext, secondFactorContext, serviceKeyContext, storageKeyContext } from './contexts.ts'

/**
 * Locks the canary of the current master key. Call this before each transaction stores a newly wrapped value. With this
 * lock, a concurrent re-wrap cannot miss the new row and retire the master key.
 */
export async function lockCurrentCanary (db: Db, keyring: Keyring): Promise<void> {
  await lockCanary(db, keyring.currentId, makeCanary(keyring, authorityOf(db).fingerprint))
}

/** A row after its values were wrapped by the newest master key, and the number of values that were changed. */
export interface Rewrapped<Row> { row: Row, values: number }

// Throws MasterKeyMissing or IntegrityError if a value cannot be unwrapped.
const rewrapper = <Row extends { [C in Column]: Buffer | null }, Column extends string>(
  columns: readonly Column[], contextOf: (row: Row, column: Column) => Buffer
) => (keyring: Keyring, row: Row): Rewrapped<Row> => {
    const changed: { [C in Column]?: Buffer } = {}
    for (const column of columns) {
      const wrapped = row[column]
      if (wrapped === null || keyring.idOf(wrapped) === keyring.currentId) continue
      const context = contextOf(row, column)
      changed[column] = keyring.wrap(keyring.unwrap(wrapped, context), context)
    }
    return { row: { ...row, ...changed }, values: Object.keys(changed).length }
  }

export const rewrapStorageKey = rewrapper(['storage_key'], ({ id }: StorageKeyRow) => storageKeyContext(id))
export const rewrapServiceKey = rewrapper(['wrapped'], ({ id }: ServiceKeyRow) => serviceKeyContext(id))
export const rewrapChainKey = rewrapper(['wrapped'], (row: NamedChainKeyRow) => chainKeyContext(row))
export const rewrapFactor = rewrapper(['secret'], ({ id, factor_id }: FactorRow) =>
  secondFactorContext({ user_id: id, id: factor_id }))
export const rewrapKey = rewrapper(['key_string', 'data_key', 'key_check', 'salt'], (row: WrappedKeyRow, column) =>
  keyContext(row, column))
