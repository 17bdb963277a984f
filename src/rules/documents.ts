import { parse as parseEnv } from 'dotenv'
import {
  Composer, isAlias, isMap, isScalar, isSeq, Lexer, Parser, visit, type Alias, type CST, type Document, type Scalar
} from 'yaml'

/** The values of `secret_format`. */
export type DocumentFormat = 'env' | 'json' | 'yaml' | 'text'

/** Names and values. Has no prototype, so `__proto__` is an ordinary name, and no document can change a prototype. */
export type Entries = Record<string, string>

/**
 * Parses a document into names and values. Undefined if the document is invalid, exceeds a limit below, or is `text`,
 * which has no names. Never throws. Blocks the event loop for some tens of milliseconds at most.
 *
 * All values are strings: a number keeps its spelling (digits and leading zeros), an object or array becomes compact
 * JSON. `null` becomes the empty string, because without the name the value of an outer level would apply.
 *
 * @param entries the entries of earlier documents; this document's values overwrite them. May be partly changed when
 *   the result is undefined.
 */
export function readDocument (format: DocumentFormat, text: string, entries = emptyEntries()): Entries | undefined {
  const source = text.startsWith('\uFEFF') ? text.slice(1) : text
  try {
    return READERS[format](source, entries)
  } catch {
    // Invalid document, or a stack overflow from deep nesting.
    return undefined
  }
}

const READERS = { env: readEnv, json: readJson, yaml: readYaml, text: () => undefined }

export const emptyEntries = (): Entries => Object.create(null) as Entries

/** Limits: lines and names of an env document; tokens (names, values, brackets, commas, colons) of JSON. */
export const MAX_LINES = 20_000
export const MAX_NAMES = 10_000
export const MAX_TOKENS = 20_000

