import { createReadStream } from 'node:fs'
import { StartError } from './open.ts'

const PIECE = 256 * 1024

/** What a line for the operator calls a file, or standard input (`-`). */
export const nameOf = (file: string): string => file === '-' ? 'Standard input' : file

/** A file, or standard input (`-`), piece by piece. Throws a StartError where it cannot be read. */
export async function * readPieces (file: string): AsyncGenerator<Buffer> {
  const source = file === '-' ? process.stdin : createReadStream(file, { highWaterMark: PIECE })
  try {
    yield * source as AsyncIterable<Buffer>
  } catch (error) {
    throw new StartError(`${nameOf(file)} cannot be read (${(error as NodeJS.ErrnoException).code})`)
  }
}
