import { signal } from '@preact/signals'
import { useMemo, useRef, useState } from 'preact/hooks'
import { ApiError, call, type Schemas } from '../api.ts'
import { CellDialog, ClientMatrix } from '../cell.tsx'
import { kindOf, type Level } from '../levels.ts'
import { KeyGate, projectOf, type Project } from '../secrets.tsx'
import { go } from '../router.ts'
import { Act, Check, Danger, Empty, Field, Form, Help, Section, Show, To, changed, useLoad, type Fields } from '../ui.tsx'

export type Matrix = Schemas['MatrixAttributes']
export type Column = Matrix['levels'][number]
export type Row = NonNullable<Matrix['names']>[number]
export type Cell = Row['cells'][number]
type Only = 'missing' | 'different'
type Filter = 'all' | Only

/** What the page shows: the project, its levels, and their names if the service can read them (`canRead`). */
interface Page { matrix: Matrix, total: number, next: string | null }
interface Loaded extends Page { project: Project, canRead: boolean }

export const levelOf = ({ organization, slug }: Project, { target, environment }: Column): Level =>
  ({ organization, project: slug, target: target ?? undefined, environment: environment ?? undefined })

/** The words of a level of the matrix. */
export const titleOfColumn = ({ target, environment }: Column): string => environment ?? target ?? 'project'

/** All names of a project as rows, and all levels as columns. */
export function MatrixPage ({ organization, project: slug }: { organization: string, project: string }) {
  const [search, setSearch] = useState('')
  const [only, setOnly] = useState<Only>()
  const ask = (filter: Filter) => setOnly(filter === 'all' ? undefined : filter)
  const loaded = useLoad(() => load(organization, slug, { search, only }), [organization, slug, search, only])
  const more = async () => {
    const { project, matrix, next, ...rest } = loaded.value!
    const query = matrix.names === null ? { decrypt: false } : { search }
    const page = await readMatrix(project, { ...query, levels_after: next! })
    loaded.set({ ...rest, project, next: page.next, matrix: join(matrix, page.matrix) })
  }
  return (
    <>
      <h1>Secrets of {loaded.value?.project.name ?? slug}</h1>
      <Help of='level' />
      <Show of={loaded}>
        {({ project, matrix, total, next, canRead }) => (
          <>
            {project.isClient
              ? (
                <KeyGate level={{ organization, project: slug }}>
                  <ClientMatrix key={matrix.levels.length} project={project} columns={matrix.levels} />
                </KeyGate>
                )
              : canRead && matrix.names !== null
                ? (
                  <>
                    <Form name='matrix.search' keep run={({ search = '' }) => { setSearch(search); setOnly(undefined) }}>
                      <Field label='Only names that contain' name='search' value={search} type='search' />
                    </Form>
                    {total > matrix.names.length && <p class='hint'>These are the first {matrix.names.length} of {total} names. Search to see others.</p>}
                    <MatrixTable
                      key={search} project={project} columns={matrix.levels} rows={matrix.names}
                      ask={only === undefined && total <= matrix.names.length ? undefined : ask}
                    />
                  </>
                  )
                : <p>{project.format === 'text' ? 'The documents of this project have no names: open a level below.' : 'Your role does not include the names of this project.'}</p>}
            {next !== null && (only === undefined ? <Act name='matrix.more' run={more} /> : <p class='hint'>Show all names to see more levels.</p>)}
            <Levels project={project} columns={matrix.levels} />
          </>
        )}
      </Show>
    </>
  )
}

async function load (organization: string, slug: string, query: Query): Promise<Loaded> {
  const project = await projectOf(organization, slug)
  const isReadable = !project.isClient && project.format !== 'text'
  try {
    return { project, canRead: true, ...await readMatrix(project, isReadable ? query : { decrypt: false }) }
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 403)) throw error
    return { project, canRead: false, ...await readMatrix(project, { decrypt: false }) }
  }
}

interface Query { search?: string, only?: Only | undefined, levels_after?: string, decrypt?: boolean }
async function readMatrix ({ organization, slug }: Project, query: Query): Promise<Page> {
  const { data: { data, meta } } = await call('readProjectMatrix', { path: { organization, project: slug }, query })
  return { matrix: data.attributes, total: meta.total, next: meta.next_levels }
}

/** The levels of both, and the names of either: a name that a page does not have is missing in its levels. */
function join (first: Matrix, second: Matrix): Matrix {
  const levels = [...first.levels, ...second.levels]
  if (first.names === null) return { levels, names: null }
  const missing = (count: number): Cell[] => Array.from({ length: count }, () => ({ state: 'missing' }))
  const names = new Map<string, Cell[]>()
  for (const { name, cells } of first.names) names.set(name, [...cells, ...missing(second.levels.length)])
  for (const { name, cells } of second.names ?? []) {
    names.set(name, [...(names.get(name) ?? missing(levels.length)).slice(0, first.levels.length), ...cells])
  }
  const rows = [...names].sort(([a], [b]) => a < b ? -1 : 1)
  return { levels, names: rows.map(([name, cells]) => ({ name, cells })) }
}

