import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { until } from './until.ts'

/** A received span. */
export interface Sent {
  name: string
  traceId: string
  spanId: string
  parentSpanId?: string
  kind: number
  status: { code?: number }
  attributes: Record<string, string | number>
}

/** A receiver of traces over OTLP, which records all requests as text and as spans. */
export async function startReceiver (t: { teardown (fn: () => unknown): void }) {
  const received: string[] = []
  const held: ServerResponse[] = []
  let isSilent = false
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk)).on('end', () => {
      received.push(`${request.method} ${request.url} ${JSON.stringify(request.headers)}\n${Buffer.concat(chunks)}`)
      if (isSilent) held.push(response)
      else response.setHeader('content-type', 'application/json').end('{}')
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const spans = (): Sent[] => received.flatMap((text) => JSON.parse(text.slice(text.indexOf('\n'))).resourceSpans)
    .flatMap(({ scopeSpans }: any) => scopeSpans).flatMap(({ spans }: any) => spans)
    .map((span: any) => ({
      ...span,
      attributes: Object.fromEntries(span.attributes.map(({ key, value }: any) =>
        [key, value.stringValue ?? Number(value.intValue ?? value.doubleValue)]))
    }))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    received,
    held,
    spans,
    /** Waits for the span of a request, and returns it with its child spans. */
    traceOf: (requestId: string) => until(() => {
      const all = spans()
      const root = all.find(({ attributes }) => attributes['strongroom.request_id'] === requestId)
      return root && { root, pieces: all.filter(({ parentSpanId }) => parentSpanId === root.spanId) }
    }, { every: 20 }),
    silence: () => { isSilent = true },
    answer () {
      isSilent = false
      for (const response of held.splice(0)) response.end('{}')
    }
  }
}
