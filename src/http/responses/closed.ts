import type { Socket } from 'node:net'
import type { FastifyReply } from 'fastify'

const waiting = new WeakMap<Socket, Set<() => void>>()

/**
 * Calls `done` once, when the response was sent or its connection is closed. A response that is closed already emits no
 * further `close`. A response that waits for others of its connection (pipelining) emits none if the connection closes.
 */
export function onceClosed ({ raw, request }: FastifyReply, done: () => void): void {
  const { socket } = request.raw
  if (raw.closed || socket.destroyed) return done()
  const all = waiting.get(socket) ?? watch(socket)
  const end = () => { if (all.delete(end)) done() }
  all.add(end)
  raw.once('close', end)
}

function watch (socket: Socket): Set<() => void> {
  const all = new Set<() => void>()
  waiting.set(socket, all)
  socket.once('close', () => { for (const end of all) end() })
  return all
}
