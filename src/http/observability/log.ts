import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest, FastifyServerOptions } from 'fastify'
import pino, { type DestinationStream, type LoggerOptions } from 'pino'
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { ErrorCode } from '../../../schemas/errors.ts'
import { escapeUnprintable } from '../../../schemas/unprintable.ts'
import type { Config } from '../../config.ts'
import { shownAddress } from '../routes/addresses.ts'

const SANE_ID = /^[A-Za-z0-9._-]{1,64}$/

/** The destination of log lines: each call writes one whole line, in order. */
export interface LogStream { write (line: string): unknown }

// If no process reads the output, lines beyond this size are dropped, to limit the memory use.
const MAX_UNREAD_BYTES = 16 * 1024 * 1024
// A batch is written at this size, or this long after the first line of the batch.
const BATCH_BYTES = 32_768
const BATCH_DELAY_MS = 50
// Bytes that a pipe writes atomically (PIPE_BUF of Linux).
const ATOMIC_BYTES = 4096

/**
 * A log stream to standard output, pretty-printed on a terminal. Lines are written asynchronously in batches, and
 * flushed when the process exits. A killed process loses the last batch.
 *
 * @param isShared whether other processes write to the same output; then writes are atomic, so that lines do not mix,
 *   except lines longer than `ATOMIC_BYTES`
 */
export function standardLog (isShared = false): LogStream {
  if (process.stdout.isTTY) {
    return pino.transport({ target: 'pino-pretty', options: { ignore: 'hostname' } }) as LogStream
  }
  const most = isShared ? ATOMIC_BYTES : BATCH_BYTES
  const out = pino.destination({ dest: 1, sync: false, maxLength: MAX_UNREAD_BYTES, maxWrite: most })
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
  // Runs before pino's own listeners, which write the buffer of pino to the output.
  for (const event of ['beforeExit', 'exit'] as const) process.prependListener(event as 'exit', flush)
  return {
    write (line) {
      const length = Buffer.byteLength(line)
      if (bytes + length > most) flush()
      lines += line
      bytes += length
      timer ??= setTimeout(flush, BATCH_DELAY_MS).unref()
    }
  }
}

// A message can have a text of another server. It must not control a terminal, nor look like other lines.
function shownError (error: Error) {
  if (!(error instanceof Error)) return error
  const { type, message, stack, ...more } = pino.stdSerializers.err(error)
  const line = escapeUnprintable(message)
  return { type, ...shownFields(more), message: line, stack: escapeUnprintable(stack.replace(message, () => line), '\n') }
}

// JSON escapes only a part of these characters, and a pretty-printed line none.
function shownFields (fields: object): Record<string, unknown> {
  const shown = (value: unknown): unknown => typeof value === 'string'
    ? escapeUnprintable(value)
    : Array.isArray(value) ? value.map(shown) : value
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, shown(value)]))
}

/** Logger options. Fields are listed explicitly: headers, bodies, queries and raw paths are never logged. */
export function loggerOptions (level: string, stream: LogStream): FastifyServerOptions['logger'] {
  return {
    level,
    base: null,
    redact: ['authorization', 'cookie', '*.authorization', '*.cookie', '*.password', '*.token'],
    serializers: { req: () => ({}), res: () => ({}), err: shownError },
    formatters: { log: shownFields },
    hooks: {
      logMethod (args, method) {
        const shown = args.map((one: unknown) => typeof one === 'string' ? escapeUnprintable(one) : one)
        method.apply(this, shown as typeof args)
      }
    },
    stream
  }
}

/** A logger in the format of the service, for processes without Fastify. */
export function createLog (level: string, stream: LogStream): FastifyBaseLogger {
  return pino(loggerOptions(level, stream) as LoggerOptions, stream as DestinationStream) as FastifyBaseLogger
}

const LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal'] as const

/** A child logger that is created on first use, because most requests log only their request line. */
class LazyChild {
  readonly #parent: FastifyBaseLogger
  readonly #bindings: object
  #made: FastifyBaseLogger | undefined

