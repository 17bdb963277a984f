import { AsyncLocalStorage } from 'node:async_hooks'
import { createReadStream } from 'node:fs'
import { refuse } from './errors.ts'

const CHUNK_BYTES = 256 * 1024

/** The name of a file for messages; `-` is standard input. */
export const shownName = (file: string): string => file === '-' ? 'Standard input' : file

/** Reads a file, or standard input (`-`), in chunks. Throws a StartError on a read error. */
export async function * readChunks (file: string): AsyncGenerator<Buffer> {
  const source = file === '-' ? process.stdin : createReadStream(file, { highWaterMark: CHUNK_BYTES })
  try {
    yield * source as AsyncIterable<Buffer>
  } catch (error) {
    refuse(`${shownName(file)} cannot be read (${(error as NodeJS.ErrnoException).code})`)
  }
}

/** The terminal of a command that runs inside the service. */
export interface Terminal {
  write (chunk: string | Uint8Array): Promise<void>
  warn (line: string): void
}

const terminal = new AsyncLocalStorage<Terminal>()

/** Runs `act`, whose `write` and `warn` use this terminal instead of the standard streams of this process. */
export const withTerminal = <T>(own: Terminal, act: () => Promise<T>): Promise<T> => terminal.run(own, act)

let clearDisplay = () => {}

/** Sets a function that clears the progress display before other output. */
export function setDisplay (clear: () => void): void {
  clearDisplay = clear
}

let hasListener = false

/**
 * Writes to standard output and waits until the chunk is written, so that memory stays bounded and no output is lost at
 * exit. Throws a StartError on a write error, such as a closed pipe or a full disk.
 */
export async function write (chunk: string | Uint8Array): Promise<void> {
  const own = terminal.getStore()
  if (own !== undefined) return own.write(chunk)
  clearDisplay()
  const { stdout } = process
  // The callback of `write` reports errors. Without a listener, the `error` event ends the process before its cleanup.
  if (!hasListener) stdout.on('error', () => {})
  hasListener = true
  const failed = await new Promise<NodeJS.ErrnoException | null | undefined>((resolve) => {
    stdout.write(chunk, resolve)
  })
  if (failed) refuse(`Standard output cannot be written (${failed.code})`)
}

/** Writes a line to standard error. */
export function warn (line: string): void {
  const own = terminal.getStore()
  if (own !== undefined) return own.warn(line)
  clearDisplay()
  process.stderr.write(`${line}\n`)
}
