import { Copy, Eye, EyeOff, History, Pencil, Trash2 } from 'lucide'
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { call } from '../api.ts'
import { hasNameHistory, NameHistory, sayChanged, SetName, useChange } from '../cell.tsx'
import { isNarrow, rowsOf, useGrid } from '../grid.tsx'
import { Import } from '../import.tsx'
import { InviteHere } from '../invitations.tsx'
import {
  callLevel, inBody, kindOf, levelPath, readDocument, requireParsed, stateOf, storeDocument, titleOf, type Kind,
  type Level, type LevelDocument, type State
} from '../levels.ts'
import { can, hasNames, type Project } from '../rights.ts'
import { sought } from '../router.ts'
import {
  conceal, KeyGate, readInherited, readOne, readPath, reveal, revealed, Secret, Value, ValueField, type At
} from '../secrets.tsx'
import {
  Act, Check, Danger, Dialog, download, Empty, Field, Form, InDialog, Section, Show, useForgetting, useLoad
} from '../ui.tsx'
import { changeOf, shownName } from '../values.ts'

export function LevelPage ({ level, project }: At) {
  const canRead = can(['secret:read']) && (project.isClient || can(['secret:decrypt']))
  return (
    <KeyGate level={level} project={project}>
      {!canRead
        ? <Empty>Your role does not include the values of this level.</Empty>
        : hasNames(project)
          ? <Names level={level} project={project} />
          : <div class='toolbar'><p>Edit this document as a whole.</p><ImportButton level={level} project={project} /></div>}
      {canRead && (
        <Section title='Document'>
          <DocumentEditor level={level} project={project} />
          <div class='actions'>
            <Act name='document.download' run={() => downloadDocument(level, project)} />
            <Danger name='document.delete' title={`Delete the document of ${titleOf(level)}?`} run={() => remove(level, project)}>
              <p>All names of this level go away. Its history stays, and a restore brings them back.</p>
            </Danger>
            <InviteHere level={level} />
          </div>
        </Section>
      )}
    </KeyGate>
  )
}

const ImportButton = ({ level, project }: At) => (
  <InDialog name='import.preview' label='Import' title={`Import into ${titleOf(level)}`} more={{}}>
    {(close) => <Import level={level} project={project} done={close} />}
  </InDialog>
)

/** The whole document. It is shown only while somebody edits it. */
function DocumentEditor ({ level, project }: At) {
  const { isClient, format } = project
  const [document, setDocument] = useState<LevelDocument>()
  const [text, setText] = useState<string | undefined>('')
  const [unchecked, setUnchecked] = useState(false)
  const close = () => { setDocument(undefined); setText('') }
  const { apply, view, forget } = useChange(level, project, close)
  useForgetting(document !== undefined && text === document.text, close)
  const show = (found: LevelDocument) => { setText(found.text); setDocument(found) }
  const store = async () => {
    if (text === undefined) throw new Error('Correct the escapes first.')
    if (isClient && !unchecked) requireParsed(format, text)
    const change = changeOf(format, document!.text, text)
    await apply(change, document!, `Saved the document of ${titleOf(level)}.`, async (etag) =>
      (await storeDocument(level, text, etag, isClient, { unchecked })).etag)
  }
  if (document === undefined) return <Act name='document.edit' run={async () => show(await readDocument(level, isClient))} />
  return (
    <>
      <Form name='document.store' keep run={store}>
        <ValueField label={`Document of ${titleOf(level)}`} value={document.text} change={(text) => { setText(text); forget() }} rows={16} />
        {hasNames(project) && <Check name='unchecked' label='Save even if the text does not parse' checked={unchecked} onChange={setUnchecked} />}
      </Form>
      {view}
      <button type='button' onClick={() => { close(); forget() }}>Cancel</button>
    </>
  )
}

async function downloadDocument (level: Level, { isClient, format }: Project) {
  const { text, etag } = await readDocument(level, isClient)
  if (etag === null) throw new Error('This level has no document yet.')
  const extension = format === 'text' ? 'txt' : format
  download(`${[level.project, level.target, level.environment].filter(Boolean).join('-')}.${extension}`, text, 'application/octet-stream')
}

