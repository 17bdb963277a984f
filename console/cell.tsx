import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { ApiError, type Schemas } from './api.ts'
import {
  authorOf, callLevel, changeNames, changesBetween, kindOf, levelOf, levelPath, stateOf, titleOf, undoChange, type Cell,
  type Column, type Level, type Row, type State
} from './levels.ts'
import { Difference } from './difference.tsx'
import { can, type Project } from './rights.ts'
import { conceal, readOne, reveal, revealed, Secret, ValueField, type At } from './secrets.tsx'
import { Act, changed, Changes, Dialog, Empty, Field, Problem, Progress, say, Show, Time, To, useForgetting, useLoad } from './ui.tsx'
import { present, shownName, type Comparison, type NameChange } from './values.ts'

// Changing a name of a level, and the history of a name.

/** Says what was changed, with an undo. `etag`, `versions`: as in `undoChange`; undefined: nothing changed. */
export function sayChanged (
  text: string, level: Level, etag: string | null | undefined, isClient: boolean, versions = 1
) {
  if (etag === undefined) return say('Nothing changed: it was like this already.')
  changed(text, async () => {
    await undoChange(level, etag, isClient, versions)
    changed(`Undone: ${titleOf(level)} is as it was before.`)
  })
}

/**
 * Makes a change of names, or of a whole document if `store` is given. If the level has changed meanwhile, shows what
 * (null: unknown), and on request changes the names again; without names, replaces the document. `forget`: when the
 * person changes what would be applied again.
 */
