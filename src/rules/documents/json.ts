import { UnreadableDocument, type Entries } from './entries.ts'
import { WORK, type Work } from './work.ts'

/** Limit: tokens (names, values, brackets, commas, colons). */
export const MAX_TOKENS = 20_000
const TOKENS = 'names, values, brackets, commas and colons'

const JSON_TOKEN = /\s*("[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+)/y

/**
 * Reads a JSON object. The last of duplicate names wins, as in JSON.parse.
 *
 * @param work counts the tokens
 */
export function readJsonDocument (text: string, entries: Entries, work: Work = { done: 0 }) {
  // Check the limit before parsing.
  countTokens(text, work)
  const parsed = parse(text)
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) throw new UnreadableDocument(0, 'not_a_mapping')
  const members = parsed as Record<string, unknown>
  // JSON.parse keeps strings, and without an escape also each name (see `parseJson`).
  if (!text.includes('\\') && Object.values(members).every((value) => typeof value === 'string')) {
    for (const name in members) entries[name] = members[name] as string
    return
  }
  // Copy the members from the text, because JSON.parse has rounded the numbers.
  for (const { name, value: { from, to } } of jsonTree(text).members!) {
    entries[name] = jsonValue(withoutBlanks(text.slice(from, to)))
  }
}

// Like `JSON_TOKEN`, without a group, which takes time for each match.
const COUNTED_TOKEN = new RegExp(JSON_TOKEN.source.replace('(', '(?:'), 'y')

function countTokens (text: string, work: Work) {
  COUNTED_TOKEN.lastIndex = 0
  for (let tokens = 0, at = 0; COUNTED_TOKEN.test(text); at = COUNTED_TOKEN.lastIndex) {
    work.done += WORK.jsonToken
    if (++tokens <= MAX_TOKENS) continue
    const from = at + /^\s*/.exec(text.slice(at))![0].length
    throw UnreadableDocument.ofLimit(from, `${MAX_TOKENS.toLocaleString('en')} tokens (${TOKENS})`)
  }
}

/** Visits the tokens of a text, with their positions. Not a generator, which takes twice as long. */
export function eachToken (text: string, visit: (token: string, from: number) => void): void {
  for (let at = 0; ;) {
    JSON_TOKEN.lastIndex = at
    const token = JSON_TOKEN.exec(text)?.[1]
    if (token === undefined) return
    at = JSON_TOKEN.lastIndex
    visit(token, at - token.length)
  }
}

/** A value in a JSON text, with its position. `members`: those of an object, in their order. */
export interface JsonNode { from: number, to: number, members?: JsonMember[] }

export interface JsonMember { name: string, nameFrom: number, nameTo: number, value: JsonNode }

/** A part of a text. */
interface Range { from: number, to: number }

/**
 * The positions of all values in a text that is valid JSON. `depth`: how deeply objects and lists are nested.
 * `replaced`: the members of nested objects whose name occurs again in the object, each up to the next member.
 */
export function jsonTree (text: string): JsonNode & { depth: number, replaced: Range[] } {
  let root: JsonNode | undefined
  let depth = 0
  const replaced: Range[] = []
  const open: { node: JsonNode, places: Map<string, number>, name?: Omit<JsonMember, 'value'> | undefined }[] = []
  const add = (node: JsonNode) => {
    root ??= node
    const parent = open.at(-1)
    if (parent?.name === undefined) return
    const { node: { members = [] }, places, name: { name, nameFrom, nameTo } } = parent
    const earlier = places.get(name)
    // Not `...parent.name`, which takes as long as all other work on the token.
    places.set(name, members.push({ name, nameFrom, nameTo, value: node }) - 1)
    if (earlier !== undefined && open.length > 1) {
      replaced.push({ from: members[earlier]!.nameFrom, to: members[earlier + 1]!.nameFrom })
    }
    parent.name = undefined
  }
  eachToken(text, (token, from) => {
    const to = from + token.length
    const parent = open.at(-1)
    if (token === '{' || token === '[') {
      const node: JsonNode = { from, to, ...token === '{' && { members: [] } }
      add(node)
      depth = Math.max(depth, open.push({ node, places: new Map() }))
    } else if (token === '}' || token === ']') open.pop()!.node.to = to
    else if (parent?.node.members !== undefined && parent.name === undefined && token.startsWith('"')) {
      parent.name = { name: stringIn(token), nameFrom: from, nameTo: to }
    } else if (token !== ',' && token !== ':') add({ from, to })
  })
  return { ...root!, depth, replaced }
}

