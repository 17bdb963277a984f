import { randomBytes } from 'node:crypto'
import {
  closeSync, fsyncSync, linkSync, mkdirSync, openSync, readFileSync, readlinkSync, renameSync, rmSync, statSync,
  writeSync
} from 'node:fs'
import { homedir } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Away } from './failure.ts'

/** A folder of the XDG Base Directory Specification. A relative path in the variable is ignored, as it says. */
function xdgFolder (variable: string, standard: string): string {
  const named = process.env[variable] ?? ''
  return join(isAbsolute(named) ? named : join(homeFolder(), standard), 'strongroom')
}

/** The home directory; `/` for a user without one, such as a number in a container. */
function homeFolder (): string {
  try { return homedir() } catch { return '/' }
}

/** The folder of logins. */
export const configFolder = (): string => xdgFolder('XDG_CONFIG_HOME', '.config')
/** The folder of cached values. */
export const cacheFolder = (): string => xdgFolder('XDG_CACHE_HOME', '.cache')

/** The text of a file; undefined if the file does not exist. */
export function readIfThere (path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '')) return undefined
    throw error
  }
}

/**
 * Makes a folder, and those above, for this user alone. One attempt each: the recursive form of Node.js never returns
 * where a file system refuses new folders as if the folder above were missing.
 */
export function makeFolder (path: string): void {
  try {
    mkdirSync(path, 0o700)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EEXIST') return
    if (code !== 'ENOENT' || dirname(path) === path) throw error
    makeFolder(dirname(path))
    try { mkdirSync(path, 0o700) } catch (again) { if ((again as NodeJS.ErrnoException).code !== 'EEXIST') throw again }
  }
}

/** A name beside a file that no other process uses. */
const nameBeside = (path: string): string => `${path}.${process.pid}.${randomBytes(6).toString('hex')}`

/** Replaces a file atomically. Only its owner can read it, and it is on the disk when this function returns. */
export function replaceFile (path: string, text: string): void {
  makeFolder(dirname(path))
  const temporary = nameBeside(path)
  try {
    writeNew(temporary, text)
    renameSync(temporary, path)
  } catch (error) {
    rmSync(temporary, { force: true })
    throw error
  }
}

/** Writes a new file that only its owner can read. Fails if it exists, and leaves no half of one. */
export function writeNew (path: string, text: string): void {
  const file = openSync(path, 'wx', 0o600)
  try {
    const bytes = Buffer.from(text)
    for (let at = 0; at < bytes.length;) at += writeSync(file, bytes, at)
    fsyncSync(file)
  } catch (error) {
    rmSync(path, { force: true })
    throw error
  } finally {
    closeSync(file)
  }
}

// A lock is a file that names its process. The lock of a process that has ended is free at once.

const LOCK_MS = 30_000

/** Runs `work` while no other process of this user has the lock. Throws `Away` if the signal ends the wait. */
export async function withLock<T> (path: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  const holder = JSON.stringify({ pid: process.pid, space: pidSpace(), started: startOf(process.pid) })
  const temporary = nameBeside(path)
  writeNew(temporary, holder)
  try {
    while (!take(temporary, path)) {
      if (signal.aborted) throw new Away(`Another process keeps the lock ${path}.`)
      await sleep(20 + Math.random() * 30)
    }
    try {
      return await work()
    } finally {
      if (readIfThere(path) === holder) rmSync(path, { force: true })
    }
  } finally {
    rmSync(temporary, { force: true })
  }
}

function take (temporary: string, path: string): boolean {
  try {
    linkSync(temporary, path)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
  if (isHeld(path)) return false
  // Only one of several processes can rename the file away. Another process may have taken the lock since: that lock
  // goes back.
  const removed = `${temporary}.ended`
  try { renameSync(path, removed) } catch { return false }
  if (isHeld(removed)) try { linkSync(removed, path) } catch { /* A third process has the lock. */ }
  rmSync(removed, { force: true })
  return false
}

function isHeld (path: string): boolean {
  const text = readIfThere(path)
  if (text === undefined) return false
  try {
    const { pid, space, started } = JSON.parse(text) as { pid: number, space: string, started: string }
    // A process of another container, which has process ids of its own, is not visible here: its lock ends by its age.
    if (space !== pidSpace()) return Date.now() - statSync(path).mtimeMs < LOCK_MS
    process.kill(pid, 0)
    return started === startOf(pid)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** The name of the space of process ids; empty where the system has only one. */
function pidSpace (): string {
  try { return readlinkSync('/proc/self/ns/pid') } catch { return '' }
}

/** When a process started, in the units of the system; empty where the system does not say it. */
const startOf = (pid: number): string => processFields(pid)?.[19] ?? ''

/** The fields of `/proc/PID/stat` after the name of the command (proc(5)); undefined where the system has none. */
export function processFields (pid: number | 'self'): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch { return undefined }
}
