import { setTimeout as sleep } from 'node:timers/promises'
import { databaseError, DatabaseUnavailable } from '../../db/database.ts'

/** The pause in milliseconds before the next attempt. Throws the error to report when there is none. */
export type NextPause = (error: unknown, attempt: number) => number

/** Repeats the work until it succeeds or `nextPause` throws. An abort ends only the pause; the work has to check it. */
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

/** A rotation locks the row of a key for up to a minute. */
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
