/** Rows that compare two requests to the same service. */
import type { Bench } from './keys.ts'
import { total, type Outcome, type Request } from './load.ts'
import { compare, median } from './table.ts'

export interface Pair {
  row: string
  reference: string
  /** The maximum ratio of the times. */
  most: number
  /** Sent in turns. */
  own: Request | Request[]
  other: Request
}

/** One connection sends the requests of both sides alternately. A ratio is the median of the rounds' p50 ratios. */
export async function measurePairs ({ load, rounds, seconds, lines, wanted }: Bench, url: string, pairs: Pair[]) {
  for (const { row, reference, most, own, other } of pairs.filter(({ row }) => wanted(row))) {
    const ask = (requests: Request[], seconds: number) =>
      load.fire({ url, requests, expect: 200, seconds, connections: 1 })
    const sides = { own: [own].flat(), other: [other] }
    for (const requests of [sides.other, sides.own]) {
      const { unexpected } = await ask(requests, 1)
      if (Object.keys(unexpected).length > 0) throw new Error(`${row}: ${JSON.stringify(unexpected)}`)
    }
    const outcomes: { own: Outcome, other: Outcome }[] = []
    for (let round = 0; round < rounds; round++) {
      const reference = await ask(sides.other, seconds)
      outcomes.push({ own: await ask(sides.own, seconds), other: reference })
    }
    const p50 = (which: 'own' | 'other') => median(outcomes.map((outcome) => outcome[which].p50))
    lines.push({
      row,
      reference,
      ...compare(p50('own'), p50('other'), ' ms', 2),
      ratio: median(outcomes.map(({ own, other }) => own.p50 / other.p50)),
      bar: { most },
      note: total(outcomes.flatMap(({ own, other }) => [own, other]))
    })
    console.log(`${row}: ${p50('own').toFixed(2)} ms, ${reference} ${p50('other').toFixed(2)} ms`)
  }
}
