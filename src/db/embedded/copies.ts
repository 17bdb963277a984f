import fs from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import { listen, openDirectory } from './lock.ts'

// The process that has the embedded database open copies its files on request, through a Unix socket in the directory.
// Files are copied between two statements, so a copy equals the state after a power failure.

const NAME = 'copies'
// Maximum length of a request: a path, or one line of JSON.
const MAX_REQUEST_LENGTH = 8192
// Until it responds, the server sends an empty line at once and each second, which detects disconnected clients.
const HEARTBEAT = '\n'
const HEARTBEAT_MS = 1_000
const SILENCE_TIMEOUT_MS = 10_000
const DONE = 'done'
const NO_RESPONSE = ''
// A message is JSON; a path never begins with a brace.
const MESSAGE_START = '{'

/** Serves copy requests and messages one at a time. Returns a function that stops the server. */
export async function serveCopies (
  dir: string, copy: (to: string, signal: AbortSignal) => Promise<void>, onMessage: (message: string) => Promise<void>
): Promise<() => void> {
  let last: Promise<unknown> = Promise.resolve()
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    let request = ''
    const disconnected = new AbortController()
    const sendHeartbeat = () => { socket.write(HEARTBEAT) }
    let heartbeats: NodeJS.Timeout | undefined
    socket.on('close', () => {
      clearInterval(heartbeats)
      disconnected.abort()
    })
    socket.setEncoding('utf8')
    socket.on('error', () => {})
    socket.on('data', (text: string) => {
      request += text
      if (request.length > MAX_REQUEST_LENGTH) socket.destroy()
    })
    socket.on('end', () => {
      sendHeartbeat()
      heartbeats = setInterval(sendHeartbeat, HEARTBEAT_MS).unref()
      last = last.then(async () => {
        if (disconnected.signal.aborted) return
        await (request.startsWith(MESSAGE_START) ? onMessage(request) : copy(request, disconnected.signal))
      }).then(() => DONE, (error: unknown) => (error as Error).message).then((answer) => {
        clearInterval(heartbeats)
        socket.end(answer)
      })
    })
  }).unref()
  const { base, close } = openDirectory(dir)
  // Remove the socket of the previous process.
  fs.rmSync(`${base}/${NAME}`, { force: true })
  await listen(server, `${base}/${NAME}`)
  server.on('error', () => {})
  return () => {
    server.close()
    close()
  }
}

/** Requests a copy of the database in `dir` to a new directory. Returns false if no process has the database open. */
export async function requestCopy (dir: string, to: string): Promise<boolean> {
  const answer = await ask(dir, path.resolve(to))
  if (answer !== NO_RESPONSE && answer !== DONE) throw new Error(`The embedded database cannot be copied: ${answer}`)
  return answer === DONE
}

/** Sends a message to the process that has the database in `dir` open. Throws if the message is not accepted. */
export async function sendToOwner (dir: string, what: object): Promise<void> {
  const answer = await ask(dir, JSON.stringify(what))
  if (answer !== DONE) throw new Error(answer === NO_RESPONSE ? 'no process has the embedded database open any more' : answer)
}

// Returns the response, NO_RESPONSE if no process listens, or an error message after a timeout.
async function ask (dir: string, request: string): Promise<string> {
  const { base, close } = openDirectory(dir)
  try {
    return await new Promise<string>((resolve) => {
      let response = ''
      const socket = net.connect({ path: `${base}/${NAME}`, allowHalfOpen: true })
      socket.setEncoding('utf8')
      socket.on('data', (text: string) => { response += text })
      socket.on('error', () => resolve(NO_RESPONSE))
      socket.setTimeout(SILENCE_TIMEOUT_MS, () => {
        socket.destroy()
        resolve(`the process that has it open did not respond for ${SILENCE_TIMEOUT_MS / 1000} s`)
      })
      socket.on('end', () => {
        socket.destroy()
        resolve(response.trim())
      })
      socket.end(request)
    })
  } finally {
    close()
  }
}
