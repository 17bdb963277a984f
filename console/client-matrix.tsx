import { useState } from 'preact/hooks'
import { KINDS, levelOf, type Cell, type Column, type Kind, type Row } from './levels.ts'
import { MatrixTable } from './matrix-table.tsx'
import type { Project } from './rights.ts'
import { readPath } from './secrets.tsx'
import { Later, Show, useLoad } from './ui.tsx'
import type { Values } from './values.ts'

/** The matrix of a client-managed project: the browser reads and decrypts all levels. */
export const ClientMatrix = ({ project, columns }: { project: Project, columns: readonly Column[] }) =>
  <Later name='matrix.open' kind='main'><ClientTable project={project} columns={columns} /></Later>

function ClientTable ({ project, columns }: { project: Project, columns: readonly Column[] }) {
  const [done, setDone] = useState(0)
  const loaded = useLoad(() => readLevels(project, columns, setDone), [columns.length])
  return (
    <>
      {loaded.value === undefined && loaded.error === undefined && <p role='status'>Reads level {done + 1} of {columns.length}…</p>}
      <Show of={loaded}>
        {({ documents, current }) => (
          <MatrixTable project={project} columns={current} rows={rowsOf(columns, documents)} />
        )}
      </Show>
    </>
  )
}

/** Reads and decrypts the documents of all levels. A read of an environment has those of the levels above. */
async function readLevels (project: Project, columns: readonly Column[], tell: (count: number) => void) {
  const documents = new Map<Column, Values>()
  const current: Column[] = [...columns]
  const of = (kind: Kind, { target, environment }: Column) => columns.find((one) => one.level === kind &&
    (kind === 'project' || one.target === target) && (kind !== 'environment' || one.environment === environment))
  for (const [index, column] of [...columns].reverse().entries()) {
    tell(index)
    if (documents.has(column)) continue
    const path = await readPath(levelOf(project, column), project.format)
    for (const kind of KINDS) {
      const holder = of(kind, column)
      if (holder === undefined || documents.has(holder) || (kind === 'environment' && column.level !== 'environment')) continue
      const { values, etag, version } = path.get(kind) ?? { values: new Map(), etag: null, version: null }
      documents.set(holder, values)
      current[columns.indexOf(holder)] = { ...holder, etag, version }
    }
  }
  return { documents, current }
}

/** The rows of the matrix, with the same words as those of the service. */
function rowsOf (columns: readonly Column[], documents: ReadonlyMap<Column, Values>): Row[] {
  const names = [...new Set([...documents.values()].flatMap((values) => [...values.keys()]))].sort()
  return names.map((name) => {
    const groups: string[] = []
    const cells = columns.map((column): Cell => {
      const above = columns.filter((one) => one !== column && (one.level === 'project' || (one.target === column.target && one.level === 'target' && column.level === 'environment')))
      const holders = above.filter((one) => documents.get(one)?.has(name))
      const own = documents.get(column)?.get(name)
      const value = own ?? documents.get(holders.at(-1)!)?.get(name)
      if (value === undefined) return { state: 'missing' }
      if (!groups.includes(value)) groups.push(value)
      const value_group = groups.indexOf(value) + 1
      if (own === undefined) return { state: 'inherited', from: holders.at(-1)!.level as 'project', value_group }
      if (holders.length === 0) return { state: 'set', value_group }
      return { state: 'overrides', overrides: holders.map(({ level }) => level as 'project'), value_group }
    })
    return { name, cells }
  })
}
