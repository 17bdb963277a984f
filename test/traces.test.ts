import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { createMetrics, render } from '../src/telemetry/metrics.ts'
import { createTracer, parseTraceparent } from '../src/telemetry/traces.ts'
import { makeLevel, startApp } from './helpers/app.ts'
import { samplesOf, valueOf } from './helpers/metrics.ts'
import { makePerson } from './helpers/people.ts'
import { formIn, visitor } from './helpers/visitor.ts'

interface Sent {
  name: string
  traceId: string
  spanId: string
  parentSpanId?: string
  kind: number
  status: { code?: number }
  attributes: Record<string, string | number>
}

/** A receiver of traces over OTLP: everything that it was sent, as bytes and as spans. */
async function startReceiver (t: Test) {
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
    /** The span of a request, and its pieces. */
    async traceOf (requestId: string): Promise<{ root: Sent, pieces: Sent[] }> {
      for (;;) {
        const all = spans()
        const root = all.find(({ attributes }) => attributes['strongroom.request_id'] === requestId)
        if (root !== undefined) return { root, pieces: all.filter(({ parentSpanId }) => parentSpanId === root.spanId) }
        await pause(20)
      }
    },
    silence: () => { isSilent = true },
    answer () {
      isSilent = false
      for (const response of held.splice(0)) response.end('{}')
    }
  }
}

const PARENT = { trace: '4bf92f3577b34da6a3ce929d0e0e4736', span: '00f067aa0ba902b7' }

t.test('a request is a span, with the guard, its statements and its cryptography as pieces', async (t) => {
  const receiver = await startReceiver(t)
  const service = await startApp(t, {
    OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url, OTEL_EXPORTER_OTLP_HEADERS: 'x-api-key=word', OTEL_SERVICE_NAME: 'vault'
  })
  const owner = await service.organization()
  const level = await makeLevel(owner)
  const own = (path: string) => `/${owner.organization}${path}`
  await owner.call('POST', own('/secrets/store'), { ...level, plaintext: 'A=1' }, { 'x-request-id': 'stored' })
  await owner.call('POST', own('/secrets/retrieve'), { ...level, action: 'decrypt' }, {
    'x-request-id': 'read', traceparent: `00-${PARENT.trace}-${PARENT.span}-01`
  })

  const read = await receiver.traceOf('read')
  t.match(read.root, {
    name: 'POST /api/v1/:organization/secrets/retrieve',
    kind: 2,
    traceId: PARENT.trace,
    parentSpanId: PARENT.span,
    attributes: {
      'http.request.method': 'POST',
      'http.route': '/api/v1/:organization/secrets/retrieve',
      'http.response.status_code': 200
    }
  })
  const names = read.pieces.map(({ name }) => name)
  for (const name of ['guard', 'crypto open']) t.ok(names.includes(name), `${name} of ${names.join()}`)
  t.ok(names.some((name) => /^(?:SELECT|WITH) [a-z_]+$/.test(name)), 'a statement, by its first word and a table')
  t.ok(read.pieces.every(({ traceId }) => traceId === PARENT.trace))

  const stored = await receiver.traceOf('stored')
  t.not(stored.root.traceId, PARENT.trace)
  t.ok(stored.pieces.some(({ name }) => name === 'crypto seal'), 'pieces behind the body, too')

  const refused = await owner.call('GET', own('/nowhere/at/all'), undefined, { 'x-request-id': 'refused' })
  t.match((await receiver.traceOf('refused')).root.attributes, {
    'http.response.status_code': refused.status, 'error.type': refused.body.error
  })
  await service.inject({ method: 'GET', url: '/healthz', headers: { 'x-request-id': 'probe' } })
  await service.app.close()
  t.notOk(receiver.spans().some(({ attributes }) => attributes['strongroom.request_id'] === 'probe'), 'no probe')
  const [head = ''] = receiver.received[0]!.split('\n')
  t.match(head, /^POST \/v1\/traces .*"x-api-key":"word"/)
  t.ok(receiver.received.every((text) => text.includes('"stringValue":"vault"')))
})

t.test('who calls names the trace, or asks for none; what is no traceparent is not there', async (t) => {
  const wrong = [
    undefined, '', 'x'.repeat(10_000), `00-${PARENT.trace}-${PARENT.span}`, `00-${PARENT.trace}-${PARENT.span}-01-x`,
    `ff-${PARENT.trace}-${PARENT.span}-01`, `00-${PARENT.trace.toUpperCase()}-${PARENT.span}-01`,
    `00-${'0'.repeat(32)}-${PARENT.span}-01`, `00-${PARENT.trace}-${'0'.repeat(16)}-01`,
    [`00-${PARENT.trace}-${PARENT.span}-01`, `00-${PARENT.trace}-${PARENT.span}-01`]
  ]
  for (const header of wrong) t.equal(parseTraceparent(header), undefined, String(header).slice(0, 60))
  const receiver = await startReceiver(t)
  const tracer = (ratio: number) => createTracer(
    { endpoint: receiver.url, headers: {}, serviceName: 'x', ratio }, createMetrics(), () => {}
  )
  const [all, none] = [await tracer(1), await tracer(0)]
  t.equal(all.start(`00-${PARENT.trace}-${PARENT.span}-00`), undefined, 'asked for none')
  t.ok(all.start(`00-${PARENT.trace}-${PARENT.span}-01`))
  t.equal(none.start(`00-${PARENT.trace}-${PARENT.span}-01`), undefined, 'how many there are is not for who calls')
  t.equal(none.start(undefined), undefined)
  const { begin, end } = all.start(undefined)!
  for (let i = 0; i < 250; i++) begin('seal')()
  end({ method: 'GET', route: null, status: 200, code: undefined, requestId: 'many' })
  begin('seal')()
  await Promise.all([all.stop(), none.stop()])
  const { root, pieces } = await receiver.traceOf('many')
  t.equal(pieces.length, 100, 'pieces of one request are bounded')
  t.equal(root.attributes['strongroom.pieces_left_out'], 150)
})

