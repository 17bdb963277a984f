/** Rows that compare two requests to the same service. */
import type { Bench } from './keys.ts'
import { total, type Outcome, type Request } from './load.ts'
import { compare, median } from './table.ts'

export interface Pair {
  row: string
  reference: string
  /** The maximum ratio of the times. */
  most: number
  /** Sent in turns; a function makes requests that can each be sent once, enough for so many seconds. */
  own: Request | Request[] | ((seconds: number) => Promise<Request[]>)
  other: Request
}

/** One connection sends the requests of both sides alternately. A ratio is the median of the rounds' p50 ratios. */
export async function measurePairs ({ load, rounds, seconds, lines, wanted }: Bench, url: string, pairs: Pair[]) {
  for (const { row, reference, most, own, other } of pairs.filter(({ row }) => wanted(row))) {
    const ask = async (requests: Pair['own'], seconds: number) => load.fire({
      url,
      requests: typeof requests === 'function' ? await requests(seconds) : [requests].flat(),
      expect: 200,
      seconds,
      connections: 1
    })
    for (const requests of [other, own]) {
      const { unexpected } = await ask(requests, 1)
      if (Object.keys(unexpected).length > 0) throw new Error(`${row}: ${JSON.stringify(unexpected)}`)
    }
    const outcomes: { own: Outcome, other: Outcome }[] = []
    for (let round = 0; round < rounds; round++) {
      const reference = await ask(other, seconds)
      outcomes.push({ own: await ask(own, seconds), other: reference })
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