  static {
    const prototype = this.prototype as unknown as FastifyBaseLogger
    for (const level of LEVELS) {
      prototype[level] = function (this: LazyChild, ...args: unknown[]) { this.#log()[level](...args as [string]) }
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

/** The request id: the client's X-Request-Id if it is well-formed, otherwise a new id. */
export function requestId (header: string | string[] | undefined, make: () => string): string {
  return typeof header === 'string' && SANE_ID.test(header) ? header : make()
}

// After a disconnect, the log line waits at most this long for the outcome of the request.
const LINE_TIMEOUT_MS = 60_000

const INFO = pino.levels.values.info!

/** A response that was sent without a handler. `isDisconnected`: the client left before its whole request arrived. */
export interface Answered { status: number, code: ErrorCode, isDisconnected: boolean }

/** Called once per request with the data of its log line. */
export type ObserveRequest = (
  request: FastifyRequest | undefined, route: string | null, method: string | null, status: number | null,
  ms: number | undefined, code: ErrorCode | undefined
) => void

/**
 * Writes exactly one line per request. The status is null if no response was sent. `aborted`: the client disconnected
 * before it got the whole response. The line of a completely received request waits for the outcome, so that each
 * effect is logged.
 */
export function createRequestLog (
  { logClientAddress, logLevel }: Pick<Config, 'logClientAddress' | 'logLevel'>, stream: LogStream,
  observers: readonly ObserveRequest[] = []
) {
  const isOn = (pino.levels.values[logLevel] ?? Infinity) <= INFO

  const open = new WeakMap<Socket, Set<Line>>()
  const lineOf = new WeakMap<FastifyRequest, Line>()
  let underWay = 0

  /** The pending log line of a request. */
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

    /** Writes the line once; `otherwise` is a response that was sent without a handler. */
    end (otherwise?: Answered) {
      if (!this.#requests.delete(this)) return
      underWay--
      if (!isOn && observers.length === 0) return
      const { request } = this
      const reply = this.#reply
      const { principal, user, errorCode, method } = request
      const route = request.routeOptions.url ?? null
      const status = otherwise?.status ?? (this.#isAnswered || reply.sent ? reply.statusCode : null)
      const ms = reply.elapsedTime
      const code = otherwise === undefined ? errorCode : otherwise.code
      for (const observe of observers) observe(request, route, method, status, ms, code)
      if (!isOn) return
      const caller = principal ? `${principal.type}:${principal.id}` : user ? `user:${user.user.id}` : undefined
      const isAborted = otherwise?.isDisconnected ?? !reply.raw.writableFinished
      write(
        request.id, this.#client, method, route, status, Math.round(ms * 10) / 10, caller, principal?.organization.id,
        code, isAborted
      )
    }

    /** Call this when the connection is closed or the whole response was sent. */
    close () {
      this.#isClosed = true
      if (this.#isAnswered || this.#reply.sent || !isHere(this.request.raw)) this.end()
      else setTimeout(() => this.end(), LINE_TIMEOUT_MS).unref()
    }

    /** Call this when the response is known, even if the client has disconnected. */
    answer () {
      this.#isAnswered = true
      if (this.#isClosed) this.end()
    }
  }

  /** Starts the line of a request. Call this function for requests that run no hooks. */
  function watch (request: FastifyRequest, reply: FastifyReply) {
    const client = shownAddress(request.ip, logClientAddress)
    if (client !== undefined) request.log = reply.log = childOf(request.server.log, { reqId: request.id, client })
    const { socket } = request.raw
    const requests = open.get(socket) ?? watchSocket(socket)
    const line = new Line(request, reply, client, requests)
    requests.add(line)
    underWay++
    lineOf.set(request, line)
    // `close` is emitted after every response, even if the response was not sent completely.
    reply.raw.once('close', () => line.close())
  }

  // Writes the same format as pino, but faster: no field needs redaction.
  function write (
    reqId: string, client: string | undefined, method: string | null, route: string | null, status: number | null,
    ms?: number, principal?: string, organization?: string, code?: ErrorCode, isAborted = false
  ) {
    stream.write(`{"level":${INFO},"time":${Date.now()},"reqId":${quoted(reqId)}${member('client', client)}` +
      `,"method":${quoted(method)},"route":${quoted(route)},"status":${status}${ms === undefined ? '' : `,"ms":${ms}`}` +
      `${member('principal', principal)}${member('organization', organization)}${member('error_code', code)}` +
      `${isAborted ? ',"aborted":true' : ''},"msg":"request"}\n`)
  }

  // When a connection closes, the responses to pipelined requests emit no `close`, so the lines listen to the socket.
  function watchSocket (socket: Socket): Set<Line> {
    const requests = new Set<Line>()
    open.set(socket, requests)
    socket.once('close', () => { for (const line of requests) line.close() })
    return requests
  }

  return {
    watch,
    /** The number of requests whose log line is not written yet. */
    underWay: () => underWay,
    install (app: FastifyInstance) {
      // Read the address now: after a disconnect, a socket returns the address only if it was read before.
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
     * Logs a response that was sent without a handler, to an incomplete request or to invalid HTTP. Complete requests
     * on the same connection have their own lines.
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

// A faster JSON.stringify for text without characters to escape.
const PLAIN = /^[\w.:/*%-]*$/
const quoted = (text: string | null) => text !== null && PLAIN.test(text) ? `"${text}"` : JSON.stringify(text)
const member = (name: string, text: string | undefined) => text === undefined ? '' : `,"${name}":${quoted(text)}`

// Whether the whole request was received and read. Unread bytes of a body are lost when the connection closes.
function isHere ({ complete, readableEnded, headers }: IncomingMessage): boolean {
  const hasBody = headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
  return complete && (readableEnded || !hasBody)
}
