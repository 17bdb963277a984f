import { useState } from 'preact/hooks'
import { ApiError } from './api.ts'
import { openBlob, useKey } from './crypto.ts'
import {
  callLevel, changeNames, changesBetween, kindOf, stateOf, titleOf, undoChange, type Kind, type Level,
  type LevelDocument
} from './levels.ts'
import { levelOf, MatrixTable, titleOfColumn, type Cell, type Column, type Row } from './pages/matrix.tsx'
import { LevelSecret, readOne, ValueField, type Project } from './secrets.tsx'
import { Act, changed, Changes, Dialog, Field, say, Show, To, useForgetting, useLoad } from './ui.tsx'
import { readValues, type Comparison, type NameChange, type Values } from './values.ts'

// Changing a name of a level, and the matrix of a client-managed project.

/** The state of the level from which a change starts. */
type Base = Pick<LevelDocument, 'etag' | 'version'>

/** Says what was changed, with an undo. `etag`: as in `undoChange`; undefined: nothing changed. */
export function sayChanged (text: string, level: Level, etag: string | null | undefined, isClient: boolean) {
  if (etag === undefined) return say('Nothing changed: it was like this already.')
  changed(text, async () => {
    await undoChange(level, etag, isClient)
    changed(`Undone: ${titleOf(level)} is as it was before.`)
  })
}

/**
 * Makes a change of names, or of a whole document if `store` is given. If the level has changed meanwhile, shows what
 * (null: unknown), and on request changes the names again; without names, replaces the document. `forget`: when the
 * person changes what would be applied again.
 */
export function useChange (level: Level, { isClient, format }: Project, done: () => void) {
  const [conflict, setConflict] = useState<{ found: Comparison | null, label?: string, again: () => Promise<void> }>()
  const forget = () => setConflict(undefined)
  type Store = (etag: string | null) => Promise<string | undefined>
  const apply = async (change: NameChange | undefined, base: Base, text: string, store?: Store) => {
    try {
      const etag = await (store?.(base.etag) ?? changeNames(level, change!, base.etag, isClient, format))
      forget()
      done()
      sayChanged(text, level, etag, isClient)
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 412)) throw error
      const now = await stateOf(level)
      const isKnown = base.version !== null && now.version !== null
      setConflict({
        found: isKnown ? await changesBetween(level, base.version!, now.version!, isClient, format) : null,
        ...(change === undefined && { label: 'Replace the document with mine' }),
        again: () => apply(change, now, text, change === undefined ? store : undefined)
      })
    }
  }
  const view = conflict === undefined
    ? null
    : (
      <section class='conflict' role='alert'>
        <h3>{titleOf(level)} was changed meanwhile</h3>
        <p>Your change is not saved yet. Meanwhile somebody made this change:</p>
        <Changes of={conflict.found} />
        <Act name='conflict.apply' kind='main' {...conflict.label && { label: conflict.label }} run={conflict.again} />
      </section>
      )
  return { apply, view, forget }
}

type Known = readonly { name: string }[] | undefined
/** The form for the value of a name. `known`: the names that the level has or inherits. */
export function SetName ({ level, project, base, name, done, known = [] }: {
  level: Level, project: Project, base: Base, name?: string | undefined, done: () => void, known: Known
}) {
  const [newName, setNewName] = useState(name ?? '')
  const [value, setValue] = useState<string | undefined>('')
  // The present value as the field was filled with it. It is forgotten if nobody changes it.
  const [present, setPresent] = useState<{ count: number, value: string }>({ count: 0, value: '' })
  const isKnown = known.some((one) => one.name === newName)
  const { apply, view, forget } = useChange(level, project, done)
  const change = (text: string | undefined) => { setValue(text); forget() }
  const isUnchanged = present.count > 0 && present.value !== '' && value === present.value
  const fill = (text: string) => { setPresent(({ count }) => ({ count: count + 1, value: text })); setValue(text) }
  useForgetting(isUnchanged, () => fill(''))
  const save = async () => {
    if (newName === '') throw new Error('Enter a name.')
    if (value === undefined) throw new Error('Correct the escapes first.')
    await apply({ set: { [newName]: value } }, base, `Saved ${newName} in ${titleOf(level)}.`)
  }
  return (
    <div class='set'>
      {name === undefined && <Field label='Name' name='name' onInput={(text) => { setNewName(text); forget() }} required {...(isKnown && { hint: 'The level has or inherits this name already. Saving sets a new value for this level.' })} />}
      <ValueField key={present.count} label={name === undefined ? 'Value' : 'New value'} value={present.value} change={change} />
      {name !== undefined && isKnown && <Act name='name.load' kind='plain' run={async () => fill(await readOne(level, name, project))} />}
      <Act name='name.set' kind='main' run={save} />
      {view}
    </div>
  )
}

