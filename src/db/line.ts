import { databaseError, DatabaseUnavailable, isAway } from './errors.ts'
import { atWaitTime, waitNow } from './wait-clock.ts'

/** Who waits for a turn. */
export interface Waiter {
  reject (error: unknown): void
  /** When its patience ends, by the process's clock: from when it came first, however often it came back. */
  until?: number
}

export interface Line<W extends Waiter> {
  join (waiter: W): void
  /** Back to the front, in their order, but for whoever is late. */
  rejoin (waiters: readonly W[]): void
  /** Takes those whose turn it is: the first, and those behind it for as long as they may be `together`. */
  take (most: number, together: (waiter: W) => boolean): W[]
}

// Milliseconds in line, before a statement's own deadlines begin.
const MOST_WAIT = 5_000

const tooLong = () => new DatabaseUnavailable('Too many are waiting in line')

/**
 * Whether somebody's patience has ended, and refuses them then: what they wanted is not decided any more, since they
 * may have asked for something else meanwhile.
 */
export function isLate (waiter: Waiter): boolean {
  if (waiter.until === undefined || waiter.until > waitNow()) return false
  waiter.reject(tooLong())
  return true
}

/**
 * A line of those who would spoil each other's work. Nobody stands in it for ever: whoever waited too long is refused,
 * and so are all behind those for whom the database was not there, instead of each finding that out by a deadline of
 * its own.
 *
 * @param serve serves some of those who wait; what it throws is already known to those it took
 */
export function createLine<W extends Waiter> (serve: (line: Line<W>) => Promise<void>): Line<W> {
  let waiting: W[] = []
  let isServing = false
  const cancels = new Map<W, () => void>()

  const line: Line<W> = {
    join (waiter) {
      waiting.push(waiter)
      watch(waiter)
      if (isServing) return
      isServing = true
      // Who comes in the same turn of the event loop is served together.
      setImmediate(run)
    },
    rejoin (waiters) {
      const back = waiters.filter((waiter) => !isLate(waiter))
      waiting = [...back, ...waiting]
      back.forEach(watch)
    },
    take (most, together) {
      const end = waiting.findIndex((waiter, i) => i > 0 && (i === most || !together(waiter) || !together(waiting[0]!)))
      const taken = waiting.splice(0, end === -1 ? waiting.length : end)
      taken.forEach(unwatch)
      return taken
    }
  }
  return line

  async function run () {
    while (waiting.length > 0) {
      try {
        await serve(line)
      } catch (error) {
        if (isAway(error)) refuse(waiting, databaseError(error))
      }
    }
    isServing = false
  }

  function watch (waiter: W) {
    waiter.until ??= waitNow() + MOST_WAIT
    cancels.set(waiter, atWaitTime(waiter.until, () => { refuse([waiter], tooLong()) }))
  }

  function unwatch (waiter: W) {
    cancels.get(waiter)?.()
    cancels.delete(waiter)
  }

  function refuse (waiters: readonly W[], error: Error) {
    waiting = waiting.filter((waiter) => !waiters.includes(waiter))
    waiters.forEach(unwatch)
    for (const waiter of waiters) waiter.reject(error)
  }
}