t.test('RL-40: no secret, token, content, address, slug or id of a tenant leaves in a trace', async (t) => {
  const receiver = await startReceiver(t)
  const service = await startApp(t, { OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url })
  const owner = await service.organization()
  const unique = (name: string) => `canary-${name}-${randomBytes(9).toString('hex')}`
  const canaries = Object.fromEntries(
    ['slug', 'key', 'plaintext', 'password', 'query', 'header', 'wrong'].map((name) => [name, unique(name)])
  ) as Record<'slug' | 'key' | 'plaintext' | 'password' | 'query' | 'header' | 'wrong', string>
  const person = await makePerson(service, { [owner.organization]: 'owner' }, canaries.password)
  const own = (path: string) => `/${owner.organization}${path}`
  const level = await makeLevel(owner, { slug: canaries.slug, encryption_key: canaries.key })
  const stored = await owner.call('POST', own('/secrets/store'), { ...level, plaintext: `A=${canaries.plaintext}` })
  await owner.call('GET', own(`/${canaries.slug}/backend/live/secrets?decrypt=true&q=${canaries.query}`))
  await owner.call('GET', own(`/${canaries.slug}/encryption-key`), undefined, { 'user-agent': canaries.header })
  await owner.call('POST', own('/secrets/store'), { ...level, plaintext: [canaries.plaintext] })
  await owner.call('POST', own(`/secrets/versions/${stored.body.data.version}/restore`), {})
  await owner.call('GET', own(`/${canaries.query}`), undefined, { tracestate: `a=${canaries.header}` })
  await owner.call('GET', '/organization', undefined, { authorization: `Bearer ${canaries.wrong}` })
  await owner.call('GET', '/organization', undefined, { traceparent: canaries.header, baggage: canaries.header })
  await service.sql(`UPDATE secrets SET sealed = '\\x00' WHERE organization_id = '${owner.organization}'`)
  t.equal((await owner.call('GET', own(`/${canaries.slug}/backend/live/secrets`))).status, 500)
  const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
  const browser = visitor(address)
  const form = formIn(await browser.open('/account'))
  await browser.send(form, { email: person.email, password: canaries.wrong })
  await browser.send(form, { email: person.email, password: canaries.password })
  await service.app.close()
  const text = receiver.received.join('\n')
  const names = new Set(receiver.spans().map(({ name }) => name))
  for (const name of ['crypto password', 'crypto open', 'transaction', 'guard']) t.ok(names.has(name), name)
  t.ok(receiver.spans().some(({ status }) => status.code === 2), 'and what failed here')
  for (const [name, canary] of Object.entries({
    ...canaries, organization: owner.organization, token: owner.token.slice(-20), email: person.email
  })) {
    t.notOk(text.includes(canary), name)
    t.notOk(text.includes(Buffer.from(canary).toString('hex')), `${name} in hex`)
    t.notOk(text.includes(Buffer.from(canary).toString('base64').slice(0, 16)), `${name} in base64`)
  }
})

t.test('a receiver that is not there, or takes for ever, holds up no request and no end', async (t) => {
  const receiver = await startReceiver(t)
  receiver.silence()
  const service = await startApp(t, {
    OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url, METRICS_TOKEN: 'sixteen-visible!'
  })
  const owner = await service.organization()
  for (let i = 0; i < 3; i++) t.equal((await owner.call('GET', '/organization')).status, 200)
  while (receiver.held.length === 0) await pause(20)
  t.equal((await owner.call('GET', '/organization')).status, 200)
  await service.app.close()
  t.ok(receiver.held[0]!.socket?.writable, 'it ended while the receiver still had not answered')

  const gone = await startApp(t, { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:9', METRICS_TOKEN: 'sixteen-visible!' })
  const caller = await gone.organization()
  t.equal((await caller.call('GET', '/organization')).status, 200)
  const lost = async () => valueOf(samplesOf((await gone.inject({
    method: 'GET', url: '/metrics', headers: { authorization: 'Bearer sixteen-visible!' }
  })).text), 'strongroom_trace_spans_total', { taken: 'no' })
  while (await lost() === 0) await pause(50)
  t.equal(gone.logs.filter((line) => line.includes('does not take traces')).length, 1, 'said once')
})

t.test('what waits for a receiver that is stuck is bounded, and the rest is dropped', async (t) => {
  const receiver = await startReceiver(t)
  receiver.silence()
  const metrics = createMetrics()
  const tracer = await createTracer(
    { endpoint: receiver.url, headers: {}, serviceName: 'x', ratio: 1 }, metrics, () => {}
  )
  const most = 12_000
  for (let i = 0; i < most; i++) {
    tracer.start(undefined)!.end({ method: 'GET', route: '/', status: 200, code: undefined, requestId: 'x' })
  }
  while (receiver.held.length === 0) await pause(20)
  receiver.answer()
  await tracer.stop()
  const sent = valueOf(samplesOf(render([['', metrics.read()]])), 'strongroom_trace_spans_total', {})
  t.ok(sent > 0 && sent <= 4096 + 512, `${sent} of ${most} were kept`)
})
