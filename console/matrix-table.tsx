import { signal } from '@preact/signals'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { CellDialog, type Grid } from './cell.tsx'
import { levelOf, titleOf, titleOfColumn, type Cell, type Column, type Row } from './levels.ts'
import { Check, Empty, Help, To } from './ui.tsx'
import { shownName } from './values.ts'

// The table of names and levels.

export type Filter = 'all' | 'missing' | 'different'

/** The columns in which a name is missing: environments, or all levels of a project without environments. */
function missingIn (columns: readonly Column[], { cells }: Row): Column[] {
  const hasEnvironments = columns.some(({ level }) => level === 'environment')
  return columns.filter(({ level }, i) => cells[i]!.state === 'missing' && (!hasEnvironments || level === 'environment'))
}
const isDifferent = ({ cells }: Row): boolean => cells.some(({ value_group = 0 }) => value_group > 1)

const ROW_HEIGHT = 44
const ROWS_AROUND = 8

/** Says whether the page is printed, with all its rows. */
const isPrinted = signal(false)
window.addEventListener('beforeprint', () => { isPrinted.value = true })
window.addEventListener('afterprint', () => { isPrinted.value = false })

/**
 * The table. Only the rows in sight are in the page, so that thousands of names scroll smoothly. `ask` loads the names
 * of a filter, if the rows are only a part of the names.
 */
export function MatrixTable ({ project, columns, rows, ask }: Grid & { ask?: ((filter: Filter) => void) | undefined }) {
  const [filter, setFilter] = useState<Filter>('all')
  const [top, setTop] = useState(0)
  const [open, setOpen] = useState<{ row: Row, column: number } | { row: null, column: number }>()
  const region = useRef<HTMLDivElement>(null)
  const groups = useMemo(() => {
    const missing = rows.filter((row) => missingIn(columns, row).length > 0)
    const lacking = [...new Set(missing.flatMap((row) => missingIn(columns, row)))]
      .sort((a, b) => columns.indexOf(a) - columns.indexOf(b))
    return { all: rows, missing, different: rows.filter(isDifferent), lacking }
  }, [rows, columns])
  const found = groups[filter]
  const height = region.current?.clientHeight ?? 600
  const first = isPrinted.value ? 0 : Math.max(0, Math.min(Math.floor(top / ROW_HEIGHT), found.length) - ROWS_AROUND)
  const rowsInSight = isPrinted.value ? found.length : Math.ceil(height / ROW_HEIGHT) + 2 * ROWS_AROUND
  const last = Math.min(found.length, first + rowsInSight)
  const texts: Record<Filter, string> = { all: 'All names', missing: 'Missing in an environment', different: 'Different values' }

  const show = (filter: Filter) => {
    setFilter(filter)
    ask?.(filter)
    setTop(0)
    region.current?.scrollTo(0, 0)
  }
  const lacking = filter === 'missing' ? groups.lacking : []
  // On a phone, the first column with a missing name can be outside of the window.
  useEffect(() => {
    const column = columns.indexOf(lacking[0]!)
    region.current?.querySelector(`[data-cell$=" ${column}"]`)?.scrollIntoView({ block: 'nearest', inline: 'nearest' })
  }, [filter])
  // Arrow keys go from cell to cell.
  const move = (event: KeyboardEvent) => {
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key]
    const [row, column] = (document.activeElement as HTMLElement | null)?.dataset.cell?.split(' ').map(Number) ?? []
    if (step === undefined || row === undefined || column === undefined) return
    const next = region.current?.querySelector<HTMLElement>(`[data-cell="${row + step[0]!} ${column + step[1]!}"]`)
    if (next) {
      event.preventDefault()
      next.focus()
    }
  }
  return (
    <>
      <fieldset class='filters'>
        <legend>Show</legend>
        {(Object.keys(texts) as Filter[]).map((one) => (
          <Check key={one} type='radio' name='filter' value={one} label={ask === undefined ? `${texts[one]} (${groups[one].length})` : texts[one]} checked={filter === one} onChange={() => show(one)} />
        ))}
      </fieldset>
      <div class='actions'>
        <button type='button' class='main' onClick={() => setOpen({ row: null, column: columns.length - 1 })}>Add a name…</button>
      </div>
      {lacking.length > 0 && <p>Names are missing in: {lacking.map((column) => titleOf(levelOf(project, column))).join(', ')}.</p>}
      {found.length === 0
        ? <Empty>{rows.length === 0 ? 'No level has a name yet. Add one, or open a level to import a file.' : filter === 'missing' ? 'No name is missing.' : 'No name has different values.'}</Empty>
        : (
          <div class='scroll matrix' role='region' aria-label='Names and levels' tabIndex={0} ref={region} onScroll={(event) => setTop((event.target as HTMLElement).scrollTop)} onKeyDown={move}>
            <table aria-rowcount={found.length + 1}>
              <thead>
                <tr aria-rowindex={1}>
                  <th scope='col'>Name</th>
                  {columns.map((column) => (
                    <th key={`${column.target}/${column.environment}`} scope='col'>
                      {column.environment !== null && <small>{column.target}</small>}
                      <To to={{ page: 'level', ...levelOf(project, column) }}>{titleOfColumn(column)}</To>
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {first > 0 && <tr aria-hidden='true'><td style={{ height: `${first * ROW_HEIGHT}px` }} /></tr>}
                {found.slice(first, last).map((row, i) => (
                  <tr key={row.name} aria-rowindex={first + i + 2}>
                    <th scope='row' title={shownName(row.name)}>{shownName(row.name)}</th>
                    {row.cells.map((cell, column) => (
                      <td key={column} class={`${cell.state} ${columns[column]!.level}`}>
                        <button type='button' data-action='matrix.cell' data-cell={`${first + i} ${column}`} onClick={() => setOpen({ row, column })}>
                          {cell.state === 'missing' && columns[column]!.level !== 'environment' ? '—' : wordsOf(cell, isDifferent(row))}<span class='hidden'> {shownName(row.name)} in {titleOf(levelOf(project, columns[column]!))}</span>
                        </button>
                      </td>
                    ))}
                  </tr>
                ))}
                {last < found.length && <tr aria-hidden='true'><td style={{ height: `${(found.length - last) * ROW_HEIGHT}px` }} /></tr>}
              </tbody>
            </table>
          </div>
          )}
      <p class='hint'>A letter marks equal values of a name: cells with the same letter have the same value.</p>
      <Help of='name' />
      {open !== undefined && (
        <CellDialog
          project={project} columns={columns} rows={rows} column={open.column} name={open.row?.name}
          cell={open.row?.cells[open.column]} close={() => setOpen(undefined)}
        />
      )}
    </>
  )
}

/** The words of a cell, with a letter for its value if the values of the name differ. */
export function wordsOf ({ state, from, overrides, value_group }: Cell, differs: boolean): string {
  const letter = differs && value_group !== undefined ? ` ${String.fromCodePoint(64 + Math.min(value_group, 26))}` : ''
  if (state === 'inherited') return `From ${from}${letter}`
  if (state === 'overrides') return `Overrides ${overrides?.at(-1)}${letter}`
  return { set: 'Set', missing: 'Missing', unknown: 'Unreadable' }[state] + letter
}
