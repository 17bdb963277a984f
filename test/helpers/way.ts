import { once } from 'node:events'
import net, { type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'

/** What a way does to what goes along it; nothing but pass it on where it says nothing. */
export interface Trouble {
  /** In which direction nothing comes through, the end of a connection neither: to whom it leads, back, or both. */
  held?: 'there' | 'back' | 'both'
  /** Milliseconds that everything is late. */
  delay?: number
  /** Bytes that come through each second. */
  rate?: number
}

/** A way to a database, or to an instance, that can be cut off, as a killed process cuts off its own. */
export interface Way {
  url: string
  /** From now on, until it is told something else, it does this to what is under way and to what comes. */
  trouble (trouble: Trouble): void
  /** Destroys every connection at once, and lets others through. */
  sever (): void
  /** The same as both ends see it whose other end has gone without a word: with a reset. */
  reset (): void
  /** Destroys every connection at once, and lets no other through. */
  cut (): void
  close (): Promise<void>
}

/**
 * Forwards connections to an address, until they are cut.
 *
 * @param late asked for each piece that comes back: how many milliseconds it is late
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
