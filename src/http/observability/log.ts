import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest, FastifyServerOptions } from 'fastify'
import pino, { type DestinationStream, type LoggerOptions } from 'pino'
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { ErrorCode } from '../../../schemas/errors.ts'
import type { Config } from '../../config.ts'
import { shownAddress } from '../routes/addresses.ts'

const SANE_ID = /^[A-Za-z0-9._-]{1,64}$/

/** Where lines go: in one piece each, in the order of the calls. */
export interface LogStream { write (line: string): unknown }

// A reader that hangs must not take all memory: beyond that, lines are dropped.
const MOST_UNREAD = 16 * 1024 * 1024
// Lines leave together when they are so many bytes, or so many milliseconds after the first of them.
const TOGETHER = 32_768
const MOST_DELAY = 50
// What a pipe takes in one piece (PIPE_BUF of Linux).
const ONE_PIECE = 4096

/**
 * Standard output, pretty on a terminal. Lines leave together, twenty times a second or when there are many, so that
 * nobody waits for them. All are out when the process ends, unless it is killed: then those of the last moment are
 * lost.
 *
 * @param isShared whether other processes write to the same: each write is then of whole lines and no more than a pipe
 *   takes in one piece (unless a single line is longer), so that lines do not mix
 */
export function standardLog (isShared = false): LogStream {
  if (process.stdout.isTTY) {
    return pino.transport({ target: 'pino-pretty', options: { ignore: 'hostname' } }) as LogStream
  }
  const most = isShared ? ONE_PIECE : TOGETHER
  const out = pino.destination({ dest: 1, sync: false, maxLength: MOST_UNREAD, maxWrite: most })
  let lines = ''
  let bytes = 0
  let timer: NodeJS.Timeout | undefined
  const flush = () => {
    clearTimeout(timer)
    timer = undefined
    if (lines !== '') out.write(lines)
    lines = ''
    bytes = 0
  }
  // Before the destination's own listeners, which then write out what it has.
  for (const event of ['beforeExit', 'exit'] as const) process.prependListener(event as 'exit', flush)
  return {
    write (line) {
      const length = Buffer.byteLength(line)
      if (bytes + length > most) flush()
      lines += line
      bytes += length
      timer ??= setTimeout(flush, MOST_DELAY).unref()
    }
  }
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

/** A log for who has no Fastify, in the form of the service's own. */
export function createLog (level: string, stream: LogStream): FastifyBaseLogger {
  return pino(loggerOptions(level, stream) as LoggerOptions, stream as DestinationStream) as FastifyBaseLogger
}

const LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal'] as const

/** A child logger that is made when something is logged: nearly all requests have nothing to say beside their line. */
class LazyChild {
  readonly #parent: FastifyBaseLogger
  readonly #bindings: object
  #made: FastifyBaseLogger | undefined

  static {
    for (const level of LEVELS) {
      (this.prototype as unknown as FastifyBaseLogger)[level] = function (
        this: LazyChild, ...args: unknown[]
      ) { this.#log()[level](...args as [string]) }
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

export const childOf = (parent: FastifyBaseLogger, bindings: object) =>
  new LazyChild(parent, bindings) as unknown as FastifyBaseLogger

/** A request's id is the caller's when it is sane, else a new one. */
export function requestId (header: string | string[] | undefined, make: () => string): string {
  return typeof header === 'string' && SANE_ID.test(header) ? header : make()
}

// Milliseconds. What is worked on when its client goes ends long before.
const LATEST = 60_000

const INFO = pino.levels.values.info!

/** What was answered beside a request; `isGone` when its client ended before it was whole. */
export interface Answered { status: number, code: ErrorCode, isGone: boolean }

/** Told of every request what its line says: once, whatever becomes of it. */
export type ObserveRequest = (
  request: FastifyRequest | undefined, route: string | null, method: string | null, status: number | null,
  ms: number | undefined, code: ErrorCode | undefined
) => void

/**
 * One line a request, whatever becomes of it: id, client, route, status, milliseconds, principal, organization, error
 * code;
 * `aborted` when the client was gone before it had the whole answer. A request that came whole is worked on even then:
 * its line waits for its outcome, so that what took effect is told of. A status of null: there was none.
 */
export function createRequestLog (
  { logClientAddress, logLevel }: Pick<Config, 'logClientAddress' | 'logLevel'>, stream: LogStream,
  observers: readonly ObserveRequest[] = []
) {
  const isOn = (pino.levels.values[logLevel] ?? Infinity) <= INFO

  const open = new WeakMap<Socket, Set<Line>>()
  const lineOf = new WeakMap<FastifyRequest, Line>()
  let underWay = 0

  /** The line of a request that is open on a connection. */
  class Line {
    readonly request: FastifyRequest
    readonly #reply: FastifyReply
    readonly #client: string | undefined
    readonly #requests: Set<Line>
    #isClosed = false
    #isAnswered = false

    constructor (request: FastifyRequest, reply: FastifyReply, client: string | undefined, requests: Set<Line>) {
      this.request = request
      this.#reply = reply
      this.#client = client
      this.#requests = requests
    }

    /** Writes it, unless it is written; whoever answers beside the request says with what. */
    end (otherwise?: Answered) {
      if (!this.#requests.delete(this)) return
      underWay--
      if (!isOn && observers.length === 0) return
      const { request } = this
      const reply = this.#reply
      const isWhole = reply.raw.writableFinished
      const { principal, user, errorCode, method } = request
      const route = request.routeOptions.url ?? null
      const status = otherwise?.status ?? (this.#isAnswered || reply.sent ? reply.statusCode : null)
      const ms = reply.elapsedTime
      const code = otherwise === undefined ? errorCode : otherwise.code
      for (const observe of observers) observe(request, route, method, status, ms, code)
      if (!isOn) return
      write(
        request.id,
        this.#client,
        method,
        route,
        status,
        Math.round(ms * 10) / 10,
        principal ? `${principal.type}:${principal.id}` : user ? `user:${user.user.id}` : undefined,
        principal?.organization.id,
        code,
        !!(otherwise?.isGone ?? !isWhole)
      )
    }

    /** The connection has gone, or the whole answer is on its way. */
    close () {
      this.#isClosed = true
      if (this.#isAnswered || this.#reply.sent || !isHere(this.request.raw)) this.end()
      else setTimeout(() => this.end(), LATEST).unref()
    }

    /** What the service has to say is known, whether or not anybody hears it. */
    answer () {
      this.#isAnswered = true
      if (this.#isClosed) this.end()
    }
  }

  /** From here on the request gets its line. For one that no hook runs for, called by hand. */
  function watch (request: FastifyRequest, reply: FastifyReply) {
    const client = shownAddress(request.ip, logClientAddress)
    if (client !== undefined) request.log = reply.log = childOf(request.server.log, { reqId: request.id, client })
    const { socket } = request.raw
    const requests = open.get(socket) ?? watchSocket(socket)
    const line = new Line(request, reply, client, requests)
    requests.add(line)
    underWay++
    lineOf.set(request, line)
    // Comes after every answer, whether or not all of it was sent.
    reply.raw.once('close', () => line.close())
  }

  // In the form of the logger's own lines, without what those cost: nothing in it is to be redacted.
  function write (
    reqId: string, client: string | undefined, method: string | null, route: string | null, status: number | null,
    ms?: number, principal?: string, organization?: string, code?: ErrorCode, isAborted = false
  ) {
    stream.write(`{"level":${INFO},"time":${Date.now()},"reqId":${quoted(reqId)}${client === undefined ? '' : `,"client":${quoted(client)}`}` +
      `,"method":${quoted(method)},"route":${quoted(route)},"status":${status}${ms === undefined ? '' : `,"ms":${ms}`}` +
      `${principal === undefined ? '' : `,"principal":"${principal}"`}${organization === undefined ? '' : `,"organization":"${organization}"`}` +
      `${code === undefined ? '' : `,"error_code":"${code}"`}${isAborted ? ',"aborted":true' : ''},"msg":"request"}\n`)
  }

  // What waits in line behind another request on its connection is told of nothing when that goes.
  function watchSocket (socket: Socket): Set<Line> {
    const requests = new Set<Line>()
    open.set(socket, requests)
    socket.once('close', () => { for (const line of requests) line.close() })
    return requests
  }

  return {
    watch,
    /** Requests that have no line yet. */
    underWay: () => underWay,
    install (app: FastifyInstance) {
      // A socket remembers its address from the first time that it is asked, and one that has gone cannot tell any
      // more.
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
     * What was answered beside any request: to one that broke off in a way that is no HTTP, or to what never was one.
     * What came whole before it has an outcome of its own.
     */
    answered (socket: Socket, reqId: string, answer: Answered) {
      const broken = [...open.get(socket) ?? []].filter(({ request }) => !request.raw.complete)
      for (const line of broken) line.end(answer)
      if (broken.length > 0) return
      for (const observe of observers) observe(undefined, null, null, answer.status, undefined, answer.code)
      const client = shownAddress(socket.remoteAddress, logClientAddress)
      if (isOn) write(reqId, client, null, null, answer.status, undefined, undefined, undefined, answer.code)
    }
  }
}

// JSON, without a look at each character where the text has none to escape.
const PLAIN = /^[\w.:/*%-]*$/
const quoted = (text: string | null) => text !== null && PLAIN.test(text) ? `"${text}"` : JSON.stringify(text)

// Whether nothing of it is missing, for the one who reads it either: of what was not read before the connection went
// nobody hears.
function isHere ({ complete, readableEnded, headers }: IncomingMessage): boolean {
  const hasBody = headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
  return complete && (readableEnded || !hasBody)
}
