// The clock for database timeouts. It stops while a long transaction uses the only connection, for a minute at most, so
// that queued requests do not time out meanwhile.

const MIN_RECHECK_MS = 25

let stoodStill = 0
let pausedAt: number | undefined
let pauses = 0

/** Elapsed milliseconds, without the time for which the clock was stopped. */
export function waitNow (): number {
  return (pausedAt ?? performance.now()) - stoodStill
}

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

/** Resolves after this many milliseconds by `waitNow`. */
export const pauseFor = (milliseconds: number): Promise<void> =>
  new Promise((resolve) => { afterWait(milliseconds, resolve) })

/** Calls `work` after this many milliseconds by `waitNow`. The returned function cancels the call. */
export const afterWait = (milliseconds: number, work: () => void): () => void =>
  atWaitTime(waitNow() + milliseconds, work)

/** Calls `work` when `waitNow` reaches `until`. The returned function cancels the call. */
export function atWaitTime (until: number, work: () => void): () => void {
  let timer = setTimeout(look, until - waitNow())
  function look () {
    const left = until - waitNow()
    if (left > 0) timer = setTimeout(look, Math.max(left, MIN_RECHECK_MS))
    else work()
  }
  return () => { clearTimeout(timer) }
}
