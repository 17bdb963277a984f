import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { IncomingMessage } from 'node:http'
import { connect, type Socket } from 'node:net'
import type { Reply } from './traffic.ts'

/** Reads everything from a socket until it is closed. */
export async function rest (socket: Socket): Promise<string> {
  let text = ''
  socket.on('data', (chunk) => { text += String(chunk) })
  // A server that responds while the client is still sending closes the connection with a reset.
  socket.on('error', () => {})
  await new Promise((resolve) => socket.once('close', resolve))
  return text
}

/** The complete responses until the connection is closed. */
export async function heard (socket: Socket): Promise<Reply[]> {
  return repliesIn(await rest(socket))
}

/** Parses the complete responses in the data of a connection. */
export function repliesIn (text: string): Reply[] {
  const replies: Reply[] = []
  for (let at = 0; ;) {
    const end = text.indexOf('\r\n\r\n', at)
    if (end === -1) return replies
    const [first = '', ...lines] = text.slice(at, end).split('\r\n')
    const headers = new Headers(lines.map((line) => line.split(/: ?(.*)/s, 2) as [string, string]))
    at = end + 4 + Number(headers.get('content-length') ?? 0)
    if (at > text.length) return replies
    const body = text.slice(end + 4, at)
    replies.push({ status: Number(first.slice(9, 12)), headers, body: body === '' ? undefined : JSON.parse(body) })
  }
}

export interface Posted { path: string, headers: Record<string, string>, body: string }

/** The text of a request in HTTP/1.1. */
export const textOf = ({ path, headers, body }: Posted): string => [
  `POST ${path} HTTP/1.1`, 'host: x', `content-length: ${Buffer.byteLength(body)}`,
  ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`), '', body
].join('\r\n')

/**
 * Sends requests on one connection at once, and closes it when the service in this process has read the body of the
 * last one: before it has a response to any of them.
 */
export async function postAndLeave (address: string, requests: readonly Posted[]): Promise<void> {
  const { hostname, port } = new URL(address)
  const client = connect(Number(port), hostname).on('error', () => {})
  let started = 0
  const closed = new Promise((resolve) => client.once('close', resolve))
  const look = (message: unknown) => {
    const { request, socket } = message as { request: IncomingMessage, socket: Socket }
    if (socket.remotePort !== client.localPort || ++started < requests.length) return
    unsubscribe('http.server.request.start', look)
    request.once('end', () => { socket.destroy() })
  }
  subscribe('http.server.request.start', look)
  client.write(requests.map(textOf).join(''))
  client.resume()
  await closed
}
