import { useState } from 'preact/hooks'
import { heldKey, openBlob } from './crypto.ts'
import { callLevel, levelOf, projectPath, titleOfColumn, type Cell, type Column, type Kind, type Row } from './levels.ts'
import { MatrixTable } from './matrix-table.tsx'
import type { Project } from './secrets.tsx'
import { Act, Show, useLoad } from './ui.tsx'
import { readValues, type Values } from './values.ts'

/** The matrix of a client-managed project: the browser reads and decrypts all levels. */
export function ClientMatrix ({ project, columns }: { project: Project, columns: readonly Column[] }) {
  const [isAsked, setAsked] = useState(false)
  if (project.format === 'yaml' || project.format === 'text') return <p>Only a level as a whole can be shown: open one below.</p>
  if (!isAsked) return <Act name='matrix.open' kind='main' run={() => setAsked(true)} />
  return <ClientTable project={project} columns={columns} />
}

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

type Documents = ReadonlyMap<Column, Values>

/** Reads and decrypts the documents of all levels. A read of an environment has those of the levels above. */
async function readLevels (project: Project, columns: readonly Column[], tell: (count: number) => void) {
  const key = heldKey(projectPath({ organization: project.organization, project: project.slug }))
  const documents = new Map<Column, Values>()
  const current: Column[] = [...columns]
  const of = (kind: Kind, { target, environment }: Column) => columns.find((one) => one.level === kind &&
    (kind === 'project' || one.target === target) && (kind !== 'environment' || one.environment === environment))
  for (const [index, column] of [...columns].reverse().entries()) {
    tell(index)
    if (documents.has(column)) continue
    const { data: { data } } = await callLevel('readSecrets', levelOf(project, column))
    for (const kind of ['project', 'target', 'environment'] as const) {
      const holder = of(kind, column)
      if (holder === undefined || documents.has(holder) || (kind === 'environment' && column.level !== 'environment')) continue
      const found = data.attributes.levels?.[kind]
      const values = found === undefined ? new Map() : readValues(project.format, await openBlob(key, found.content))
      if (values === undefined) throw new Error(`The document of ${titleOfColumn(holder)} has no names that the browser can read. Open the level.`)
      documents.set(holder, values)
      current[columns.indexOf(holder)] = { ...holder, etag: found?.etag ?? null, version: found?.version ?? null }
    }
  }
  return { documents, current }
}

/** The rows of the matrix, with the same words as those of the service. */
function rowsOf (columns: readonly Column[], documents: Documents): Row[] {
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
