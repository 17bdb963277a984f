import { signal } from '@preact/signals'
import { X, type IconNode } from 'lucide'
import { createContext, type ComponentChildren } from 'preact'
import { useContext, useEffect, useLayoutEffect, useId, useRef, useState } from 'preact/hooks'
import { actionOf, type Action } from './actions.ts'
import { ApiError, curlOf, sent } from './api.ts'
import { Icon } from './icons.tsx'
import { can } from './rights.ts'
import { go, pathOf, type Place } from './router.ts'
import { shownName, type Comparison } from './values.ts'

// The parts from which pages are made.

/** The message of the last change, with its undo, or the error of a button without room for it. */
export const notice = signal<{ text: string, undo?: (() => Promise<void>) | undefined, isError?: true } | null>(null)
window.addEventListener('popstate', () => { notice.value = null })

export const say = (text: string, undo?: () => Promise<void>) => { notice.value = { text, undo } }

/** Counts the changes. After each of them, all that the page shows is loaded again. */
export const changes = signal(0)

/** Says what was changed, and loads the page again. */
export function changed (text: string, undo?: () => Promise<void>) {
  say(text, undo)
  changes.value++
}

/** Says what a request has changed, by default in the words of the answer, and loads the page again. */
export async function saying (request: Promise<{ data: unknown }>, text?: string) {
  const { message, warning } = (await request).data as { message: string, warning?: string }
  changed([text ?? message, warning].filter(Boolean).join(' '))
}

export const messageOf = (error: unknown): string => error instanceof Error ? error.message : String(error)

export const Problem = ({ error }: { error: unknown }) =>
  error == null ? null : <p class='problem' role='alert'>{messageOf(error)}</p>

export const Help = ({ text }: { text: string }) => <p class='help'>{text}</p>

/** Shown only if the work takes longer than a second (by the style sheet). */
export const Progress = ({ text = 'Loading…' }: { text?: string }) => <p class='late' role='status'>{text}</p>

function useRun<A extends unknown[]> (run: (...values: A) => unknown) {
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>()
  const start = async (...values: A) => {
    if (busy) return
    setBusy(true)
    setError(undefined)
    try {
      await run(...values)
    } catch (error) {
      setError(error)
    }
    setBusy(false)
  }
  return { busy, error, start }
}

/** `icon`: the button shows the icon alone. `at`: the level of the action; by default the place of the page. */
interface Look { name: Action, label?: string, description?: string, kind?: '' | 'main' | 'danger' | 'plain', icon?: IconNode, at?: Partial<Place> }

export const may = (name: Action, at?: Partial<Place>): boolean => can(actionOf(name).needs, at)

/**
 * A button of an action. While the action runs the button is busy, and an error appears beside it. Not shown to a
 * person who lacks the scopes. `more`: other attributes.
 */
export function Act ({ name, run, label = actionOf(name).text, description, kind = '', icon, at, more }: Look & { run: () => unknown, more?: object }) {
  const { busy, error, start } = useRun(icon === undefined
    ? run
    : async () => {
      try { await run() } catch (error) { notice.value = { text: messageOf(error), isError: true } }
    })
  if (!may(name, at)) return null
  const text = <>{label}{description !== undefined && <span class='hidden'> {description}</span>}</>
  return (
    <>
      <button type='button' class={icon === undefined ? kind : `${kind} icon-button`} data-action={name} aria-disabled={busy} title={icon && label} onClick={() => start()} {...more}>
        {icon === undefined ? text : <><Icon of={icon} /><span class='hidden'>{text}</span></>}
      </button>
      {busy && icon === undefined && <Progress text='Working…' />}
      <Problem error={error} />
    </>
  )
}

/** A part of a page that loads when a person asks for it. */
export function Later ({ children, ...look }: Look & { children: ComponentChildren }) {
  const [isOpen, setOpen] = useState(false)
  return isOpen ? <>{children}</> : <Act {...look} run={() => setOpen(true)} />
}

export const FormProblem = createContext<unknown>(undefined)

const errorsOf = (error: unknown) => error instanceof ApiError ? Object.entries(error.errors) : []
/** Says whether an error of the API concerns a field: `restrictions.0.target` concerns `target`. */
const concerns = (path: string, field: string): boolean => path.split('.').includes(field)