async function remove (level: Level, { isClient }: Project) {
  const { etag } = await stateOf(level)
  if (etag === null) throw new Error('This level has no document.')
  await call('deleteSecrets', { path: { organization: level.organization }, body: inBody(level), etag })
  sayChanged(`Deleted the document of ${titleOf(level)}.`, level, null, isClient)
}

// The names of a level: one line each, with its value and its actions. What a name opens is below its line.

interface NameRow { name: string, from: Kind, overrides: readonly Kind[] }
type Open = { kind: 'value' | 'history', name: string } | { kind: 'edit', name: string, base: State }

/** The names of the level and of the levels above. For a client-managed project, the browser reads the documents. */
async function namesOf (level: Level, { isClient, format }: Project): Promise<NameRow[]> {
  if (!isClient) {
    const { data } = await callLevel('readNames', level, { query: { merge: true } })
    return data.data.map(({ attributes: { name, level: from, overrides } }) => ({ name, from, overrides }))
  }
  const documents = [...await readPath(level, format)]
  return [...new Set(documents.flatMap(([, { values }]) => [...values.keys()]))].sort().map((name) => {
    const kinds = documents.filter(([, { values }]) => values.has(name)).map(([kind]) => kind)
    return { name, from: kinds.at(-1)!, overrides: kinds.slice(0, -1) }
  })
}

const levelAbove = ({ organization, project, target, environment }: Level, kind: Kind): Level =>
  ({ organization, project, target: kind === 'project' ? undefined : target, environment: kind === 'environment' ? environment : undefined })

function Names ({ level, project }: At) {
  const [text, setText] = useState(sought.peek())
  const [isAdding, setAdding] = useState<State>()
  const names = useLoad(() => namesOf(level, project), [])
  const source = levelPath(level)
  useEffect(() => () => conceal(source), [source])
  const revealAll = async () => reveal(source, await readInherited(level, project))
  return (
    <>
      <div class='toolbar'>
        <div class='filter'><Field label='Only names that contain' name='filter' type='search' isCompact value={sought.peek()} onInput={setText} /></div>
        {names.value !== undefined && names.value.length > 0 && (
          <Danger name='document.reveal' kind='' title='Reveal all values?' run={revealAll}>
            <p>All {names.value.length} values are shown for 30 seconds. The read is in the audit log.</p>
          </Danger>
        )}
        <ImportButton level={level} project={project} />
        <Act name='name.add' kind='main' run={async () => setAdding(await stateOf(level))} />
      </div>
      <Show of={names}>{(rows) => <NameList level={level} project={project} rows={rows} text={text} />}</Show>
      {isAdding !== undefined && (
        <Dialog title='Add a name' close={() => setAdding(undefined)}>
          <SetName {...{ level, project }} base={isAdding} known={names.value} done={() => setAdding(undefined)} />
        </Dialog>
      )}
    </>
  )
}

