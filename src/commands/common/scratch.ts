import { existsSync, rmSync } from 'node:fs'
import { constants } from 'node:os'

const SIGNALS = ['SIGINT', 'SIGTERM'] as const
export type Signal = typeof SIGNALS[number]

// A removal is tried this often, with a pause between two attempts.
const REMOVALS = 50
const PAUSE_MS = 20
// How long a thread has, after the removal of the directory that it fills, to notice it.
const SETTLING_MS = 100

const registered = new Set<string>()
let making = 0
let interception: { act: (signal: Signal) => void, isFirst: boolean } | undefined
let isListening = false

/**
 * Creates a temporary file or directory: `make` creates it synchronously and returns its path, or throws if it exists.
 * SIGINT and SIGTERM remove the path and end the process. They are handled before the path exists, so that none of them
 * leaves it. Returns the path and a function that removes and unregisters it.
 */
export function makeScratch (make: () => string): { path: string, remove: () => void } {
  making++
  listen()
  try {
    const path = make()
    registered.add(path)
    return {
      path,
      remove: () => {
        remove(path)
        registered.delete(path)
        listen()
      }
    }
  } finally {
    making--
    listen()
  }
}

/**
 * Calls `act` at the first SIGINT or SIGTERM. Further signals remove the registered paths and end the process. Replaces
 * an earlier interception. Returns a function that restores the behaviour without interception.
 */
export function interceptSignal (act: (signal: Signal) => void): () => void {
  const mine = interception = { act, isFirst: true }
  listen()
  return () => {
    if (interception !== mine) return
    interception = undefined
    listen()
  }
}

/** Until the command begins, SIGINT and SIGTERM end the process. Call the returned function when the command begins. */
export function interceptStart (): () => void {
  const restore = interceptSignal((signal) => {
    process.stderr.write('Interrupted. Nothing was written.\n')
    endBy(signal)
  })
  // Waits for the next tick: by then, the command may have set its own interception, without a gap between the two.
  return () => { setImmediate(restore) }
}

/** The exit status of a process that a signal ends. */
export const statusOf = (signal: Signal): number => 128 + constants.signals[signal]

/** Removes all registered paths and ends the process. */
export function endBy (signal: Signal): never {
  removeRegistered()
  if (registered.size > 0) {
    // A thread that fills a directory can make it again, and ends when it misses a directory that it made before.
    pause(SETTLING_MS)
    removeRegistered()
  }
  process.exit(statusOf(signal))
}

function removeRegistered (): void {
  for (const path of registered) {
    try {
      remove(path)
    } catch {
      // Exit even if a path cannot be removed.
    }
  }
}

function listen (): void {
  const isNeeded = interception !== undefined || registered.size > 0 || making > 0
  if (isNeeded === isListening) return
  isListening = isNeeded
  for (const name of SIGNALS) {
    if (isNeeded) process.on(name, handle)
    else process.off(name, handle)
  }
}

function handle (signal: Signal): void {
  if (interception?.isFirst !== true) endBy(signal)
  interception.isFirst = false
  interception.act(signal)
}

// A database thread or another process may still write into the directory, and the retries of `rmSync` do not look for
// new files.
function remove (path: string): void {
  for (let attempt = 1; ; attempt++) {
    try {
      rmSync(path, { recursive: true, force: true })
    } catch (error) {
      if (attempt === REMOVALS) throw error
    }
    if (!existsSync(path) || attempt === REMOVALS) return
    pause(PAUSE_MS)
  }
}

const pause = (milliseconds: number) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds)
