import {
  closeSync, constants, fchmodSync, fsyncSync, linkSync, openSync, unlinkSync, writeFileSync
} from 'node:fs'
import { open } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { ulid } from 'ulidx'
import { makeDirectory } from '../../db/database.ts'
import { makeScratch } from './scratch.ts'

/**
 * Creates a file atomically and syncs the file and its directory. Writes a draft in the same directory, creates a hard
 * link with the name of the file, and removes the draft. Throws EEXIST, without a change, if the file exists.
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

/** Creates a file from a stream, as `writeDurably` does. Keeps one chunk at a time in memory. */
export async function writeStreamDurably (
  file: string, chunks: AsyncIterable<Uint8Array>, mode: number
): Promise<void> {
  const { path: draft, remove } = makeScratch(() => {
    const draft = draftOf(file)
    closeSync(openSync(draft, WRITING, mode))
    return draft
  })
  try {
    const handle = await open(draft, constants.O_WRONLY | constants.O_NOFOLLOW)
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

// Drafts need unique names, and process ids are not unique across containers. O_EXCL and O_NOFOLLOW prevent writing to
// an existing file or through a symbolic link.
const WRITING = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW
const draftOf = (file: string) => `${file}.${ulid()}`

/** Syncs an existing file or directory and its directory entry. */
export function syncWithName (path: string): void {
  sync(path)
  sync(dirname(resolve(path)))
}

/** Creates a directory with its missing parents and syncs their directory entries. Returns false if it existed. */
export function makeDirectoryDurably (directory: string, mode: number): boolean {
  const first = makeDirectory(directory, mode)
  if (first === undefined) return false
  const top = dirname(resolve(first))
  for (let made = dirname(resolve(directory)); made.length >= top.length; made = dirname(made)) {
    sync(made)
    if (made === dirname(made)) break
  }
  return true
}

function sync (path: string): void {
  const handle = openSync(path, constants.O_RDONLY)
  try {
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
}
