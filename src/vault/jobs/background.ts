/** A background job. The work list is in the database, so that another instance can continue the work. */
export interface Background {
  /** Runs the job now and then regularly, because another instance may have left work. */
  start (): void
  /** Runs the job now, because a request has created work. */
  wake (): void
  /** Stops after the current batch. */
  stop (): Promise<void>
}

const INTERVAL_MS = 30_000
const MIN_REST_MS = 5

/**
 * Runs `work` on each wake-up, one run at a time. Long work must check `isStopped` before each batch, and should call
 * `rest` after it.
 */
export function createBackground (work: (isStopped: () => boolean) => Promise<void>, every = INTERVAL_MS): Background {
  let timer: NodeJS.Timeout | undefined
  let running: Promise<void> | undefined
  let again = false
  let stopped = false

  function wake () {
    if (stopped) return
    again = true
    if (running !== undefined) return
    running = run().finally(() => { running = undefined })
  }

  async function run () {
    while (again) {
      again = false
      await work(() => stopped)
    }
  }

  return {
    start () {
      timer = setInterval(wake, every).unref()
      wake()
    },
    wake,
    async stop () {
      stopped = true
      again = false
      clearInterval(timer)
      await running
    }
  }
}

export function sideBySide (...all: readonly Background[]): Background {
  return {
    start () { for (const one of all) one.start() },
    wake () { for (const one of all) one.wake() },
    async stop () { await Promise.all(all.map((one) => one.stop())) }
  }
}

/** Pauses for as long as the last batch took, and at least `least` milliseconds, so that requests have priority. */
export const rest = (began: number, least = MIN_REST_MS): Promise<void> =>
  new Promise((resolve) => { setTimeout(resolve, Math.max(least, performance.now() - began)) })
