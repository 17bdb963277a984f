import { emptyEntries, type DocumentFormat, type Entries } from './entries.ts'
import { MAX_TOKENS, parseJson } from './json.ts'
import { withoutMark } from './positions.ts'
import { readClosely, readDocument } from './read.ts'
import { WORK, type Work } from './work.ts'
import { YAML_LENGTH } from './yaml.ts'

/**
 * Reads the value of one name, with the same result as `readDocument`. `value` is undefined if the document does not
 * have the name. Returns undefined if the document is invalid. Faster than `readDocument` for most JSON and YAML
 * documents.
 *
 * @param work counts the work of the readers
 */
export function readValue (
  format: DocumentFormat, text: string, name: string, work: Work = { done: 0 }
): { value: string | undefined } | undefined {
  const found = format === 'json' ? jsonValue(text, name, work) : format === 'yaml' ? yamlValue(text, name) : undefined
  if (found !== undefined) return found
  const entries = readDocument(format, text, undefined, work)
  return entries && { value: entries[name] }
}

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$/

/**
 * Reads a value of a JSON or YAML document as JSON, with its type and the digits of its numbers, so that a change of
 * the name to this JSON writes the value again. Undefined if the value is, or contains, a number that JSON spells
 * differently, such as `0x1F` in YAML. The document has the name.
 *
 * @param work counts the work of the readers
 */
export function readValueAsJson (
  format: 'json' | 'yaml', text: string, name: string, work: Work = { done: 0 }
): string | undefined {
  const found = format === 'json' ? jsonValue(text, name, work) : yamlValue(text, name)
  if (found?.value !== undefined) {
    const { value, isPlain = false } = found
    // Other plain values can be numbers or null.
    if (!isPlain || /^[A-Za-z]/.test(value)) return JSON.stringify(value)
    if (JSON_NUMBER.test(value)) return value
  }
  const typed = emptyEntries()
  readClosely(format, text, { typed }, undefined, work)
  const json = typed[name]
  return json !== undefined && isJson(json) ? json : undefined
}

function isJson (text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch { return false }
}

interface Found { value: string | undefined, isPlain?: boolean }

// A text of at most MAX_TOKENS characters cannot have too many tokens. Returns undefined for values of other types than
// string, which `readDocument` returns in another form than `JSON.parse`.
function jsonValue (text: string, name: string, work: Work): Found | undefined {
  if (text.length > MAX_TOKENS) return undefined
  // Names with escape sequences need another parser.
  if (text.includes('\\')) work.done += text.length / 8 * WORK.jsonToken
  let parsed: unknown
  try {
    parsed = parseJson(withoutMark(text))
  } catch {
    return undefined
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return undefined
  const value = Object.hasOwn(parsed, name) ? (parsed as Entries)[name] as unknown : undefined
  return value === undefined || typeof value === 'string' ? { value } : undefined
}

/** Documents with more lines may exceed the limits of the reader. */
const MAX_YAML_LINES = 1000
// A blank line, a comment, or a name with a scalar in one line that has the same meaning in every YAML parser.
const YAML_LINE =
  /(?:#[ -~]*|([A-Za-z_][\w.-]{0,99}): (?:([A-Za-z0-9](?:[\w./+=@:-]*[\w./+=@-])?)|"([ !#-[\]-~]*)"|'([ -&(-~]*)'))?(?:\n|$)/y
const YAML_WORD = /^(?:null|true|false)$/i

// Does not use the package `yaml`, which needs milliseconds for each document.
function yamlValue (text: string, name: string): Found | undefined {
  if (text.length > YAML_LENGTH) return undefined
  const names = new Set<string>()
  let found: Found = { value: undefined }
  for (let at = 0, lines = 0; at < text.length; at = YAML_LINE.lastIndex) {
    YAML_LINE.lastIndex = at
    const match = YAML_LINE.exec(text)
    if (match === null || ++lines > MAX_YAML_LINES) return undefined
    const [, own, plain, double, single] = match
    if (own === undefined) continue
    if (names.has(own) || YAML_WORD.test(own)) return undefined
    names.add(own)
    if (own !== name) continue
    if (plain !== undefined && YAML_WORD.test(plain)) return undefined
    found = { value: plain ?? double ?? single, isPlain: plain !== undefined }
  }
  return found
}
