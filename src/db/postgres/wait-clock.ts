// The clock for all waits on the database. It stops while a long operation, a minute at most, uses the only connection,
// so that queued requests do not time out because of that operation.

// Minimum milliseconds before a paused timer checks again.
const LOOK_AGAIN = 25

let stoodStill = 0
let pausedAt: number | undefined
let pauses = 0

/** Elapsed milliseconds, without the time for which the clock was stopped. */
export function waitNow (): number {
  return (pausedAt ?? performance.now()) - stoodStill
}

/** Whether the clock is stopped. */
export const areWaitsPaused = (): boolean => pausedAt !== undefined

/** Stops the clock until the returned function is called. */
export function pauseWaits (): () => void {
  if (pauses++ === 0) pausedAt = performance.now()
  let isPaused = true
  return () => {
    if (!isPaused) return
    isPaused = false
    if (--pauses > 0) return
    stoodStill += performance.now() - pausedAt!
    pausedAt = undefined
  }
}

/** Resolves after so many milliseconds of the clock. */
export const pauseFor = (milliseconds: number): Promise<void> =>
  new Promise((resolve) => { atWaitTime(waitNow() + milliseconds, resolve) })

/** Calls `work` when the clock has reached `until`; the returned function cancels that. */
export function atWaitTime (until: number, work: () => void): () => void {
  let timer = setTimeout(look, until - waitNow())
  function look () {
    const left = until - waitNow()
    if (left > 0) timer = setTimeout(look, Math.max(left, LOOK_AGAIN))
    else work()
  }
  return () => { clearTimeout(timer) }
}
