import { rmSync } from 'node:fs'
import { constants } from 'node:os'

const SIGNALS = ['SIGINT', 'SIGTERM'] as const

const held = new Set<string>()

/**
 * Registers a temporary file or folder, which a signal then removes too. Call this before creating it. Returns a
 * function that removes it.
 */
export function makeScratch (path: string): () => void {
  if (held.size === 0) for (const name of SIGNALS) process.on(name, end)
  held.add(path)
  return () => {
    remove(path)
    held.delete(path)
    if (held.size === 0) for (const name of SIGNALS) process.off(name, end)
  }
}

function end (signal: typeof SIGNALS[number]): never {
  for (const path of held) {
    try {
      remove(path)
    } catch {
      // Exit even if a path cannot be removed.
    }
  }
  process.exit(128 + constants.signals[signal])
}

// Retries, because a database thread or another process may still write into the folder.
function remove (path: string): void {
  rmSync(path, { recursive: true, force: true, maxRetries: 5 })
}
