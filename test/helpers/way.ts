import { once } from 'node:events'
import net, { type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'

/** How the proxy disturbs connections; empty: forwards everything. */
export interface Trouble {
  /** The blocked direction, also for the end of connections: to the server, back, or both. */
  held?: 'there' | 'back' | 'both'
  /** Delay of all data in milliseconds. */
  delay?: number
  /** Maximum bytes per second. */
  rate?: number
}

/** A TCP proxy to a database or an instance, which can disturb and cut connections. */
export interface Way {
  url: string
  /** Disturbs current and future connections until the next call. */
  trouble (trouble: Trouble): void
  /** Closes all connections; new connections are possible. */
  sever (): void
  /** Resets all connections (RST) in both directions; new connections are possible. */
  reset (): void
  /** Closes all connections and refuses new connections. */
  cut (): void
  close (): Promise<void>
}

/**
 * Starts a proxy to an address.
 *
 * @param late returns the delay of each chunk from the server in milliseconds
 */
export async function openWay (to: string, late = () => 0): Promise<Way> {
  const { hostname, port } = new URL(to)
  const sockets = new Set<Socket>()
  let passable = true
  let trouble: Trouble = {}
  let changed = () => {}
  let change = new Promise<void>((resolve) => { changed = resolve })
  const server = net.createServer((near) => {
    if (!passable) {
      near.destroy()
      return
    }
    const far = net.connect(Number(port), hostname)
    for (const [socket, other, direction] of [[near, far, 'there'], [far, near, 'back']] as const) {
      sockets.add(socket)
      let last: Promise<unknown> = Promise.resolve()
      const then = (work: () => unknown) => { last = last.then(work) }
      socket.setNoDelay(true).on('error', () => {})
        .on('data', (bytes: Buffer) => {
          const since = performance.now() + (direction === 'back' ? late() : 0)
          then(() => pass(bytes, since, other, direction))
        })
        .on('end', () => then(() => { other.end() }))
        .on('close', () => {
          sockets.delete(socket)
          then(async () => {
            await opened(direction)
            other.destroy()
          })
        })
    }
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = new URL(to)
  url.host = `127.0.0.1:${(server.address() as net.AddressInfo).port}`

  const isHeld = (direction: 'there' | 'back') => trouble.held === 'both' || trouble.held === direction

  async function opened (direction: 'there' | 'back') {
    while (isHeld(direction)) await change
  }

  async function pass (bytes: Buffer, since: number, other: Socket, direction: 'there' | 'back') {
    for (let at = 0; at < bytes.length && !other.destroyed;) {
      await opened(direction)
      const { delay = 0, rate } = trouble
      const wait = rate === undefined ? since + delay - performance.now() : 1_000 / rate
      if (wait > 0) await Promise.race([pause(wait), change])
      const end = rate === undefined ? bytes.length : at + 1
      if (!other.destroyed) other.write(bytes.subarray(at, end))
      at = end
    }
  }

  const tell = (next: Trouble) => {
    trouble = next
    changed()
    change = new Promise<void>((resolve) => { changed = resolve })
  }
  const sever = () => {
    for (const socket of sockets) socket.destroy()
    sockets.clear()
  }
  const cut = () => {
    passable = false
    tell({})
    sever()
  }
  return {
    url: url.href,
    trouble: tell,
    sever,
    reset () {
      for (const socket of sockets) socket.resetAndDestroy()
      sockets.clear()
    },
    cut,
    async close () {
      cut()
      server.close()
      await once(server, 'close')
    }
  }
}
