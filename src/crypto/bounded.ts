/** Expensive work was refused (503), because its queue was full or the work waited too long. The client may retry. */
export class WorkOverloaded extends Error {
  override readonly name: string = this.constructor.name
}

/**
 * Runs `work`, possibly after a wait in a queue. Rejects with the error of `work`, or with WorkOverloaded.
 *
 * @param patience the maximum wait in milliseconds; default: that of the gate
 */
export type Gate = <T>(work: () => Promise<T>, patience?: number) => Promise<T>

/** Calls `late` after these milliseconds. The returned function cancels the timer. */
export type After = (milliseconds: number, late: () => void) => () => void

const inRealTime: After = (milliseconds, late) => {
  const timer = setTimeout(late, milliseconds)
  return () => { clearTimeout(timer) }
}

const QUEUE_TIMEOUT_MS = 8_000

/** Runs at most `running` jobs at once and queues at most `waiting` jobs, each for at most `timeout` milliseconds. */
export function createGate (
  running: number, waiting: number, overloaded: () => WorkOverloaded, timeout = QUEUE_TIMEOUT_MS, after = inRealTime
): Gate {
  const queue: (() => void)[] = []
  let free = running

  return async function run (work, patience = timeout) {
    if (free > 0) {
      free--
    } else {
      if (queue.length >= waiting) throw overloaded()
      await new Promise<void>((resolve, reject) => {
        const cancel = after(patience, () => {
          queue.splice(queue.indexOf(go), 1)
          reject(overloaded())
        })
        const go = () => {
          cancel()
          resolve()
        }
        queue.push(go)
      })
    }
    try {
      return await work()
    } finally {
      // Pass the slot to the next queued job directly, so that a new job cannot overtake it.
      const next = queue.shift()
      if (next) next()
      else free++
    }
  }
}

/** A separate gate for each key. A gate is discarded after its last job. */
export function createGates (
  running: number, waiting: number, overloaded: () => WorkOverloaded, timeout = QUEUE_TIMEOUT_MS, after = inRealTime
): (key: string) => Gate {
  const gates = new Map<string, { gate: Gate, users: number }>()

  return (key) => async function run (work, patience) {
    const entry = gates.get(key) ?? { gate: createGate(running, waiting, overloaded, timeout, after), users: 0 }
    gates.set(key, entry)
    entry.users++
    try {
      return await entry.gate(work, patience)
    } finally {
      if (--entry.users === 0) gates.delete(key)
    }
  }
}