/** Says whether an error concerns a line of the text of a form. */
export const concernsText = (error: unknown): boolean => error instanceof ApiError && error.details.line !== undefined

export type Fields = Record<string, string>

/**
 * A form of an action. Errors about a field appear beside it, other errors above the button. The fields have the names
 * that the API gives them. `keep`: they stay as they are after the action.
 */
export function Form ({ name, run, label, children, kind = 'main', keep = false, at }: {
  name: Action, run: (fields: Fields) => unknown, label?: string, children?: ComponentChildren, kind?: '' | 'main' | 'danger', keep?: boolean, at?: Partial<Place>
}) {
  const form = useRef<HTMLFormElement>(null)
  // A new key empties all fields.
  const [count, setCount] = useState(0)
  const { busy, error, start } = useRun(async () => {
    await run(Object.fromEntries(new FormData(form.current!)) as Fields)
    if (!keep) setCount(count + 1)
  })
  const fields = [...form.current?.querySelectorAll<HTMLInputElement>('.field [name]') ?? []].map(({ name }) => name)
  const paths = errorsOf(error)
  const isElsewhere = (paths.length > 0 && paths.every(([path]) => fields.some((field) => concerns(path, field)))) ||
    (concernsText(error) && form.current?.querySelector('textarea') !== null)
  if (!may(name, at)) return null
  return (
    <form ref={form} data-action={name} onSubmit={(event) => { event.preventDefault(); start() }} noValidate={false}>
      <FormProblem.Provider key={count} value={error}>{children}</FormProblem.Provider>
      {!isElsewhere && <Problem error={error} />}
      <button type='submit' class={kind} data-action={name} aria-disabled={busy}>{label ?? actionOf(name).text}</button>
      {busy && <Progress text='Working…' />}
    </form>
  )
}

export type Option = readonly [value: string, label: string]

/** A labelled field with its hint and its errors. `isCompact`: the label is shown only in the empty field. */
export function Field ({ label, name, hint, value, type = 'text', required = false, isCompact = false, options, rows, onInput }: {
  label: string,
  name: string,
  hint?: string,
  value?: string | undefined,
  required?: boolean,
  isCompact?: boolean,
  options?: readonly Option[],
  /** Of a field for a long text. */
  rows?: number,
  type?: 'text' | 'password' | 'email' | 'search' | 'datetime-local',
  onInput?: (value: string) => void
}) {
  const id = useId()
  const set = (one: HTMLOptionElement | null) => { if (one) one.defaultSelected = one.value === value }
  const messages = errorsOf(useContext(FormProblem)).flatMap(([path, found]) => concerns(path, name) ? found : [])
  const described = [hint !== undefined && `${id}-hint`, messages.length > 0 && `${id}-error`].filter(Boolean).join(' ')
  const common = { id, name, required, 'aria-invalid': messages.length > 0, 'aria-describedby': described || undefined }
  const attributes = { ...common, onInput: (event: Event) => onInput?.((event.target as HTMLInputElement).value) }
  return (
    <div class='field'>
      <label for={id} class={isCompact ? 'hidden' : ''}>{label}</label>
      {options !== undefined
        ? (
          <select {...attributes}>
            {options.map(([of, text]) => <option key={of} value={of} ref={set} selected={of === value}>{text}</option>)}
          </select>
          )
        : rows !== undefined
          ? <textarea {...attributes} rows={rows} spellcheck={false} autocomplete='off' defaultValue={value} />
          : <input {...attributes} type={type as 'text'} step='any' defaultValue={value} autocomplete='off' placeholder={isCompact ? label : undefined} />}
      {hint !== undefined && <p class='hint' id={`${id}-hint`}>{hint}</p>}
      {messages.length > 0 && <p class='problem' role='alert' id={`${id}-error`}>{messages.join(' ')}</p>}
    </div>
  )
}

