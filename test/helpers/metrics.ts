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
