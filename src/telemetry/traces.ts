import type { Attributes, Context, Span, SpanContext } from '@opentelemetry/api'
import type { ReadableSpan, SpanExporter } from '@opentelemetry/sdk-trace'
import type { Metrics } from './metrics.ts'
import type { End, Trace } from './spans.ts'

/** The configuration of tracing. */
export interface TracesConfig {
  /** The base URL; `/v1/traces` is appended. */
  endpoint: string
  headers: Record<string, string>
  serviceName: string
  /** The share of requests that are traced. */
  ratio: number
}

/** The attributes of a finished request. */
export interface Outcome {
  method: string
  /** The pattern; null where there was none. */
  route: string | null
  status: number | null
  /** The row of the catalogue. */
  code: string | undefined
  requestId: string
}

/** The trace of a request. */
export interface RequestTrace extends Trace {
  /** Ends the trace, which then ignores further spans. */
  end (outcome: Outcome): void
}

/** Traces requests and exports the traces in the background. */
export interface Tracer {
  /** Undefined when the request is not sampled. */
  start (traceparent: string | string[] | undefined): RequestTrace | undefined
  /** Exports the remaining traces, within one second. */
  stop (): Promise<void>
}

// A project rotation has thousands of spans; the first ones are sufficient.
const MOST_PIECES = 100
const QUEUE = { maxQueueSize: 4096, maxExportBatchSize: 512, scheduledDelayMillis: 1_000 }
// Timeout in milliseconds for a batch, including retries.
const PATIENCE = 3_000
const LAST = 1_000
const MOST_NAMES = 2_000

const WORDS = {
  guard: 'guard',
  transaction: 'transaction',
  seal: 'crypto seal',
  open: 'crypto open',
  derive: 'crypto derive',
  password: 'crypto password'
} as const

/**
 * Sends traces over OTLP. What a span may say is chosen here, field by field, as in the log: methods, patterns of
 * routes, statuses, codes, the request's id, and of a statement its first word and table.
 *
 * @param warn told when the receiver stops taking traces
 */
export async function createTracer (
  { endpoint, headers, serviceName, ratio }: TracesConfig, metrics: Metrics | undefined, warn: (line: string) => void
): Promise<Tracer> {
  // Loaded by who traces alone: it is more than the rest of a start.
  const [api, sdk, { OTLPTraceExporter }, { resourceFromAttributes }] = await Promise.all([
    import('@opentelemetry/api'), import('@opentelemetry/sdk-trace'),
    import('@opentelemetry/exporter-trace-otlp-http'), import('@opentelemetry/resources')
  ])
  const exporter = new OTLPTraceExporter({
    url: `${endpoint}/v1/traces`, headers, timeoutMillis: PATIENCE, concurrencyLimit: 8
  })
  const processor = new sdk.BatchSpanProcessor({
    ...QUEUE, exportTimeoutMillis: PATIENCE, exporter: watched(exporter, metrics, warn)
  })
  const provider = new sdk.TracerProvider({
    resource: resourceFromAttributes({ 'service.name': serviceName }),
    sampler: new sdk.AlwaysOnSampler(),
    spanProcessors: [processor]
  })
  const tracer = provider.getTracer('strongroom')
  const { ROOT_CONTEXT, SpanKind, SpanStatusCode, trace, TraceFlags } = api

  function requestTrace (root: Span): RequestTrace {
    const context: Context = trace.setSpan(ROOT_CONTEXT, root)
    let pieces = 0
    let isOver = false
    return {
      begin (work, text): End {
        if (isOver || ++pieces > MOST_PIECES) return () => {}
        const name = work === 'statement' ? nameOfStatement(text ?? '') : WORDS[work]
        const isOfDatabase = work === 'statement' || work === 'transaction'
        const span = tracer.startSpan(name, {
          kind: isOfDatabase ? SpanKind.CLIENT : SpanKind.INTERNAL,
          ...(isOfDatabase && { attributes: { 'db.system.name': 'postgresql' } })
        }, context)
        return () => span.end()
      },
      end ({ method, route, status, code, requestId }) {
        isOver = true
        root.updateName(route === null ? method : `${method} ${route}`)
        root.setAttributes(defined({
          'http.request.method': method,
          'http.route': route ?? undefined,
          'http.response.status_code': status ?? undefined,
          'error.type': code,
          'strongroom.request_id': requestId,
          'strongroom.pieces_left_out': pieces > MOST_PIECES ? pieces - MOST_PIECES : undefined
        }))
        if (status === null || status >= 500) root.setStatus({ code: SpanStatusCode.ERROR })
        root.end()
      }
    }
  }

  return {
    start (traceparent) {
      // Not from the id of the trace, which is the word of whoever calls: how many are traced is not.
      if (Math.random() >= ratio) return undefined
      const parent = parseTraceparent(traceparent)
      if (parent?.traceFlags === TraceFlags.NONE) return undefined
      const context = parent === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, parent)
      return requestTrace(tracer.startSpan('request', { kind: SpanKind.SERVER }, context))
    },
    async stop () {
      let timer: NodeJS.Timeout | undefined
      await Promise.race([
        provider.shutdown().catch(() => {}), new Promise((resolve) => { timer = setTimeout(resolve, LAST) })
      ])
      clearTimeout(timer)
    }
  }
}

/** Counts the spans that were taken and those that were not, and tells when that changes. */
function watched (
  exporter: SpanExporter, metrics: Metrics | undefined, warn: (line: string) => void
): SpanExporter {
  const spans = metrics?.counter(
    'strongroom_trace_spans_total', 'Spans that were sent, and whether they were taken', ['taken']
  )
  for (const taken of ['yes', 'no']) spans?.inc({ taken }, 0)
  let isWell = true
  return {
    export (batch: ReadableSpan[], done) {
      exporter.export(batch, (result) => {
        const isTaken = result.code === 0
        spans?.inc({ taken: isTaken ? 'yes' : 'no' }, batch.length)
        // What the receiver said may hold what it was sent.
        if (isTaken !== isWell) warn(isTaken ? 'traces are taken again' : 'the receiver does not take traces')
        isWell = isTaken
        done(result)
      })
    },
    shutdown: () => exporter.shutdown(),
    forceFlush: async () => { await exporter.forceFlush?.() }
  }
}

/** What a `traceparent` of W3C Trace Context names; undefined for anything else, at any length. */
export function parseTraceparent (header: string | string[] | undefined): SpanContext | undefined {
  if (typeof header !== 'string' || header.length !== 55) return undefined
  const [, traceId, spanId, flags] = /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/.exec(header) ?? []
  if (traceId === undefined || /^0+$/.test(traceId) || /^0+$/.test(spanId!)) return undefined
  return { traceId, spanId: spanId!, traceFlags: parseInt(flags!, 16) & 1, isRemote: true }
}

// Cached: the service sends only a few hundred different statements.
const names = new Map<string, string>()

/** The first word of a statement and the first table that it names: a text of ours, without any value. */
function nameOfStatement (text: string): string {
  let name = names.get(text)
  if (name === undefined) {
    const [, word = 'statement'] = /^\s*([a-z]+)\b/i.exec(text) ?? []
    const [, table] = /\b(?:from|into|update|join)\s+"?([a-z][a-z_]*)"?/i.exec(text) ?? []
    name = [word.toUpperCase(), table].filter(Boolean).join(' ')
    if (names.size < MOST_NAMES) names.set(text, name)
  }
  return name
}

const defined = (attributes: Record<string, string | number | undefined>): Attributes =>
  Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined))
