export interface Sample { name: string, labels: Record<string, string>, value: number }

/** What a text of Prometheus says. */
export const samplesOf = (text: string): Sample[] =>
  text.split('\n').filter((line) => line !== '' && !line.startsWith('#')).map((line) => {
    const [, name, labels = '', value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line)!
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, value]) => [key, value] as const)
    return { name: name!, labels: Object.fromEntries(pairs), value: Number(value) }
  })

/** The sum of all samples of a name that have these labels, whatever others; 0 when there is none. */
export const valueOf = (samples: readonly Sample[], name: string, labels: Record<string, string>): number =>
  samples.filter((sample) => sample.name === name &&
    Object.entries(labels).every(([key, value]) => sample.labels[key] === value))
    .reduce((sum, { value }) => sum + value, 0)

/** Names of the metrics of a text, those without a sample too. */
export const namesOf = (text: string): string[] => [...text.matchAll(/^# TYPE (\w+)/gm)].map(([, name]) => name!)

/** What a service of several processes says beside that. */
export const OF_WORKERS = [
  'strongroom_worker_up', 'strongroom_worker_ends_total', 'strongroom_limits_without_supervisor',
  'strongroom_limits_without_supervisor_total'
]
