import type { Worker } from 'node:cluster'

interface Sent { cmd?: unknown, act?: unknown, seq?: number, ack?: number }
interface Connection { close (): void }
type Send = (message: Sent, connection?: Connection, ...more: unknown[]) => boolean

const CHANNEL_POLL_MS = 5

/**
 * Passes connections to another worker if this worker ends before accepting them; closes them if there is no other
 * worker. Without this function, Node.js waits forever for the acknowledgement of this worker, and never emits
 * `disconnect` (nodejs/node#21746).
 *
 * @param hasOther whether another worker accepts connections
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
    if (worker.isConnected()) setTimeout(disconnect, CHANNEL_POLL_MS)
    else if (!isDisconnected) child.emit('disconnect')
  }
}
