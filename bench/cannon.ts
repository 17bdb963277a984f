/** The child process that sends load: one message in (`Shot`), one out (`Outcome`), until its parent goes. */
import { createRequire } from 'node:module'
import type { Outcome, Shot } from './load.ts'

interface Client { setRequests (requests: object[]): void }
interface Options { url: string, connections: number, duration: number, sampleInt: number, setupClient (client: Client): void }
interface Instance { on (event: 'response', seen: (client: Client, status: number, bytes: number, milliseconds: number) => void): void }
interface Result { duration: number, errors: number, timeouts: number }
type Autocannon = (options: Options, done: (error: Error | null, result: Result) => void) => Instance

// It has no types of its own.
const autocannon = createRequire(import.meta.url)('autocannon') as Autocannon

process.on('message', (shot: Shot) => {
  const latencies: number[] = []
  let unexpected = 0
  let next = 0
  const instance = autocannon({
    url: shot.url,
    connections: shot.connections,
    duration: shot.seconds,
    sampleInt: 100,
    // Each connection starts somewhere else in the list, so that they do not all ask for the same at once.
    setupClient: (client) => {
      const from = next++ % shot.requests.length
      client.setRequests([...shot.requests.slice(from), ...shot.requests.slice(0, from)])
    }
  }, (error, result) => {
    if (error) throw error
    latencies.sort((a, b) => a - b)
    const at = (share: number) => latencies[Math.floor(latencies.length * share)] ?? NaN
    const outcome: Outcome = {
      rate: (latencies.length - unexpected) / result.duration,
      p50: at(0.5),
      p99: at(0.99),
      unexpected: unexpected + result.errors + result.timeouts
    }
    process.send!(outcome)
  })
  instance.on('response', (_client, status, _bytes, milliseconds) => {
    latencies.push(milliseconds)
    if (status !== shot.expect) unexpected++
  })
})
process.on('disconnect', () => process.exit())
