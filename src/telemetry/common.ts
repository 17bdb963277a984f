import type { Channel } from './channel.ts'
import type { Family, Metrics } from './metrics.ts'

// The supervisor collects the metrics of all processes for the worker that is scraped.

/** Metrics by process; the name is empty for a single process, and for metrics about no process. */
export type Measured = readonly (readonly [name: string, families: readonly Family[]])[]

const COLLECT = 'collectMetrics'
const READ = 'readMetrics'

// The supervisor answers with the metrics of the other workers while one of them does not respond.
const READ_TIMEOUT_MS = 1_000
const COLLECT_TIMEOUT_MS = 2_000

/** The supervisor's side. */
export function createCommonMetrics (own: Metrics) {
  const workers = new Map<string, Channel>()

  async function collect (): Promise<Measured> {
    const read = await Promise.all([...workers].map(async ([name, channel]) => {
      const families = await channel.request<Family[]>(READ, {}, READ_TIMEOUT_MS).catch(() => undefined)
      return { name, families }
    }))
    const up: Family = {
      name: 'strongroom_worker_up',
      help: 'Whether a worker said what it counted',
      kind: 'gauge',
      samples: read.map(({ name, families }) => ['', `worker="${name}"`, families === undefined ? 0 : 1])
    }
    const measured = read.flatMap(({ name, families }) => families === undefined ? [] : [[name, families] as const])
    return [['supervisor', own.read()], ['', [up]], ...measured]
  }

  return {
    handlers: { [COLLECT]: collect },
    /** Adds a worker. The returned function removes it, unless another worker has taken its name. */
    join (name: string, channel: Channel) {
      workers.set(name, channel)
      return () => { if (workers.get(name) === channel) workers.delete(name) }
    }
  }
}

/** A worker's side. */
export const metricsHandlers = (own: Metrics) => ({ [READ]: () => own.read() })

/** The metrics of all processes; those of this worker alone while the supervisor does not respond. */
export const collectMetrics = (own: Metrics, { request }: Channel): Promise<Measured> =>
  request<Measured>(COLLECT, {}, COLLECT_TIMEOUT_MS).catch(() => [['', own.read()]])
