import { useState } from 'preact/hooks'
import { ApiError, type Schemas } from './api.ts'
import { callLevel, isRefused, readDocument, requireParsed, storeDocument, titleOf, type Level } from './levels.ts'
import { ValueField, type At, type Project } from './secrets.tsx'
import { Act, Changes, Check, Field, Form, messageOf } from './ui.tsx'
import { compareValues, differencesIn, readValues, shownName, typedValues, type Comparison, type Format } from './values.ts'

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

interface ImportPlan {
  names: Comparison | null
  etag: string | null
  /** Where other programs read other values in the text. `warnings_more`: how many are not listed. */
  warnings?: Warning[]
  warnings_more?: number
  store: () => Promise<string | undefined>
}

const DIFFERENCES: Record<Warning['reason'], string> = {
  comment_without_blank: 'the value ends before the #. Other programs read on: put the value in quotes.',
  escape_in_double_quotes: 'the backslash stays. Other programs read it as an escape: put the value in single quotes.',
  quote_in_single_quotes: 'the backslash stays. Other programs read it as an escape, or end the value at the quote.',
  expansion: 'the $ stays. Other programs insert a variable: put the value in single quotes.',
  empty_before_comment: 'the value is empty. Some programs read the comment as the value: write "" before the comment.',
  backticks: 'a shell runs what is in backticks, and other programs keep them: put the value in single quotes.',
  unquoted: 'other programs, such as shells, may not read the value without quotes.',
  text_after_quote: 'there is text after the closing quote, which other programs read differently.',
  value_on_next_line: 'the value is on the line after the name, where other programs do not find it.',
  carriage_return: 'a carriage return stands alone, which other programs take as the end of a line.',
  duplicate_name: 'the name occurs twice. The last value counts, but not in every program.',
  unreadable: 'the text does not parse.'
}

function Warnings ({ warnings = [], warnings_more: more = 0 }: Pick<ImportPlan, 'warnings' | 'warnings_more'>) {
  if (warnings.length === 0) return null
  return (
    <div class='warnings' role='status'>
      <p>Some programs read other values from this text:</p>
      <ul>
        {warnings.map(({ line, name, reason }, i) => (
          <li key={i}>{line !== null && `Line ${line}: `}{name !== null && `${shownName(name)}: `}{DIFFERENCES[reason]}</li>
        ))}
        {more > 0 && <li>{more} more.</li>}
      </ul>
    </div>
  )
}

/** Imports a text into a level. `done` gets the ETag after the import. */
export function Import ({ level, project, done }: At & { done: (text: string, etag: string | undefined) => void }) {
  const [text, setText] = useState<string | undefined>('')
  const [count, setCount] = useState(0)
  const [format, setFormat] = useState<Format>(project.format)
  const [keepsOthers, setKeepsOthers] = useState(false)
  const [plan, setPlan] = useState<ImportPlan>()
  const change = (text: string | undefined, found = format, keeps = keepsOthers) => {
    setText(text)
    setFormat(found)
    setKeepsOthers(keeps)
    setPlan(undefined)
  }
  const preview = async () => {
    if (text === undefined) throw new Error('Correct the escapes first.')
    setPlan(await planImport(level, project, text, format, keepsOthers))
  }
  const store = async () => {
    try {
      done(`Imported into ${titleOf(level)}.`, await plan!.store())
      // A new key empties the form.
      setCount(count + 1)
      change('')
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 412)) throw error
      await preview()
      throw new Error(`${titleOf(level)} was changed meanwhile. Nothing is imported yet: this is what the import does now.`)
    }
  }
  return (
    <div>
      <Form key={count} name='import.preview' keep kind='' run={preview}>
        <FileField label='Text to import' value='' change={change} />
        <Field
          label='Format of the text' name='format' value={format} onInput={(value) => change(text, value as Format)}
          options={[['env', '.env'], ['json', 'JSON'], ['yaml', 'YAML'], ['text', 'Text without names']]}
        />
        <Check name='keep' label='Keep the names that the text does not have' checked={keepsOthers} onChange={(value) => change(text, format, value)} />
      </Form>
      {plan !== undefined && (
        <section class='preview'>
          <h3>What the import does in {titleOf(level)}</h3>
          <Changes of={plan.names} />
          <Warnings {...plan} />
          <Act name='import.store' kind='main' run={store} />
        </section>
      )}
    </div>
  )
}

/** Finds out what an import would do. The service compares, or the browser if only clients have the key. */
async function planImport (
  level: Level, project: Project, text: string, format: Format, keepsOthers: boolean
): Promise<ImportPlan> {
  const { isClient } = project
  if (format === project.format && !keepsOthers) {
    if (isClient) {
      requireParsed(format, text)
      const notes = warningsIn(format, text)
      const { text: old, etag } = await readDocument(level, true)
      const [before, after] = [readValues(format, old), readValues(format, text)]
      return {
        names: before && after ? compareValues(before, after) : null,
        etag,
        ...notes,
        store: async () => (await storeDocument(level, text, etag, true)).etag
      }
    }
    const { data } = await storeDocument(level, text, undefined, false, { dry_run: true })
    const { warnings = [], warnings_more = 0 } = data
    const found = data.dry_run!.levels[0]!
    const store = async () => (await storeDocument(level, text, found.etag, false)).etag
    return { ...found, warnings, warnings_more, store }
  }
  if (isClient) throw new Error('Give the whole document in the format of the project, because the browser encrypts it.')
  requireParsed(format, text)
  const notes = warningsIn(format, text)
  const values = readValues(format, text)
  const advice = format === project.format ? 'Give the names as .env or JSON, or import the whole document without keeping other names.' : `Give it in the format of the project, ${project.format}.`
  if (values === undefined) throw new Error(`The browser cannot read names from this text. ${advice}`)
  const before = keepsOthers ? [] : (await callLevel('readNames', level)).data.data.map(({ attributes }) => attributes.name)
  const unset = before.filter((name) => !values.has(name))
  const body = { set: Object.fromEntries(values), unset, replace: [...values.keys()] }
  const isTyped = format === 'json' && project.format !== 'env'
  const json = isTyped ? `{"set":${typedValues(text)},${JSON.stringify({ unset, replace: body.replace }).slice(1)}` : undefined
  const send = (body: Schemas['ChangeBody'], more: object) => callLevel('changeSecrets', level, { body, json, ...more })
  const plan = async (body: Schemas['ChangeBody']) => {
    const { dry_run } = (await send(body, { query: { dry_run: true } })).data
    const found = dry_run!.levels[0]!
    const store = async () => (await send(body, { etag: found.etag })).etag
    return { names: found.names, etag: found.etag, ...notes, store }
  }
  if (isTyped) return plan(body)
  return planTexts([])

  /** Texts change no numbers that read the same, and replace objects and lists, which the service reports singly. */
  async function planTexts (replace: string[]): Promise<ImportPlan> {
    return plan({ ...body, replace }).catch((error: unknown) => {
      const refused = body.replace.filter((name) => isRefused(error, name) && !replace.includes(name))
      if (refused.length === 0) throw error
      return planTexts([...replace, ...refused])
    })
  }
}

/** The warnings about a text that the browser reads. Throws an error with a sentence if the text is not imported. */
function warningsIn (format: Format, text: string): Pick<ImportPlan, 'warnings' | 'warnings_more'> {
  const { listed, refused, more } = differencesIn(format, text)
  if (refused) throw new Error(`Line ${refused.line}: ${DIFFERENCES[refused.reason]}`)
  return { warnings: listed, warnings_more: more }
}
