import { closeSync, constants, fsyncSync, linkSync, mkdirSync, openSync, unlinkSync, writeSync } from 'node:fs'
import { dirname, resolve } from 'node:path'

/**
 * Makes a file that is there whole or not at all, and on disk with its name before this returns: written beside its
 * place, and linked there. Throws EEXIST when there is one, which stays as it is.
 */
export function writeDurably (file: string, text: string, mode: number): void {
  const draft = `${file}.${process.pid}`
  const handle = openSync(draft, constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC, mode)
  try {
    writeSync(handle, text)
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
  try {
    linkSync(draft, file)
  } finally {
    unlinkSync(draft)
  }
  sync(dirname(file))
}

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
