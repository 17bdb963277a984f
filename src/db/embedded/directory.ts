import fs from 'node:fs'
import path from 'node:path'

/**
 * Creates a directory with its missing parents. Returns the first created directory; undefined if all existed. Does not
 * use `mkdirSync` with `recursive`, which retries without end if the file system responds with ENOENT, as /proc does.
 */
export function makeDirectory (directory: string, mode: number): string | undefined {
  const absolute = path.resolve(directory)
  if (isDirectory(absolute)) return undefined
  const first = makeDirectory(path.dirname(absolute), mode)
  try {
    fs.mkdirSync(absolute, { mode })
  } catch (error) {
    // Another process may have created the directory meanwhile.
    if (!isDirectory(absolute)) throw error
    return first
  }
  return first ?? absolute
}

const isDirectory = (directory: string): boolean =>
  fs.statSync(directory, { throwIfNoEntry: false })?.isDirectory() === true
