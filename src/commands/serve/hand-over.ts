import type { Worker } from 'node:cluster'

interface Sent { cmd?: unknown, act?: unknown, seq?: number, ack?: number }
interface Connection { close (): void }
type Send = (message: Sent, connection?: Connection, ...more: unknown[]) => boolean

// Milliseconds. What a process said last is there when it has ended, and read in a moment.
const READ = 5

/**
 * Lets no client wait for a worker that died before it took the connection that it was sent. Node.js would wait for the
 * worker's answer for ever (nodejs/node#21746), and would not even say that it is disconnected. Another worker gets the
 * connection, as if this one had refused it; where there is none, it is closed.
 *
 * @param hasOther whether another worker takes connections
 */
export function handOver (worker: Worker, hasOther: () => boolean): void {
  const { process: child } = worker
  const open = new Map<number, Connection>()
  let isDisconnected = false
  const send = child.send.bind(child) as unknown as Send
  const watched: Send = (message, connection, ...more) => {
    if (message.cmd === 'NODE_CLUSTER' && message.act === 'newconn' && message.seq !== undefined && connection) {
      open.set(message.seq, connection)
    }
    return send(message, connection, ...more)
  }
  child.send = watched as unknown as typeof child.send
  child.on('internalMessage', ({ ack }: Sent) => { if (ack !== undefined) open.delete(ack) })
  worker.once('disconnect', () => {
    isDisconnected = true
    for (const [seq, connection] of open) {
      if (hasOther()) child.emit('internalMessage', { cmd: 'NODE_CLUSTER', ack: seq, accepted: false })
      else connection.close()
    }
  })
  worker.once('exit', () => { setImmediate(disconnect) })

  function disconnect () {
    if (worker.isConnected()) setTimeout(disconnect, READ)
    else if (!isDisconnected) child.emit('disconnect')
  }
}
