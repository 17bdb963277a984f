/** Rows about synchronous steps, which block the event loop: the longest time of each kind, compared with a limit. */
import { RotateClientKeysBody } from '../schemas/encryption-keys.ts'
import { boundsOf, readJsonBody, readLargeJson } from '../src/http/bodies/json.ts'
import type { DocumentFormat } from '../src/rules/documents/entries.ts'
import { readDocument } from '../src/rules/documents/read.ts'
import { compare, median, type Line } from './table.ts'

const BAR = 50
const MEBIBYTE = 1024 * 1024

export async function measureSteps (lines: Line[], rounds: number, wanted: (row: string) => boolean): Promise<void> {
  const blob = 'A'.repeat(1_398_104)
  const bounds = boundsOf(RotateClientKeysBody)
  const large = Buffer.from(JSON.stringify({
    secrets: Array.from({ length: 47 }, (_, id) => ({ id: String(id), content: blob })), key_check: 'x'
  }))
  const members = Buffer.from(`{${Array.from({ length: 99_990 }, (_, i) => `"member${i}":1`).join(',')}}`)
  const names = (count: number, line: (i: number) => string) => Array.from({ length: count }, (_, i) => line(i))
  const rows: Record<string, () => Promise<number>> = {
    'body of 64 MiB: longest step of reading it': async () => {
      let longest = 0
      let begun = performance.now()
      await readLargeJson(chunksOf(large), bounds, large.length, async () => {
        longest = Math.max(longest, performance.now() - begun)
        await new Promise((resolve) => setImmediate(resolve))
        begun = performance.now()
      })
      return longest
    },
    'body of 99,990 unknown members': () => timed(() => {
      try { readJsonBody(members, { ...bounds, members: 110 }) } catch { /* refused */ }
    }),
    'body of 2 MiB, one string of escapes': () =>
      timed(() => readJsonBody(Buffer.from(`{"a":"${'\\n'.repeat(MEBIBYTE - 10)}"}`), bounds)),
    'env document of 1 MiB and 10,000 names': reading(
      'env', names(10_000, (i) => `K${i}=${'x'.repeat(90)}`).join('\n')
    ),
    'env document of 1 MiB and too many names': reading('env', names(150_000, (i) => `K${i}=`).join('\n')),
    'JSON document of 1 MiB and 4,900 names': reading(
      'json', `{${names(4_900, (i) => `"k${i}":"${'x'.repeat(200)}"`).join()}}`
    ),
    'YAML document of 450 names': reading('yaml', names(450, (i) => `k${i}: ${'x'.repeat(40)}`).join('\n'))
  }
  for (const [row, measure] of Object.entries(rows)) {
    if (!wanted(`step: ${row}`)) continue
    const times: number[] = []
    for (let round = 0; round <= rounds; round++) times.push(await measure())
    // The first measurement warms up.
    lines.push({
      row: `step: ${row}`,
      reference: 'what is asked for',
      ...compare(median(times.slice(1)), BAR, ' ms', 1),
      bar: { most: 1 }
    })
  }
}

const reading = (format: DocumentFormat, text: string) => () => timed(() => readDocument(format, text))

async function timed (work: () => unknown): Promise<number> {
  const begun = performance.now()
  work()
  return performance.now() - begun
}

async function * chunksOf (bytes: Buffer): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += 65_536) yield bytes.subarray(at, at + 65_536)
}
