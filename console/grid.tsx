import { signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useLayoutEffect, useRef, useState } from 'preact/hooks'

// Long tables: only the rows in sight are in the page, one stop for Tab, and arrow keys from cell to cell.

const NARROW = matchMedia('(max-width: 48rem)')
export const isNarrow = signal(NARROW.matches)
NARROW.addEventListener('change', () => { isNarrow.value = NARROW.matches })

const isPrinted = signal(false)
window.addEventListener('beforeprint', () => { isPrinted.value = true })
window.addEventListener('afterprint', () => { isPrinted.value = false })

const ROWS_AROUND = 6
const clamp = (value: number, low: number, high: number) => Math.max(low, Math.min(value, high))

/**
 * The rows of a long table that are in sight, and its keys. A focusable part of a cell has the attributes of `cell`.
 * `head`: the height of the head, whose cells are row -1. `open`: a row with a part of another height below it.
 */
export function useGrid ({ count, columns, height, head, open = -1, extra = 0 }: {
  count: number, columns: number, height: number, head: number, open?: number, extra?: number
}) {
  const region = useRef<HTMLDivElement>(null)
  const [scrolled, setTop] = useState(0)
  const [active, setActive] = useState({ row: 0, column: 0 })
  const takesFocus = useRef(false)
  const sight = Math.max(height, (region.current?.clientHeight ?? window.innerHeight) - head)
  const topOf = (row: number) => row * height + (open >= 0 && row > open ? extra : 0)
  const rowAt = (y: number) => open < 0 || y < topOf(open) + height
    ? Math.floor(y / height)
    : y < topOf(open + 1) ? open : Math.floor((y - extra) / height)
  const top = clamp(scrolled, 0, Math.max(0, topOf(count) - sight))
  const first = isPrinted.value ? 0 : clamp(rowAt(top) - ROWS_AROUND, 0, count)
  const last = isPrinted.value ? count : clamp(rowAt(top + sight) + 1 + ROWS_AROUND, first, count)
  const inSight = (row: number) =>
    clamp(row, Math.min(count, rowAt(top + height - 1)), Math.max(0, Math.min(count, rowAt(top + sight)) - 1))
  const stop = active.row < 0 ? -1 : inSight(active.row)

  const find = (row: number, column: number) => {
    const found = [...region.current?.querySelectorAll<HTMLElement>(`[data-cell^="${row} "]`) ?? []]
    return found.find((one) => one.dataset.cell === `${row} ${column}`) ?? found.at(-1)
  }
  const go = (row: number, column: number) => {
    if (row >= 0 && region.current) {
      const y = clamp(region.current.scrollTop, topOf(row) + height - sight, topOf(row))
      region.current.scrollTop = y
      setTop(y)
    }
    takesFocus.current = true
    setActive({ row, column })
  }
  useLayoutEffect(() => {
    if (!takesFocus.current) return
    takesFocus.current = false
    const cell = find(active.row, active.column)
    cell?.focus({ preventScroll: true })
    // A column can be outside of the window, and is then below the column of names.
    cell?.scrollIntoView({ block: 'nearest', inline: 'nearest' })
  })
  const placeOf = (target: EventTarget | null) =>
    (target as Element).closest<HTMLElement>('[data-cell]')?.dataset.cell?.split(' ').map(Number) as [number, number] | undefined
  const move = (event: KeyboardEvent) => {
    const from = placeOf(event.target)
    if (from === undefined || event.altKey || event.metaKey || (event.target as Element).matches('input, textarea, select')) return
    const [row, column] = from
    const page = Math.max(1, Math.floor(sight / height) - 1)
    const to = {
      ArrowDown: [row + 1, column],
      ArrowUp: [row - 1, column],
      ArrowRight: [row, column + 1],
      ArrowLeft: [row, column - 1],
      Home: [event.ctrlKey ? 0 : row, 0],
      End: [event.ctrlKey ? count - 1 : row, columns - 1],
      PageDown: [row + page, column],
      PageUp: [row - page, column]
    }[event.key]
    if (to === undefined) return
    event.preventDefault()
    const lowest = find(-1, 0) === undefined ? 0 : -1
    go(clamp(to[0]!, lowest, count - 1), clamp(to[1]!, 0, columns - 1))
  }
  // The open row stays in the page, with what was typed into it.
  const rows = Array.from({ length: last - first }, (_, i) => first + i)
  if (open >= 0 && open < count && (open < first || open >= last)) rows[open < first ? 'unshift' : 'push'](open)
  const parts: Part[] = []
  let next = 0
  for (const row of [...rows, count]) {
    if (topOf(row) > topOf(next)) parts.push({ gap: topOf(row) - topOf(next) })
    if (row < count) parts.push({ row })
    next = row + 1
  }
  return {
    parts,
    go,
    reset: () => { setTop(0); setActive({ row: 0, column: active.column }); region.current?.scrollTo(0, 0) },
    /** `columns`: those that the row has. */
    cell: (row: number, column: number, columns?: readonly number[]) => {
      const own = columns === undefined || columns.includes(active.column) ? active.column : columns[0]
      return { 'data-cell': `${row} ${column}`, tabIndex: row === stop && column === own ? 0 : -1 }
    },
    region: {
      ref: region,
      onKeyDown: move,
      onScroll: (event: Event) => setTop((event.target as HTMLElement).scrollTop),
      onFocusIn: (event: FocusEvent) => {
        const at = placeOf(event.target)
        if (at && (at[0] !== active.row || at[1] !== active.column)) setActive({ row: at[0], column: at[1] })
      }
    }
  }
}

/** A row in the page, or the height of others. All are in one list, in which Preact keeps what has the same key. */
type Part = { row: number } | { gap: number }

export const rowsOf = (parts: readonly Part[], show: (row: number) => ComponentChildren) => parts.flatMap((part, i) =>
  'row' in part ? show(part.row) : <tr key={`gap ${i}`} aria-hidden='true' class='gap'><td style={{ height: `${part.gap}px` }} /></tr>)
