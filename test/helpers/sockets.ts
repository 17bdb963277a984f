import type { Socket } from 'node:net'
import type { Reply } from './traffic.ts'

/** All that a socket receives until it is closed. */
export async function rest (socket: Socket): Promise<string> {
  let text = ''
  socket.on('data', (chunk) => { text += String(chunk) })
  // A reset after the answer is how a server closes on a client that is still sending.
  socket.on('error', () => {})
  await new Promise((resolve) => socket.once('close', resolve))
  return text
}

/** The answers that come until the connection is closed, as a `Send` has them; without those that are not whole. */
export async function heard (socket: Socket): Promise<Reply[]> {
  return repliesIn(await rest(socket))
}

/** The whole answers in what a connection carried, one after the other. */
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
