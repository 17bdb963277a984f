import { codeOf, type Db } from '../db/database.ts'
import { master_key_canaries } from '../db/tables.ts'

/** Every master key that wraps something in this database; none on a database without tables. */
export async function listCanaries (db: Db): Promise<{ key_id: string, canary: Buffer }[]> {
  try {
    return await db.select({ key_id: master_key_canaries.key_id, canary: master_key_canaries.canary }).from(master_key_canaries)
  } catch (error) {
    if (codeOf(error) === '42P01') return []
    throw error
  }
}

/** Remembers a master key that may wrap from now on. */
export async function createCanary (db: Db, key_id: string, canary: Buffer): Promise<void> {
  await db.insert(master_key_canaries).values({ key_id, canary }).onConflictDoNothing()
}
