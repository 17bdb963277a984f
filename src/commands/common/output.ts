import { StartError } from './open.ts'

let isHeard = false

/**
 * Writes to standard output as fast as who reads takes it, so that no more than a piece is in memory, and all of it is
 * out when a command ends. Throws a StartError where it cannot be written: nobody reads on, or there is no room.
 */
export async function write (piece: string | Uint8Array): Promise<void> {
  const { stdout } = process
  // Whoever wrote is told; an event that nobody hears would end the process with whatever it has still to clear away.
  if (!isHeard) stdout.on('error', () => {})
  isHeard = true
  const failed = await new Promise<NodeJS.ErrnoException | null | undefined>((resolve) => {
    stdout.write(piece, resolve)
  })
  if (failed) throw new StartError(`Standard output cannot be written (${failed.code})`)
}