const isMissing = (columns: readonly Column[], { cells }: Row): boolean => {
  const hasEnvironments = columns.some(({ level }) => level === 'environment')
  return cells.some(({ state }, i) => state === 'missing' && (!hasEnvironments || columns[i]!.level === 'environment'))
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
export function MatrixTable ({ project, columns, rows, ask }: {
  project: Project, columns: readonly Column[], rows: readonly Row[], ask?: ((filter: Filter) => void) | undefined
}) {
  const [filter, setFilter] = useState<Filter>('all')
  const [top, setTop] = useState(0)
  const [open, setOpen] = useState<{ row: Row, column: number } | { row: null, column: number }>()
  const region = useRef<HTMLDivElement>(null)
  const groups = useMemo(() => (
    { all: rows, missing: rows.filter((row) => isMissing(columns, row)), different: rows.filter(isDifferent) }
  ), [rows, columns])
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
                    <th scope='row' title={row.name}>{row.name}</th>
                    {row.cells.map((cell, column) => (
                      <td key={column} class={`${cell.state} ${columns[column]!.level}`}>
                        <button type='button' data-action='matrix.cell' data-cell={`${first + i} ${column}`} onClick={() => setOpen({ row, column })}>
                          {cell.state === 'missing' && columns[column]!.level !== 'environment' ? '—' : wordsOf(cell, isDifferent(row))}<span class='hidden'> {row.name} in {titleOfColumn(columns[column]!)}</span>
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

/** The hierarchy of the project: open, add, rename and delete levels. */
function Levels ({ project, columns }: { project: Project, columns: readonly Column[] }) {
  const { organization, slug, name } = project
  const path = { organization, project: slug }
  const targets = columns.filter(({ level }) => level === 'target').map(({ target }) => target!)
  const rename = async ({ name = '' }: Fields) => {
    await call('updateProject', { path, body: { name } })
    changed(`The project is called ${name} now.`)
  }
  const remove = async () => {
    await call('deleteProject', { path, dangerous: ['project:delete'] })
    go({ organization })
    changed(`Deleted the project ${name}.`)
  }
  const addTarget = async ({ name = '' }: Fields) => {
    await call('createTarget', { path, body: { name } })
    changed(`Added the target ${name}.`)
  }
  const addEnvironment = async ({ name = '', target = '', status = 'development' }: Fields) => {
    await call('createEnvironment', { path: { ...path, target }, body: { name, status } })
    changed(`Added the environment ${name} to ${target}.`)
  }
  return (
    <Section title='Levels'>
      <ul class='tree'>
        {columns.map((column) => (
          <li key={`${column.target}/${column.environment}`} class={column.level}>
            <To to={{ page: 'level', ...levelOf(project, column) }}>{titleOfColumn(column)}</To>
            <span class='soft'>{column.level}{column.etag === null ? ', empty' : column.version === null ? '' : `, version ${column.version}`}</span>
            {column.level !== 'project' && <DeleteLevel level={levelOf(project, column)} />}
          </li>
        ))}
      </ul>
      <details open={targets.length === 0}>
        <summary>Add a target</summary>
        <Help of='target' />
        <Form name='target.create' run={addTarget}><Field label='Name of the target' name='name' required /></Form>
      </details>
      {targets.length > 0 && (
        <details>
          <summary>Add an environment</summary>
          <Help of='environment' />
          <Form name='environment.create' run={addEnvironment}>
            <Field label='Target' name='target' options={targets.map((target) => [target, target])} />
            <Field label='Name of the environment' name='name' required />
            <Field label='Status' name='status' options={[['development', 'Development'], ['staging', 'Staging'], ['production', 'Production'], ['local', 'Local']]} />
          </Form>
        </details>
      )}
      <details>
        <summary>Settings of the project</summary>
        <Form name='project.rename' run={rename}><Field label='Name of the project' name='name' value={name} required /></Form>
        <Danger name='project.delete' title={`Delete ${name}?`} run={remove}>
          <p>This deletes all levels of {name} with their secrets and histories. It cannot be undone.</p>
        </Danger>
      </details>
    </Section>
  )
}

function DeleteLevel ({ level }: { level: Level }) {
  const { organization, project, target = '', environment = '' } = level
  const isTarget = kindOf(level) === 'target'
  const title = isTarget ? target : `${target} / ${environment}`
  const path = { organization, project, target, environment }
  const remove = async () => {
    await (isTarget ? call('deleteTarget', { path }) : call('deleteEnvironment', { path }))
    changed(`Deleted ${title}.`)
  }
  return (
    <Danger name='level.delete' title={`Delete ${title}?`} run={remove} description={title}>
      <p>This deletes {title} with its secrets and its history. It cannot be undone.</p>
    </Danger>
  )
}
