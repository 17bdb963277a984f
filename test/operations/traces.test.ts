// runs: one database
import { once } from 'node:events'
import { request, type IncomingMessage } from 'node:http'
import t from 'tap'
import { createMetrics, render } from '../../src/telemetry/metrics.ts'
import { createTracer, parseTraceparent } from '../../src/telemetry/traces.ts'
import { makeLevel, startIsolatedApp } from '../helpers/app.ts'
import { samplesOf, valueOf } from '../helpers/metrics.ts'
import { startReceiver } from '../helpers/receiver.ts'
import { until } from '../helpers/until.ts'

const PARENT = { trace: '4bf92f3577b34da6a3ce929d0e0e4736', span: '00f067aa0ba902b7' }

t.test('a request is a span, with the guard, its statements and its cryptography as pieces', async (t) => {
  const receiver = await startReceiver(t)
  // This test has its own database, because each request of the service makes a span.
  const service = await startIsolatedApp(t, {
    OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url, OTEL_EXPORTER_OTLP_HEADERS: 'x-api-key=word', OTEL_SERVICE_NAME: 'vault'
  })
  const owner = await service.organization()
  const level = await makeLevel(owner)
  const own = (path: string) => `/${owner.organization}${path}`
  // Uses a real connection, so that the body can arrive after the request has begun.
  const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
  const body = JSON.stringify({ ...level, plaintext: 'A=1' })
  const store = request(`${address}/api/v1${own('/secrets/store')}`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${owner.token}`,
      'content-type': 'application/json',
      'content-length': body.length,
      'x-request-id': 'stored',
      expect: '100-continue'
    }
  })
  store.on('continue', () => store.end(body)).flushHeaders()
  const [answer] = await once(store, 'response') as [IncomingMessage]
  t.equal(answer.resume().statusCode, 200)
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
    { endpoint: receiver.url, headers: {}, serviceName: 'x', ratio }, undefined, () => {}
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

t.test('what share is traced is drawn by the service, whichever trace a caller names', async (t) => {
  const tracer = await createTracer(
    { endpoint: 'http://127.0.0.1:9', headers: {}, serviceName: 'x', ratio: 0.01 }, undefined, () => {}
  )
  // The smallest and the largest trace id, because sampling depends on the id.
  for (const trace of [`${'0'.repeat(31)}1`, 'f'.repeat(32), undefined]) {
    const header = trace && `00-${trace}-${PARENT.span}-01`
    const traced = Array.from({ length: 3_000 }, () => tracer.start(header)).filter((one) => one !== undefined).length
    t.ok(traced > 0 && traced < 300, `${traced} of 3,000 in ${trace}`)
  }
  await tracer.stop()
})

t.test('a receiver that is not there, or takes for ever, holds up no request and no end', async (t) => {
  const receiver = await startReceiver(t)
  receiver.silence()
  const service = await startIsolatedApp(t, {
    OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url, METRICS_TOKEN: 'sixteen-visible!'
  })
  const owner = await service.organization()
  for (let i = 0; i < 3; i++) t.equal((await owner.call('GET', '/organization')).status, 200)
  await until(() => receiver.held.length > 0, { every: 20 })
  t.equal((await owner.call('GET', '/organization')).status, 200)
  await service.app.close()
  t.ok(receiver.held[0]!.socket?.writable, 'it ended while the receiver still had not answered')

  const gone = await startIsolatedApp(t, { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:9', METRICS_TOKEN: 'sixteen-visible!' })
  const caller = await gone.organization()
  t.equal((await caller.call('GET', '/organization')).status, 200)
  const lost = async () => valueOf(samplesOf((await gone.inject({
    method: 'GET', url: '/metrics', headers: { authorization: 'Bearer sixteen-visible!' }
  })).text), 'strongroom_trace_spans_total', { taken: 'no' })
  await until(async () => await lost() !== 0, { every: 50 })
  t.equal(gone.logs.filter((line) => line.includes('does not take traces')).length, 1, 'said once')
})

t.test('what waits for a receiver that is stuck is bounded, and the rest is dropped', async (t) => {
  const receiver = await startReceiver(t)
  receiver.silence()
  const metrics = await createMetrics()
  const tracer = await createTracer(
    { endpoint: receiver.url, headers: {}, serviceName: 'x', ratio: 1 }, metrics, () => {}
  )
  const most = 12_000
  for (let i = 0; i < most; i++) {
    tracer.start(undefined)!.end({ method: 'GET', route: '/', status: 200, code: undefined, requestId: 'x' })
  }
  await until(() => receiver.held.length > 0, { every: 20 })
  receiver.answer()
  await tracer.stop()
  const sent = valueOf(samplesOf(await render([await metrics.read()])), 'strongroom_trace_spans_total', {})
  t.ok(sent > 0 && sent <= 4096 + 512, `${sent} of ${most} were kept`)
})
