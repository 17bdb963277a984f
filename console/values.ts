import { compareEntries, emptyEntries, UnreadableDocument, type Comparison } from '../src/rules/documents/entries.ts'
import { readJsonDocument } from '../src/rules/documents/json.ts'
import { envDifferences, isRefused, type Difference } from '../src/rules/documents/env-dialect.ts'
import { readEnv, withLineFeeds, type EnvAssignment } from '../src/rules/documents/env.ts'
import { compactJson } from '../src/rules/documents/json-values.ts'
import { positionAfter, withoutMark } from '../src/rules/documents/positions.ts'
import { envEditor } from '../src/rules/editing/env.ts'
import { jsonEditor } from '../src/rules/editing/json.ts'
import { comparisonOf, isRefusal } from '../src/rules/editing/plan.ts'

// Values and documents as text: escapes for characters that a text field would change or hide, and documents of
// client-managed projects, whose names only the browser can read.

/** Characters that a text field changes or does not show: a value with one of them is edited in its escaped form. */
const INVISIBLE = '\\u0000-\\u0009\\u000b-\\u001f\\u007f-\\u009f\\u2028\\u2029\\ufff9-\\uffff\\p{Cf}\\p{Cs}\\p{Co}\\p{Cn}'
const HIDDEN = new RegExp(`^\\n|[${INVISIBLE}]`, 'u')
const TO_ESCAPE = new RegExp(`[${INVISIBLE}\\\\]`, 'gu')
const IN_NAMES = new RegExp(`^ | $|\\n|[${INVISIBLE}]`, 'gu')
const SHORT: Record<string, string> = { '\\': '\\\\', '\r': '\\r', '\t': '\\t' }
const escaped = (character: string): string => SHORT[character] ?? `\\u{${character.codePointAt(0)!.toString(16)}}`

export const needsEscapes = (value: string): boolean => HIDDEN.test(value)

/** The escaped form of a value. A line feed stays a line. */
export const escapeValue = (value: string): string => value.replace(TO_ESCAPE, escaped)

/** A name as people see it: with escapes for invisible characters, line feeds, and blanks at its ends. */
export const shownName = (name: string): string => name === '' ? '(empty name)' : name.replace(IN_NAMES, escaped)

/** The value of an escaped form. Throws an error with a sentence for people. */
export function unescapeValue (text: string): string {
  return text.replace(/\\(?:([\\nrt])|u\{([0-9a-fA-F]{1,6})\}|.?)/gsu, (written, short?: string, code?: string) => {
    if (short !== undefined) return { '\\': '\\', n: '\n', r: '\r', t: '\t' }[short]!
    const point = code === undefined ? NaN : parseInt(code, 16)
    if (!(point <= 0x10ffff)) throw new Error(`${written} is no escape. Write \\\\ for a backslash.`)
    return String.fromCodePoint(point)
  })
}

export type Format = 'env' | 'json' | 'yaml' | 'text'
export type Values = Map<string, string>
export type { Comparison }

/** A value that was there when the page was loaded. Throws an error with a sentence for people if it is gone. */
export function present (value: string | undefined): string {
  if (value === undefined) throw new Error('This value is not there any more. Load the page again.')
  return value
}

/** The names and values of a text with the assignments of an `.env` text, or the offset of its first error. */
function read (format: 'env' | 'json', source: string) {
  const entries = emptyEntries()
  const assignments: EnvAssignment[] = []
  try {
    if (format === 'env') readEnv(source, entries, assignments)
    else readJsonDocument(source, entries)
    return { values: new Map(Object.entries(entries)), assignments }
  } catch (error) {
    return { errorAt: error instanceof UnreadableDocument ? error.offset : 0 }
  }
}

/** The names and values of a document; undefined if the browser cannot read the format or the text. */
export function readValues (format: Format, text: string): Values | undefined {
  const source = withoutMark(text)
  if (source.trim() === '') return new Map()
  return format === 'env' || format === 'json' ? read(format, source).values : undefined
}

/** Where a text does not parse in its format; undefined if it does, or if the browser cannot read the format. */
export function problemIn (format: Format, text: string): { line: number, column: number } | undefined {
  if (format === 'yaml' || format === 'text') return undefined
  // A blank text is a missing document for `readValues`, but no JSON to the service and the command line client.
  const { errorAt } = read(format, withoutMark(text))
  return errorAt === undefined ? undefined : positionAfter(withoutMark(text).slice(0, errorAt))
}

const MAX_LISTED = 20

/** Where other programs read an `.env` text, or the `written` names, differently, and why it is not imported. */
export function differencesIn (format: Format, text: string, written?: ReadonlySet<string>) {
  const source = withLineFeeds(withoutMark(text))
  const { assignments } = format === 'env' ? read(format, source) : {}
  const found = assignments ? envDifferences(source, assignments, written) : []
  const at = ({ offset, ...of }: Difference) =>
    ({ ...positionAfter(source.slice(0, offset)), ...written && { line: null }, ...of })
  const warnings = found.slice(0, MAX_LISTED).map(at)
  const refused = found.filter(({ reason }) => isRefused(reason)).map(at)[0]
  return { refused, notes: { warnings, warnings_more: found.length - warnings.length } }
}

export function isNestedJson (text: string): boolean {
  try { return typeof (JSON.parse(text) ?? '') === 'object' } catch { return false }
}

/** `isJson`: the values of `set` are JSON, and replace values of other types. */
export interface NameChange { set?: Record<string, string>, unset?: string[], isJson?: boolean }

export const objectText = (members: readonly (readonly [name: string, json: string])[]): string =>
  `{${members.map(([name, json]) => `${JSON.stringify(name)}:${json}`).join(',')}}`

