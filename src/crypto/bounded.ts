/** The queue of expensive work is full (503, the client may retry). Subclasses name the work. */
export class WorkOverloaded extends Error {
  override readonly name: string = this.constructor.name
}

/** Runs the work, after queued work if necessary. Rejects with its error, or with a WorkOverloaded. */
export type Gate = <T>(work: () => Promise<T>) => Promise<T>

/** Calls `late` after a time by some clock. The returned function cancels the call. */
export type After = (milliseconds: number, late: () => void) => () => void

const inRealTime: After = (milliseconds, late) => {
  const timer = setTimeout(late, milliseconds)
  return () => { clearTimeout(timer) }
}

const PATIENCE = 8_000

/** Runs at most `running` jobs at once and queues at most `waiting` jobs, each for at most `patience` milliseconds. */
export function createGate (
  running: number, waiting: number, overloaded: () => WorkOverloaded, patience = PATIENCE, after = inRealTime
): Gate {
  const queue: (() => void)[] = []
  let free = running

  return async function run (work) {
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

/** A separate gate for each key, which exists while jobs run or wait in it. */
export function createGates (
  running: number, waiting: number, overloaded: () => WorkOverloaded, patience = PATIENCE, after = inRealTime
): (key: string) => Gate {
  const gates = new Map<string, { gate: Gate, users: number }>()

  return (key) => async function run (work) {
    const one = gates.get(key) ?? { gate: createGate(running, waiting, overloaded, patience, after), users: 0 }
    gates.set(key, one)
    one.users++
    try {
      return await one.gate(work)
    } finally {
      if (--one.users === 0) gates.delete(key)
    }
  }
}
