import {
  accessSync, constants, mkdirSync, mkdtempSync, readlinkSync, rmSync, statfsSync, symlinkSync, unlinkSync
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { Failure, Misuse, reasonOf } from './failure.ts'
import { writeNew } from './files.ts'
import { requireBytes } from './output.ts'

// Values as files, for programs that want files. The values are in a folder that only this user can read, in memory
// where the system has such a folder; the path that the person names is a link.

const TMPFS = 0x01021994
const RAMFS = 0x858458f6

/** A folder in memory, or the folder for temporary files. */
function folderInMemory (): string {
  for (const folder of [process.env.XDG_RUNTIME_DIR, '/dev/shm']) {
    try {
      if (folder === undefined || ![TMPFS, RAMFS].includes(statfsSync(folder).type)) continue
      accessSync(folder, constants.W_OK | constants.X_OK)
      return folder
    } catch { /* The next folder. */ }
  }
  return tmpdir()
}

/** Writes values to files, as `NAME=PATH` says. Returns a function that removes them. */
export function mount (mounts: readonly string[], values: ReadonlyMap<string, { value: string }>): () => void {
  if (mounts.length === 0) return () => {}
  const pairs = mounts.map((text) => {
    const at = text.indexOf('=')
    const [name, path] = [text.slice(0, at), text.slice(at + 1)]
    if (at < 1 || path === '') throw new Misuse(`${text} is no mount: write NAME=PATH.`)
    const found = values.get(name)
    if (found === undefined) throw new Failure(`There is no value for ${name} (--mount).`)
    requireBytes(name, found.value)
    return { path: resolve(path), value: found.value }
  })
  const links: { path: string, file: string }[] = []
  const folder = mkdtempSync(join(folderInMemory(), 'strongroom-'))
  const remove = () => {
    for (const { path, file } of links) {
      try { if (readlinkSync(path) === file) unlinkSync(path) } catch { /* The link is gone. */ }
    }
    rmSync(folder, { recursive: true, force: true })
  }
  try {
    for (const [index, { path, value }] of pairs.entries()) {
      mkdirSync(join(folder, String(index)), { mode: 0o700 })
      const file = join(folder, String(index), 'value')
      writeNew(file, value)
      symlinkSync(file, path)
      links.push({ path, file })
    }
  } catch (error) {
    remove()
    const { code, dest = '' } = error as NodeJS.ErrnoException & { dest?: string }
    if (code === 'EEXIST') throw new Failure(`${dest} exists. --mount makes a new link, and replaces nothing.`)
    throw new Failure(`A value cannot be mounted: ${reasonOf(error)}.`)
  }
  return remove
}
