import { StartError } from './open.ts'

let isHeard = false

/**
 * Writes to standard output and waits until the chunk is written, so that memory stays bounded and no output is lost at
 * exit. Throws a StartError on a write error, such as a closed pipe or a full disk.
 */
export async function write (piece: string | Uint8Array): Promise<void> {
  const { stdout } = process
  // The write callback reports errors. An unhandled `error` event would end the process before its cleanup.
  if (!isHeard) stdout.on('error', () => {})
  isHeard = true
  const failed = await new Promise<NodeJS.ErrnoException | null | undefined>((resolve) => {
    stdout.write(piece, resolve)
  })
  if (failed) throw new StartError(`Standard output cannot be written (${failed.code})`)
}
