import fs from 'node:fs'
import net from 'node:net'
import path from 'node:path'

/** Thrown when a directory is in use by a living process. */
export class DirectoryLocked extends Error {}

/**
 * Takes a directory for the life of this process, or throws DirectoryLocked. The lock is a listening socket in the
 * directory, so that the kernel itself says whether the holder lives: nothing to clean up after kill -9, no process id
 * that another process got meanwhile, and it holds between containers that share a volume.
 *
 * Sockets are numbered. A dead one is never replaced, its successor is made beside it: two starters cannot both make
 * the same number, and whoever finds another living socket after making its own steps back.
 */
export async function lockDirectory (dir: string): Promise<() => void> {
  const handle = fs.openSync(dir, 'r')
  // The path of a socket may have about a hundred bytes: on Linux go through the open directory
  const base = process.platform === 'linux' ? `/proc/self/fd/${handle}` : dir
  const server = net.createServer(socket => {
    // Whoever asks waits for a second: the answer of a process that was held up for longer reaches nobody.
    socket.on('error', () => {}).end(`${process.pid}\n`)
  }).unref()
  server.on('error', () => {})
  try {
    await refuseLiving(base, dir)
    const number = 1 + Math.max(0, ...locks(base).map(name => Number(name.slice(5))))
    const starting = `${base}/starting.${process.pid}`
    fs.rmSync(starting, { force: true })
    await new Promise<void>((resolve, reject) => { server.once('error', reject).listen(starting, resolve) })
    // Listening before it has its name, so that nobody takes a lock that is about to listen for a dead one
    const mine = `lock.${number}`
    try {
      fs.linkSync(starting, `${base}/${mine}`)
    } catch {
      throw new DirectoryLocked(`${path.resolve(dir)} is being opened by another process`)
    } finally {
      fs.rmSync(starting, { force: true })
    }
    try {
      await refuseLiving(base, dir, mine)
    } catch (error) {
      fs.rmSync(`${base}/${mine}`, { force: true })
      throw error
    }
    for (const name of fs.readdirSync(base)) {
      if (OWN.test(name) && name !== mine) fs.rmSync(`${base}/${name}`, { force: true })
    }
    let released = false
    return () => {
      // A second close would close whatever has got the descriptor's number meanwhile.
      if (released) return
      released = true
      server.close()
      fs.closeSync(handle)
    }
  } catch (error) {
    server.close()
    fs.closeSync(handle)
    throw error
  }
}

/**
 * Takes away the directories of a name that begins so whose holders have ended. One that nobody has taken yet is left
 * to who is about to, and one that cannot be taken away to the next time. One that has more in it than `content` was
 * made by somebody else: a copy of a directory that was held has its locks, too.
 */
export async function removeUnheld (parent: string, beginning: string, content: string): Promise<void> {
  for (const name of fs.readdirSync(parent).filter(name => name.startsWith(beginning))) {
    const dir = path.join(parent, name)
    try {
      const isOurs = fs.readdirSync(dir).every(name => name === content || OWN.test(name))
      if (!isOurs || locks(dir).length === 0) continue
      const unlock = await lockDirectory(dir)
      try {
        fs.rmSync(dir, { recursive: true, force: true })
      } finally {
        unlock()
      }
    } catch {
      // It is held, or somebody else takes it away.
    }
  }
}

// What this makes in a directory.
const OWN = /^(lock|starting)\.\d+$/
const locks = (dir: string) => fs.readdirSync(dir).filter(name => /^lock\.\d+$/.test(name))

async function refuseLiving (base: string, dir: string, mine?: string) {
  for (const name of locks(base).filter(name => name !== mine)) {
    const pid = await holder(`${base}/${name}`)
    if (pid) throw new DirectoryLocked(`${path.resolve(dir)} is in use by process ${pid}: stop the service first, because one process at a time can use the directory`)
  }
}

// The holder's process id, or undefined when nobody listens. A holder too busy to say its name still holds.
function holder (socketPath: string) {
  return new Promise<string | undefined>(resolve => {
    const socket = net.connect(socketPath)
    let said = ''
    socket.setTimeout(1000, () => socket.destroy())
    socket.on('data', data => { said += data })
    socket.on('error', ({ code }: NodeJS.ErrnoException) => {
      resolve(code === 'ECONNREFUSED' || code === 'ENOENT' ? undefined : 'unknown')
    })
    socket.on('close', () => resolve(said.trim() || 'unknown'))
  })
}
