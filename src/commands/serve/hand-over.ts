import type { Worker } from 'node:cluster'

interface Sent { cmd?: unknown, act?: unknown, seq?: number, ack?: number }
interface Connection { close (): void }
type Send = (message: Sent, connection?: Connection, ...more: unknown[]) => boolean

// Milliseconds between checks whether the IPC channel of an ended worker is drained.
const READ = 5

/**
 * Hands over connections that were sent to a worker which ended before it accepted them. Node.js would wait for its
 * acknowledgement forever (nodejs/node#21746) and never emit `disconnect`. Another worker gets the connection, as if
 * this one had refused it; without another worker, the connection is closed.
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
    if (worker.isConnected()) setTimeout(disconnect, READ)
    else if (!isDisconnected) child.emit('disconnect')
  }
}
