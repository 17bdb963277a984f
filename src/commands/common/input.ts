import { createReadStream } from 'node:fs'
import { StartError } from './open.ts'

const PIECE = 256 * 1024

/** The name of a file, or of standard input (`-`), in messages. */
export const nameOf = (file: string): string => file === '-' ? 'Standard input' : file

/** The chunks of a file, or of standard input (`-`). Throws a StartError on a read error. */
export async function * readPieces (file: string): AsyncGenerator<Buffer> {
  const source = file === '-' ? process.stdin : createReadStream(file, { highWaterMark: PIECE })
  try {
    yield * source as AsyncIterable<Buffer>
  } catch (error) {
    throw new StartError(`${nameOf(file)} cannot be read (${(error as NodeJS.ErrnoException).code})`)
  }
}
