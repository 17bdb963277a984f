export interface Sample { name: string, labels: Record<string, string>, value: number }

/** Parses metrics in the Prometheus text format. */
export const samplesOf = (text: string): Sample[] =>
  text.split('\n').filter((line) => line !== '' && !line.startsWith('#')).map((line) => {
    const [, name, labels = '', value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line)!
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, value]) => [key, value] as const)
    return { name: name!, labels: Object.fromEntries(pairs), value: Number(value) }
  })

/** The sum of all samples with this name that have at least these labels; 0 without samples. */
export const valueOf = (samples: readonly Sample[], name: string, labels: Record<string, string>): number =>
  samples.filter((sample) => sample.name === name &&
    Object.entries(labels).every(([key, value]) => sample.labels[key] === value))
    .reduce((sum, { value }) => sum + value, 0)

/** The names of all metrics, including those without samples. */
export const namesOf = (text: string): string[] => [...text.matchAll(/^# TYPE (\w+)/gm)].map(([, name]) => name!)

/** Metrics that only a service with several processes has. */
export const OF_WORKERS = [
  'strongroom_worker_up', 'strongroom_worker_ends_total', 'strongroom_limits_without_supervisor',
  'strongroom_limits_without_supervisor_total'
]