/** JSON of values: the object or list that the text of each name in `nested` is, and the texts of the others. */
export const nestedValues = (set: Record<string, string>, nested: readonly string[]): string =>
  objectText(Object.entries(set).map(([name, text]) =>
    [name, nested.includes(name) ? compactJson(text.trim()) : JSON.stringify(text)]))

/** The values of a JSON document as compact JSON with all digits. Of duplicate names, the last one counts. */
export const typedEntries = (text: string): [name: string, json: string][] =>
  Object.entries(jsonEditorOf(withoutMark(text)).typed ?? {})

const jsonEditorOf = (source: string) => jsonEditor(source.trim() === '' ? '' : source, emptyEntries())

/** A text after a change, and the names that the change wrote. */
export interface Changed { text: string, names: Comparison }

/** A JSON document with the values of another one, which keep their types. */
export function setTyped (text: string, other: string): Changed {
  const source = withoutMark(text)
  const { edit, typed = {} } = jsonEditorOf(source)
  const changed = typedEntries(other).filter(([name, json]) => typed[name] !== json)
  const plan = { set: new Map(changed.map(([name, json]) => [name, { text: json }])), removed: new Set<string>() }
  const mark = text.slice(0, text.length - source.length)
  return { text: changed.length === 0 ? text : mark + String(edit(plan, 0)), names: comparisonOf(typed, plan) }
}

/** A name with its value in JSON; without a value, the name is removed. */
export type Entry = readonly [name: string, json?: string]
export const isSet = (entry: Entry): entry is [string, string] => entry[1] !== undefined

// The limits of the service for a change of names (`CHANGE_LIMITS`); the members of the body itself count, too.
const [MAX_NAMES, MAX_CHARACTERS, MAX_MEMBERS] = [1_000, 256 * 1024, 3_990]

/** Parts of a change that are each within the limits of the service. At least one, which may be empty. */
export function inParts (entries: readonly Entry[]): Entry[][] {
  const parts: Entry[][] = [[]]
  let [characters, members] = [0, 0]
  for (const entry of entries) {
    const [name, json = ''] = entry
    const length = name.length + json.length
    // Each name may also be listed in `replace`.
    const count = 2 + (/^[[{]/.test(json) ? json.split(/[,[{]/).length : 0)
    const part = parts.at(-1)!
    const isFull = part.length === MAX_NAMES || characters + length > MAX_CHARACTERS || members + count > MAX_MEMBERS
    if (isFull && part.length > 0) {
      parts.push([entry])
      characters = members = 0
    } else part.push(entry)
    characters += length
    members += count
  }
  return parts
}

/**
 * The text after a change of single names. All else stays, as in the service. Throws an error with a sentence for
 * people if the format cannot hold the change.
 */
export function changedBy (format: Format, text: string, { set = {}, unset = [] }: NameChange): Changed {
  const before = format === 'env' || format === 'json' ? readValues(format, text) : undefined
  if (before === undefined) throw new Error('This document has no names that the browser can read. Edit it as a whole.')
  const source = withoutMark(text)
  const { typed, ambiguous, attempts, edit } = format === 'env' ? envEditor(source, emptyEntries()) : jsonEditorOf(source)
  const isAmbiguous = ambiguous?.(new Set(Object.keys(set)))
  const isWritten = (name: string) => before.get(name) === set[name] && isAmbiguous?.has(name) !== true
  const removed = new Set(unset.filter((name) => before.has(name) && !Object.hasOwn(set, name)))
  const changed = new Map(Object.entries(set).filter(([name]) => !isWritten(name)).map(([name, value]) => {
    if (!/^[[{]/.test(typed?.[name] ?? '')) return [name, { value, text: JSON.stringify(value) }]
    // Only JSON replaces an object or a list.
    if (isNestedJson(value)) return [name, { value: compactJson(value.trim()), text: compactJson(value.trim()) }]
    throw new Error('The present value is an object or a list. Write JSON, or edit the document as a whole.')
  }))
  const names = comparisonOf(entriesOf(before), { set: changed, removed })
  if (changed.size + removed.size === 0) return { text, names }
  const expected = new Map([...before].filter(([name]) => !removed.has(name)))
  for (const [name, { value }] of changed) expected.set(name, value)
  for (let attempt = 0; attempt < attempts; attempt++) {
    const after = edit({ set: changed, removed }, attempt)
    const values = isRefusal(after) ? undefined : readValues(format, after)
    const isRight = values?.size === expected.size && [...expected].every(([name, value]) => values.get(name) === value)
    if (isRight) return { text: text.slice(0, text.length - source.length) + String(after), names }
  }
  throw new Error('An .env document cannot hold this name and value. Use a JSON project for it.')
}

const MAX_CHANGES = 20

/** The change of a few names that makes one text of another one; undefined if the texts differ in more than that. */
export function changeOf (format: Format, from: string, to: string): NameChange | undefined {
  const [before, after] = [readValues(format, from), readValues(format, to)]
  if (before === undefined || after === undefined) return undefined
  const { added, changed, removed } = compareValues(before, after)
  if (added.length + changed.length + removed.length > MAX_CHANGES) return undefined
  // A change of an object or a list writes the value without blanks.
  if (format === 'json' && changed.some((name) => isNestedJson(before.get(name)!))) return undefined
  const set = Object.fromEntries([...after].filter(([name]) => added.includes(name) || changed.includes(name)))
  try {
    return changeValues(format, from, { set, unset: removed }) === to ? { set, unset: removed } : undefined
  } catch { return undefined }
}

export const changeValues = (...of: Parameters<typeof changedBy>): string => changedBy(...of).text
export const compareValues = (from: Values, to: Values): Comparison => compareEntries(entriesOf(from), entriesOf(to))
const entriesOf = (values: Values) => Object.assign(emptyEntries(), Object.fromEntries(values))
