import {
  closeSync, constants, fchmodSync, fsyncSync, linkSync, mkdirSync, openSync, unlinkSync, writeFileSync
} from 'node:fs'
import { open } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { ulid } from 'ulidx'
import { makeScratch } from './scratch.ts'

/**
 * Makes a file that is there whole or not at all, and on disk with its name before this returns: written beside its
 * place, and linked there. Throws EEXIST when there is one, which stays as it is. Nothing is left of a file that does
 * not become whole.
 */
export function writeDurably (file: string, text: string, mode: number): void {
  const draft = draftOf(file)
  const handle = openSync(draft, WRITING, mode)
  try {
    try {
      fchmodSync(handle, mode)
      writeFileSync(handle, text)
      fsyncSync(handle)
    } finally {
      closeSync(handle)
    }
    linkSync(draft, file)
  } finally {
    unlinkSync(draft)
  }
  sync(dirname(file))
}

/** The same for what comes in pieces, one at a time in memory. */
export async function writeStreamDurably (
  file: string, chunks: AsyncIterable<Uint8Array>, mode: number
): Promise<void> {
  const draft = draftOf(file)
  const remove = makeScratch(draft)
  try {
    const handle = await open(draft, WRITING, mode)
    try {
      await handle.chmod(mode)
      for await (const chunk of chunks) await handle.writeFile(chunk)
      await handle.sync()
    } finally {
      await handle.close()
    }
    linkSync(draft, file)
  } finally {
    remove()
  }
  sync(dirname(file))
}

// Whoever makes the same file at the same time has another draft, be it under the same process id in another
// container; what is there under its name is never written to, or through.
const WRITING = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW
const draftOf = (file: string) => `${file}.${ulid()}`

/** Waits until a file or directory, whoever made it, is on disk, and the name that it has. */
export function syncWithName (path: string): void {
  sync(path)
  sync(dirname(resolve(path)))
}

/** Makes a directory, and what is missing above it, and waits until their names are on disk. */
export function makeDirectoryDurably (directory: string, mode: number): void {
  // Without one, there was nothing to make.
  const first = mkdirSync(directory, { recursive: true, mode })
  if (first === undefined) return
  const top = dirname(resolve(first))
  for (let made = dirname(resolve(directory)); made.length >= top.length; made = dirname(made)) {
    sync(made)
    if (made === dirname(made)) return
  }
}

function sync (path: string): void {
  const handle = openSync(path, constants.O_RDONLY)
  try {
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
}
