import { useState } from 'preact/hooks'
import { call } from '../api.ts'
import { sayChanged, useChange } from '../cell.tsx'
import { Import } from '../import.tsx'
import { InviteHere } from '../invitations.tsx'
import { inBody, readDocument, requireParsed, stateOf, storeDocument, titleOf, type Level, type LevelDocument } from '../levels.ts'
import { Names } from '../names-table.tsx'
import { can, type Project } from '../rights.ts'
import { KeyGate, ValueField, type At } from '../secrets.tsx'
import { Act, Check, Danger, download, Empty, Form, may, Section, useForgetting } from '../ui.tsx'
import { changeOf } from '../values.ts'

export function LevelPage ({ level, project }: At) {
  const canRead = can(['secret:read']) && (project.isClient || can(['secret:decrypt']))
  const hasNames = project.format !== 'text' && !(project.isClient && project.format === 'yaml')
  return (
    <KeyGate level={level} project={project}>
      {!canRead
        ? <Empty>Your role does not include the values of this level.</Empty>
        : hasNames ? <Names level={level} project={project} /> : <p>Edit this document as a whole.</p>}
      {canRead && (
        <Section title='Document'>
          <DocumentEditor level={level} project={project} />
          {may('import.preview') && <details><summary>Import a text or a file</summary><Import level={level} project={project} /></details>}
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
