import fs from 'node:fs'
import path from 'node:path'

// Free bytes that must remain for PostgreSQL and for the process that opens the copy. A WAL segment has 16 MiB.
const SPARE = 64 * 1024 * 1024
const BLOCK = 4096

export interface Copying {
  onProgress: () => void
  isCancelled: () => boolean
  /** Free bytes at a path; by default, those of its file system. */
  freeBytesBeside?: (place: string) => number
}

/**
 * Copies an idle cluster to a new directory. Throws without enough disk space, because a full disk would stop the
 * service, and if `to` exists. Removes an incomplete copy, and nothing else.
 */
export function copyCluster (
  from: string, to: string, { onProgress, isCancelled, freeBytesBeside = freeBytes }: Copying
): void {
  const needed = sizeOf(from) + SPARE
  const free = freeBytesBeside(path.dirname(to))
  if (free < needed) throw new Error(`a copy needs ${inMiB(needed)} of free disk space, but only ${inMiB(free)} are free`)
  // Throws if there is anything at `to`. Then nothing was made, so nothing may be removed.
  fs.mkdirSync(to, { mode: 0o700 })
  try {
    fill(from, to)
  } catch (error) {
    fs.rmSync(to, { recursive: true, force: true })
    throw error
  }

  function fill (source: string, target: string) {
    for (const entry of fs.readdirSync(source, { withFileTypes: true })) {
      if (isCancelled()) throw new Error('the client has disconnected')
      onProgress()
      const [sourcePath, targetPath] = [path.join(source, entry.name), path.join(target, entry.name)]
      if (entry.isDirectory()) {
        fs.mkdirSync(targetPath, { mode: 0o700 })
        fill(sourcePath, targetPath)
      // With FICLONE, a copy-on-write file system shares the blocks instead of copying.
      } else fs.copyFileSync(sourcePath, targetPath, fs.constants.COPYFILE_EXCL | fs.constants.COPYFILE_FICLONE)
    }
  }
}

function sizeOf (place: string): number {
  return fs.readdirSync(place, { withFileTypes: true }).reduce((sum, entry) => {
    const one = path.join(place, entry.name)
    return sum + BLOCK + (entry.isDirectory() ? sizeOf(one) : Math.ceil(fs.statSync(one).size / BLOCK) * BLOCK)
  }, 0)
}

/** Free bytes of the file system of a directory; Infinity if the file system does not report them. */
export function freeBytes (place: string): number {
  const { blocks, bavail, bsize } = fs.statfsSync(place)
  return blocks === 0 ? Infinity : bavail * bsize
}

const inMiB = (bytes: number) => `${Math.ceil(bytes / 2 ** 20)} MiB`
