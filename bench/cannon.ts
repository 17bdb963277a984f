/** The child process that sends load: answers each `Shot` message with an `Outcome`, and exits with its parent. */
import { randomUUID } from 'node:crypto'
import { createRequire } from 'node:module'
import { quantile, type Outcome, type Request, type Shot } from './load.ts'

interface Client { setRequests (requests: object[]): void }
interface Options {
  url: string,
  connections: number,
  duration: number,
  amount?: number,
  overallRate?: number,
  sampleInt: number,
  setupClient (client: Client): void
}
interface Instance {
  on (event: 'response', seen: (client: Client, status: number, bytes: number, milliseconds: number) => void): void
  stop (): void
}
interface Result { duration: number, errors: number, timeouts: number }
type Autocannon = (options: Options, done: (error: Error | null, result: Result) => void) => Instance

// The package has no types.
const autocannon = createRequire(import.meta.url)('autocannon') as Autocannon
let current: Instance | undefined

process.on('message', (message: Shot | 'cease') => {
  if (message === 'cease') current?.stop()
  else shoot(message)
})
process.on('disconnect', () => process.exit())

const withKey = (request: Request): Request =>
  ({ ...request, headers: { ...request.headers, 'idempotency-key': randomUUID() } })

function shoot (shot: Shot) {
  const requests = shot.requests.map(({ isKeyed, ...request }) =>
    isKeyed ? { ...request, setupRequest: withKey } : request)
  const latencies: number[] = []
  const unexpected: Record<string, number> = {}
  let good = 0
  let next = 0
  current = autocannon({
    url: shot.url,
    connections: shot.connections,
    duration: shot.seconds,
    ...shot.amount !== undefined && { amount: shot.amount },
    ...shot.rate !== undefined && { overallRate: shot.rate },
    sampleInt: 100,
    // Each connection starts at another index, so that not all send the same request at once.
    setupClient: (client) => {
      const from = next++ % requests.length
      client.setRequests([...requests.slice(from), ...requests.slice(0, from)])
    }
  }, (error, result) => {
    if (error) throw error
    const unanswered = result.errors + result.timeouts
    if (unanswered > 0) unexpected.none = unanswered
    const outcome: Outcome = {
      rate: good / result.duration, p50: quantile(latencies, 0.5), p99: quantile(latencies, 0.99), unexpected
    }
    process.send!(outcome)
  })
  current.on('response', (_client, status, _bytes, milliseconds) => {
    latencies.push(milliseconds)
    if (status === shot.expect) good++
    else unexpected[status] = (unexpected[status] ?? 0) + 1
  })
}