/** A cell of the matrix: what it means, its value, and its changes. Without a name: a new name at a level. */
export function CellDialog ({ project, columns, column: first, rows, name, cell, close }: {
  project: Project,
  rows: readonly Row[],
  columns: readonly Column[],
  column: number,
  name?: string | undefined,
  cell?: Cell | undefined,
  close: () => void
}) {
  const [column, setColumn] = useState(first)
  const at = columns[column]!
  const level = levelOf(project, at)
  const { apply, view } = useChange(level, project, close)
  const isHere = cell?.state === 'set' || cell?.state === 'overrides'
  const title = name === undefined ? 'Add a name' : `${name} in ${titleOf(level)}`
  return (
    <Dialog title={title} close={close}>
      {name === undefined
        ? (
          <Field
            label='Level' name='level' value={String(column)} onInput={(value) => setColumn(Number(value))}
            options={columns.map((one, i) => [String(i), [one.environment === null ? undefined : one.target, titleOfColumn(one)].filter(Boolean).join(' / ')])}
          />
          )
        : <p>{sentenceOf(cell!, level)}</p>}
      {name !== undefined && cell !== undefined && cell.state !== 'missing' && cell.state !== 'unknown' && <LevelSecret level={level} name={name} project={project} />}
      <h3>{isHere ? 'Change the value' : `Set a value in ${titleOf(level)}`}</h3>
      <SetName key={column} level={level} project={project} base={at} name={name} done={close} known={rows.filter(({ cells }) => cells[column]?.state !== 'missing')} />
      {name !== undefined && isHere && (
        <Act name='name.remove' kind='danger' run={() => apply({ unset: [name] }, at, `Removed ${name} from ${titleOf(level)}.`)} />
      )}
      {view}
      <p><To to={{ page: 'level', ...level }}>Open the level {titleOf(level)}</To></p>
    </Dialog>
  )
}

function sentenceOf ({ state, from, overrides }: Cell, level: Level): string {
  if (state === 'set') return `The name is set in this ${kindOf(level)}.`
  if (state === 'inherited') return `The value comes from the ${from}. Set a value here to override it.`
  if (state === 'overrides') return `The name is set in this ${kindOf(level)}, and overrides the value of the ${(overrides ?? []).join(' and the ')}.`
  return state === 'missing' ? kindOf(level) === 'project' ? 'The project does not have the name.' : `Neither this ${kindOf(level)} nor a level above has the name.` : 'The document of this level cannot be read. Open the level to correct it.'
}

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
  const key = useKey(`${project.organization}/${project.slug}`)
  const documents = new Map<Column, Values>()
  const current: Column[] = [...columns]
  const of = (kind: Kind, { target, environment }: Column) => columns.find((one) => one.level === kind &&
    (kind === 'project' || one.target === target) && (kind !== 'environment' || one.environment === environment))
  for (const [index, column] of [...columns].reverse().entries()) {
    tell(index)
    if (documents.has(column)) continue
    const { data: { data } } = await callLevel('readSecrets', levelOf(project, column))
    for (const kind of ['project', 'target', 'environment'] as const) {
      const place = of(kind, column)
      if (place === undefined || documents.has(place) || (kind === 'environment' && column.level !== 'environment')) continue
      const found = data.attributes.levels?.[kind]
      const values = found === undefined ? new Map() : readValues(project.format, await openBlob(key, found.content))
      if (values === undefined) throw new Error(`The document of ${titleOfColumn(place)} has no names that the browser can read. Open the level.`)
      documents.set(place, values)
      current[columns.indexOf(place)] = { ...place, etag: found?.etag ?? null, version: found?.version ?? null }
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
