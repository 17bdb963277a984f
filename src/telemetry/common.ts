import type { Family, Metrics } from './metrics.ts'

// What the processes of a service say of themselves, gathered by their supervisor for the one that was asked.

/** What processes say, by their names; empty where there is one process, or it is about none of them. */
export type Measured = readonly (readonly [name: string, families: readonly Family[]])[]

interface Ask { asksMetrics: number }
interface Answer { metrics: number, are: Measured }
interface Look { readsMetrics: number }
interface Looked { readMetrics: number, families: Family[] }
/** What a member and its supervisor send each other about metrics. */
export type MetricsMessage = Ask | Answer | Look | Looked

/** Whether a message between processes is about metrics. */
export const isAboutMetrics = (message: unknown): message is MetricsMessage =>
  typeof message === 'object' && message !== null &&
  ['asksMetrics', 'metrics', 'readsMetrics', 'readMetrics'].some((word) => word in message)

// Milliseconds that a member may take to say what it counted, and that it waits for what all of them did.
const LATEST = 1_000
const PATIENCE = 2_000

/** Asks all members for whoever of them is asked, and adds what the supervisor says of itself. */
export function createCommonMetrics (own: Metrics) {
  const members = new Map<string, (message: Answer | Look) => void>()
  const open = new Map<number, (name: string, families: Family[]) => void>()
  let last = 0

  /** One look at all members; whoever does not answer in time is left out. */
  async function gather (): Promise<Measured> {
    const number = ++last
    const heard = new Map<string, Family[]>()
    const awaited = new Set(members.keys())
    await new Promise<void>((resolve) => {
      const late = setTimeout(resolve, LATEST)
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
    const up: Family = {
      name: 'strongroom_worker_up',
      help: 'Whether a worker said what it counted',
      kind: 'gauge',
      samples: [...members.keys()].map((name) => ['', `worker="${name}"`, heard.has(name) ? 1 : 0])
    }
    return [['supervisor', own.read()], ['', [up]], ...heard]
  }

  /** `send` reaches the member; the answer takes what it sends. */
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
 * The metrics of a member: says its own when its supervisor asks, and reads those of all. Where no answer comes, its
 * own are all there are.
 *
 * @param send false when nobody is there any more
 */
export function joinCommonMetrics (own: Metrics, send: (message: Ask | Looked) => boolean) {
  const open = new Map<number, (are: Measured) => void>()
  let last = 0

  return {
    receive (message: MetricsMessage) {
      if ('readsMetrics' in message) send({ readMetrics: message.readsMetrics, families: own.read() })
      else if ('metrics' in message) open.get(message.metrics)?.(message.are)
    },
    async readAll (): Promise<Measured> {
      const number = ++last
      const are = await new Promise<Measured | undefined>((resolve) => {
        const late = setTimeout(resolve, PATIENCE, undefined)
        open.set(number, (are) => {
          clearTimeout(late)
          resolve(are)
        })
        if (!send({ asksMetrics: number })) open.get(number)!([['', own.read()]])
      })
      open.delete(number)
      return are ?? [['', own.read()]]
    }
  }
}
