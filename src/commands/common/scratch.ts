import { rmSync } from 'node:fs'
import { constants } from 'node:os'

const SIGNALS = ['SIGINT', 'SIGTERM'] as const
export type Signal = typeof SIGNALS[number]

const registered = new Set<string>()
let isIntercepting = false
let firstSignal: ((signal: Signal) => void) | undefined
let isListening = false

/**
 * Registers the path of a temporary file or directory before it is created. SIGINT and SIGTERM remove the path and end
 * the process. Returns a function that removes and unregisters the path.
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
 * Calls `act` at the first SIGINT or SIGTERM. Further signals remove the scratch and end the process. Returns a
 * function that restores the behaviour before.
 */
export function interceptSignal (act: (signal: Signal) => void): () => void {
  isIntercepting = true
  firstSignal = act
  listen()
  return () => {
    isIntercepting = false
    firstSignal = undefined
    listen()
  }
}

/** The exit status of a process that a signal ends. */
export const statusOf = (signal: Signal): number => 128 + constants.signals[signal]

/** Removes the scratch and ends the process. */
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
  const isNeeded = isIntercepting || registered.size > 0
  if (isNeeded === isListening) return
  isListening = isNeeded
  for (const name of SIGNALS) {
    if (isNeeded) process.on(name, handle)
    else process.off(name, handle)
  }
}

function handle (signal: Signal): void {
  if (firstSignal === undefined) endBy(signal)
  const act = firstSignal
  firstSignal = undefined
  act(signal)
}

// Retries, because a database thread or another process may still write into the directory.
function remove (path: string): void {
  rmSync(path, { recursive: true, force: true, maxRetries: 5 })
}