export const Check = ({ label, name, value = 'on', checked = false, required = false, onChange, type = 'checkbox' }: {
  label: string, name: string, value?: string, checked?: boolean, required?: boolean, type?: 'checkbox' | 'radio', onChange?: (checked: boolean) => void
}) => (
  <label class='check'>
    <input
      type={type} name={name} value={value} checked={checked} required={required}
      onChange={(event) => onChange?.((event.target as HTMLInputElement).checked)}
    />
    <span>{label}</span>
  </label>
)

/** A modal window over the page. A field gets the focus if it is first. Escape gives the focus back to the button. */
export function Dialog ({ title, close, children }: { title: string, close: () => void, children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null
    dialog.current?.showModal()
    const first = dialog.current?.querySelector<HTMLElement>('.title ~ * :is(input:not([type=hidden]), select, textarea, button)')
    if (first?.matches(':not(button)')) first.focus()
    return () => before?.focus()
  }, [])
  return (
    <dialog ref={dialog} aria-labelledby={id} onCancel={(event) => { event.preventDefault(); close() }}>
      <div class='title'>
        <h2 id={id}>{title}</h2>
        <button type='button' class='plain icon-button' title='Close' onClick={close}><Icon of={X} /><span class='hidden'>Close</span></button>
      </div>
      {children}
    </dialog>
  )
}

/** A button that opens a dialog. `children` get a function that closes it. `more`: other attributes of the button. */
export function InDialog ({ name, label, description, title, kind = '', at, more = { 'data-action': name }, children }: Look & {
  title: string, more?: object, children: (close: () => void) => ComponentChildren
}) {
  const [isOpen, setOpen] = useState(false)
  const close = () => setOpen(false)
  if (!may(name, at)) return null
  return (
    <>
      <button type='button' class={kind} onClick={() => setOpen(true)} {...more}>
        {label ?? actionOf(name).text}{description !== undefined && <span class='hidden'> {description}</span>}…
      </button>
      {isOpen && <Dialog title={title} close={close}>{children(close)}</Dialog>}
    </>
  )
}

/** A button that first asks in a dialog, because the action cannot be undone. */
export function Danger ({ name, run, children, kind = 'danger', at, ...look }: Look & {
  title: string, children: ComponentChildren, run: () => unknown
}) {
  return (
    <InDialog name={name} kind={kind} more={{}} {...at && { at }} {...look}>
      {(close) => (
        <>
          {children}
          <div class='actions'>
            <Act name={name} kind={kind === 'danger' ? 'danger' : 'main'} {...at && { at }} run={async () => { await run(); close() }} />
            <button type='button' onClick={close}>Cancel</button>
          </div>
        </>
      )}
    </InDialog>
  )
}

export function To ({ to, children, current = false, more }: {
  to: Partial<Place>, children: ComponentChildren, current?: boolean, more?: object
}) {
  const follow = (event: MouseEvent) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return
    event.preventDefault()
    notice.value = null
    go(to)
  }
  return <a href={pathOf(to)} aria-current={current ? 'page' : undefined} onClick={follow} {...more}>{children}</a>
}

/** Calls `forget` after 30 seconds and when the tab is hidden, from the moment in which a value is on the page. */
export function useForgetting (isShown: boolean, forget: () => void) {
  useLayoutEffect(() => {
    if (!isShown) return
    const timer = setTimeout(forget, document.hidden ? 0 : SHOWN_MS)
    const whenHidden = () => { if (document.hidden) forget() }
    document.addEventListener('visibilitychange', whenHidden)
    return () => {
      clearTimeout(timer)
      document.removeEventListener('visibilitychange', whenHidden)
    }
  }, [isShown])
}
export const SHOWN_MS = 30_000

/** What a page loads when it opens. While other dependencies load, what is shown stays, and so does the focus. */
export interface LoadState<T> { value?: T, error: unknown, reload: () => Promise<void>, set: (value: T) => void }

export function useLoad<T> (load: () => Promise<T>, dependencies: readonly unknown[]): LoadState<T> {
  const [state, setState] = useState<{ value?: T, error?: unknown }>({})
  const latest = useRef(0)
  const reload = async () => {
    const own = ++latest.current
    try {
      const value = await load()
      if (own === latest.current) setState({ value })
    } catch (error) {
      // What is shown stays if the service cannot be reached or fails, but not after a refusal.
      const isRefused = error instanceof ApiError && error.status < 500
      if (own === latest.current) setState(({ value }) => isRefused ? { error } : { value, error })
    }
  }
  useEffect(() => {
    reload()
    return () => { latest.current++ }
  }, [...dependencies, changes.value])
  return { ...state, error: state.error, reload, set: (value) => setState({ value }) }
}

