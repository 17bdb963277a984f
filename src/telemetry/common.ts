import { gauge, type Family, type Metrics } from './metrics.ts'

// Metrics of several processes: the supervisor collects them for the worker that gets the scrape. prom-client's own
// support for clusters adds up the counters of all workers, and fails when one of them does not answer.

/** The metrics of each process. */
export type Measured = readonly (readonly Family[])[]

interface Ask { asksMetrics: number }
interface Answer { metrics: number, are: Measured }
interface Look { readsMetrics: number }
interface Looked { readMetrics: number, families: Family[] }
/** What a worker and its supervisor send each other about metrics. */
export type MetricsMessage = Ask | Answer | Look | Looked

/** Whether a message between processes is about metrics. */
export const isAboutMetrics = (message: unknown): message is MetricsMessage =>
  typeof message === 'object' && message !== null &&
  ['asksMetrics', 'metrics', 'readsMetrics', 'readMetrics'].some((word) => word in message)

const WORKER_TIMEOUT_MS = 1_000
const SUPERVISOR_TIMEOUT_MS = 2_000

// A sum over workers would go down when a worker is replaced. Prometheus takes that for a restart of the service, and
// counts the other workers again.
const labelled = (families: readonly Family[], worker: string): Family[] => families.map((family) => ({
  ...family, values: family.values.map((value) => ({ ...value, labels: { ...value.labels, worker } }))
}))

/** The supervisor's part: collects the metrics of all workers, and adds its own. */
export function createCommonMetrics (own: Metrics) {
  const members = new Map<string, (message: Answer | Look) => void>()
  const open = new Map<number, (name: string, families: Family[]) => void>()
  let last = 0

  /** The metrics of all processes, without those of workers that do not answer in time. */
  async function gather (): Promise<Measured> {
    const number = ++last
    const heard = new Map<string, Family[]>()
    const awaited = new Set(members.keys())
    await new Promise<void>((resolve) => {
      const late = setTimeout(resolve, WORKER_TIMEOUT_MS)
      const done = () => {
        clearTimeout(late)
        resolve()
      }
      open.set(number, (name, families) => {
        heard.set(name, families)
        awaited.delete(name)
        if (awaited.size === 0) done()
      })
      if (members.size === 0) done()
      for (const send of members.values()) send({ readsMetrics: number })
    })
    open.delete(number)
    const up = gauge('strongroom_worker_up', 'Whether a worker reported its metrics',
      [...members.keys()].map((worker) => ({ labels: { worker }, value: Number(heard.has(worker)) })))
    return [
      labelled(await own.read(), 'supervisor'), [up], ...[...heard].map(([name, families]) => labelled(families, name))
    ]
  }

  /** `send` reaches the worker; `receive` takes its messages. */
  function join (name: string, send: (message: Answer | Look) => void) {
    members.set(name, send)
    return {
      receive (message: MetricsMessage) {
        if ('readMetrics' in message) open.get(message.readMetrics)?.(name, message.families)
        else if ('asksMetrics' in message) {
          gather().then((are) => { send({ metrics: message.asksMetrics, are }) }, () => {})
        }
      },
      leave () { if (members.get(name) === send) members.delete(name) }
    }
  }

  return { join }
}

/**
 * The worker's part: sends its metrics to the supervisor, and reads those of all processes. Without an answer of the
 * supervisor it has its own metrics only.
 *
 * @param send false when the supervisor is gone
 */
export function joinCommonMetrics (own: Metrics, send: (message: Ask | Looked) => boolean) {
  const open = new Map<number, (are: Measured) => void>()
  let last = 0

  return {
    receive (message: MetricsMessage) {
      if ('readsMetrics' in message) {
        own.read().then((families) => send({ readMetrics: message.readsMetrics, families }), () => {})
      } else if ('metrics' in message) open.get(message.metrics)?.(message.are)
    },
    async readAll (): Promise<Measured> {
      const number = ++last
      const are = await new Promise<Measured | undefined>((resolve) => {
        const late = setTimeout(resolve, SUPERVISOR_TIMEOUT_MS, undefined)
        open.set(number, (are) => {
          clearTimeout(late)
          resolve(are)
        })
        if (!send({ asksMetrics: number })) {
          clearTimeout(late)
          resolve(undefined)
        }
      })
      open.delete(number)
      return are ?? [await own.read()]
    }
  }
}
