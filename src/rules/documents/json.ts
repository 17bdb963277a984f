import { UnreadableDocument, type Entries } from './entries.ts'
import { WORK, type Work } from './work.ts'

/** Limit: tokens (names, values, brackets, commas, colons). */
export const MAX_TOKENS = 20_000
const TOKENS = 'names, values, brackets, commas and colons'

const JSON_TOKEN = /\s*("[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+)/y

/** A member of the top-level object, with the positions of its name and value. */
export interface JsonMember { name: string, nameFrom: number, nameTo: number, valueFrom: number, valueTo: number }

/** The positions of the top-level object and its members. */
export interface JsonObject { open: number, close: number, members: JsonMember[] }

/**
 * Reads a JSON object. The last of duplicate names wins, as in JSON.parse.
 *
 * @param found receives the positions of the object and its members
 * @param work counts the tokens
 */
export function readJson (text: string, entries: Entries, found?: JsonObject, work: Work = { done: 0 }) {
  // Check the limit before parsing.
  JSON_TOKEN.lastIndex = 0
  for (let tokens = 1, end = 0; JSON_TOKEN.test(text); tokens++, end = JSON_TOKEN.lastIndex) {
    work.done += WORK.jsonToken
    if (tokens > MAX_TOKENS) throw new UnreadableDocument(end, `${MAX_TOKENS.toLocaleString('en')} tokens (${TOKENS})`)
  }
  const parsed = parse(text)
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) throw new UnreadableDocument(0)
  // The text is valid JSON here. Copy the members from the text, because JSON.parse has rounded the numbers.
  let depth = 0
  let name: string | undefined
  let value: string[] = []
  let nameFrom = 0
  let nameTo = 0
  let valueFrom = 0
  let valueTo = 0
  JSON_TOKEN.lastIndex = 0
  for (let match = JSON_TOKEN.exec(text); match; match = JSON_TOKEN.exec(text)) {
    const token = match[1] ?? ''
    const to = JSON_TOKEN.lastIndex
    const from = to - token.length
    if (token === '}' || token === ']') depth--
    const ends = depth === 0 || (depth === 1 && token === ',')
    if (ends && name !== undefined) {
      entries[name] = jsonValue(value.join(''))
      found?.members.push({ name, nameFrom, nameTo, valueFrom, valueTo })
      name = undefined
      value = []
    } else if (!ends && name === undefined) {
      name = JSON.parse(token) as string
      nameFrom = from
      nameTo = to
    } else if (!ends && !(depth === 1 && token === ':')) {
      if (value.length === 0) valueFrom = from
      valueTo = to
      value.push(token)
    }
    if (found && depth === 0) {
      if (token === '{') found.open = from
      else found.close = from
    }
    if (token === '{' || token === '[') depth++
  }
}

/**
 * Like `JSON.parse`, but correct for names with escape sequences. V8 can replace such a name by a name of an earlier
 * text, possibly of another client: after `{"\\": 0}`, V8 reads `{"\"": 0}` as `{"\\": 0}` (Node.js 24 and 26, see
 * 0075).
 */
export function parseJson (text: string): unknown {
  const value: unknown = JSON.parse(text)
  return text.includes('\\') && hasEscapedName(text) ? fromArrays(JSON.parse(asArrays(text))) : value
}

/** Whether a text that is valid JSON has a name with an escape sequence. */
function hasEscapedName (text: string): boolean {
  let last = ''
  JSON_TOKEN.lastIndex = 0
  for (let match = JSON_TOKEN.exec(text); match; match = JSON_TOKEN.exec(text)) {
    const [, token = ''] = match
    if (token === ':' && last.includes('\\')) return true
    last = token
  }
  return false
}

const IN_ARRAYS = /"[^"\\]*(?:\\.[^"\\]*)*"|\{\s*\}|\[\s*\]|[{}[:]/g

// Rewrites each object to an array of 0, names and values, and each array to an array of 1 and its elements. V8 then
// reads the names as strings in arrays, without the error.
const asArrays = (text: string) => text.replace(IN_ARRAYS, (token) => {
  switch (token[0]) {
    case '{': return token === '{' ? '[0,' : '[0]'
    case '[': return token === '[' ? '[1,' : '[1]'
    case '}': return ']'
    case ':': return ','
    default: return token
  }
})

function fromArrays (value: unknown): unknown {
  if (!Array.isArray(value)) return value
  const [kind, ...elements] = value as unknown[]
  if (kind === 1) return elements.map(fromArrays)
  const names = elements.filter((_, i) => i % 2 === 0) as string[]
  return Object.fromEntries(names.map((name, i) => [name, fromArrays(elements[2 * i + 1])]))
}

function parse (text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw new UnreadableDocument(jsonErrorOffset(text))
  }
}

function jsonValue (text: string) {
  if (text === 'null') return ''
  return text.startsWith('"') ? JSON.parse(text) as string : text
}

const BLANKS = /[ \t\r\n]*/y
// A string without its closing quote, so that the match ends at the first invalid character of an invalid string.
const STRING = /"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[\da-fA-F]{4})[^"\\\x00-\x1f]*)*/y // eslint-disable-line no-control-regex
const PRIMITIVE = /(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.+-])/y

/**
 * The position of the first character that is invalid JSON; the end of the text if the text is valid or incomplete. The
 * message of `JSON.parse` contains a position only in some versions of Node.js.
 */
export function jsonErrorOffset (text: string): number {
  const open: string[] = []
  let expected: 'value' | 'value or end' | 'name' | 'name or end' | 'colon' | 'comma or end' | 'nothing' = 'value'
  for (let at = 0; ;) {
    at = endOf(BLANKS, text, at) ?? at
    const character = text[at]
    const isName: boolean = expected === 'name' || expected === 'name or end'
    if (expected === 'nothing' || character === undefined) return at
    if (expected === 'colon') {
      if (character !== ':') return at
      expected = 'value'
      at++
    } else if (expected === 'comma or end' && character === ',') {
      expected = open.at(-1) === '{' ? 'name' : 'value'
      at++
    } else if (expected.endsWith('end') && character === (open.at(-1) === '{' ? '}' : ']')) {
      open.pop()
      expected = open.length === 0 ? 'nothing' : 'comma or end'
      at++
    } else if (expected === 'comma or end' || (isName && character !== '"')) {
      return at
    } else if (character === '{' || character === '[') {
      open.push(character)
      expected = character === '{' ? 'name or end' : 'value or end'
      at++
    } else {
      const end = endOf(character === '"' ? STRING : PRIMITIVE, text, at)
      if (end === undefined || (character === '"' && text[end] !== '"')) return end ?? at
      at = character === '"' ? end + 1 : end
      expected = isName ? 'colon' : open.length === 0 ? 'nothing' : 'comma or end'
    }
  }
}

/** The end of a match that begins at the offset; undefined without such a match. */
function endOf (pattern: RegExp, text: string, at: number): number | undefined {
  pattern.lastIndex = at
  return pattern.test(text) ? pattern.lastIndex : undefined
}