function NameList ({ level, project, rows, text }: At & { rows: readonly NameRow[], text: string }) {
  const [open, setOpen] = useState<Open>()
  const [extra, setExtra] = useState(0)
  const panel = useRef<HTMLTableRowElement>(null)
  const { apply, view } = useChange(level, project, () => {})
  const kind = kindOf(level)
  const source = levelPath(level)
  const wanted = text.toLowerCase()
  const found = rows.filter(({ name }) => name.toLowerCase().includes(wanted) || name === open?.name)
  const at = found.findIndex(({ name }) => name === open?.name)
  const isList = isNarrow.value
  const sizes = isList ? { height: 89, head: 0 } : { height: 36, head: 32 }
  const grid = useGrid({ count: found.length, columns: 6, ...sizes, open: at, extra })
  useLayoutEffect(() => {
    if (panel.current === null) { setExtra(0); return }
    const observer = new ResizeObserver(() => {
      setExtra(panel.current?.offsetHeight ?? 0)
      // Shows what loads into the panel, but moves nothing below a person who types.
      if (!panel.current?.contains(document.activeElement)) panel.current?.scrollIntoView({ block: 'nearest' })
    })
    observer.observe(panel.current)
    return () => observer.disconnect()
  }, [at >= 0, open?.name, open?.kind])
  const isFirst = useRef(true)
  useEffect(() => { if (!isFirst.current) grid.reset(); isFirst.current = false }, [text])
  const toggle = (next: Open) => setOpen(open?.name === next.name && open.kind === next.kind ? undefined : next)
  const close = () => { setOpen(undefined); grid.go(at, COLUMNS[open!.kind]) }
  const row = (index: number) => {
    const { name, from, overrides } = found[index]!
    const label = shownName(name)
    const owner = levelAbove(level, from)
    const value = revealed(source, name)
    const isHere = from === kind
    const tools = [0, 1, 2, ...can(['secret:write']) ? [3] : [], ...hasNameHistory(project) && can(['secret:history', 'secret:decrypt'], owner) ? [4] : [], ...isHere && can(['secret:write']) ? [5] : []]
    const read = async () => readOne(level, name, project)
    const look = (column: number) => ({ description: label, kind: 'plain' as const, more: { ...grid.cell(index, column, tools), ...column !== 1 && column !== 2 && { 'aria-expanded': at === index && COLUMNS[open!.kind] === column } } })
    const state = !isHere ? 'inherited' : overrides.length > 0 ? 'overrides' : 'set'
    return [
      <tr key={`name ${name}`} class={at === index ? 'name open' : 'name'} aria-rowindex={index + 2}>
        <th scope='row'><button type='button' class='plain' data-action='name.open' title={label} aria-expanded={at === index && open!.kind === 'value'} {...grid.cell(index, 0, tools)} onClick={() => toggle({ kind: 'value', name })}>{label}</button></th>
        <td><i class={`sign ${state}`} />{isHere ? overrides.length === 0 ? 'set here' : `overrides ${overrides.at(-1)!}` : `from ${from}`}</td>
        <td class='short'><Value value={value} /></td>
        <td class='tools'>
          {value === undefined
            ? <Act key='show' name='reveal' icon={Eye} {...look(1)} run={async () => reveal(source, [[name, await read()]])} />
            : <Act key='show' name='hide' icon={EyeOff} {...look(1)} run={() => conceal(source, name)} />}
          <Act name='copy' icon={Copy} {...look(2)} run={async () => navigator.clipboard.writeText(await read())} />
          <Act name='name.edit' icon={Pencil} {...look(3)} run={async () => toggle({ kind: 'edit', name, base: await stateOf(level) })} />
          {tools.includes(4) && <Act name='name.history' icon={History} at={owner} {...look(4)} run={() => toggle({ kind: 'history', name })} />}
          {isHere && <Act name='name.remove' icon={Trash2} {...look(5)} more={grid.cell(index, 5, tools)} run={async () => apply({ unset: [name] }, await stateOf(level), `Removed ${label} from ${titleOf(level)}.`)} />}
        </td>
      </tr>,
      at === index && open !== undefined && (
        <tr key={`${open.kind} ${name}`} class='panel' ref={panel}>
          <td colSpan={4}>
            <h2 class='long'>{label}</h2>
            {open.kind === 'value' && <Secret source={source} name={name} read={read} />}
            {open.kind === 'edit' && <SetName level={level} project={project} base={open.base} name={name} known={rows} loads done={close} />}
            {open.kind === 'history' && <><p class='hint'>{isHere ? '' : `The value comes from ${titleOf(owner)}.`}</p><NameHistory level={owner} project={project} name={name} /></>}
            <button type='button' onClick={close}>Close</button>
          </td>
        </tr>
      )
    ]
  }
  if (found.length === 0) return <Empty>{rows.length === 0 ? 'This level has no names yet. Add one, or import an .env file.' : 'No name contains this text.'}</Empty>
  return (
    <>
      {view}
      <div class={`scroll names${isList ? ' narrow' : ''}`} role='region' aria-label='Names of this level' {...grid.region}>
        <table role='grid' aria-rowcount={found.length + 1}>
          <thead><tr aria-rowindex={1}>{['Name', 'Where', 'Value', 'Actions'].map((head) => <th key={head} scope='col'>{head}</th>)}</tr></thead>
          <tbody>{rowsOf(grid.parts, row)}</tbody>
        </table>
      </div>
    </>
  )
}

const COLUMNS = { value: 0, edit: 3, history: 4 }
