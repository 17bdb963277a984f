import { once } from 'node:events'
import type { Socket } from 'node:net'

/** All that a socket receives until it is closed. */
export async function rest (socket: Socket): Promise<string> {
  let text = ''
  socket.on('data', (chunk) => { text += String(chunk) })
  // A reset after the answer is how a server closes on a client that is still sending.
  socket.on('error', () => {})
  await once(socket, 'close')
  return text
}
