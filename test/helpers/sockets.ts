import type { Socket } from 'node:net'
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
