import { useState } from 'preact/hooks'
import { ApiError, type Schemas } from './api.ts'
import { sayChanged } from './cell.tsx'
import { callLevel, isRefused, readDocument, requireParsed, storeDocument, titleOf, type Level } from './levels.ts'
import { hasNames, type Project } from './rights.ts'
import { ValueField, type At } from './secrets.tsx'
import { Act, Changes, Check, Field, Form, messageOf } from './ui.tsx'
import {
  changedBy, compareValues, differencesIn, inParts, isSet, objectText, readValues, setTyped, shownName, typedEntries,
  type Comparison, type Entry, type Format
} from './values.ts'

// Import of a text into a level, with a preview of what it adds, changes and removes.

const MAX_BYTES = 1024 * 1024 - 28

/** Reads a file with all its bytes, also a byte order mark. Throws an error with a sentence for people. */
async function textOf (file: File): Promise<string> {
  if (file.size > MAX_BYTES) throw new Error('The file is too large: a document has at most 1 MiB.')
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer())
  } catch {
    throw new Error('The file is not text in UTF-8.')
  }
}

const formatOf = (name: string): Format | undefined =>
  /\.ya?ml$/i.test(name) ? 'yaml' : /\.json$/i.test(name) ? 'json' : /env/i.test(name) ? 'env' : undefined

/** A text that is typed, pasted or uploaded; undefined with an invalid escape. */
export function FileField ({ label, value, change }: {
  label: string, value: string, change: (text: string | undefined, format?: Format) => void
}) {
  // A new key makes a new field, because the field decides about escapes when it appears.
  const [upload, setUpload] = useState({ count: 0, text: value })
  const [problem, setProblem] = useState('')
  const choose = async (event: Event) => {
    const file = (event.target as HTMLInputElement).files?.[0]
    if (file === undefined) return
    try {
      const text = await textOf(file)
      change(text, formatOf(file.name))
      setUpload({ count: upload.count + 1, text })
      setProblem('')
    } catch (error) {
      setProblem(messageOf(error))
    }
  }
  return (
    <div class='field'>
      <ValueField key={upload.count} label={label} value={upload.text} rows={6} change={change} />
      <label class='upload'>Upload a file <input type='file' onChange={choose} /></label>
      {problem !== '' && <p class='problem' role='alert'>{problem}</p>}
    </div>
  )
}

type Warning = Schemas['DocumentWarning']

/** Where other programs read other values. `warnings_more`: how many are not listed. */
interface Notes { warnings?: Warning[], warnings_more?: number }

interface ImportPlan extends Notes {
  names: Comparison | null
  /** The requests of the import. Each gets the ETag after the one before it, and returns the ETag after it. */
  parts: readonly ((etag: string | null) => Promise<string | undefined>)[]
  etag: string | null
}

const DIFFERENCES: Record<Warning['reason'], string> = {
  comment_without_blank: 'the value ends before the #. Other programs read on: put the value in quotes.',
  escape_in_double_quotes: 'the backslash stays. Other programs read it as an escape: put the value in single quotes.',
  quote_in_single_quotes: 'the backslash stays. Other programs read it as an escape, or end the value at the quote.',
  expansion: 'the $ stays. Other programs insert a variable: put the value in single quotes.',
  empty_before_comment: 'the value is empty. Some programs read the comment as the value: write "" before the comment.',
  backticks: 'a shell runs what is in backticks, and other programs keep them: put the value in single quotes.',
  unquoted: 'other programs, such as shells, may not read the value without quotes.',
  text_after_quote: 'there is text after the closing quote, which programs read differently. Write it\'s as "it\'s".',
  value_on_next_line: 'the value is on the line after the name, where other programs do not find it.',
  carriage_return: 'a carriage return stands alone, which other programs take as the end of a line.',
  quote_not_closed: 'the quote is closed only by an escaped one. Other programs refuse the text.',
  tab: 'a tab stands in the place of the indentation. Other programs read no text there, or refuse it.',
  syntax: 'the value after “? NAME” has no colon and is left out. Other programs refuse the text.',
  duplicate_name: 'the name occurs twice. The last value counts, but not in every program.',
  unreadable: 'the text does not parse.'
}

