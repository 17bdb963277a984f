import { useEffect, useState } from 'preact/hooks'
import { ApiError, call } from '../api.ts'
import { InviteHere } from '../invitations.tsx'
import { levelOf, readDocument, type Cell, type Column, type Matrix, type Row } from '../levels.ts'
import { MatrixTable, type Filter } from '../matrix-table.tsx'
import { canSomewhere, hasNames, inOrder, onlyLevelOf, projectIn, shownProject, type Project } from '../rights.ts'
import { go } from '../router.ts'
import { KeyGate, namesIn, type At } from '../secrets.tsx'
import { Act, Empty, Later, may, Show, To, useLoad } from '../ui.tsx'
import type { Values } from '../values.ts'
import { LevelTree } from './settings.tsx'

/** A page of names; null: the person may not read them, or there are none. */
interface Part { project: Project, names: Matrix['names'], total: number }

/** A person with access to one level alone goes to it. */
export function MatrixPage ({ level, project }: At) {
  const only = onlyLevelOf(project)
  useEffect(() => { if (only !== undefined) go({ page: 'level', ...levelOf(project, only) }, 'replaceState') }, [])
  return only === undefined ? <Levels level={level} project={project} /> : null
}

function Levels ({ level, project: known }: At) {
  const { organization, project: slug } = level
  const [asked, setAsked] = useState<Query>({})
  const loaded = useLoad(() => load(known, asked), [asked])
  const ask = (filter: Filter, search: string) =>
    setAsked({ ...(search !== '' && { search }), ...(filter !== 'all' && { only: filter }) })
  const more = async () => {
    const { project, names, total } = loaded.value!
    const query = names === null ? { decrypt: false } : { ...asked, only: undefined }
    const joined = join({ project, names }, await readPart(project, { ...query, levels_after: project.next! }))
    // The names of the further levels.
    shownProject.value = joined.project
    loaded.set({ total, ...joined })
  }
  return (
    <Show of={loaded}>
      {({ project, names, total }) => {
        const isCut = names !== null && (total > names.length || asked.only !== undefined || asked.search !== undefined)
        return (
          <>
            {project.isClient && hasNames(project)
              ? (
                <KeyGate level={level} project={project}>
                  <Later key={project.levels.length} name='matrix.open' kind='main'>
                    <ClientMatrix project={project} columns={project.levels} />
                  </Later>
                </KeyGate>
                )
              : names !== null
                ? (
                  <MatrixTable
                    project={project} columns={project.levels} rows={names} ask={isCut ? ask : undefined}
                    {...total > names.length && { more: `These are the first ${names.length} of ${total} names. Search all names to see others.` }}
                  />
                  )
                : (
                  <>
                    <Empty>{project.isClient || project.format === 'text' ? 'Only the document of a level as a whole can be shown: open a level.' : 'Your role does not include the names of this project.'}</Empty>
                    <LevelTree project={project} />
                  </>
                  )}
            {project.next !== null && (asked.only === undefined ? <Act name='matrix.more' run={more} /> : <p class='hint'>Show all names to see more levels.</p>)}
            {project.levels.length === 1 && may('target.create', { project: slug }) && <p>The project has no targets yet: <To to={{ page: 'settings', organization, project: slug }}>add a target and its environments</To>.</p>}
            <InviteHere level={level} />
          </>
        )
      }}
    </Show>
  )
}

async function load (project: Project, query: Query): Promise<Part> {
  const none = { project, names: null, total: 0 }
  if (project.isClient || project.format === 'text' || !canSomewhere(['secret:read', 'secret:decrypt'], project.slug)) return none
  return readPart(project, query).catch((error: unknown) => {
    if (error instanceof ApiError && error.status === 403) return none
    throw error
  })
}

interface Query { search?: string, only?: Exclude<Filter, 'all'> | undefined, levels_after?: string, decrypt?: boolean }

/** Reads a page of the matrix. Its columns, and so the cells of each row, get the order of the page. */
async function readPart ({ organization, slug }: Project, query: Query): Promise<Part> {
  const { data } = await call('readProjectMatrix', { path: { organization, project: slug }, query })
  const { levels, names } = data.data.attributes
  const project = projectIn(organization, slug, data)
  const order = inOrder(levels).map((level) => levels.indexOf(level))
  const rowOf = ({ name, cells }: Row) => ({ name, cells: inGroups(order.map((i) => cells[i]!)) })
  return { project, total: data.meta.total, names: names?.map(rowOf) ?? null }
}

