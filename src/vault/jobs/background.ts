/** A background job. Its work list is in the database, so that another instance or a restart can continue. */
export interface Background {
  /** Starts at once, and then checks every half minute for work that another instance left. */
  start (): void
  /** Checks for work now, because a request has just created some. */
  wake (): void
  /** Stops after the current batch. */
  stop (): Promise<void>
}

const LOOK_EVERY = 30_000
const SHORTEST_REST = 5

/** Runs `work` on each wake-up, one run at a time. `work` calls `isStopped` before each batch and pauses after it. */
export function createBackground (work: (isStopped: () => boolean) => Promise<void>, every = LOOK_EVERY): Background {
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

/** Combines jobs that run independently of each other. */
export function sideBySide (...all: readonly Background[]): Background {
  return {
    start () { for (const one of all) one.start() },
    wake () { for (const one of all) one.wake() },
    async stop () { await Promise.all(all.map((one) => one.stop())) }
  }
}

/** Pauses for as long as the last batch took, and at least `least` milliseconds, so that requests have priority. */
export const rest = (began: number, least = SHORTEST_REST): Promise<void> =>
  new Promise((resolve) => { setTimeout(resolve, Math.max(least, performance.now() - began)) })
