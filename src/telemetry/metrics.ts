import type { Counter, Histogram } from 'prom-client'

/** The labels of a series. Values come from fixed sets, such as routes or codes, to limit the number of series. */
export type Labels = Readonly<Record<string, string | number>>

/** A metric in the JSON format of prom-client, which processes also send to each other. */
export interface Family {
  name: string
  help: string
  type: string
  aggregator: string
  /** `metricName` is the name of a part of a histogram, such as `…_bucket`. */
  values: readonly { labels: Labels, value: number, metricName?: string | undefined }[]
}

/** Reads a metric at a scrape. Returns a value, several values with labels, or undefined for no value. */
export type Read = () => number | undefined | Iterable<readonly [labels: Labels, value: number]>

/** The metrics of one process. Each name can be registered only once. */
export interface Metrics {
  counter<L extends string> (name: string, help: string, labels?: readonly L[]): Counter<L>
  histogram<L extends string> (
    name: string, help: string, buckets: readonly number[], labels: readonly L[]
  ): Histogram<L>
  /** A metric whose value is read at each scrape. */
  watch (kind: 'counter' | 'gauge', name: string, help: string, read: Read, labels?: readonly string[]): void
  read (): Promise<Family[]>
}

/** Creates an empty registry. Loads prom-client only here, because loading it slows down the start. */
export async function createMetrics (): Promise<Metrics> {
  const { Counter, Gauge, Histogram, Registry } = await import('prom-client')
  const registry = new Registry()
  const registers = [registry]

  return {
    counter: (name, help, labelNames = []) => new Counter({ name, help, labelNames, registers }),
    histogram: (name, help, buckets, labelNames) =>
      new Histogram({ name, help, buckets: [...buckets], labelNames, registers }),
    watch (kind, name, help, read, labelNames = []) {
      const collect = () => {
        const value = read()
        metric.reset()
        if (value === undefined) metric.remove()
        else if (typeof value === 'number') metric.inc(value)
        else for (const [labels, one] of value) metric.inc(labels, one)
      }
      const options = { name, help, labelNames, registers, collect }
      const metric = kind === 'counter' ? new Counter(options) : new Gauge(options)
    },
    read: async () => await registry.getMetricsAsJSON() as unknown as Family[]
  }
}

export const gauge = (name: string, help: string, values: Family['values']): Family =>
  ({ name, help, type: 'gauge', aggregator: 'sum', values })

/** The text format of Prometheus (0.0.4). */
export async function render (processes: readonly (readonly Family[])[]): Promise<string> {
  const { AggregatorRegistry } = await import('prom-client')
  const text = await AggregatorRegistry.aggregate([...processes]).metrics()
  // prom-client puts blank lines between metrics.
  return text.replaceAll('\n\n', '\n')
}

/**
 * The queue of changes: waiting changes now; in total: transactions, their changes, and the milliseconds that changes
 * waited.
 */
export interface QueueFigures { waiting: number, transactions: number, entries: number, waited: number }
