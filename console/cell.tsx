import { useState } from 'preact/hooks'
import { ApiError } from './api.ts'
import {
  changeNames, changesBetween, kindOf, levelOf, levelPath, stateOf, titleOf, titleOfColumn, undoChange, type Cell,
  type Column, type Level, type Row, type State
} from './levels.ts'
import { readOne, Secret, ValueField, type At, type Project } from './secrets.tsx'
import { Act, changed, Changes, Dialog, Field, say, To, useForgetting } from './ui.tsx'
import { shownName, type Comparison, type NameChange } from './values.ts'

// Changing a name of a level.

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
  const apply = async (change: NameChange | undefined, base: State, text: string, store?: Store) => {
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

/** The form for the value of a name. `known`: the names that the level has or inherits. */
export function SetName ({ level, project, base, name, done, known = [] }: At & {
  base: State, name?: string | undefined, done: () => void, known: readonly { name: string }[] | undefined
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
    if (newName === '' && name === undefined) throw new Error('Enter a name.')
    if (value === undefined) throw new Error('Correct the escapes first.')
    await apply({ set: { [newName]: value } }, base, `Saved ${shownName(newName)} in ${titleOf(level)}.`)
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

/** The names and levels of a project. */
export interface Grid { project: Project, columns: readonly Column[], rows: readonly Row[] }

/** A cell of the matrix: what it means, its value, and its changes. Without a name: a new name at a level. */
export function CellDialog ({ project, columns, column: first, rows, name, cell, close }: Grid & {
  column: number, name?: string | undefined, cell?: Cell | undefined, close: () => void
}) {
  const [column, setColumn] = useState(first)
  const at = columns[column]!
  const level = levelOf(project, at)
  const { apply, view } = useChange(level, project, close)
  const isHere = cell?.state === 'set' || cell?.state === 'overrides'
  const title = name === undefined ? 'Add a name' : `${shownName(name)} in ${titleOf(level)}`
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
      {name !== undefined && cell !== undefined && cell.state !== 'missing' && cell.state !== 'unknown' && <Secret source={levelPath(level)} name={name} read={() => readOne(level, name, project)} />}
      <h3>{isHere ? 'Change the value' : `Set a value in ${titleOf(level)}`}</h3>
      <SetName key={column} level={level} project={project} base={at} name={name} done={close} known={rows.filter(({ cells }) => cells[column]?.state !== 'missing')} />
      {name !== undefined && isHere && (
        <Act name='name.remove' kind='danger' run={() => apply({ unset: [name] }, at, `Removed ${shownName(name)} from ${titleOf(level)}.`)} />
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
