/** What tells the series of a metric apart. Values come from closed lists: routes, codes, names of ours. */
export type Labels = Readonly<Record<string, string>>

export type Kind = 'counter' | 'gauge' | 'histogram'

/** What one process says of a metric; a sample is what follows the name, its labels as text and its value. */
export interface Family {
  name: string
  help: string
  kind: Kind
  samples: [suffix: string, labels: string, value: number][]
}

/** A number that only grows. Kept by whoever counts often, so that counting is an addition. */
export class Count {
  value = 0

  add (by = 1): void { this.value += by }
}

/** How long something took, in buckets. */
export class Distribution {
  readonly #bounds: readonly number[]
  readonly counts: number[]
  sum = 0

  constructor (bounds: readonly number[]) {
    this.#bounds = bounds
    this.counts = new Array<number>(bounds.length + 1).fill(0)
  }

  observe (value: number): void {
    let i = 0
    while (i < this.#bounds.length && value > this.#bounds[i]!) i++
    this.counts[i]!++
    this.sum += value
  }
}

/** Values of a metric that is read when somebody asks: one, several with labels, or none that is known. */
export type Read = () => number | undefined | Iterable<readonly [labels: Labels, value: number]>

/** The metrics of one process. A name stands once. */
export interface Metrics {
  /** A counter; called with labels, it answers the number to keep and add to. */
  counter (name: string, help: string): (labels?: Labels) => Count
  histogram (name: string, help: string, bounds: readonly number[]): (labels?: Labels) => Distribution
  /** A metric whose value is known elsewhere. */
  watch (kind: 'counter' | 'gauge', name: string, help: string, read: Read): void
  /** All of them, as they are now. */
  read (): Family[]
}

/** An empty registry. */
export function createMetrics (): Metrics {
  const families = new Map<string, () => Family>()

  function register (name: string, family: () => Family) {
    if (families.has(name)) throw new Error(`there are two metrics ${name}`)
    families.set(name, family)
  }

  // The series of a metric, each made when it is asked for first.
  function series<T> (make: () => T) {
    const all = new Map<string, T>()
    const of = (labels: Labels = {}): T => {
      const text = textOf(labels)
      let one = all.get(text)
      if (one === undefined) all.set(text, one = make())
      return one
    }
    return { all, of }
  }

  return {
    counter (name, help) {
      const { all, of } = series(() => new Count())
      register(name, () =>
        ({ name, help, kind: 'counter', samples: [...all].map(([labels, { value }]) => ['', labels, value]) }))
      return of
    },
    histogram (name, help, bounds) {
      const { all, of } = series(() => new Distribution(bounds))
      const limits = [...bounds.map(String), '+Inf']
      register(name, () => ({
        name,
        help,
        kind: 'histogram',
        samples: [...all].flatMap(([labels, { counts, sum }]) => {
          let total = 0
          const buckets = counts.map((count, i): Family['samples'][number] => {
            total += count
            return ['_bucket', joined(labels, textOf({ le: limits[i]! })), total]
          })
          return [...buckets, ['_sum', labels, sum], ['_count', labels, total]] satisfies Family['samples']
        })
      }))
      return of
    },
    watch (kind, name, help, read) {
      register(name, () => {
        const value = read()
        const values = typeof value === 'object' ? [...value] : value === undefined ? [] : [[{}, value] as const]
        return { name, help, kind, samples: values.map(([labels, value]) => ['', textOf(labels), value]) }
      })
    },
    read: () => [...families.values()].map((family) => family())
  }
}

/**
 * The text format of Prometheus (0.0.4). Of several processes each has its name in the label `worker`: a sum over them
 * would go down when one is replaced, and whoever reads it would count again what came before.
 */
export function render (
  processes: readonly (readonly [name: string, families: readonly Family[]])[]
): string {
  const merged = new Map<string, Family>()
  for (const [name, families] of processes) {
    const worker = name === '' ? '' : textOf({ worker: name })
    for (const family of families) {
      const known = merged.get(family.name) ?? { ...family, samples: [] }
      merged.set(family.name, known)
      for (const [suffix, labels, value] of family.samples) known.samples.push([suffix, joined(labels, worker), value])
    }
  }
  return [...merged.values()].map(({ name, help, kind, samples }) => {
    const lines = samples.map(([suffix, labels, value]) =>
      `${name}${suffix}${labels === '' ? '' : `{${labels}}`} ${value}\n`)
    return `# HELP ${name} ${help}\n# TYPE ${name} ${kind}\n${lines.join('')}`
  }).join('')
}

const joined = (...labels: string[]) => labels.filter((text) => text !== '').join(',')

const textOf = (labels: Labels) => Object.entries(labels).map(([name, value]) =>
  `${name}="${value.replaceAll('\\', '\\\\').replaceAll('\n', '\\n').replaceAll('"', '\\"')}"`).join(',')
