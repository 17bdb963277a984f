import { setTimeout as sleep } from 'node:timers/promises'
import { databaseError, DatabaseUnavailable } from '../db/database.ts'

/** Milliseconds. A rotation may have a key's row for a minute. */
export const PATIENCE = 90_000
const PAUSE = 500

/** Tries again for so long: a row that somebody else has, or a database that is restarted, is waited for. */
export async function insist<T> (work: () => Promise<T>, patience = PATIENCE): Promise<T> {
  for (const until = performance.now() + patience; ;) {
    try {
      return await work()
    } catch (error) {
      const shown = databaseError(error)
      if (!(shown instanceof DatabaseUnavailable) || performance.now() > until) throw shown
    }
    await sleep(PAUSE)
  }
}
