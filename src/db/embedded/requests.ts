import { once } from 'node:events'
import fs from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import { listen, openDirectory } from './lock.ts'

// The process that has the embedded database open serves other processes of its user through a Unix socket in the
// directory: it copies the files between two statements (a copy equals the state after a power failure), and passes
// other requests to its application.
//
// A request is a JSON object; the client ends its side of the connection after it. The response is lines of JSON:
// `{ part }` for each part of the output, then `{ result }` or `{ error }`. Empty lines are heartbeats, which detect
// disconnected clients and let the client know that the server is alive.

const NAME = 'requests'
const MAX_REQUEST_LENGTH = 64 * 1024
const MAX_CONNECTIONS = 16
const HEARTBEAT_MS = 1_000
const SILENCE_TIMEOUT_MS = 10_000
// The server closes the connection of a client that reads nothing for this time. A client with a pager may read late.
const READ_TIMEOUT_MS = 600_000

type Line = { part: unknown } | { result: unknown } | { error: string }

/** The client of a request. */
export interface Client {
  /** Aborted when the client has disconnected. */
  signal: AbortSignal
  /**
   * Sends a part of the output, and waits until the client reads or `signal` is aborted. Throws if the client has
   * disconnected.
   */
  send (part: unknown, signal?: AbortSignal): Promise<void>
}

/**
 * Handles a request for something other than a copy. Returns the result, or undefined if this process does not handle
 * such requests. Throws an error whose message is for the client.
 */
export type OnRequest = (request: Record<string, unknown>, client: Client) => Promise<unknown>

/** Serves requests of this user's processes; copies one at a time. Returns a function that stops the server. */
export async function serveRequests (
  dir: string, copy: (to: string, signal: AbortSignal) => Promise<void>, onRequest: OnRequest
): Promise<() => void> {
  let lastCopy: Promise<unknown> = Promise.resolve()
  let connections = 0
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    connections++
    const disconnected = new AbortController()
    let heartbeats: NodeJS.Timeout | undefined
    socket.on('close', () => {
      connections--
      clearInterval(heartbeats)
      disconnected.abort()
    })
    socket.on('error', () => {})
    socket.setTimeout(SILENCE_TIMEOUT_MS, () => socket.destroy())
    const sendLine = (line: Line) => socket.write(`${JSON.stringify(line)}\n`)
    if (connections > MAX_CONNECTIONS) {
      sendLine({ error: `it already serves ${MAX_CONNECTIONS} other commands: run the command again` })
      socket.resume().end()
      return
    }
    const client: Client = {
      signal: disconnected.signal,
      async send (part, signal = disconnected.signal) {
        disconnected.signal.throwIfAborted()
        if (!sendLine({ part })) await once(socket, 'drain', { signal })
      }
    }
    const run = async (request: Record<string, unknown>) => {
      if (typeof request.copy !== 'string') return onRequest(request, client)
      const to = request.copy
      const mine = lastCopy.then(async () => {
        if (!disconnected.signal.aborted) await copy(to, disconnected.signal)
      })
      lastCopy = mine.catch(() => {})
      return mine
    }
    let text = ''
    socket.setEncoding('utf8')
    socket.on('data', (chunk: string) => {
      text += chunk
      if (text.length > MAX_REQUEST_LENGTH) socket.destroy()
    })
    socket.on('end', () => {
      // Sends no heartbeat while the client does not read: a heartbeat would restart the timeout, and fill the buffer.
      const sendHeartbeat = () => { if (!socket.writableNeedDrain) socket.write('\n') }
      socket.setTimeout(READ_TIMEOUT_MS)
      sendHeartbeat()
      heartbeats = setInterval(sendHeartbeat, HEARTBEAT_MS).unref()
      const request = parse(text)
      const running = request === undefined ? Promise.reject(new Error('the request is unreadable')) : run(request)
      running.then((result): Line => ({ result }), (error: unknown) => ({ error: (error as Error).message }))
        .then((line) => {
          clearInterval(heartbeats)
          sendLine(line)
          socket.end()
        })
    })
  }).unref()
  const { base, close } = openDirectory(dir)
  // Remove the socket of the previous process.
  fs.rmSync(`${base}/${NAME}`, { force: true })
  await listen(server, `${base}/${NAME}`)
  // A second protection: the directory denies access to other users, too.
  fs.chmodSync(`${base}/${NAME}`, 0o600)
  server.on('error', () => {})
  return () => {
    server.close()
    close()
  }
}

/** Requests a copy of the database in `dir` to a new directory. Returns false if no process has the database open. */
export async function requestCopy (dir: string, to: string): Promise<boolean> {
  try {
    return await sendRequest(dir, { copy: path.resolve(to) }) !== undefined
  } catch (error) {
    throw new Error(`The embedded database cannot be copied: ${(error as Error).message}`)
  }
}

/**
 * Sends a request to the process that has the database in `dir` open. Returns undefined if there is no such process.
 * Throws if the request fails, or if the process does not respond.
 *
 * @param receive called with each part of the output, in order
 * @param signal disconnects from the process
 */
export async function sendRequest (
  dir: string, request: object, receive: (part: unknown) => Promise<void> = async () => {}, signal?: AbortSignal
): Promise<{ result: unknown } | undefined> {
  const text = JSON.stringify(request)
  if (text.length > MAX_REQUEST_LENGTH) throw new Error(`a request has at most ${MAX_REQUEST_LENGTH} characters`)
  const { base, close } = openDirectory(dir)
  const socket = net.connect({ path: `${base}/${NAME}`, allowHalfOpen: true, ...(signal && { signal }) })
  let timer: NodeJS.Timeout | undefined
  const watch = () => {
    timer = setTimeout(() => socket.destroy(new Error(
      `the process that has it open did not respond for ${SILENCE_TIMEOUT_MS / 1000} s`
    )), SILENCE_TIMEOUT_MS)
  }
  let rest = ''
  let hasResponse = false
  try {
    socket.setEncoding('utf8').end(text)
    watch()
    for await (const chunk of socket as AsyncIterable<string>) {
      clearTimeout(timer)
      hasResponse = true
      const lines = (rest + chunk).split('\n')
      rest = lines.pop()!
      for (const line of lines) {
        if (line === '') continue
        const answer = JSON.parse(line) as Line
        if ('error' in answer) throw new Error(answer.error)
        if ('result' in answer || !('part' in answer)) return answer as { result: unknown }
        await receive(answer.part)
      }
      watch()
    }
  } catch (error) {
    // An error of a system call: no process listens, or the process has ended.
    if ((error as NodeJS.ErrnoException).syscall === undefined) throw error
  } finally {
    clearTimeout(timer)
    socket.destroy()
    close()
  }
  if (hasResponse) throw new Error('the process that has it open ended before its response was complete')
  return undefined
}

function parse (text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? value as Record<string, unknown> : undefined
  } catch {
    return undefined
  }
}
