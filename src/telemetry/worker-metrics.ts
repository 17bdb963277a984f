import type { Channel } from './channel.ts'
import { gauge, type Family, type Metrics } from './metrics.ts'

// The worker that is scraped requests the metrics of all processes from the supervisor. The cluster support of
// prom-client would sum the counters of all workers, and fails when a worker does not respond.

export type Measured = readonly (readonly Family[])[]

const COLLECT = 'collectMetrics'
const READ = 'readMetrics'

// The supervisor waits READ_TIMEOUT_MS for a worker. This timeout is the shorter one, so that the supervisor responds
// within COLLECT_TIMEOUT_MS even if a worker does not respond.
const READ_TIMEOUT_MS = 1_000
const COLLECT_TIMEOUT_MS = 2_000

// Labels each series with its worker. A sum over all workers would decrease when a worker is replaced, and so look like
// a counter reset.
const labelled = (families: readonly Family[], worker: string): Family[] => families.map((family) => ({
  ...family, values: family.values.map((value) => ({ ...value, labels: { ...value.labels, worker } }))
}))

/** The supervisor's end of the channels. */
export function createCommonMetrics (own: Metrics) {
  const workers = new Map<string, Channel>()

  async function collect (): Promise<Measured> {
    const read = await Promise.all([...workers].map(async ([worker, channel]) => {
      const families = await channel.request<Family[]>(READ, {}, READ_TIMEOUT_MS).catch(() => undefined)
      return { worker, families }
    }))
    const up = gauge('strongroom_worker_up', 'Whether a worker reported its metrics',
      read.map(({ worker, families }) => ({ labels: { worker }, value: Number(families !== undefined) })))
    return [
      labelled(await own.read(), 'supervisor'), [up],
      ...read.flatMap(({ worker, families }) => families === undefined ? [] : [labelled(families, worker)])
    ]
  }

  return {
    handlers: { [COLLECT]: collect },
    /** Adds a worker. The returned function removes the worker, unless a newer worker has the same name. */
    join (name: string, channel: Channel) {
      workers.set(name, channel)
      return () => { if (workers.get(name) === channel) workers.delete(name) }
    }
  }
}

/** A worker's end of the channel. */
export const metricsHandlers = (own: Metrics) => ({ [READ]: () => own.read() })

/** The metrics of all processes; only of this worker if the supervisor does not respond. */
export const collectMetrics = (own: Metrics, { request }: Channel): Promise<Measured> =>
  request<Measured>(COLLECT, {}, COLLECT_TIMEOUT_MS).catch(async () => [await own.read()])