function Warnings ({ warnings = [], warnings_more: more = 0 }: Notes) {
  if (warnings.length === 0) return null
  return (
    <div class='warnings' role='status'>
      <p>Some programs read other values:</p>
      <ul>
        {warnings.map(({ line, name, reason }, i) => (
          <li key={i}>{line !== null && `Line ${line}: `}{name !== null && `${shownName(name)}: `}{DIFFERENCES[reason]}</li>
        ))}
        {more > 0 && <li>{more} more.</li>}
      </ul>
    </div>
  )
}

export function Import ({ level, project, done }: At & { done: () => void }) {
  const [text, setText] = useState<string | undefined>('')
  const [format, setFormat] = useState<Format>(project.format)
  const [keeps, setKeeps] = useState(true)
  const [plan, setPlan] = useState<ImportPlan>()
  // Names that cannot be compared cannot be kept.
  const canKeep = hasNames(project)
  const change = (text: string | undefined, found = format, isKeeping = keeps) => {
    setText(text)
    setFormat(found)
    setKeeps(isKeeping)
    setPlan(undefined)
  }
  const preview = async () => {
    if (text === undefined) throw new Error('Correct the escapes first.')
    setPlan(await planImport(level, project, text, format, keeps && canKeep))
  }
  const store = async () => {
    const { parts, etag: before } = plan!
    let [etag, stored, versions] = [before, 0, 0]
    try {
      for (const part of parts) {
        const after = await part(etag)
        stored++
        if (after === undefined || after === etag) continue
        etag = after
        versions++
      }
      done()
      sayChanged(`Imported into ${titleOf(level)}.`, level, versions === 0 ? undefined : etag, project.isClient, versions)
    } catch (error) {
      if (versions > 0) sayChanged(`Imported ${stored} of ${parts.length} parts.`, level, etag, project.isClient, versions)
      if (!(error instanceof ApiError && error.status === 412)) throw error
      await preview()
      throw new Error(`${titleOf(level)} was changed meanwhile. ${versions === 0 ? 'Nothing is imported yet' : 'Only a part is imported yet'}: this is what the import does now.`)
    }
  }
  return (
    <div>
      <Form name='import.preview' keep kind='' run={preview}>
        <FileField label='Text to import' value='' change={change} />
        <Field
          label='Format of the text' name='format' value={format} onInput={(value) => change(text, value as Format)}
          options={[['env', '.env'], ['json', 'JSON'], ['yaml', 'YAML'], ['text', 'Text without names']]}
        />
        {canKeep && <Check name='keep' label='Keep the names that the text does not have' checked={keeps} onChange={(value) => change(text, format, value)} />}
      </Form>
      {plan !== undefined && (
        <section class='preview'>
          <h3>What the import does in {titleOf(level)}</h3>
          <Changes of={plan.names ?? 'The names cannot be compared. The text replaces the whole document.'} />
          {plan.parts.length > 1 && <p>{`The text is long. It is imported in ${plan.parts.length} parts, each with a version.`}</p>}
          <Warnings {...plan} />
          <Act name='import.store' kind={plan.names?.removed.length === 0 ? 'main' : 'danger'} run={store} />
        </section>
      )}
    </div>
  )
}

type Plan = (level: Level, project: Project, text: string, format: Format, keeps: boolean) => Promise<ImportPlan>

/** Finds out what an import would do. The service compares, or the browser if only clients have the key. */
const planImport: Plan = async (level, project, text, format, keeps) => {
  if (project.isClient) return planInBrowser(level, project, text, format, keeps)
  if (format !== project.format || (keeps && format !== 'yaml')) {
    const plan = await planNames(level, project, text, format, keeps)
    // The first document of a level is stored as it is, with its comments.
    if (plan.etag !== null || format !== project.format) return plan
  }
  const { dry_run, ...warnings } = (await storeDocument(level, text, undefined, false, { dry_run: true })).data
  const { names, etag } = dry_run!.levels[0]!
  if (keeps && names !== null && names.removed.length > 0) {
    throw new Error(`The text lacks names of the level, such as ${shownName(names.removed[0]!)}. As a whole YAML document, it would remove them. Give the names as .env or JSON, or turn off “Keep the names that the text does not have”.`)
  }
  return { ...warnings, names, etag, parts: [async (etag) => (await storeDocument(level, text, etag, false)).etag] }
}