export function useChange (level: Level, { isClient, format }: Project, done: () => void) {
  const [conflict, setConflict] = useState<{ found: Comparison | string, label?: string, again: () => Promise<void> }>()
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
      const found = base.version !== null && now.version !== null &&
        await changesBetween(level, base.version, now.version, isClient, format)
      const why = now.etag === null ? 'The document was deleted.' : 'The names cannot be compared.'
      setConflict({
        found: found || (base.etag === null ? 'The level has its first document now.' : why),
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

/**
 * The form for the value of a name. `known`: the names that the level has or inherits. `loads`: it begins with the
 * present value.
 */
export function SetName ({ level, project, base, name, done, known = [], loads = false }: At & {
  base: State
  name?: string | undefined
  known: readonly { name: string }[] | undefined
  loads?: boolean
  done: () => void
}) {
  const [newName, setNewName] = useState(name ?? '')
  const [value, setValue] = useState<string | undefined>('')
  // The present value as the field was filled with it. It is forgotten if nobody changes it.
  const [present, setPresent] = useState<{ count: number, value: string, isForgotten?: boolean }>({ count: 0, value: '' })
  const [error, setError] = useState<unknown>()
  const isKnown = known.some((one) => one.name === newName)
  const { apply, view, forget } = useChange(level, project, done)
  const change = (text: string | undefined) => { setValue(text); forget() }
  const isUnchanged = present.count > 0 && present.value !== '' && value === present.value
  const fill = (text: string, isForgotten = false) => {
    setPresent(({ count }) => ({ count: count + 1, value: text, isForgotten }))
    setValue(text)
  }
  useForgetting(isUnchanged, () => fill('', true))
  const load = async () => fill(await readOne(level, name!, project))
  useEffect(() => { if (loads && name !== undefined) load().catch(setError) }, [])
  const isLeft = present.isForgotten === true && value === ''
  const save = async () => {
    if (newName === '' && name === undefined) throw new Error('Enter a name.')
    if (value === undefined) throw new Error('Correct the escapes first.')
    if (isLeft) throw new Error('The present value is hidden again. Start from it once more, or enter another one.')
    await apply({ set: { [newName]: value } }, base, `Saved ${shownName(newName)} in ${titleOf(level)}.`)
  }
  const form = useRef<HTMLDivElement>(null)
  useLayoutEffect(() => { if (present.count > 0 && present.isForgotten !== true) form.current?.querySelector('textarea')?.focus() }, [present.count])
  return (
    <div class='set' ref={form}>
      {name === undefined && <Field label='Name' name='name' onInput={(text) => { setNewName(text); forget() }} required {...(isKnown && { hint: 'The level has or inherits this name already. Saving sets a new value for this level.' })} />}
      {loads && present.count === 0 && error === undefined
        ? <Progress />
        : <ValueField key={present.count} label={name === undefined ? 'Value' : 'New value'} value={present.value} change={change} />}
      <Problem error={error} />
      <div class='actions'>
        <Act name='name.set' kind='main' at={level} run={save} />
        {name !== undefined && isKnown && <Act name='name.load' kind='plain' run={load} />}
      </div>
      {view}
    </div>
  )
}

export const hasNameHistory = ({ isClient, format }: Project): boolean => !isClient && format !== 'text'

const CHANGES: Record<Schemas['NameChange']['attributes']['change'], string> = { added: 'Added', changed: 'Changed', removed: 'Removed' }

/** The changes of a name at a level: who, when, what changed, and a restore of an earlier value. */
export function NameHistory ({ level, project, name, done = () => {} }: At & { name: string, done?: () => void }) {
  const [pages, setPages] = useState(1)
  const source = `history ${levelPath(level)} ${name}`
  useEffect(() => () => conceal(source), [source])
  const { apply, view } = useChange(level, project, done)
  const loaded = useLoad(async () => {
    const list: Schemas['NameChange'][] = []
    const counts = { unreadable: 0, missing: 0 }
    let next: string | null | undefined
    for (let page = 0; page < pages && next !== null; page++) {
      const { data, meta } = (await callLevel('readNameHistory', level, { query: { name, ...next && { after: next } } })).data
      list.push(...data)
      counts.unreadable += meta.unreadable
      counts.missing += meta.missing
      next = meta.next
    }
    return { list, next, ...counts }
  }, [name, pages])
  /** The value after a change, before it, and as JSON. Nothing is before an addition, also without its deletion. */
  const valuesOf = async (id: string) => {
    const { data: { data } } = await callLevel('readNameHistory', level, { query: { name, values: true, after: String(Number(id) + 1) } })
    const { value, change, json } = data.find((one) => one.id === id)?.attributes ?? {}
    return [present(value === null ? '' : value), change === 'added' ? null : data[1]?.attributes.value, json] as const
  }
  const show = (id: string, isRemoved: boolean) => async () => {
    const [after, before] = await valuesOf(id)
    reveal(source, [...isRemoved ? [] : [[`${id} after`, after] as const], ...before == null ? [] : [[`${id} before`, before] as const]])
  }
  const restore = (id: string, isRemoved: boolean) => async () => {
    const json = isRemoved ? '' : (await valuesOf(id))[2]
    if (json == null) throw new Error('The value has a number that JSON spells differently, such as 0x1F. Only a restore of the whole version brings it back.')
    const change = isRemoved ? { unset: [name] } : { set: { [name]: json }, isJson: true }
    await apply(change, await stateOf(level), `Restored ${shownName(name)} in ${titleOf(level)} as of version ${id}.`)
  }
  return (
    <div role='region' aria-label={`Changes of ${shownName(name)}`}>
      {view}
      <Show of={loaded}>
        {({ list, next, unreadable, missing }) => (
          <>
            {list.length === 0 && <Empty>No version of {titleOf(level)} that can be read has changed this name.</Empty>}
            <ol class='timeline'>
              {list.map(({ id, attributes: { change, created_at: at, ...author } }, i) => {
                const [before, after] = [revealed(source, `${id} before`), revealed(source, `${id} after`)]
                const isShown = before !== undefined || after !== undefined
                return (
                  <li key={id}>
                    <p><strong>{CHANGES[change]}</strong> <Time at={at} /> by {authorOf(author)}, version {id}</p>
                    {isShown && <Difference before={before} after={after} />}
                    <div class='actions'>
                      {isShown
                        ? <Act name='hide' kind='plain' description={`version ${id}`} run={() => { conceal(source, `${id} before`); conceal(source, `${id} after`) }} />
                        : <Act name='reveal' kind='plain' description={`version ${id}`} run={show(id, change === 'removed')} />}
                      {i > 0 && <Act name='name.restore' kind='plain' at={level} description={`version ${id}`} run={restore(id, change === 'removed')} />}
                    </div>
                  </li>
                )
              })}
            </ol>
            {unreadable + missing > 0 && <p class='hint'>{[unreadable > 0 && `${unreadable} versions cannot be read`, missing > 0 && `${missing} writes have no version`].filter(Boolean).join('; ')}.</p>}
            {next !== null && <Act name='history.more' run={() => setPages(pages + 1)} />}
          </>
        )}
      </Show>
    </div>
  )
}

export interface Grid { project: Project, columns: readonly Column[], rows: readonly Row[] }

/** A cell of the matrix: what it means, its value, and its changes. Without a name: a new name at a level. */
export function CellDialog ({ project, columns, column: first, rows, name, cell, close }: Grid & {
  column: number, name?: string | undefined, cell?: Cell | undefined, close: () => void
}) {
  const [column, setColumn] = useState(first)
  const [isTraced, setTraced] = useState(false)
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
            options={columns.flatMap((one, i) => can(['secret:write'], levelOf(project, one)) ? [[String(i), titleOf(levelOf(project, one))]] : [])}
          />
          )
        : <p>{sentenceOf(cell!, level)}</p>}
      {name !== undefined && cell !== undefined && cell.state !== 'missing' && cell.state !== 'unknown' && <Secret source={levelPath(level)} name={name} read={() => readOne(level, name, project)} />}
      {can(['secret:write'], level) && (
        <>
          <h3>{isHere ? 'Change the value' : `Set a value in ${titleOf(level)}`}</h3>
          <SetName key={column} level={level} project={project} base={at} name={name} done={close} known={rows.filter(({ cells }) => cells[column]?.state !== 'missing')} />
        </>
      )}
      {view}
      <div class='actions'>
        {name !== undefined && isHere && (
          <Act name='name.remove' kind='danger' at={level} run={() => apply({ unset: [name] }, at, `Removed ${shownName(name)} from ${titleOf(level)}.`)} />
        )}
        {name !== undefined && hasNameHistory(project) && <Act name='name.history' at={level} more={{ 'aria-expanded': isTraced }} run={() => setTraced(!isTraced)} />}
        <To to={{ page: 'level', ...level }}>Open the level {titleOf(level)}</To>
      </div>
      {name !== undefined && isTraced && <NameHistory level={level} project={project} name={name} done={close} />}
    </Dialog>
  )
}

function sentenceOf ({ state, from, overrides }: Cell, level: Level): string {
  if (state === 'set') return `The name is set in this ${kindOf(level)}.`
  if (state === 'inherited') return `The value comes from the ${from}. Set a value here to override it.`
  if (state === 'overrides') return `The name is set in this ${kindOf(level)}, and overrides the value of the ${(overrides ?? []).join(' and the ')}.`
  return state === 'missing' ? kindOf(level) === 'project' ? 'The project does not have the name.' : `Neither this ${kindOf(level)} nor a level above has the name.` : 'The document of this level cannot be read. Open the level to correct it.'
}
