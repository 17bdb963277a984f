import { rmSync } from 'node:fs'
import { constants } from 'node:os'

const SIGNALS = ['SIGINT', 'SIGTERM'] as const
export type Signal = typeof SIGNALS[number]

const registered = new Set<string>()
let interception: { act: (signal: Signal) => void, isFirst: boolean } | undefined
let isListening = false

/**
 * Registers a temporary file or directory that this process has just created. Call it right after the synchronous call
 * that creates the path, so that no signal comes between, and a path of another process is never removed. SIGINT and
 * SIGTERM remove the path and end the process. Returns a function that removes and unregisters the path.
 */
export function makeScratch (path: string): () => void {
  registered.add(path)
  listen()
  return () => {
    remove(path)
    registered.delete(path)
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
  for (const path of registered) {
    try {
      remove(path)
    } catch {
      // Exit even if a path cannot be removed.
    }
  }
  process.exit(statusOf(signal))
}

function listen (): void {
  const isNeeded = interception !== undefined || registered.size > 0
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

// Retries, because a database thread or another process may still write into the directory.
function remove (path: string): void {
  rmSync(path, { recursive: true, force: true, maxRetries: 10 })
}
