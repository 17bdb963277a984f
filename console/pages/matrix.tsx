import { useState } from 'preact/hooks'
import { ApiError, call } from '../api.ts'
import { ClientMatrix } from '../client-matrix.tsx'
import { kindOf, levelOf, titleOf, titleOfColumn, type Cell, type Column, type Level, type Matrix } from '../levels.ts'
import { MatrixTable, type Filter } from '../matrix-table.tsx'
import { KeyGate, projectOf, type Project } from '../secrets.tsx'
import { go } from '../router.ts'
import { Act, Danger, Field, Form, Help, saying, Section, Show, To, changed, useLoad, type Fields } from '../ui.tsx'

type Only = Exclude<Filter, 'all'>

/** A page of the matrix, and the number of all names. */
interface MatrixPart { matrix: Matrix, total: number, next: string | null }
/** What the page shows. `canRead`: the person may read the names. */
interface ProjectMatrix extends MatrixPart { project: Project, canRead: boolean }

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
                <KeyGate level={{ organization, project: slug }} project={project}>
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

async function load (organization: string, slug: string, query: Query): Promise<ProjectMatrix> {
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
async function readMatrix ({ organization, slug }: Project, query: Query): Promise<MatrixPart> {
  const { data: { data, meta } } = await call('readProjectMatrix', { path: { organization, project: slug }, query })
  return { matrix: data.attributes, total: meta.total, next: meta.next_levels }
}

/** The levels of both, and the names of either: a name that a page does not have is missing in its levels. */
function join (first: Matrix, second: Matrix): Matrix {
  const { project } = first
  const levels = [...first.levels, ...second.levels]
  if (first.names === null) return { project, levels, names: null }
  const missing = (count: number): Cell[] => Array.from({ length: count }, () => ({ state: 'missing' }))
  const names = new Map<string, Cell[]>()
  for (const { name, cells } of first.names) names.set(name, [...cells, ...missing(second.levels.length)])
  for (const { name, cells } of second.names ?? []) {
    names.set(name, [...(names.get(name) ?? missing(levels.length)).slice(0, first.levels.length), ...cells])
  }
  const rows = [...names].sort(([a], [b]) => a < b ? -1 : 1)
  return { project, levels, names: rows.map(([name, cells]) => ({ name, cells })) }
}

/** The hierarchy of the project: open, add, rename and delete levels. */
function Levels ({ project, columns }: { project: Project, columns: readonly Column[] }) {
  const { organization, slug, name } = project
  const path = { organization, project: slug }
  const targets = columns.filter(({ level }) => level === 'target').map(({ target }) => target!)
  const rename = async ({ name = '' }: Fields) =>
    saying(call('updateProject', { path, body: { name } }), `The project is called ${name} now.`)
  const remove = async () => {
    await call('deleteProject', { path, dangerous: ['project:delete'] })
    go({ organization })
    changed(`Deleted the project ${name}.`)
  }
  const addTarget = async ({ name = '' }: Fields) => saying(call('createTarget', { path, body: { name } }), `Added the target ${name}.`)
  const addEnvironment = async ({ name = '', target = '', status = 'development' }: Fields) => saying(
    call('createEnvironment', { path: { ...path, target }, body: { name, status } }), `Added the environment ${name} to ${target}.`
  )
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
  const title = titleOf(level)
  const path = { organization, project, target, environment }
  const remove = async () =>
    saying(kindOf(level) === 'target' ? call('deleteTarget', { path }) : call('deleteEnvironment', { path }), `Deleted ${title}.`)
  return (
    <Danger name='level.delete' title={`Delete ${title}?`} run={remove} description={title}>
      <p>This deletes {title} with its secrets and its history. It cannot be undone.</p>
    </Danger>
  )
}
