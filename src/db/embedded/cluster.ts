import fs from 'node:fs'
import path from 'node:path'
import { extract } from 'tar'

/**
 * Unpacks the template of the build (`scripts/template.mjs`) into a new directory. Everything is synced to disk before
 * the directory gets its name, so a kill or a power failure leaves either a complete cluster or none.
 *
 * @param options.durable false skips fsync
 * @param options.onProgress called for every file and directory
 */
export function unpackCluster (
  template: string, directory: string, {
    durable = true, onProgress = () => {}
  }: { durable?: boolean, onProgress?: () => void } = {}
): void {
  const partial = `${directory}.unpacking`
  fs.rmSync(partial, { recursive: true, force: true })
  fs.mkdirSync(partial, { mode: 0o700 })
  extract({
    file: template,
    cwd: partial,
    strict: true,
    // Synchronous unpacking is faster, and nothing else runs in this thread.
    sync: true,
    // Bounds the memory for decompressed data.
    maxReadSize: 65_536,
    // Skips checks of each path: the archive is part of the build.
    preservePaths: true,
    noMtime: true,
    onReadEntry: onProgress
  })
  for (const name of durable ? [...fs.readdirSync(partial, { recursive: true }).map(String), ''] : []) {
    sync(path.join(partial, name))
    onProgress()
  }
  fs.renameSync(partial, directory)
  if (durable) sync(path.dirname(directory))
}

function sync (file: string) {
  const handle = fs.openSync(file, 'r')
  fs.fsyncSync(handle)
  fs.closeSync(handle)
}