export function Show<T> ({ of: { value, error, reload }, children }: {
  of: LoadState<T>, children: (value: T) => ComponentChildren
}) {
  const failure = error === undefined ? null : <><Problem error={error} /><Act name='page.reload' run={reload} /></>
  return <>{failure}{value !== undefined ? children(value) : failure === null && <Progress />}</>
}

/** Loads once, and shows what was loaded. */
export function Load<T> ({ from, children }: { from: () => Promise<T>, children: (value: T) => ComponentChildren }) {
  return <Show of={useLoad(from, [])}>{children}</Show>
}

interface PageOf<T> { data: T[], meta: { current_page: number, last_page: number } }

/** Loads a page of a list, and another page on request. Other dependencies lead to the first page. */
export function useList<T> (load: (page: number) => Promise<PageOf<T>>, dependencies: readonly unknown[] = []) {
  const key = JSON.stringify(dependencies)
  const [at, setAt] = useState({ page: 1, key })
  const page = at.key === key ? at.page : 1
  return { ...useLoad(async () => load(page), [page, key]), setPage: (page: number) => setAt({ page, key }) }
}

const TYPING_MS = 250

export function ListSearch ({ label, change }: { label: string, change: (text: string) => void }) {
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined)
  const search = (text: string) => {
    clearTimeout(timer.current)
    timer.current = setTimeout(() => change(text), TYPING_MS)
  }
  return <Field label={label} name='search' type='search' isCompact onInput={search} />
}

/** Shows a page of a list, and the buttons to others; `empty` says what to do if the list is empty. */
export function List<T> ({ of, children, empty }: {
  of: ReturnType<typeof useList<T>>, children: (items: T[]) => ComponentChildren, empty: string
}) {
  const list = ({ data, meta }: PageOf<T>) =>
    <>{data.length === 0 ? <Empty>{empty}</Empty> : children(data)}<Pages meta={meta} set={of.setPage} /></>
  return <Show of={of}>{list}</Show>
}

/** A part of a page with its heading; with `of`, for people who may do this. */
export const Section = ({ title, children, of, at }: {
  title: string, children: ComponentChildren, of?: Action, at?: Partial<Place>
}) => of !== undefined && !may(of, at) ? null : <section><h2>{title}</h2>{children}</section>

/** Says that the address leads nowhere, and shows the way back. */
export const Missing = ({ what, back, to }: { what: string, back: string, to: Partial<Place> }) => (
  <section class='nowhere'>
    <h1>Not found</h1>
    <p role='alert'>{what}</p>
    <p><To to={to}>{back}</To></p>
  </section>
)

type Cells = readonly [key: string, ...cells: ComponentChildren[]]

/**
 * A table in a region that scrolls; on a phone, a block for each row. A row has a key and its cells. The cell with the
 * index `heading` names the row. Without rows, `empty` says what to do.
 */
