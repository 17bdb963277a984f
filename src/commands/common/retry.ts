import { setTimeout as sleep } from 'node:timers/promises'
import { databaseError, DatabaseUnavailable } from '../../db/database.ts'

/** Returns the milliseconds before the next attempt. Throws the final error if there is no further attempt. */
export type NextPause = (error: unknown, attempt: number) => number

/** Repeats `work` until it succeeds or `nextPause` throws. An abort ends only a pause: `work` must check `abort`. */
export async function retry<T> (work: () => Promise<T>, nextPause: NextPause, abort?: AbortSignal): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    let pause
    try {
      return await work()
    } catch (error) {
      pause = nextPause(error, attempt)
    }
    await sleep(pause, undefined, abort && { signal: abort }).catch(() => {})
  }
}

/** Longer than a key rotation, which can lock a row for up to a minute. */
export const DATABASE_TIMEOUT_MS = 90_000
const DATABASE_PAUSE_MS = 500

/** Retries while a row is locked or the database is unavailable. */
export function retryDatabase<T> (work: () => Promise<T>, timeoutMs = DATABASE_TIMEOUT_MS): Promise<T> {
  const until = performance.now() + timeoutMs
  return retry(work, (error) => {
    const shown = databaseError(error)
    if (!(shown instanceof DatabaseUnavailable) || performance.now() > until) throw shown
    return DATABASE_PAUSE_MS
  })
}
