/** A background job. Its work list is in the database, so that any instance can continue the work. */
export interface Background {
  /** Runs the job now, and then regularly, because another instance may have left work undone. */
  start (): void
  /** Runs the job now, because a request has created work. */
  wake (): void
  /** Stops the job after the current batch. */
  stop (): Promise<void>
}

const INTERVAL_MS = 30_000
const MIN_REST_MS = 5

/**
 * Runs `work` on each wake-up. Only one run takes place at a time. Long work must check `isStopped` before each batch,
 * and should call `rest` after each batch.
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

/** Pauses as long as the last batch took, at least `least` milliseconds, so that requests get enough CPU time. */
export const rest = (began: number, least = MIN_REST_MS): Promise<void> =>
  new Promise((resolve) => { setTimeout(resolve, Math.max(least, performance.now() - began)) })
