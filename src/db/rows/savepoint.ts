import { findAuthority, setAuthority } from './authority.ts'
import type { Db } from '../postgres/handle.ts'

/**
 * Runs `fn` in a savepoint of the caller's transaction, which can continue after an error of `fn`. Without a
 * transaction, runs `fn` in a transaction of its own.
 */
export const savepoint = async <T>(db: Db, fn: (db: Db) => Promise<T>): Promise<T> =>
  db.transaction(async (nested) => {
    setAuthority(nested, findAuthority(db))
    return fn(nested)
  })
