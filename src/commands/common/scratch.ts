import { rmSync } from 'node:fs'
import { constants } from 'node:os'

const SIGNALS = ['SIGINT', 'SIGTERM'] as const

const registered = new Set<string>()

/**
 * Registers the path of a temporary file or directory before it is created. SIGINT and SIGTERM remove the path and end
 * the process. Returns a function that removes and unregisters the path.
 */
export function makeScratch (path: string): () => void {
  if (registered.size === 0) for (const name of SIGNALS) process.on(name, end)
  registered.add(path)
  return () => {
    remove(path)
    registered.delete(path)
    if (registered.size === 0) for (const name of SIGNALS) process.off(name, end)
  }
}

function end (signal: typeof SIGNALS[number]): never {
  for (const path of registered) {
    try {
      remove(path)
    } catch {
      // Exit even if a path cannot be removed.
    }
  }
  process.exit(128 + constants.signals[signal])
}

// Retries, because a database thread or another process may still write into the directory.
function remove (path: string): void {
  rmSync(path, { recursive: true, force: true, maxRetries: 5 })
}
