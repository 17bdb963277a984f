import fs from 'node:fs'
import net from 'node:net'
import path from 'node:path'

// The process that has the embedded database open copies its files for other processes on request, through a socket in
// the directory. A copy is made between two statements, so that it equals the state after a power failure at that
// moment, with all committed data. The same socket takes messages to this process, such as the outcome of a backup.

const NAME = 'copies'
// Maximum length of a request: a path, or one line of JSON.
const MOST = 8192
// The server sends an empty line at once and then each second as a heartbeat until it responds. The heartbeat also
// detects clients that have disconnected.
const SIGN = '\n'
const SIGN_EVERY = 1_000
const SILENCE = 10_000
const DONE = 'done'
const NOBODY = ''
// A message is JSON; a path never begins with a brace.
const TOLD = '{'

/** Serves copies and messages one after the other; returns a function that stops the server. */
export async function serveCopies (
  dir: string, copy: (to: string, whileWanted: AbortSignal) => Promise<void>, hear: (told: string) => Promise<void>
): Promise<() => void> {
  let last: Promise<unknown> = Promise.resolve()
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    let asked = ''
    const gone = new AbortController()
    const sign = () => { socket.write(SIGN) }
    let signs: NodeJS.Timeout | undefined
    socket.on('close', () => {
      clearInterval(signs)
      gone.abort()
    })
    socket.setEncoding('utf8')
    socket.on('error', () => {})
    socket.on('data', (text: string) => {
      asked += text
      if (asked.length > MOST) socket.destroy()
    })
    socket.on('end', () => {
      sign()
      signs = setInterval(sign, SIGN_EVERY).unref()
      last = last.then(async () => {
        if (gone.signal.aborted) return
        await (asked.startsWith(TOLD) ? hear(asked) : copy(asked, gone.signal))
      }).then(() => DONE, (error: unknown) => (error as Error).message).then((answer) => {
        clearInterval(signs)
        socket.end(answer)
      })
    })
  }).unref()
  const { base, close } = openDirectory(dir)
  // The socket of the previous process.
  fs.rmSync(`${base}/${NAME}`, { force: true })
  await new Promise<void>((resolve, reject) => { server.once('error', reject).listen(`${base}/${NAME}`, resolve) })
  server.on('error', () => {})
  return () => {
    server.close()
    close()
  }
}

/**
 * Requests a copy of the database files in `dir` to a new directory. Returns false if no process has the database open.
 */
export async function askForCopy (dir: string, to: string): Promise<boolean> {
  const answer = await ask(dir, path.resolve(to))
  if (answer !== NOBODY && answer !== DONE) throw new Error(`The embedded database cannot be copied: ${answer}`)
  return answer === DONE
}

/** Sends a message to the process that has the database in `dir` open. Throws if the message is not accepted. */
export async function tellHolder (dir: string, what: object): Promise<void> {
  const answer = await ask(dir, JSON.stringify(what))
  if (answer !== DONE) throw new Error(answer === NOBODY ? 'nobody has the embedded database open any more' : answer)
}

// Returns the response, or the reason why there is none.
async function ask (dir: string, request: string): Promise<string> {
  const { base, close } = openDirectory(dir)
  try {
    return await new Promise<string>((resolve) => {
      let said = ''
      const socket = net.connect({ path: `${base}/${NAME}`, allowHalfOpen: true })
      socket.setEncoding('utf8')
      socket.on('data', (text: string) => { said += text })
      socket.on('error', () => resolve(NOBODY))
      socket.setTimeout(SILENCE, () => {
        socket.destroy()
        resolve(`who has it open says nothing for ${SILENCE / 1000} s`)
      })
      socket.on('end', () => {
        socket.destroy()
        resolve(said.trim())
      })
      socket.end(request)
    })
  } finally {
    close()
  }
}

// Socket paths are limited to about 100 bytes. On Linux, a short path through the open directory avoids the limit.
function openDirectory (dir: string) {
  const handle = fs.openSync(dir, 'r')
  let isOpen = true
  const close = () => {
    // A second close would close an unrelated file that reuses the descriptor number.
    if (isOpen) fs.closeSync(handle)
    isOpen = false
  }
  return { base: process.platform === 'linux' ? `/proc/self/fd/${handle}` : dir, close }
}
