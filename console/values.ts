import { emptyEntries, UnreadableDocument } from '../src/rules/documents/entries.ts'
import { readJsonDocument } from '../src/rules/documents/json.ts'
import { envDifferences, isRefused, type Difference } from '../src/rules/documents/env-dialect.ts'
import { originalOffsets, readEnv as readAssignments, withLineFeeds, type EnvAssignment } from '../src/rules/documents/env.ts'
import { compactJson } from '../src/rules/documents/json-values.ts'
import { envForms, LINE_REST, placeOf, type EnvPlace } from '../src/rules/editing/env-forms.ts'
import { jsonEditor } from '../src/rules/editing/json.ts'
import { endOfMatch, lineEndOf, spliced, withLines, type Splice } from '../src/rules/editing/splices.ts'

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

/** A value that was there when the page was loaded. Throws an error with a sentence for people if it is gone. */
export function present (value: string | undefined): string {
  if (value === undefined) throw new Error('This value is not there any more. Load the page again.')
  return value
}

/** The names and values of a document; undefined if the browser cannot read the format or the text. */
export function readValues (format: Format, text: string): Values | undefined {
  const source = text.replace(/^\ufeff/, '')
  if (source.trim() === '') return new Map()
  if (format === 'json') return readJson(source)
  const read = format === 'env' ? readEnv(source) : undefined
  return read && 'values' in read ? read.values : undefined
}

/** Where a text does not parse in its format; undefined if it does, or if the browser cannot read the format. */
export function problemIn (format: Format, text: string): { line: number, column?: number } | undefined {
  const source = text.replace(/^\ufeff/, '')
  // A blank text is a missing document here, but no JSON to the service and the command line client.
  const isBlankJson = format === 'json' && source.trim() === ''
  if (format === 'yaml' || format === 'text' || (readValues(format, text) !== undefined && !isBlankJson)) return undefined
  if (format === 'env') return readEnv(source) as { line: number }
  const before = source.slice(0, jsonErrorIn(source)).split(/\r\n?|\n/)
  return { line: before.length, column: [...before.at(-1)!].length + 1 }
}

/** The offset of the first error of a JSON text, as in the service. */
function jsonErrorIn (source: string): number {
  try {
    readJsonDocument(source, emptyEntries())
    return source.length
  } catch (error) {
    return error instanceof UnreadableDocument ? error.offset : 0
  }
}

const MAX_LISTED = 20

/** Where other programs read other values from an `.env` text that parses, and why such a text is not imported. */
export function differencesIn (format: Format, text: string) {
  const source = withLineFeeds(text.replace(/^\ufeff/, ''))
  const read = format === 'env' ? readEnv(source) : undefined
  const found = read && 'assignments' in read ? envDifferences(source, read.assignments) : []
  const listed = found.slice(0, MAX_LISTED).map(at)
  const refused = found.find(({ reason }) => isRefused(reason))
  return { listed, refused: refused && at(refused), more: found.length - listed.length }

  function at ({ offset, name, reason }: Difference) {
    const before = source.slice(0, offset).split('\n')
    return { line: before.length, column: [...before.at(-1)!].length + 1, name, reason }
  }
}

// The reader of the service, which keeps the digits of numbers and the members of nested values as they are written.
function readJson (text: string): Values | undefined {
  const entries = emptyEntries()
  try {
    readJsonDocument(text, entries)
    return new Map(Object.entries(entries))
  } catch { return undefined }
}

/** The values and assignments of an `.env` text, read as in the service, or the first line that is none. */
function readEnv (text: string): { values: Values, assignments: EnvAssignment[] } | { line: number } {
  const entries = emptyEntries()
  const assignments: EnvAssignment[] = []
  try {
    readAssignments(text, entries, assignments)
    return { values: new Map(Object.entries(entries)), assignments }
  } catch (error) {
    const offset = error instanceof UnreadableDocument ? error.offset : 0
    return { line: text.slice(0, offset).split(/\r\n?|\n/).length }
  }
}

/**
 * A document with one name set, or removed (undefined). All else stays. Throws an error with a sentence for people if
 * the format cannot hold the value.
 */
export function changeValue (format: Format, text: string, name: string, value: string | undefined): string {
  const before = format === 'env' || format === 'json' ? readValues(format, text) : undefined
  if (before === undefined) throw new Error('This document has no names that the browser can read. Edit it as a whole.')
  if (format === 'json') return changeJson(text, before, name, value)
  const document = text.replace(/^\ufeff/, '')
  const mark = text.slice(0, text.length - document.length)
  const source = withLineFeeds(document)
  const read = readEnv(source)
  const found = 'assignments' in read ? read.assignments.filter((one) => one.name === name) : []
  const place = found.length === 0 ? undefined : placeOf(source, found.at(-1)!)
  if (before.get(name) === value && place?.isAmbiguous !== true) return text
  const ways = value === undefined ? [withoutName(document, source, found)] : withValue(document, place, name, value)
  for (const changed of ways) {
    const after = readValues(format, changed)
    const others = after && [...after].every(([key, now]) => key === name || before.get(key) === now)
    const size = new Set([...before.keys(), name]).size - Number(value === undefined)
    if (others && after.get(name) === value && after.size === size) return mark + changed
  }
  throw new Error('An .env document cannot hold this name and value. Use a JSON project for it.')
}