/** Counts the groups of equal values from the left. */
function inGroups (cells: readonly Cell[]): Cell[] {
  const found = new Map<number, number>()
  const numberOf = (group: number) => found.get(group) ?? found.set(group, found.size + 1).size
  return cells.map((cell) => ({ ...cell, ...cell.value_group && { value_group: numberOf(cell.value_group) } }))
}

/** The levels of both, and the names of either: a name that a page does not have is missing in its levels. */
function join (first: Omit<Part, 'total'>, second: Part): Omit<Part, 'total'> {
  const [before, after] = [first.project.levels, second.project.levels]
  const project = { ...second.project, levels: [...before, ...after] }
  if (first.names === null) return { project, names: null }
  const [known, found] = [first, second].map(({ names }) => new Map(names?.map(({ name, cells }) => [name, cells])))
  const missing = (): Cell => ({ state: 'missing' })
  const rowOf = (name: string): Row => {
    const cells = known!.get(name) ?? before.map(missing)
    // Each page counts its groups. Only values from the document of the project are known to be the same in both.
    const above = cells.find(({ from }, i) => from === 'project' || before[i]!.level === 'project')?.value_group
    const groupOf = ({ from, value_group: group = 0 }: Cell) => (from === 'project' ? above : undefined) ?? -group
    const more = found!.get(name)?.map((cell) => ({ ...cell, value_group: groupOf(cell) })) ?? after.map(missing)
    return { name, cells: inGroups([...cells, ...more]) }
  }
  return { project, names: [...new Set([...known!.keys(), ...found!.keys()])].sort().map(rowOf) }
}

/** The matrix of a client-managed project: the browser reads and decrypts all levels. */
function ClientMatrix ({ project, columns }: { project: Project, columns: readonly Column[] }) {
  const [done, setDone] = useState(0)
  const loaded = useLoad(() => readLevels(project, columns, setDone), [columns.length])
  return (
    <>
      {loaded.value === undefined && loaded.error === undefined && <p role='status'>Reads level {done + 1} of {columns.length}…</p>}
      <Show of={loaded}>
        {({ documents, current }) => (
          <MatrixTable project={project} columns={current} rows={rowsIn(current, documents)} />
        )}
      </Show>
    </>
  )
}

async function readLevels (project: Project, columns: readonly Column[], tell: (count: number) => void) {
  const documents = new Map<Column, Values>()
  const current: Column[] = []
  for (const column of columns) {
    tell(current.length)
    const { text, etag, version } = await readDocument(levelOf(project, column), true)
    current.push({ ...column, etag, version })
    documents.set(current.at(-1)!, namesIn(project.format, text, column.level))
  }
  return { documents, current }
}

/** The rows of the matrix, with the same words as those of the service. */
function rowsIn (columns: readonly Column[], documents: ReadonlyMap<Column, Values>): Row[] {
  const isAbove = (one: Column, { level, target }: Column) => level !== 'project' &&
    (one.level === 'project' || (one.level === 'target' && level === 'environment' && one.target === target))
  const names = [...new Set([...documents.values()].flatMap((values) => [...values.keys()]))].sort()
  return names.map((name) => {
    const groups = new Map<string, number>()
    const cells = columns.map((column): Cell => {
      const above = columns.filter((one) => isAbove(one, column) && documents.get(one)?.has(name))
      const own = documents.get(column)?.get(name)
      const value = own ?? documents.get(above.at(-1)!)?.get(name)
      if (value === undefined) return { state: 'missing' }
      const value_group = groups.get(value) ?? groups.size + 1
      groups.set(value, value_group)
      const levels = above.map(({ level }) => level as 'project')
      if (own === undefined) return { state: 'inherited', from: levels.at(-1)!, value_group }
      if (levels.length === 0) return { state: 'set', value_group }
      return { state: 'overrides', overrides: levels, value_group }
    })
    return { name, cells }
  })
}
