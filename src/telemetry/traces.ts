import type { Attributes, Context, Span, SpanContext } from '@opentelemetry/api'
import type { ReadableSpan, SpanExporter } from '@opentelemetry/sdk-trace'
import type { Metrics } from './metrics.ts'
import type { End, Trace } from './spans.ts'

/** `endpoint` is the base URL, without `/v1/traces`; `ratio` is the share of requests that are traced. */
export interface TracesConfig { endpoint: string, headers: Record<string, string>, serviceName: string, ratio: number }

/** A finished request. `route` is a pattern, null without a route; `status` is null if no response was sent. */
interface Outcome {
  method: string
  route: string | null
  status: number | null
  code: string | undefined
  requestId: string
}

/** The trace of a request. `end` ends the trace; later spans are ignored. */
export interface RequestTrace extends Trace { end (outcome: Outcome): void }

/** Traces requests and exports the traces in the background. */
export interface Tracer {
  /** Starts the trace of a request. Returns undefined if the request is not sampled. */
  start (traceparent: string | string[] | undefined): RequestTrace | undefined
  /** Exports the remaining traces; gives up after one second. */
  stop (): Promise<void>
}

// Maximum spans of a request. A key rotation of a project has thousands of spans; the first spans are sufficient.
const MAX_SPANS = 100
const QUEUE = { maxQueueSize: 4096, maxExportBatchSize: 512, scheduledDelayMillis: 1_000 }
// Timeout for the export of one batch, including retries.
const EXPORT_TIMEOUT_MS = 3_000
const STOP_TIMEOUT_MS = 1_000

const SPAN_NAMES = {
  guard: 'guard',
  transaction: 'transaction',
  seal: 'crypto seal',
  open: 'crypto open',
  derive: 'crypto derive',
  password: 'crypto password'
} as const

/**
 * Creates a tracer that exports over OTLP. Spans have only the attributes listed here, and no parameter values. Calls
 * `warn` when exports begin to fail, and when they succeed again.
 */
export async function createTracer (
  { endpoint, headers, serviceName, ratio }: TracesConfig, metrics: Metrics | undefined, warn: (line: string) => void
): Promise<Tracer> {
  // Loaded only if tracing is on, because loading these modules takes longer than the rest of the start.
  const [api, sdk, { OTLPTraceExporter }, { resourceFromAttributes }] = await Promise.all([
    import('@opentelemetry/api'), import('@opentelemetry/sdk-trace'),
    import('@opentelemetry/exporter-trace-otlp-http'), import('@opentelemetry/resources')
  ])
  const exporter = new OTLPTraceExporter({
    url: `${endpoint}/v1/traces`, headers, timeoutMillis: EXPORT_TIMEOUT_MS, concurrencyLimit: 8
  })
  const processor = new sdk.BatchSpanProcessor({
    ...QUEUE, exportTimeoutMillis: EXPORT_TIMEOUT_MS, exporter: watched(exporter, metrics, warn)
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
    let spans = 0
    let isOver = false
    return {
      begin (work, text): End {
        if (isOver || ++spans > MAX_SPANS) return () => {}
        const name = work === 'statement' ? nameOfStatement(text ?? '') : SPAN_NAMES[work]
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
          'strongroom.pieces_left_out': spans > MAX_SPANS ? spans - MAX_SPANS : undefined
        }))
        if (status === null || status >= 500) root.setStatus({ code: SpanStatusCode.ERROR })
        root.end()
      }
    }
  }

  return {
    start (traceparent) {
      // Do not sample by the trace id: a client could choose ids for which every request is traced.
      if (Math.random() >= ratio) return undefined
      const parent = parseTraceparent(traceparent)
      if (parent?.traceFlags === TraceFlags.NONE) return undefined
      const context = parent === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, parent)
      return requestTrace(tracer.startSpan('request', { kind: SpanKind.SERVER }, context))
    },
    async stop () {
      let timer: NodeJS.Timeout | undefined
      await Promise.race([
        provider.shutdown().catch(() => {}), new Promise((resolve) => { timer = setTimeout(resolve, STOP_TIMEOUT_MS) })
      ])
      clearTimeout(timer)
    }
  }
}

/** Wraps an exporter: counts exported and failed spans, and logs when exports begin or cease to fail. */
function watched (
  exporter: SpanExporter, metrics: Metrics | undefined, warn: (line: string) => void
): SpanExporter {
  const spans = metrics?.counter(
    'strongroom_trace_spans_total', 'Spans that were sent, and whether they were taken', ['taken']
  )
  for (const taken of ['yes', 'no']) spans?.inc({ taken }, 0)
  let isWorking = true
  return {
    export (batch: ReadableSpan[], done) {
      exporter.export(batch, (result) => {
        const isTaken = result.code === 0
        spans?.inc({ taken: isTaken ? 'yes' : 'no' }, batch.length)
        // Do not log the receiver's error, which may quote span data.
        if (isTaken !== isWorking) warn(isTaken ? 'traces are taken again' : 'the receiver does not take traces')
        isWorking = isTaken
        done(result)
      })
    },
    shutdown: () => exporter.shutdown(),
    forceFlush: async () => { await exporter.forceFlush?.() }
  }
}

/** Parses a `traceparent` header (W3C Trace Context); undefined if it is invalid. */
export function parseTraceparent (header: string | string[] | undefined): SpanContext | undefined {
  if (typeof header !== 'string' || header.length !== 55) return undefined
  const [, traceId, spanId, flags] = /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/.exec(header) ?? []
  if (traceId === undefined || /^0+$/.test(traceId) || /^0+$/.test(spanId!)) return undefined
  return { traceId, spanId: spanId!, traceFlags: parseInt(flags!, 16) & 1, isRemote: true }
}

// The command and the first table of a statement, such as `SELECT projects`.
function nameOfStatement (text: string): string {
  const [, word = 'statement'] = /^\s*([a-z]+)\b/i.exec(text) ?? []
  const [, table] = /\b(?:from|into|update|join)\s+"?([a-z][a-z_]*)"?/i.exec(text) ?? []
  return [word.toUpperCase(), table].filter(Boolean).join(' ')
}

const defined = (attributes: Record<string, string | number | undefined>): Attributes =>
  Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined))
