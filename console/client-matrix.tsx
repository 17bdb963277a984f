import { useState } from 'preact/hooks'
import { levelOf, readDocument, type Cell, type Column, type Row } from './levels.ts'
import { MatrixTable } from './matrix-table.tsx'
import type { Project } from './rights.ts'
import { namesIn } from './secrets.tsx'
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
          <MatrixTable project={project} columns={current} rows={rowsOf(current, documents)} />
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
function rowsOf (columns: readonly Column[], documents: ReadonlyMap<Column, Values>): Row[] {
  const isAbove = (one: Column, { level, target }: Column) =>
    one.level === 'project' ? level !== 'project' : one.level === 'target' && level === 'environment' && one.target === target
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
      return levels.length === 0 ? { state: 'set', value_group } : { state: 'overrides', overrides: levels, value_group }
    })
    return { name, cells }
  })
}
