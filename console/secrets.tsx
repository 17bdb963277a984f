import { effect, signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useContext, useEffect, useState } from 'preact/hooks'
import { call } from './api.ts'
import { deriveKey, newKeyString, openBlob, sealBlob, type ClientKey } from '../src/client/keys.ts'
import { forgetKey, heldKey, holdKey, isOpen, keepKeys } from './held-keys.ts'
import { callLevel, columnsOf, inBody, levelOf, KINDS, projectPath, storedAt, type Kind, type Level, type State } from './levels.ts'
import type { Project } from './rights.ts'
import { place } from './router.ts'
import { Act, Check, concernsText, Field, Form, FormProblem, Problem, SHOWN_MS, type Fields } from './ui.tsx'
import { escapeValue, needsEscapes, present, readValues, shownName, unescapeValue, type Format, type Values } from './values.ts'

// Values on the page: hidden until they are asked for, and hidden again after 30 seconds, when the tab is hidden and
// when the person goes to another page.

const shown = signal<ReadonlyMap<string, string>>(new Map())
document.addEventListener('visibilitychange', () => { if (document.hidden) shown.value = new Map() })
effect(() => { if (place.value !== undefined) shown.value = new Map() })
// Without the key, the page would show its entry in place of what a person types.
document.addEventListener('input', keepKeys)

const idOf = (source: string, name: string) => `${source}\n${name}`

/** Shows values for 30 seconds. `source` says where they are, such as a level or a version. */
export function reveal (source: string, values: Iterable<readonly [name: string, value: string]>) {
  if (document.hidden) return
  const entries = [...values].map(([name, value]) => [idOf(source, name), value] as const)
  shown.value = new Map([...shown.peek(), ...entries])
  setTimeout(() => hide(new Set(entries.map(([id]) => id))), SHOWN_MS)
}

const hide = (ids: ReadonlySet<string>) => { shown.value = new Map([...shown.peek()].filter(([id]) => !ids.has(id))) }

/** Hides a value, or all values of a source. */
export function conceal (source: string, name?: string) {
  const ids = [...shown.peek().keys()].filter((id) => name === undefined ? id.startsWith(idOf(source, '')) : id === idOf(source, name))
  if (ids.length > 0) hide(new Set(ids))
}

export const revealed = (source: string, name: string): string | undefined => shown.value.get(idOf(source, name))

export interface At { level: Level, project: Project }

/** Reads the value of one name at a level, with what it inherits. This is a decrypting read. */
export const readOne = async (level: Level, name: string, project: Project): Promise<string> =>
  present((await readInherited(level, project, { names: [name] })).get(name))

/** Reads the values of a level, with those that it inherits. The filter saves the service work. */
export async function readInherited (level: Level, { isClient, format }: Project, filters = {}): Promise<Values> {
  if (isClient) return new Map([...(await readPath(level, format)).values()].flatMap(({ values }) => [...values]))
  const body = { ...inBody(level), action: 'decrypt', merge: 'true', filters } as const
  const { data: { data } } = await call('retrieveSecrets', { path: level, body })
  return new Map(Object.entries(data.type === 'secrets' ? data.secrets ?? {} : {}))
}

/** The names and values of a level of a client-managed project and of the levels above that have a document. */
export async function readPath (level: Level, format: Format): Promise<Map<Kind, State & { values: Values }>> {
  const { data: { data } } = await callLevel('readSecrets', level)
  const all = new Map<Kind, State & { values: Values }>()
  for (const kind of KINDS) {
    const found = data.attributes.levels?.[kind]
    if (found === undefined) continue
    const text = await openBlob(heldKey(projectPath(level)), found.content)
    all.set(kind, { ...found, values: namesIn(format, text, kind) })
  }
  return all
}

export function namesIn (format: Format, text: string, kind: Kind): Values {
  const values = readValues(format, text)
  if (values !== undefined) return values
  throw new Error(`The browser cannot read the names in the document of the ${kind}. Open this level and edit the document as a whole.`)
}

export function Value ({ value }: { value: string | undefined }) {
  if (value === undefined) return <span class='hidden-value'><span aria-hidden='true'>••••••••</span><span class='hidden'>Hidden</span></span>
  return <code class='value'>{needsEscapes(value) ? escapeValue(value) : value}{value === '' && <em>(empty)</em>}</code>
}

/** A value with its buttons. `read` is called when the person asks for the value. */
export function Secret ({ source, name, read }: { source: string, name: string, read: () => Promise<string> }) {
  const value = revealed(source, name)
  // A closed dialog and a closed project hide their values at once.
  useEffect(() => () => conceal(source, name), [source, name])
  return (
    <span class='secret'>
      <Value value={value} />
      {value !== undefined && needsEscapes(value) && <span class='hint'>Shown with escapes, because some characters are invisible.</span>}
      {value === undefined
        ? <Act name='reveal' description={shownName(name)} run={async () => reveal(source, [[name, await read()]])} />
        : <Act name='hide' description={shownName(name)} run={() => conceal(source, name)} />}
      <Act name='copy' description={shownName(name)} run={async () => navigator.clipboard.writeText(await read())} />
    </span>
  )
}

/**
 * A field for a value or a document that keeps every byte. Characters that a text field changes or hides are written
 * as escapes.
 */