const ENV_LINE_END = /\r\n?|\n/g
const ENV_NOTHING = /[^\S\n]*(?:#[^\n]*)?(?:\n|$)/y
// dotenv's pattern for an assignment, but sticky: dotenv searches for the next match and silently skips invalid lines.
const ENV_ASSIGNMENT =
  /[^\S\n]*(?:export\s+)?([\w.-]+)((?:\s*=\s*?|:\s+?)(\s*'(?:\\'|[^'])*'|\s*"(?:\\"|[^"])*"|\s*`(?:\\`|[^`])*`|[^#\n]+)?\s*(?:#.*)?$)/my

// Fast path for nearly all lines: a value without quotes, escapes or comments.
const ENV_PLAIN = /([\w.-]+)=([^\s'"`#][^\n'"`#]*)(?:\n|$)/y

/** dotenv's rules without variable expansion. Any invalid line makes the whole document invalid. */
function readEnv (text: string, entries: Entries) {
  // Check the limit before parsing: blank lines and comments cost time, too.
  ENV_LINE_END.lastIndex = 0
  if (text.length > MAX_LINES) {
    for (let lines = 1; ENV_LINE_END.test(text); lines++) if (lines > MAX_LINES) return undefined
  }
  const source = text.includes('\r') ? text.replace(ENV_LINE_END, '\n') : text
  let at = 0
  let names = 0
  while (at < source.length) {
    ENV_PLAIN.lastIndex = at
    const plain = ENV_PLAIN.exec(source)
    if (plain) {
      if (++names > MAX_NAMES) return undefined
      entries[plain[1]!] = plain[2]!.trim()
      at = ENV_PLAIN.lastIndex
      continue
    }
    ENV_NOTHING.lastIndex = at
    if (ENV_NOTHING.test(source)) {
      at = ENV_NOTHING.lastIndex
      continue
    }
    if (++names > MAX_NAMES) return undefined
    ENV_ASSIGNMENT.lastIndex = at
    const match = ENV_ASSIGNMENT.exec(source)
    if (!match) return undefined
    const [, name = '', rest = '', written = ''] = match
    if (isUnterminated(written.trim())) return undefined
    // Parse each assignment separately under the name `X`, because dotenv's result has a prototype, and dotenv's run
    // time is quadratic in the number of blank lines.
    entries[name] = parseEnv(`X${rest}`)['X'] ?? ''
    at = ENV_ASSIGNMENT.lastIndex
  }
  return entries
}

/** Whether the closing quote is missing: dotenv would read the opening quote as a part of the value. */
function isUnterminated (written: string) {
  const quote = written[0]
  return quote !== undefined && '"\'`'.includes(quote) && written.indexOf(quote, 1) === -1
}

const JSON_TOKEN = /\s*("[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+)/y

/** Reads a JSON object. The last of duplicate names wins, as in JSON.parse. */
function readJson (text: string, entries: Entries) {
  // Check the limit before parsing.
  JSON_TOKEN.lastIndex = 0
  for (let tokens = 1; JSON_TOKEN.test(text); tokens++) if (tokens > MAX_TOKENS) return undefined
  const parsed: unknown = JSON.parse(text)
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return undefined
  // The text is valid JSON here. Copy the members from the text, because JSON.parse has rounded the numbers.
  let depth = 0
  let name: string | undefined
  let value: string[] = []
  JSON_TOKEN.lastIndex = 0
  for (let match = JSON_TOKEN.exec(text); match; match = JSON_TOKEN.exec(text)) {
    const token = match[1] ?? ''
    if (token === '}' || token === ']') depth--
    const ends = depth === 0 || (depth === 1 && token === ',')
    if (ends && name !== undefined) {
      entries[name] = jsonValue(value.join(''))
      name = undefined
      value = []
    } else if (!ends && name === undefined) {
      name = JSON.parse(token) as string
    } else if (!ends && !(depth === 1 && token === ':')) {
      value.push(token)
    }
    if (token === '{' || token === '[') depth++
  }
  return entries
}

function jsonValue (text: string) {
  if (text === 'null') return ''
  return text.startsWith('"') ? JSON.parse(text) as string : text
}

/** Limits of a YAML document: characters and lexer tokens (a line `name: value` has seven). */
export const YAML_LENGTH = 64 * 1024
export const MAX_YAML_TOKENS = 4000
/** Each alias costs a search through the document, and aliases can expand a small document exponentially. */
const YAML_ALIASES = 50
const YAML_DEPTH = 100
/** Maximum characters of all values with expanded aliases, in addition to four times the length of the text. */
const YAML_OUTPUT = 64 * 1024

/** Reads one YAML 1.2 document: a mapping or empty. Rejects tags outside the core schema, merge and duplicate keys. */
function readYaml (text: string, entries: Entries) {
  if (text.length > YAML_LENGTH) return undefined
  const document = parseYaml(text)
  const aliases: Alias[] = []
  visit(document, { Alias: (_, alias) => aliases.push(alias) > YAML_ALIASES ? visit.BREAK : undefined })
  if (aliases.length > YAML_ALIASES) return undefined
  const targets = new Map(aliases.map((alias) => [alias, alias.resolve(document)]))

  const { contents } = document
  if (contents === null || (isScalar(contents) && contents.source === '' && contents.tag === undefined)) return entries
  if (!isMap(contents)) return undefined
  const { write, spend } = yamlWriter(targets, YAML_OUTPUT + 4 * text.length)
  for (const [name, value] of pairs(contents.items)) {
    const node = isAlias(value) ? targets.get(value) : value
    entries[name] = value === null ? '' : isScalar(node) ? spend(yamlText(node)) : write(value)
  }
  return entries
}

const YAML_UNREADABLE = new Error('Expected one valid YAML document')

/**
 * Like the package's `parseDocument`, with a token limit. Throws at the first error, because the package would create
 * an object for each error, possibly tens of thousands.
 */
function parseYaml (text: string): Document.Parsed {
  const parser = new Parser()
  const composer = new Composer({
    schema: 'core',
    resolveKnownTags: false,
    merge: false,
    customTags: null,
    // `pairs` checks this in linear time; the parser compares each key with all others.
    uniqueKeys: false,
    // Pretty errors quote the document, and its secrets could reach a log.
    prettyErrors: false
  })
  // Also throws on warnings: with an unknown tag the value would get another type. The package catches the error and
  // calls `onError` again at each nesting level, so all throws share one object.
  Object.assign(composer, { onError: () => { throw YAML_UNREADABLE } })
  const documents: Document.Parsed[] = []
  const compose = (parsed: Iterable<CST.Token>) => {
    for (const token of parsed) {
      if (token.type === 'error') throw YAML_UNREADABLE
      documents.push(...composer.next(token))
      if (documents.length > 1) throw YAML_UNREADABLE
    }
  }
  let tokens = 0
  for (const lexeme of new Lexer().lex(text)) {
    if (++tokens > MAX_YAML_TOKENS) throw YAML_UNREADABLE
    compose(parser.next(lexeme))
  }
  compose(parser.end())
  documents.push(...composer.end(true, text.length))
  const [document] = documents
  if (document === undefined || documents.length > 1 || document.errors.length > 0 || document.warnings.length > 0) {
    throw YAML_UNREADABLE
  }
  return document
}

/** Names and values of a mapping. Throws on duplicate names and on names that are not scalars. */
function pairs (items: { key: unknown, value: unknown }[]) {
  const found = new Map<string, unknown>()
  for (const { key, value } of items) {
    if (!isScalar(key) || key.value === null) throw new Error('A mapping key is not a scalar')
    const name = yamlText(key)
    // A plain `<<` means merge in YAML 1.1 and has no meaning in 1.2, so it is rejected.
    if (found.has(name) || (name === '<<' && key.type === 'PLAIN')) throw new Error('Duplicate key or merge key')
    found.set(name, value)
  }
  return found
}

function yamlText (scalar: Scalar) {
  const { value, source } = scalar
  if (value === null || value === undefined) return ''
  return typeof value === 'number' ? source ?? String(value) : String(value)
}

/** Writes nodes as JSON text. Limits the nesting depth and the total length of the document's values. */
function yamlWriter (targets: Map<Alias, unknown>, allowance: number) {
  let left = allowance
  return { write, spend }

  function write (node: unknown, depth = 0): string {
    if (depth > YAML_DEPTH) throw new Error('Nested too deeply')
    if (isAlias(node)) {
      const target = targets.get(node)
      if (target === undefined) throw new Error('Unresolved alias')
      return write(target, depth + 1)
    }
    if (isMap(node)) {
      const members = [...pairs(node.items)].map(([name, value]) =>
        `${spend(JSON.stringify(name))}:${write(value, depth + 1)}`)
      return `{${members.join(',')}}`
    }
    if (isSeq(node)) return `[${node.items.map((item) => write(item, depth + 1)).join(',')}]`
    return spend(isScalar(node) ? jsonText(node) : 'null')
  }

  function spend (text: string) {
    left -= text.length + 2
    if (left < 0) throw new Error('Expanded values are too long')
    return text
  }
}

function jsonText (scalar: Scalar) {
  const { value } = scalar
  if (typeof value !== 'number') return JSON.stringify(value ?? null)
  const written = yamlText(scalar)
  if (/^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$/.test(written)) return written
  // JSON has no .inf, .nan, 0x1F or 007: write finite numbers in decimal, others as a string.
  return Number.isFinite(value) ? String(value) : JSON.stringify(written)
}
