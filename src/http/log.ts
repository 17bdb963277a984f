import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest, FastifyServerOptions } from 'fastify'
import pino from 'pino'
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { ErrorCode } from '../../schemas/errors.ts'
import type { Config } from '../config.ts'
import { shownAddress } from './addresses.ts'

const SANE_ID = /^[A-Za-z0-9._-]{1,64}$/

/** Where lines go: in one piece each, in the order of the calls. */
export interface LogStream { write (line: string): unknown }

// A reader that hangs must not take all memory: beyond that, lines are dropped.
const MOST_UNREAD = 16 * 1024 * 1024

/**
 * Standard output, pretty on a terminal. Lines leave together, twenty times a second or when there are many, so that
 * nobody waits for them. All are out when the process ends, unless it is killed: then those of the last moment are lost.
 */
export function standardLog (): LogStream {
  return process.stdout.isTTY
    ? pino.transport({ target: 'pino-pretty', options: { ignore: 'hostname' } }) as LogStream
    : pino.destination({ dest: 1, sync: false, minLength: 4096, periodicFlush: 50, maxLength: MOST_UNREAD })
}

/** JSON lines. What goes in is chosen field by field: no header, body, query or raw path ever does. */
export function loggerOptions (level: string, stream: LogStream): FastifyServerOptions['logger'] {
  return {
    level,
    base: null,
    redact: ['authorization', 'cookie', '*.authorization', '*.cookie', '*.password', '*.token'],
    serializers: { req: () => ({}), res: () => ({}) },
    stream
  }
}

const LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal'] as const

/** A child logger that is made when something is logged: nearly all requests have nothing to say beside their line. */
class LazyChild {
  readonly #parent: FastifyBaseLogger
  readonly #bindings: object
  #made: FastifyBaseLogger | undefined

  static {
    for (const level of LEVELS) {
      (this.prototype as unknown as FastifyBaseLogger)[level] = function (this: LazyChild, ...args: unknown[]) { this.#log()[level](...args as [string]) }
    }
  }

  constructor (parent: FastifyBaseLogger, bindings: object) {
    this.#parent = parent
    this.#bindings = bindings
  }

  get level () { return this.#parent.level }
  silent () {}
  child (...args: Parameters<FastifyBaseLogger['child']>) { return this.#log().child(...args) }

  #log () {
    this.#made ??= this.#parent.child(this.#bindings)
    return this.#made
  }
}

export const childOf = (parent: FastifyBaseLogger, bindings: object) => new LazyChild(parent, bindings) as unknown as FastifyBaseLogger

/** A request's id is the caller's when it is sane, else a new one. */
export function requestId (header: string | string[] | undefined, make: () => string): string {
  return typeof header === 'string' && SANE_ID.test(header) ? header : make()
}

/** What is open on a connection. */
interface Line {
  request: FastifyRequest
  /** Writes it, unless it is written; whoever answers beside the request says with what. */
  end: (otherwise?: Answered) => void
  /** The connection has gone. */
  close: () => void
  /** What the service has to say is known, whether or not anybody hears it. */
  answer: () => void
}

// Milliseconds. What is worked on when its client goes ends long before.
const LATEST = 60_000

const INFO = pino.levels.values.info!

/** What was answered beside a request; `isGone` when its client ended before it was whole. */
export interface Answered { status: number, code: ErrorCode, isGone: boolean }

/**
 * One line a request, whatever becomes of it: id, client, route, status, milliseconds, principal, organization, error code;
 * `aborted` when the client was gone before it had the whole answer. A request that came whole is worked on even then: its
 * line waits for its outcome, so that what took effect is told of. A status of null: there was none.
 */
export function createRequestLog ({ logClientAddress, logLevel }: Pick<Config, 'logClientAddress' | 'logLevel'>, stream: LogStream) {
  const isOn = (pino.levels.values[logLevel] ?? Infinity) <= INFO

  const open = new WeakMap<Socket, Set<Line>>()
  const lineOf = new WeakMap<FastifyRequest, Line>()

  /** From here on the request gets its line. For one that no hook runs for, called by hand. */
  function watch (request: FastifyRequest, reply: FastifyReply) {
    const client = shownAddress(request.ip, logClientAddress)
    if (client !== undefined) request.log = reply.log = childOf(request.server.log, { reqId: request.id, client })
    const { socket } = request.raw
    const requests = open.get(socket) ?? watchSocket(socket)
    let isClosed = false
    let isAnswered = false
    const line: Line = {
      request,
      end (otherwise) {
        if (!requests.delete(line)) return
        const isWhole = reply.raw.writableFinished
        if (!isOn) return
        const { principal, user, errorCode } = request
        write({
          reqId: request.id,
          client,
          method: request.method,
          route: request.routeOptions.url ?? null,
          status: otherwise?.status ?? (isAnswered || reply.sent ? reply.statusCode : null),
          ms: Math.round(reply.elapsedTime * 10) / 10,
          principal: principal ? `${principal.type}:${principal.id}` : user ? `user:${user.user.id}` : undefined,
          organization: principal?.organization.id,
          error_code: otherwise === undefined ? errorCode ?? undefined : otherwise.code,
          aborted: (otherwise?.isGone ?? !isWhole) || undefined
        })
      },
      close () {
        isClosed = true
        if (isAnswered || reply.sent || !isHere(request.raw)) line.end()
        else setTimeout(() => line.end(), LATEST).unref()
      },
      answer () {
        isAnswered = true
        if (isClosed) line.end()
      }
    }
    requests.add(line)
    lineOf.set(request, line)
    // One or the other comes first, and both may.
    reply.raw.once('finish', () => line.end())
    reply.raw.once('close', line.close)
  }

  // In the form of the logger's own lines, without what those cost: nothing in it is to be redacted.
  function write (fields: object) {
    stream.write(`${JSON.stringify({ level: INFO, time: Date.now(), ...fields, msg: 'request' })}\n`)
  }

  // What waits in line behind another request on its connection is told of nothing when that goes.
  function watchSocket (socket: Socket): Set<Line> {
    const requests = new Set<Line>()
    open.set(socket, requests)
    socket.once('close', () => { for (const { close } of requests) close() })
    return requests
  }

  return {
    watch,
    install (app: FastifyInstance) {
      // A socket remembers its address from the first time that it is asked, and one that has gone cannot tell any more.
      app.server.on('connection', ({ remoteAddress }) => remoteAddress)
      app.addHook('onRequest', (request, reply, done) => {
        watch(request, reply)
        done()
      })
      app.addHook('onSend', (request, _reply, _payload, done) => {
        lineOf.get(request)?.answer()
        done()
      })
    },
    /**
     * What was answered beside any request: to one that broke off in a way that is no HTTP, or to what never was one. What
     * came whole before it has an outcome of its own.
     */
    answered (socket: Socket, reqId: string, answer: Answered) {
      const broken = [...open.get(socket) ?? []].filter(({ request }) => !request.raw.complete)
      for (const { end } of broken) end(answer)
      if (broken.length > 0) return
      const client = shownAddress(socket.remoteAddress, logClientAddress)
      if (isOn) write({ reqId, client, method: null, route: null, status: answer.status, error_code: answer.code })
    }
  }
}

// Whether nothing of it is missing, for the one who reads it either: of what was not read before the connection went nobody hears.
function isHere ({ complete, readableEnded, headers }: IncomingMessage): boolean {
  const hasBody = headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
  return complete && (readableEnded || !hasBody)
}