export function Table ({ label, head, rows, heading = 0, empty = '' }: {
  label: string, head: readonly string[], rows: readonly Cells[], heading?: number, empty?: string
}) {
  if (rows.length === 0) return <Empty>{empty}</Empty>
  return (
    <div class='scroll rows' role='region' aria-label={label} tabIndex={0}>
      <table>
        <thead><tr>{head.map((text) => <th key={text} scope='col'>{text}</th>)}</tr></thead>
        <tbody>
          {rows.map(([key, ...cells]) => (
            <tr key={key}>{cells.map((cell, i) => i === heading ? <th key={i} scope='row'>{cell}</th> : <td key={i} data-label={head[i]}>{cell}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

/** Buttons to the neighbours of a page of a list. At an end they stay, so that they keep the focus. */
function Pages ({ meta: { current_page, last_page }, set }: { meta: PageOf<unknown>['meta'], set: (page: number) => void }) {
  if (last_page <= 1) return null
  return (
    <nav class='pages' aria-label='Pages of the list'>
      <button type='button' aria-disabled={current_page <= 1} onClick={() => set(Math.max(current_page - 1, 1))}>Previous page</button>
      <span>Page {current_page} of {last_page}</span>
      <button type='button' aria-disabled={current_page >= last_page} onClick={() => set(Math.min(current_page + 1, last_page))}>Next page</button>
    </nav>
  )
}

export const Empty = ({ children }: { children: ComponentChildren }) => <p class='empty'>{children}</p>

/** A time as an ISO date in the zone of the browser, which a pointer over it shows. */
export function Time ({ at }: { at: string | null | undefined }) {
  if (at === null || at === undefined) return <>never</>
  const { text, title } = localTime(new Date(at))
  return <time dateTime={at} title={title}>{text}</time>
}

/** `2026-11-30 03:40`, and the same with seconds and the zone. */
export function localTime (date: Date): { text: string, title: string } {
  // The format of Swedish is that of ISO.
  const local = date.toLocaleString('sv')
  const [, offset] = date.toLocaleString('en', { timeZoneName: 'longOffset' }).split('GMT')
  const { timeZone } = new Intl.DateTimeFormat().resolvedOptions()
  return { text: local.slice(0, 16), title: `${local} UTC${offset}, ${timeZone}` }
}

/** The time of a field without a time zone, in the zone of the browser. */
export const instantOf = (local: string): string => new Date(local).toISOString()

export const sizeOf = (bytes: number): string =>
  bytes < 1024 ? `${bytes} bytes` : bytes < 1024 ** 2 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1024 ** 2).toFixed(1)} MiB`

const MAX_NAMES = 200

/** The names that a change adds, changes and removes, which stand out; or why they are unknown. */
export function Changes ({ of }: { of: Comparison | string | null }) {
  if (of === null || typeof of === 'string') return <p>{of ?? 'The names cannot be compared.'}</p>
  const { added, changed, removed } = of
  const lists = [['Adds', added], ['Changes', changed], ['Removes', removed]] as const
  if (lists.every(([, names]) => names.length === 0)) return <p>No name changes.</p>
  return (
    <dl class='changes'>
      {lists.filter(([, names]) => names.length > 0).map(([verb, names]) => (
        <div key={verb} class={verb.toLowerCase()}>
          <dt>{verb} {names.length}</dt>
          <dd>{names.slice(0, MAX_NAMES).map((name) => <code key={name}>{shownName(name)}</code>)}{names.length > MAX_NAMES && ` and ${names.length - MAX_NAMES} more`}</dd>
        </div>
      ))}
    </dl>
  )
}

export function Curl () {
  const commands = sent.value.map(curlOf).join('\n')
  return (
    <details class='curl'>
      <summary>As curl: {sent.value.length} {sent.value.length === 1 ? 'request' : 'requests'}</summary>
      <p class='hint'>The requests of this page, without your token and without values. Put a token into STRONGROOM_TOKEN.</p>
      <pre tabIndex={0}>{commands}</pre>
      <Act name='curl.copy' run={() => navigator.clipboard.writeText(commands)} />
    </details>
  )
}

export function download (name: string, text: string, type: string) {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([text], { type }))
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 1000)
}

interface Day { date: string, count: number, more?: boolean }

/** Bars by day, with a table for screen readers. */
export function Chart ({ title, days }: { title: string, days: readonly Day[] }) {
  const highest = Math.max(0, ...days.map(({ count }) => count))
  const scale = 24 / (highest || 1)
  const width = 100 / Math.max(1, days.length)
  return (
    <figure>
      <figcaption>{title}: at most {highest} on one day</figcaption>
      <svg viewBox='0 0 100 24' preserveAspectRatio='none' aria-hidden='true' class='chart'>
        {days.map(({ date, count }, i) => (
          <rect key={date} x={(i + 0.1) * width} width={width * 0.8} y={24 - count * scale} height={count * scale} />
        ))}
      </svg>
      <details>
        <summary>{title} as a table</summary>
        <Table label={title} head={['Day', 'Number']} rows={days.map(({ date, count, more }) => [date, date, more === true ? `more than ${count}` : count])} />
      </details>
    </figure>
  )
}
