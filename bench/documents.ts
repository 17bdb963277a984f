import { randomBytes } from 'node:crypto'

const hex = (length: number) => randomBytes(length).toString('hex').slice(0, length)
const lines = (count: number, line: (i: number) => string) => Array.from({ length: count }, (_, i) => line(i)).join('\n')

/** The slowest documents of each format within its limits; `part` makes the names of two documents differ. */
export const DOCUMENTS = {
  env: (part: number) => lines(10_000, (i) => `P${part}_${i}=${i}`),
  quoted: (part: number) => lines(10_000, (i) => `export P${part}_${i} = "${hex(78)}"`),
  json: (part: number) => JSON.stringify(Object.fromEntries(
    Array.from({ length: 4_990 }, (_, i) => [`P${part}_${i}`, hex(190)]))),
  yaml: (part: number) => lines(1_420, (i) => `P${part}_${i}: v${hex(4)}`),
  value: () => `A=${hex(1_000_000)}`,
  small: (part: number) => `A=${part}\nB=2\nC=${hex(8)}`
}
export type Kind = keyof typeof DOCUMENTS
export const FORMATS: Partial<Record<string, 'json' | 'yaml'>> = {
  json: 'json', yaml: 'yaml', aliases: 'yaml', long: 'yaml', deep: 'json'
}

/** Further documents at other limits: aliases, lines and names of the maximum length, nested values. */
export const OTHER_DOCUMENTS = {
  aliases: (part: number) => `base: &base\n${lines(1_200, (i) => `  K${i}: v${hex(4)}`)}\n` +
    lines(50, (i) => `P${part}_${i}: *base`),
  long: (part: number) => lines(50, (i) => `P${part}_${i}: ${hex(5_000)}`),
  names: (part: number) => lines(1_800, (i) => `P${part}_${i}_${'N'.repeat(500)}=${hex(30)}`),
  deep: (part: number) => JSON.stringify(Object.fromEntries(
    Array.from({ length: 95 }, (_, i) => [`P${part}_${i}`, JSON.parse('{"A":'.repeat(90) + `"${hex(9_000)}"` + '}'.repeat(90))])))
}
