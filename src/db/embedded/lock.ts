import fs from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/** Another process has locked the directory. */
export class DirectoryLocked extends Error {
  readonly dir: string

  constructor (dir: string, reason: string) {
    super(`${path.resolve(dir)} ${reason}`)
    this.dir = dir
  }
}

/** Another process, which began to lock the directory after this one, was met while both were still checking. */
class LaterStarter extends DirectoryLocked {}

// How often, and how many milliseconds apart, the earlier of two starting processes tries to lock the directory.
const ATTEMPTS = 20
const PAUSE = 100

/**
 * Locks a directory for the life of this process; throws DirectoryLocked. The lock is a listening Unix socket in the
 * directory. So the kernel knows whether the owner is alive, also between containers that share a volume.
 *
 * Sockets are numbered. A dead socket is never replaced; the new socket gets the next number. Two starting processes
 * cannot create the same number. After a process has created its socket, it gives up if it finds another live socket.
 * If two processes find each other, the one with the lower number tries again, so that exactly one gets the lock.
 */
export async function lockDirectory (dir: string): Promise<() => void> {
  let isEarlier = false
  for (let attempt = 1; ; attempt++) {
    try {
      return await tryToLock(dir)
    } catch (error) {
      isEarlier ||= error instanceof LaterStarter
      if (!isEarlier || attempt === ATTEMPTS) throw error
      await sleep(PAUSE)
    }
  }
}

async function tryToLock (dir: string): Promise<() => void> {
  const { base, close } = openDirectory(dir)
  const server = net.createServer(socket => {
    // The write fails if this process was blocked for longer than the client waits.
    socket.on('error', () => {}).end(`${process.pid}\n`)
  }).unref()
  server.on('error', () => {})
  const unlock = () => {
    server.close()
    close()
  }
  try {
    await refuseLiving(base, dir)
    const number = 1 + Math.max(0, ...numbers(base))
    // Not the process id: containers that share a volume have equal ids, and one would link the socket of the other.
    const starting = `${base}/starting.${Math.floor(Math.random() * Number.MAX_SAFE_INTEGER)}`
    await listen(server, starting)
    // The link is created after listening, so that other processes never see a lock that does not listen yet.
    const mine = `lock.${number}`
    try {
      fs.linkSync(starting, `${base}/${mine}`)
    } catch {
      throw new DirectoryLocked(dir, 'is being opened by another process')
    } finally {
      fs.rmSync(starting, { force: true })
    }
    try {
      await refuseLiving(base, dir, number)
    } catch (error) {
      fs.rmSync(`${base}/${mine}`, { force: true })
      throw error
    }
    for (const name of fs.readdirSync(base)) {
      if (OWN.test(name) && name !== mine) fs.rmSync(`${base}/${name}`, { force: true })
    }
    return unlock
  } catch (error) {
    unlock()
    throw error
  }
}

/** Opens a directory. On Linux, `base` is a short path, since paths of Unix sockets are limited to about 100 bytes. */
export function openDirectory (dir: string): { base: string, close: () => void } {
  const handle = fs.openSync(dir, 'r')
  let isOpen = true
  const close = () => {
    // A second close would close an unrelated file that reuses the descriptor number.
    if (isOpen) fs.closeSync(handle)
    isOpen = false
  }
  return { base: process.platform === 'linux' ? `/proc/self/fd/${handle}` : dir, close }
}

/** Listens on a Unix socket; rejects on failure. */
export const listen = (server: net.Server, socketPath: string): Promise<void> =>
  new Promise((resolve, reject) => { server.once('error', reject).listen(socketPath, resolve) })

/**
 * Removes the directories whose names start with `beginning`, if the processes that locked them have ended. Skips a
 * directory with other files than `content` and lock files: a user may have copied a locked directory. A later call
 * tries again to remove a directory whose removal failed.
 */
export async function removeUnlocked (parent: string, beginning: string, content: string): Promise<void> {
  for (const name of fs.readdirSync(parent).filter(name => name.startsWith(beginning))) {
    const dir = path.join(parent, name)
    try {
      const isOurs = fs.readdirSync(dir).every(name => name === content || OWN.test(name))
      if (!isOurs || numbers(dir).length === 0) continue
      const unlock = await lockDirectory(dir)
      try {
        fs.rmSync(dir, { recursive: true, force: true })
      } finally {
        unlock()
      }
    } catch {
      // The directory is locked, or another process removes it.
    }
  }
}

// Files that the lock creates in a directory.
const OWN = /^(lock|starting)\.\d+$/
const numbers = (dir: string) =>
  fs.readdirSync(dir).filter(name => /^lock\.\d+$/.test(name)).map(name => Number(name.slice('lock.'.length)))

async function refuseLiving (base: string, dir: string, mine?: number) {
  for (const number of numbers(base).filter(number => number !== mine)) {
    const pid = await holder(`${base}/lock.${number}`)
    if (!pid) continue
    const Locked = mine !== undefined && mine < number ? LaterStarter : DirectoryLocked
    throw new Locked(dir, `is in use by process ${pid}: stop the service first, because one process at a time can use the directory`)
  }
}

// The owner's process id, or 'unknown' if the owner does not respond in time; undefined if no process listens.
function holder (socketPath: string) {
  return new Promise<string | undefined>(resolve => {
    const socket = net.connect(socketPath)
    let said = ''
    // If this process was blocked meanwhile, the answer has arrived, and is handled before `setImmediate`.
    socket.setTimeout(1000, () => setImmediate(() => socket.destroy()))
    socket.on('data', data => { said += data })
    socket.on('error', ({ code }: NodeJS.ErrnoException) => {
      resolve(code === 'ECONNREFUSED' || code === 'ENOENT' ? undefined : 'unknown')
    })
    socket.on('close', () => resolve(said.trim() || 'unknown'))
  })
}
