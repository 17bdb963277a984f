import { useState } from 'preact/hooks'
import { call } from '../api.ts'
import { sayChanged, SetName, useChange } from '../cell.tsx'
import { Import } from '../import.tsx'
import {
  callLevel, inBody, kindOf, levelPath, readDocument, stateOf, storeDocument, titleOf, type Kind, type Level,
  requireParsed, type LevelDocument, type State
} from '../levels.ts'
import type { Place } from '../router.ts'
import { KeyGate, projectOf, readInherited, readOne, readPath, reveal, Secret, ValueField, type At, type Project } from '../secrets.tsx'
import { Act, Check, Danger, Dialog, download, Field, Form, Help, Section, Show, Table, To, useForgetting, useLoad } from '../ui.tsx'
import { changeOf, shownName } from '../values.ts'

interface NameRow { name: string, from: Kind, overrides: readonly Kind[] }
const MAX_ROWS = 200

/** A level: its names, its document, imports and changes. */
export function LevelPage ({ organization, project: slug, target, environment }: Place) {
  const level: Level = { organization, project: slug, target, environment }
  const loaded = useLoad(() => projectOf(organization, slug), [])
  return (
    <>
      <h1>{titleOf(level)}</h1>
      <p class='soft'>{kindOf(level)} of {[organization, slug, target].slice(0, environment === undefined ? 2 : 3).filter(Boolean).join(' / ')}</p>
      <Help of={kindOf(level)} />
      <Show of={loaded}>
        {(project) => <KeyGate level={level} project={project}><Content level={level} project={project} /></KeyGate>}
      </Show>
    </>
  )
}

function Content ({ level, project }: At) {
  const hasNames = project.format !== 'text' && !(project.isClient && project.format === 'yaml')
  const done = (text: string, etag: string | undefined) => sayChanged(text, level, etag, project.isClient)
  return (
    <>
      {hasNames ? <Names level={level} project={project} /> : <p>Edit this document as a whole.</p>}
      <Section title='Document'>
        <Help of='version' />
        <DocumentEditor level={level} project={project} />
        <details>
          <summary>Import a text or a file</summary>
          <Import level={level} project={project} done={done} />
        </details>
        <div class='actions'>
          <Act name='document.download' run={() => downloadDocument(level, project)} />
          <Danger name='document.delete' title={`Delete the document of ${titleOf(level)}?`} run={() => remove(level, project)}>
            <p>All names of this level go away. Its history stays, and a restore brings them back.</p>
          </Danger>
        </div>
        <p><To to={{ page: 'history', ...level }}>History of this level</To></p>
      </Section>
    </>
  )
}

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

function Names ({ level, project }: At) {
  const [filter, setFilter] = useState('')
  const [edited, setEdited] = useState<{ name: string | undefined, base: State }>()
  const names = useLoad(() => namesOf(level, project), [])
  const kind = kindOf(level)
  const edit = async (name: string | undefined) => setEdited({ name, base: await stateOf(level) })
  const revealAll = async () => reveal(levelPath(level), await readInherited(level, project))
  return (
    <Section title='Names'>
      <Help of='name' />
      <div class='actions'>
        <Act name='name.edit' kind='main' label='Add a name…' run={() => edit(undefined)} />
        <Act name='document.reveal' run={revealAll} />
      </div>
      <Show of={names}>
        {(rows) => {
          const found = rows.filter(({ name }) => name.toLowerCase().includes(filter.toLowerCase()))
          return (
            <>
              {rows.length > 10 && <Field label='Only names that contain' name='filter' type='search' onInput={setFilter} />}
              <Table
                label='Names of this level' head={['Name', 'Where', 'Value', 'Change']}
                empty={rows.length === 0 ? 'This level has no names yet. Add one, or import an .env file below.' : 'No name contains this text.'}
                rows={found.slice(0, MAX_ROWS).map(({ name, from, overrides }) => [
                  name, shownName(name), from === kind ? overrides.length === 0 ? 'set here' : `overrides ${overrides.at(-1)!}` : `from ${from}`,
                  <Secret source={levelPath(level)} name={name} read={() => readOne(level, name, project)} />, (
                    <>
                      <Act name='name.edit' description={shownName(name)} run={() => edit(name)} />
                      {from === kind && <RemoveName level={level} project={project} name={name} />}
                    </>
                  )
                ])}
              />
              {found.length > MAX_ROWS && <p class='hint'>These are the first {MAX_ROWS} of {found.length} names.</p>}
            </>
          )
        }}
      </Show>
      {edited !== undefined && (
        <Dialog title={edited.name === undefined ? 'Add a name' : `${shownName(edited.name)} in ${titleOf(level)}`} close={() => setEdited(undefined)}>
          <SetName level={level} project={project} {...edited} known={names.value} done={() => setEdited(undefined)} />
        </Dialog>
      )}
    </Section>
  )
}

function RemoveName ({ level, project, name }: At & { name: string }) {
  const { apply, view } = useChange(level, project, () => {})
  const remove = async () => apply({ unset: [name] }, await stateOf(level), `Removed ${shownName(name)} from ${titleOf(level)}.`)
  return <><Act name='name.remove' description={shownName(name)} run={remove} />{view}</>
}

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
        {format !== 'text' && !(isClient && format === 'yaml') && <Check name='unchecked' label='Save even if the text does not parse' checked={unchecked} onChange={setUnchecked} />}
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
