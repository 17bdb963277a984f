import { once } from 'node:events'
import net, { type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'

/** A way to a database, or to an instance, that can be cut off, as a killed process cuts off its own. */
export interface Way {
  url: string
  /** Destroys every connection at once, and lets others through. */
  sever (): void
  /** Destroys every connection at once, and lets no other through. */
  cut (): void
  close (): Promise<void>
}

/**
 * Forwards connections to an address, until they are cut.
 *
 * @param late asked for each piece that comes back: how many milliseconds it is late
 */
export async function openWay (to: string, late?: () => number): Promise<Way> {
  const { hostname, port } = new URL(to)
  const sockets = new Set<Socket>()
  let passable = true
  const server = net.createServer((near) => {
    if (!passable) {
      near.destroy()
      return
    }
    const far = net.connect(Number(port), hostname)
    for (const [socket, other] of [[near, far], [far, near]] as const) {
      sockets.add(socket)
      socket.setNoDelay(true).on('error', () => {}).on('close', () => { other.destroy() })
    }
    near.pipe(far)
    if (late === undefined) {
      far.pipe(near)
      return
    }
    let before = Promise.resolve()
    far.on('data', (piece) => {
      const due = pause(late())
      before = before.then(() => due).then(() => { near.write(piece) })
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = new URL(to)
  url.host = `127.0.0.1:${(server.address() as net.AddressInfo).port}`
  const sever = () => {
    for (const socket of sockets) socket.destroy()
    sockets.clear()
  }
  const cut = () => {
    passable = false
    sever()
  }
  return {
    url: url.href,
    sever,
    cut,
    async close () {
      cut()
      server.close()
      await once(server, 'close')
    }
  }
}
