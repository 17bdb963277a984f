import { useMemo, useState } from 'preact/hooks'
import { CellDialog, type Grid } from './cell.tsx'
import { isNarrow, rowsOf, useGrid } from './grid.tsx'
import { levelOf, titleOf, titleOfColumn, type Cell, type Column, type Row } from './levels.ts'
import { can } from './rights.ts'
import { Act, Check, Empty, Field, To } from './ui.tsx'
import { shownName } from './values.ts'

// The table of names and levels; on a phone, the names of one level.

export type Filter = 'all' | 'missing' | 'different'
const FILTERS: Record<Filter, string> = { all: 'All names', missing: 'Missing in an environment', different: 'Different values' }
const KINDS: Record<Filter, string> = { all: '', missing: ' that is missing', different: ' with different values' }

const MAX_LACKING = 3

/** The columns in which a name is missing: environments, or all levels of a project without environments. */
function missingIn (columns: readonly Column[], { cells }: Row): Column[] {
  const hasEnvironments = columns.some(({ level }) => level === 'environment')
  return columns.filter(({ level }, i) => cells[i]!.state === 'missing' && (!hasEnvironments || level === 'environment'))
}
const isDifferent = ({ cells }: Row): boolean => cells.some(({ value_group = 0 }) => value_group > 1)