/** A JSON text, without blanks around it, as a text without blanks. Each token is as `spell` writes it. */
export function withoutBlanks (text: string, spell = (token: string) => token): string {
  if (!/^[[{]/.test(text)) return spell(text)
  const tokens: string[] = []
  eachToken(text, (token) => { tokens.push(spell(token)) })
  return tokens.join('')
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
  let isFound = false
  eachToken(text, (token) => {
    isFound ||= token === ':' && last.includes('\\')
    last = token
  })
  return isFound
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
    const { offset, reason } = jsonError(text)
    throw new UnreadableDocument(offset, reason)
  }
}

/** The text of a value from its JSON text, as documents are read. */
export function jsonValue (text: string): string {
  if (text === 'null') return ''
  return text.startsWith('"') ? stringIn(text) : text
}

// Faster than JSON.parse for a string without escapes. The text is valid JSON.
const stringIn = (text: string): string => text.includes('\\') ? JSON.parse(text) as string : text.slice(1, -1)

const BLANKS = /[ \t\r\n]*/y
// A part of a string, which ends before the closing quote or the first invalid character. The number of escapes is
// limited, because each one takes memory of the stack until the match ends.
const IN_STRING = /[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[\da-fA-F]{4})[^"\\\x00-\x1f]*){0,1000}/y // eslint-disable-line no-control-regex
const PRIMITIVE = /(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.+-])/y

/**
 * The position of the first character that is invalid JSON; the end of the text if the text is valid or incomplete. The
 * message of `JSON.parse` contains a position only in some versions of Node.js.
 */
export const jsonErrorOffset = (text: string): number => jsonError(text).offset

function jsonError (text: string): { offset: number, reason: 'syntax' | 'quote_not_closed' } {
  const syntax = (offset: number) => ({ offset, reason: 'syntax' as const })
  const open: string[] = []
  let expected: 'value' | 'value or end' | 'name' | 'name or end' | 'colon' | 'comma or end' | 'nothing' = 'value'
  for (let at = 0; ;) {
    at = endOf(BLANKS, text, at) ?? at
    const character = text[at]
    const isName: boolean = expected === 'name' || expected === 'name or end'
    if (expected === 'nothing' || character === undefined) return syntax(at)
    if (expected === 'colon') {
      if (character !== ':') return syntax(at)
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
      return syntax(at)
    } else if (character === '{' || character === '[') {
      open.push(character)
      expected = character === '{' ? 'name or end' : 'value or end'
      at++
    } else {
      const end = character === '"' ? endOfString(text, at) : endOf(PRIMITIVE, text, at)
      if (end === undefined) return syntax(at)
      if (character === '"' && text[end] !== '"') {
        return /[\r\n]/.test(text[end] ?? '\n') ? { offset: end, reason: 'quote_not_closed' } : syntax(end)
      }
      at = character === '"' ? end + 1 : end
      expected = isName ? 'colon' : open.length === 0 ? 'nothing' : 'comma or end'
    }
  }
}

// The offset after the last valid character of a string that begins at the offset, without its closing quote.
function endOfString (text: string, at: number): number {
  for (let from = at + 1; ;) {
    const end = endOf(IN_STRING, text, from)!
    if (end === from) return end
    from = end
  }
}

/** The end of a match that begins at the offset; undefined without such a match. */
function endOf (pattern: RegExp, text: string, at: number): number | undefined {
  pattern.lastIndex = at
  return pattern.test(text) ? pattern.lastIndex : undefined
}