export function ValueField ({ label, value, change, rows = 3 }: {
  label: string, value: string, change: (value: string | undefined) => void, rows?: number
}) {
  const [isEscaped, setEscaped] = useState(needsEscapes(value))
  const [text, setText] = useState(() => isEscaped ? escapeValue(value) : value)
  const [problem, setProblem] = useState('')
  const refusal = useContext(FormProblem)
  const isRefused = concernsText(refusal)
  const read = (text: string, isEscaped: boolean) => {
    setText(text)
    try {
      change(isEscaped ? unescapeValue(text) : text)
      setProblem('')
    } catch (error) {
      change(undefined)
      setProblem((error as Error).message)
    }
  }
  const paste = (event: ClipboardEvent | DragEvent) => {
    const pasted = ('clipboardData' in event ? event.clipboardData : event.dataTransfer)?.getData('text/plain') ?? ''
    // A text field would make a line feed of a carriage return.
    if (!pasted.includes('\r')) return
    event.preventDefault()
    const { selectionStart, selectionEnd } = event.target as HTMLTextAreaElement
    const whole = text.slice(0, selectionStart) + (isEscaped ? pasted.replaceAll('\r', '\\r') : pasted) + text.slice(selectionEnd)
    setEscaped(true)
    read(isEscaped ? whole : escapeValue(whole), true)
  }
  const toggle = (isNowEscaped: boolean) => {
    try {
      const present = isEscaped ? unescapeValue(text) : text
      if (!isNowEscaped && needsEscapes(present)) {
        setProblem('This value has characters that only escapes can show.')
        return
      }
      setEscaped(isNowEscaped)
      read(isNowEscaped ? escapeValue(present) : present, isNowEscaped)
    } catch (error) {
      setProblem((error as Error).message)
    }
  }
  return (
    <div class='field'>
      <label>
        <span>{label}</span>
        <textarea
          ref={(element) => element?.setCustomValidity(problem)} rows={rows} spellcheck={false} autocomplete='off' autocapitalize='off' value={text}
          aria-invalid={problem !== '' || isRefused} onPaste={paste} onDrop={paste} onInput={(event) => read((event.target as HTMLTextAreaElement).value, isEscaped)}
        />
      </label>
      {problem !== '' && <p class='problem' role='alert'>{problem}</p>}
      {isRefused && <Problem error={refusal} />}
      <Check name='escapes' label={'Write escapes: \\t \\r \\n \\\\ \\u{feff}'} checked={isEscaped} onChange={toggle} />
    </div>
  )
}

/**
 * Asks for the key string of a client-managed project, and shows the children when it is open. The key string stays in
 * this page; the key is forgotten after 15 minutes without use.
 */
export function KeyGate ({ level, project, children }: At & { children?: ComponentChildren }) {
  const id = projectPath(level)
  // The key of the first entry, if no document can check it.
  const [first, setFirst] = useState<ClientKey>()
  const open = async ({ key_string = '' }: Fields) => {
    setFirst(undefined)
    setFirst(await openProject(level, key_string, first))
  }
  if (!project.isClient || isOpen(id)) {
    const line = <p class='gate'>This project is open in this page. <Act name='key.close' kind='plain' run={() => forgetKey(id)} /></p>
    return <>{project.isClient && line}{children}</>
  }
  return (
    <section class='gate'>
      <h2>Open the project</h2>
      <p>Only your own people hold the key of this project. Enter its key string: it never leaves this page.</p>
      <Form name='key.open' run={open}>
        <Field label={first === undefined ? 'Key string' : 'Key string, once more'} name='key_string' type='password' required {...first && { hint: NO_DOCUMENT }} />
      </Form>
    </section>
  )
}

/** The field for the key string of a new key. It proposes a random one. */
export function NewKeyString ({ label }: { label: string }) {
  const [keyString, setKeyString] = useState(newKeyString)
  return (
    <>
      <Field label={label} name='key_string' value={keyString} onInput={setKeyString} required hint='Keep it in a safe place now. Without it nobody can read the secrets.' />
      <Act name='copy' label='Copy key string' run={() => navigator.clipboard.writeText(keyString)} />
    </>
  )
}

/** All documents of a project, as the service stores them, each with its level. */
export async function * storedDocuments ({ organization, project }: Level) {
  for await (const column of columnsOf({ organization, project })) {
    if (column.etag === null) continue
    const found = await storedAt(levelOf({ organization, slug: project }, column))
    if (found !== undefined) yield found
  }
}

const WRONG_KEY_STRING = 'This is not the key string of the project: it does not decrypt its documents. Look for missing or added characters. After a rotation, only the new key string works.'
const NO_DOCUMENT = 'There is no document yet to check this key string against. Enter it once more: with a wrong one, you would save documents that nobody else can open.'

/**
 * Derives the key of a project, checks it with a document of any level, and opens the project. Without a document, the
 * second entry must be the same as the first one: returns the key of the first entry.
 */
async function openProject (level: Level, keyString: string, first?: ClientKey): Promise<ClientKey | undefined> {
  const { key_check_salt: salt, key_check_iterations: iterations } = (await call('getEncryptionKey', { path: level })).data.data.attributes
  const key = await deriveKey(keyString, { salt, iterations })
  const { value: document } = await storedDocuments(level).next()
  const sample = document?.content ?? (first && await sealBlob(first, ''))
  if (sample === undefined) return key
  await openBlob(key, sample).catch(() => {
    throw new Error(document ? WRONG_KEY_STRING : 'The two key strings differ. Enter the key string twice again.')
  })
  holdKey(projectPath(level), key)
  return undefined
}
