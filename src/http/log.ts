import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest, FastifyServerOptions } from 'fastify'
import type { Socket } from 'node:net'
import type { ErrorCode } from '../../schemas/errors.ts'
import type { Config } from '../config.ts'
import { shownAddress } from './addresses.ts'

const SANE_ID = /^[A-Za-z0-9._-]{1,64}$/

/** JSON lines, pretty on a terminal. What goes in is chosen field by field: no header, body, query or raw path ever does. */
export function loggerOptions (level: string): FastifyServerOptions['logger'] {
  return {
    level,
    base: null,
    redact: ['authorization', 'cookie', '*.authorization', '*.cookie', '*.password', '*.token'],
    serializers: { req: () => ({}), res: () => ({}) },
    ...(process.stdout.isTTY && { transport: { target: 'pino-pretty', options: { ignore: 'hostname' } } })
  }
}

/** A request's id is the caller's when it is sane, else a new one. */
export function requestId (header: string | string[] | undefined, make: () => string): string {
  return typeof header === 'string' && SANE_ID.test(header) ? header : make()
}

/** What is open on a connection, by request: ends its line; whoever answers beside the request says with what. */
type End = (otherwise?: Answered) => void

/** What was answered beside a request; `isGone` when its client ended before it was whole. */
export interface Answered { status: number, code: ErrorCode, isGone: boolean }

/**
 * One line a request, whatever becomes of it: id, client, route, status, milliseconds, principal, organization, error code;
 * `aborted` when the client was gone before it had the whole answer, and a status of null when none of it was sent.
 */
export function createRequestLog ({ logClientAddress }: Pick<Config, 'logClientAddress'>) {
  const open = new WeakMap<Socket, Set<End>>()

  /** From here on the request gets its line. For one that no hook runs for, called by hand. */
  function watch (request: FastifyRequest, reply: FastifyReply) {
    const client = shownAddress(request.ip, logClientAddress)
    if (client !== undefined) request.log = reply.log = request.log.child({ client })
    const { socket } = request.raw
    const requests = open.get(socket) ?? watchSocket(socket)
    const end: End = (otherwise) => {
      if (!requests.delete(end)) return
      const isWhole = reply.raw.writableFinished
      request.log.info({
        method: request.method,
        route: request.routeOptions.url ?? null,
        status: otherwise?.status ?? (isWhole || reply.raw.headersSent ? reply.statusCode : null),
        ms: Math.round(reply.elapsedTime * 10) / 10,
        ...(request.principal && { principal: `${request.principal.type}:${request.principal.id}`, organization: request.principal.organization.id }),
        ...(request.principal === null && request.user && { principal: `user:${request.user.user.id}` }),
        ...(otherwise === undefined ? request.errorCode && { error_code: request.errorCode } : { error_code: otherwise.code }),
        ...((otherwise?.isGone ?? !isWhole) && { aborted: true })
      }, 'request')
    }
    requests.add(end)
    // One or the other comes first, and both may.
    reply.raw.once('finish', () => end())
    reply.raw.once('close', () => end())
  }

  // What waits in line behind another request on its connection is told of nothing when that goes.
  function watchSocket (socket: Socket): Set<End> {
    const requests = new Set<End>()
    open.set(socket, requests)
    socket.once('close', () => { for (const end of requests) end() })
    return requests
  }

  return {
    watch,
    install (app: FastifyInstance) {
      // A socket remembers its address from the first time that it is asked, and one that has gone cannot tell any more.
      app.server.on('connection', ({ remoteAddress }) => remoteAddress)
      app.addHook('onRequest', async (request, reply) => watch(request, reply))
    },
    /** What was answered beside any request: to one that broke off in a way that is no HTTP, or to what never was one. */
    answered (log: FastifyBaseLogger, socket: Socket, reqId: string, answer: Answered) {
      const requests = [...open.get(socket) ?? []]
      for (const end of requests) end(answer)
      if (requests.length > 0) return
      const client = shownAddress(socket.remoteAddress, logClientAddress)
      log.info({ reqId, ...(client !== undefined && { client }), method: null, route: null, status: answer.status, error_code: answer.code }, 'request')
    }
  }
}