/** `ask` loads the names of a filter or a text, if the rows are only a part of the names. */
export function MatrixTable ({ project, columns, rows, ask, more }: Grid & {
  ask?: ((filter: Filter, text: string) => void) | undefined, more?: string
}) {
  const [filter, setFilter] = useState<Filter>('all')
  const [text, setText] = useState('')
  const [chosen, setChosen] = useState(0)
  const [open, setOpen] = useState<{ row: Row | null, column: number }>()
  const wanted = text.toLowerCase()
  const groups = useMemo(() => {
    const all = rows.filter(({ name }) => name.toLowerCase().includes(wanted))
    const missing = all.filter((row) => missingIn(columns, row).length > 0)
    const lacking = new Set(missing.flatMap((row) => missingIn(columns, row)))
    const different = all.filter(isDifferent)
    return { all, missing, different, lacking: columns.filter((column) => lacking.has(column)) }
  }, [rows, columns, wanted])
  const levels = useMemo(() => columns.map((column) => levelOf(project, column)), [project, columns])
  const titles = useMemo(() => levels.map(titleOf), [levels])
  const found = groups[filter]
  const isList = isNarrow.value
  const shown = isList ? [Math.min(chosen, columns.length - 1)] : columns.map((_, i) => i)
  const grid = useGrid({ count: found.length, columns: shown.length, height: isList ? 44 : 32, head: isList ? 0 : 40 })
  const lacking = filter === 'missing' ? groups.lacking : []
  const lackingIn = lacking.map((column) => titles[columns.indexOf(column)]).join(', ')
  const show = (filter: Filter) => {
    setFilter(filter)
    const [first] = groups.lacking
    if (filter === 'missing' && first && !groups.lacking.includes(columns[chosen]!)) setChosen(columns.indexOf(first))
    ask?.(filter, text)
    grid.reset()
  }
  const canWrite = levels.map((level) => can(['secret:write'], level))
  const add = () =>
    setOpen({ row: null, column: isList && canWrite[shown[0]!] ? shown[0]! : canWrite.lastIndexOf(true) })
  const row = (index: number) => {
    const { name, cells } = found[index]!
    const differs = isDifferent(found[index]!)
    const label = shownName(name)
    return (
      <tr key={`name ${name}`} aria-rowindex={index + 2}>
        <th scope='row' title={label}>{label}</th>
        {shown.map((column, i) => {
          const cell = cells[column]!
          const words = wordsOf(cell, differs)
          return (
            <td key={column} class={`${cell.state} ${columns[column]!.level}`}>
              <button type='button' data-action='matrix.cell' {...grid.cell(index, i)} aria-label={`${words} ${label} in ${titles[column]!}`} title={words} onClick={() => setOpen({ row: found[index]!, column })}>
                <i class={`sign ${cell.state}`} />{isList ? words : differs && letterOf(cell)}
              </button>
            </td>
          )
        })}
      </tr>
    )
  }
  return (
    <>
      <div class='toolbar'>
        <form class='filter' role='search' onSubmit={(event) => { event.preventDefault(); ask?.(filter, text) }}>
          <Field label='Only names that contain' name='filter' type='search' isCompact onInput={(text) => { setText(text); grid.reset() }} />
          {ask !== undefined && <button type='submit' data-action='matrix.search'>Search all names</button>}
        </form>
        <fieldset class='segments' hidden={columns.length === 1}>
          <legend class='hidden'>Show</legend>
          {(Object.keys(FILTERS) as Filter[]).map((one) => (
            <Check key={one} type='radio' name='kind' value={one} label={ask === undefined ? `${FILTERS[one]} (${groups[one].length})` : FILTERS[one]} checked={filter === one} onChange={() => show(one)} />
          ))}
        </fieldset>
        {isList && <Field label='Level' name='column' isCompact value={String(shown[0])} onInput={(value) => { setChosen(Number(value)); grid.reset() }} options={titles.map((title, i) => [String(i), title])} />}
        {canWrite.includes(true) && <Act name='name.add' kind='main' at={levels[canWrite.indexOf(true)]!} run={add} />}
      </div>
      {lacking.length > MAX_LACKING
        ? <details><summary>Names are missing in {lacking.length} {lacking[0]!.level === 'environment' ? 'environments' : 'levels'}</summary><p>{lackingIn}.</p></details>
        : lacking.length > 0 && <p>Names are missing in: {lackingIn}.</p>}
      {more !== undefined && <p class='hint'>{more}</p>}
      {found.length === 0
        ? <Empty>{rows.length === 0 ? 'No level has a name yet. Add one, or open a level to import a file.' : text !== '' ? `No name${KINDS[filter]} contains this text.` : filter === 'missing' ? 'No name is missing.' : 'No name has different values.'}</Empty>
        : (
          <div class={`scroll matrix${isList ? ' narrow' : ''}`} role='region' aria-label='Names and levels' {...grid.region}>
            <table role='grid' aria-rowcount={found.length + 1}>
              <thead>
                <tr aria-rowindex={1}>
                  <th scope='col'>Name</th>
                  {shown.map((column, i) => (
                    <th key={columns[column]!.id} scope='col' title={titles[column]}>
                      {columns[column]!.environment !== null && <small>{titles[column]!.split(' / ')[0]}</small>}
                      <To to={{ page: 'level', ...levels[column]! }} more={isList ? {} : grid.cell(-1, i)}>{titleOfColumn(columns[column]!)}</To>
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>{rowsOf(grid.parts, row)}</tbody>
            </table>
          </div>
          )}
      <ul class='legend' hidden={columns.length === 1}>
        {(['set', 'inherited', 'overrides', 'missing'] as const).map((state) => <li key={state}><i class={`sign ${state}`} />{LEGEND[state]}</li>)}
        <li><b>A B</b> cells of a name with the same letter have the same value</li>
      </ul>
      {open !== undefined && (
        <CellDialog
          project={project} columns={columns} rows={rows} column={open.column} name={open.row?.name}
          cell={open.row?.cells[open.column]} close={() => setOpen(undefined)}
        />
      )}
    </>
  )
}

const LEGEND = { set: 'set here', inherited: 'from a level above', overrides: 'overrides a level above', missing: 'missing' }

const letterOf = ({ value_group }: Cell): string => value_group === undefined ? '' : String.fromCodePoint(64 + Math.min(value_group, 26))

export function wordsOf (cell: Cell, differs: boolean): string {
  const { state, from, overrides } = cell
  const letter = differs && letterOf(cell) !== '' ? ` (${letterOf(cell)})` : ''
  if (state === 'inherited') return `From ${from}${letter}`
  if (state === 'overrides') return `Overrides ${overrides?.at(-1)}${letter}`
  return { set: 'Set', missing: 'Missing', unknown: 'Unreadable' }[state] + letter
}
