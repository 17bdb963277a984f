import { rmSync } from 'node:fs'
import { constants } from 'node:os'

const SIGNALS = ['SIGINT', 'SIGTERM'] as const

const held = new Set<string>()

/**
 * Has a file or folder that a command makes for a while taken away when a signal ends the command, too: call it before
 * there is something to take away. Answers how to do that.
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
      // What is left is no reason to go on.
    }
  }
  process.exit(128 + constants.signals[signal])
}

// The thread of a database, or another process, may be writing into it.
function remove (path: string): void {
  rmSync(path, { recursive: true, force: true, maxRetries: 5 })
}
