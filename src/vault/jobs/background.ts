/**
 * Work that nobody waits for. What there is to do stands in the database alone, so a restart or another instance goes
 * on.
 */
export interface Background {
  /** Begins at once, and looks again every half minute for what another instance left. */
  start (): void
  /** Looks now: a request has just left something to do. */
  wake (): void
  /** Ends after the piece that is under way. */
  stop (): Promise<void>
}

const LOOK_EVERY = 30_000
const SHORTEST_REST = 5

/** Runs `work` whenever somebody wakes it, one at a time. It asks `isStopped` before each piece and rests after it. */
export function createBackground (
  work: (isStopped: () => boolean) => Promise<void>, every = LOOK_EVERY
): Background {
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
      timer = setInterval(wake, every)
      timer.unref()
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

/** Several kinds of work as one: each goes on by itself, and none waits for another. */
export function sideBySide (...all: readonly Background[]): Background {
  return {
    start () { for (const one of all) one.start() },
    wake () { for (const one of all) one.wake() },
    async stop () { await Promise.all(all.map((one) => one.stop())) }
  }
}

/** A pause as long as the piece before it took, and `least`: requests come first. */
export async function rest (began: number, least = SHORTEST_REST): Promise<void> {
  await new Promise((resolve) => { setTimeout(resolve, Math.max(least, performance.now() - began)) })
}