/** The values of a text to import, and warnings. Without a project, the browser need not read the values. */
export function valuesIn (format: Format, text: string, project?: Project) {
  requireParsed(format, text)
  const { refused, notes } = differencesIn(format, text)
  if (refused) throw new Error(`Line ${refused.line}: ${DIFFERENCES[refused.reason]}`)
  const values = readValues(format, text)
  if (values === undefined && project !== undefined) throw new Error(`The browser cannot read names from this text. Give it in the format of the project, ${project.format}.`)
  return { values: values ?? new Map<string, string>(), notes }
}

/** Adds where programs differ in the values as a change writes them. The lines are not those of the text. */
function withWritten ({ warnings = [], warnings_more: more = 0 }: Notes, written: Notes): Notes {
  const isNew = ({ name, reason }: Warning) => !warnings.some((one) => one.name === name && one.reason === reason)
  const others = (written.warnings ?? []).filter(isNew).map((one) => ({ ...one, line: null }))
  return { warnings: [...warnings, ...others], warnings_more: more + (written.warnings_more ?? 0) }
}

const planNames: Plan = async (level, project, text, format, keeps) => {
  const { values, notes } = valuesIn(format, text, project)
  const before = keeps ? [] : (await callLevel('readNames', level)).data.data.map(({ attributes }) => attributes.name)
  const unset = before.filter((name) => !values.has(name))
  const isTyped = format === 'json' && project.format !== 'env'
  const entries: Entry[] = isTyped ? typedEntries(text) : [...values].map(([name, one]) => [name, JSON.stringify(one)])
  const plans: Awaited<ReturnType<typeof planPart>>[] = []
  for (const part of inParts([...entries, ...unset.map((name) => [name] as const)])) {
    plans.push(await planPart(part, isTyped ? part.filter(isSet).map(([name]) => name) : []))
  }
  const all = (kind: keyof Comparison) => plans.flatMap(({ names }) => names![kind]).sort()
  return {
    ...plans.reduce(withWritten, notes),
    names: { added: all('added'), changed: all('changed'), removed: all('removed') },
    etag: plans[0]!.etag,
    parts: plans.map(({ store }) => store)
  }

  /** Texts change no numbers that read the same, and replace objects and lists, which the service reports singly. */
  async function planPart (part: readonly Entry[], replace: readonly string[]) {
    const set = part.filter(isSet)
    const unset = part.filter((entry) => !isSet(entry)).map(([name]) => name)
    const json = `{"set":${objectText(set)},${JSON.stringify({ unset, replace }).slice(1)}`
    const send = (more: object) => callLevel('changeSecrets', level, { body: { set: Object.fromEntries(set), unset, replace: [...replace] }, json, ...more })
    try {
      const { dry_run, ...warnings } = (await send({ query: { dry_run: true } })).data
      return { ...warnings, ...dry_run!.levels[0]!, store: async (etag: string | null) => (await send({ etag })).etag }
    } catch (error) {
      const refused = set.map(([name]) => name).filter((name) => isRefused(error, name) && !replace.includes(name))
      if (refused.length === 0) throw error
      return planPart(part, [...replace, ...refused])
    }
  }
}

const planInBrowser: Plan = async (level, project, text, format, keeps) => {
  const { text: old, etag } = await readDocument(level, true)
  const isWhole = format === project.format && (!keeps || etag === null)
  const { values, notes } = valuesIn(format, text, isWhole ? undefined : project)
  const before = readValues(project.format, old)
  let [after, names, shown]: [string, Comparison | null, Notes] = [text, null, notes]
  if (isWhole) {
    names = before && readValues(format, text) ? compareValues(before, values) : null
  } else {
    const unset = keeps ? [] : [...before?.keys() ?? []].filter((name) => !values.has(name))
    // A name with this value is in it, too: the service also writes it again where other readers find another value.
    ;({ text: after, names } = format === 'json' && project.format === 'json'
      ? setTyped(old, text)
      : changedBy(project.format, old, { set: Object.fromEntries(values), unset }))
    shown = withWritten(notes, differencesIn(project.format, after, new Set(values.keys())).notes)
  }
  return { ...shown, names, etag, parts: [async (etag) => (await storeDocument(level, after, etag, true)).etag] }
}
