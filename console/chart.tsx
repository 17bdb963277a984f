import { Table } from './ui.tsx'

interface Day { date: string, count: number, more?: boolean }

/** Bars by day, with a table for screen readers. */
export function Chart ({ title, days }: { title: string, days: readonly Day[] }) {
  const highest = Math.max(1, ...days.map(({ count }) => count))
  const scale = 24 / highest
  const width = 100 / Math.max(1, days.length)
  return (
    <figure>
      <figcaption>{title}: at most {highest} on one day</figcaption>
      <svg viewBox='0 0 100 24' preserveAspectRatio='none' aria-hidden='true' class='chart'>
        {days.map(({ date, count }, i) => (
          <rect key={date} x={(i + 0.1) * width} width={width * 0.8} y={24 - count * scale} height={count * scale} />
        ))}
      </svg>
      <details>
        <summary>{title} as a table</summary>
        <Table label={title} head={['Day', 'Number']} rows={days.map(({ date, count, more }) => [date, date, more === true ? `more than ${count}` : count])} />
      </details>
    </figure>
  )
}
