import { AsyncLocalStorage } from 'node:async_hooks'
import { createReadStream } from 'node:fs'
import { escapeUnprintable } from '../../../schemas/unprintable.ts'
import { refuse } from './command-errors.ts'

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

/** Shows the progress of a long command, and ends the command at SIGINT and SIGTERM. */
export interface Progress {
  /** Aborted by SIGINT and SIGTERM; the reason is an Interrupted. */
  signal: AbortSignal
  /** Begins a step, such as `Restoring`. `unit` is a plural noun; `bytes` are shown in MiB. */
  begin (step: string, unit: string, total: number | undefined): void
  /** Adds `by` units to the progress of the step. Throws an Interrupted after SIGINT or SIGTERM. */
  advance (by?: number): void
  /** Sets the sentence that an interruption prints about the state of the data. */
  leaves (left: string): void
}

export interface ProgressOptions {
  /** Shows no progress, because a program reads standard output. */
  json?: boolean | undefined
  /** Standard output is data: shows no progress if standard output is a terminal. */
  isData?: boolean
  /** The sentence that an interruption prints until `leaves` is called. */
  left: string
}

/** The terminal of a command that runs inside the service. */
export interface Terminal {
  write (chunk: string | Uint8Array): Promise<void>
  warn (line: string): void
  /** Shows the progress of a long command, and ends the command when the client or the service does. */
  progress (options: ProgressOptions): Progress
}

const terminal = new AsyncLocalStorage<Terminal>()

/** Runs `act`, whose `write` and `warn` use this terminal instead of the standard streams of this process. */
export const withTerminal = <T>(own: Terminal, act: () => Promise<T>): Promise<T> => terminal.run(own, act)

/** The terminal of the command that runs here inside the service; undefined for a command in its own process. */
export const ownTerminal = (): Terminal | undefined => terminal.getStore()

let clearDisplay = () => {}

/** Sets a function that clears the progress display before other output. */
export function setDisplay (clear: () => void): void {
  clearDisplay = clear
}

let hasListener = false

/** The line of a table: the cells, separated by tabs. The text of a cell cannot make another cell or line. */
export const rowOf = (...cells: (string | number)[]): string =>
  cells.map((cell) => escapeUnprintable(String(cell))).join('\t')

// Members of organizations choose names, which must not control the terminal of the operator.
const printable = (text: string) => escapeUnprintable(text, '\n\t')

/**
 * Writes to standard output and waits until the chunk is written, so that memory stays bounded and no output is lost at
 * exit. Text has no control characters except line feeds and tabs; others are escaped, in JSON without another meaning.
 * Throws a StartError on a write error, such as a closed pipe or a full disk.
 */
export async function write (output: string | Uint8Array): Promise<void> {
  const chunk = typeof output === 'string' ? printable(output) : output
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

/** Writes a value as a line of JSON to standard output. */
export const writeJson = (value: object): Promise<void> => write(`${JSON.stringify(value)}\n`)

/** Writes a line to standard error, escaped as `write` does. */
export function warn (text: string): void {
  const line = printable(text)
  const own = terminal.getStore()
  if (own !== undefined) return own.warn(line)
  clearDisplay()
  process.stderr.write(`${line}\n`)
}

/**
 * Iterates over all rows of a paginated list.
 *
 * @param list returns the rows after a cursor; an empty page ends the iteration
 * @param begin the cursor before the first row
 */
export async function * allRows<Row, Cursor> (
  list: (after: Cursor) => Promise<Row[]>, begin: Cursor, cursorOf: (row: Row) => Cursor
): AsyncGenerator<Row> {
  for (let after = begin; ;) {
    const page = await list(after)
    if (page.length === 0) return
    yield * page
    after = cursorOf(page.at(-1)!)
  }
}
