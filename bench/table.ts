import fs from 'node:fs'
import path from 'node:path'

/**
 * One line of the table. `ratio` is the row's figure divided by the reference's figure; `bar` is the minimum ratio, or
 * the maximum ratio if less is better.
 */
export interface Line {
  row: string
  reference: string
  own: string
  other: string
  ratio: number
  bar?: { least: number } | { most: number }
  /** CPU time of one request, or of a whole start. */
  cost?: string
  /** Median and 99th percentile of the latency: `latency` under load, `alone` with one connection. */
  latency?: string
  alone?: string
  note?: string
}

export function renderTable (lines: Line[]): string {
  const cells = lines.map(({ row, reference, own, other, ratio, bar, cost, latency, alone, note }) => {
    const shown = ratio.toFixed(2)
    const limit = bar === undefined ? '' : 'least' in bar ? `≥ ${bar.least}` : `≤ ${bar.most}`
    const met = bar === undefined
      ? ''
      : ('least' in bar ? ratio >= bar.least : ratio <= bar.most) ? 'met' : '**missed**'
    return [row, reference, own, other, shown, limit, met, cost ?? '', latency ?? '', alone ?? '', note ?? '']
  })
  const rows = [[
    'Row', 'Reference', 'Row’s figure', 'Reference’s figure', 'Ratio', 'Bar', '', 'CPU: service + PostgreSQL',
    'p50 / p99', 'with 1 connection', 'Unexpected answers'
  ], ...cells]
  const widths = rows[0]!.map((_, i) => Math.max(3, ...rows.map((row) => row[i]!.length)))
  const line = (row: string[]) => `| ${row.map((cell, i) => cell.padEnd(widths[i]!)).join(' | ')} |`
  return [line(rows[0]!), line(widths.map((width) => '-'.repeat(width))), ...rows.slice(1).map(line)].join('\n')
}

export function median (values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length / 2
  return sorted.length % 2 === 1 ? sorted[Math.floor(middle)]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

/** The time of an `fdatasync` of one page in milliseconds, the context for all write figures. */
export function probeDisk (dir: string): string {
  const file = fs.openSync(path.join(dir, 'probe'), 'w')
  const page = Buffer.alloc(8192, 1)
  const times: number[] = []
  for (let i = 0; i < 200; i++) {
    fs.writeSync(file, page, 0, page.length, i * page.length)
    const begun = performance.now()
    fs.fdatasyncSync(file)
    times.push(performance.now() - begun)
  }
  fs.closeSync(file)
  times.sort((a, b) => a - b)
  return `${median(times).toFixed(2)} ms (p99 ${times[197]!.toFixed(2)} ms)`
}

/** Formats both figures and computes their ratio. */
export function compare (own: number, other: number, unit: string, digits: number) {
  const show = (value: number) => `${value.toLocaleString('en', { maximumFractionDigits: digits })}${unit}`
  return { own: show(own), other: show(other), ratio: own / other }
}