/** The document with parts of its text with line feeds alone replaced. */
function replaced (document: string, parts: readonly Splice[]): string {
  const offsetOf = originalOffsets(document)
  return spliced(document, parts.map(({ from, to, text }) => ({ from: offsetOf(from), to: offsetOf(to), text })))
}

function withoutName (document: string, source: string, found: readonly EnvAssignment[]): string {
  const parts = found.map(({ from, valueTo }) => ({ from, to: endOfMatch(LINE_REST, source, valueTo), text: '' }))
  return withLines(replaced(document, parts), document, [], '')
}

/** The document with each way to write the value, the form that most readers read alike first. */
function withValue (document: string, place: EnvPlace | undefined, name: string, value: string): string[] {
  const lineEnd = lineEndOf(document)
  return envForms(value, lineEnd, place?.kept(value)).flatMap(({ text }) => place === undefined
    // A blank line ends a line `NAME:`, whose value would be the added line.
    ? [[], ['']].map((above) => withLines(document, document, [...above, `${name}=${text}`], lineEnd))
    : [replaced(document, [{ from: place.from, to: place.to, text: place.blank + text }])])
}

/** As in the service: a text that the value reads as changes nothing, and only JSON replaces an object or a list. */
function changeJson (text: string, before: Values, name: string, value: string | undefined): string {
  if (before.get(name) === value) return text
  const source = text.replace(/^\ufeff/, '')
  const { edit, typed } = jsonEditorOf(source)
  const isNested = /^[[{]/.test(typed?.[name] ?? '')
  if (isNested && value !== undefined && !isNestedJson(value)) {
    throw new Error('The present value is an object or a list. Write JSON, or edit the document as a whole.')
  }
  const json = value === undefined ? undefined : isNested ? compactJson(value.trim()) : JSON.stringify(value)
  const set = new Map(json === undefined ? [] : [[name, { text: json }]])
  const removed = new Set(json === undefined ? [name] : [])
  return text.slice(0, text.length - source.length) + String(edit({ set, removed }, 0))
}

const jsonEditorOf = (source: string) => jsonEditor(source.trim() === '' ? '' : source, emptyEntries())

/** Whether a text is the JSON of an object or a list. */
export function isNestedJson (text: string): boolean {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null
  } catch { return false }
}

/** A change of single names. */
export interface NameChange { set?: Record<string, string>, unset?: string[] }

export const objectText = (members: readonly (readonly [name: string, json: string])[]): string =>
  `{${members.map(([name, json]) => `${JSON.stringify(name)}:${json}`).join(',')}}`

/** JSON of values: the object or list that the text of each name in `nested` is, and the texts of the others. */
export const nestedValues = (set: Record<string, string>, nested: readonly string[]): string =>
  objectText(Object.entries(set).map(([name, text]) =>
    [name, nested.includes(name) ? compactJson(text.trim()) : JSON.stringify(text)]))

/** The values of a JSON document as compact JSON with all digits. Of duplicate names, the last one counts. */
export const typedEntries = (text: string): [name: string, json: string][] =>
  Object.entries(jsonEditorOf(text.replace(/^\ufeff/, '')).typed ?? {})

/** A JSON document with the values of another one, which keep their types. */
export function setTyped (text: string, other: string): string {
  const source = text.replace(/^\ufeff/, '')
  const { edit, typed } = jsonEditorOf(source)
  const changed = typedEntries(other).filter(([name, json]) => typed?.[name] !== json)
  const set = new Map(changed.map(([name, json]) => [name, { text: json }]))
  const mark = text.slice(0, text.length - source.length)
  return set.size === 0 ? text : mark + String(edit({ set, removed: new Set() }, 0))
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

/** The text after a change of single names. Throws an error with a sentence for people. */
export function changeValues (format: Format, text: string, { set = {}, unset = [] }: NameChange): string {
  const changes = [...Object.entries(set), ...unset.map((name) => [name, undefined] as const)]
  const whole = format === 'env' && changes.length > MAX_CHANGES ? withAdded(text, Object.entries(set)) : { text, added: new Set() }
  return changes.filter(([name]) => !whole.added.has(name))
    .reduce((text, [name, value]) => changeValue(format, text, name, value), whole.text)
}

/** An `.env` text with those of the names that it lacks at its end, or the same text if they do not fit together. */
function withAdded (
  text: string, values: readonly (readonly [name: string, value: string])[]
): { text: string, added: Set<string> } {
  const before = readValues('env', text) ?? new Map<string, string>()
  const added = new Map(values.filter(([name]) => !before.has(name)))
  const lineEnd = lineEndOf(text)
  const changed = withLines(text, text, [...added].map(([name, value]) => `${name}=${envForms(value, lineEnd)[0]?.text}`), lineEnd)
  const after = readValues('env', changed)
  const isRight = after?.size === before.size + added.size &&
    [...before, ...added].every(([name, value]) => after.get(name) === value)
  return isRight ? { text: changed, added: new Set(added.keys()) } : { text, added: new Set() }
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

/** The names that differ between two documents. */
export interface Comparison { added: string[], changed: string[], removed: string[] }

/** The names that a text adds to, changes in and removes from another one. */
export function compareValues (from: Values, to: Values): Comparison {
  return {
    added: [...to.keys()].filter((name) => !from.has(name)).sort(),
    changed: [...to.keys()].filter((name) => from.has(name) && from.get(name) !== to.get(name)).sort(),
    removed: [...from.keys()].filter((name) => !to.has(name)).sort()
  }
}
