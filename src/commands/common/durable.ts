import {
  closeSync, constants, fchmodSync, fsyncSync, linkSync, mkdirSync, openSync, unlinkSync, writeFileSync
} from 'node:fs'
import { open } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { ulid } from 'ulidx'
import { makeScratch } from './scratch.ts'

/**
 * Creates a file atomically and syncs the file and its directory: writes a draft next to the target, then links it.
 * Throws EEXIST when the file exists, and does not change that file. Removes the draft on failure.
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

/** The same for a stream; one chunk at a time is in memory. */
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

// The ULID makes drafts of concurrent writers differ, also in containers with equal process ids. O_EXCL and O_NOFOLLOW
// never write to an existing file or through a link.
const WRITING = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW
const draftOf = (file: string) => `${file}.${ulid()}`

/** Syncs an existing file or directory and its directory entry. */
export function syncWithName (path: string): void {
  sync(path)
  sync(dirname(resolve(path)))
}

/** Creates a directory with its missing parents and syncs their directory entries. */
export function makeDirectoryDurably (directory: string, mode: number): void {
  // Undefined: the directory already existed.
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
