import { parse as parseEnv } from 'dotenv'
import {
  Composer, isAlias, isMap, isScalar, isSeq, Lexer, Parser, visit, type Alias, type CST, type Document, type Scalar
} from 'yaml'

/** How a document is to be read: the same words as `secret_format`. */
export type DocumentFormat = 'env' | 'json' | 'yaml' | 'text'

/** Names and values of a document. It has no prototype, so `__proto__` and `constructor` are names like any other. */
export type Entries = Record<string, string>

/**
 * What a document says, or undefined when it cannot be parsed, has more in it than `MOST_LINES` and its like, is YAML
 * beyond
 * `YAML_LENGTH`, or is `text`, which has no names. Never throws, takes some tens of milliseconds at most (all of this
 * happens on the one thread that answers everybody), and never lets a document reach a prototype.
 *
 * A value is a string: a string as it is, a number as it is written (so that no digit and no leading zero gets
 * lost), `true` or `false`, an object or array as compact JSON text. `null` is the empty string and not an absent
 * name: left out, it would let the value of an outer level show through where somebody meant to blank it.
 *
 * @param entries what earlier documents say, to merge the document into: its values replace those of the same names.
 *   Without a result, the entries may hold a part of the document.
 */
export function readDocument (
  format: DocumentFormat, text: string, entries: Entries = emptyEntries()
): Entries | undefined {
  const source = text.startsWith('\uFEFF') ? text.slice(1) : text
  try {
    switch (format) {
      case 'env': return readEnv(source, entries)
      case 'json': return readJson(source, entries)
      case 'yaml': return readYaml(source, entries)
      case 'text': return undefined
    }
  } catch {
    // The parsers throw on what they refuse, on documents nested too deeply for the stack among others.
    return undefined
  }
}

/** No names yet. */
export const emptyEntries = (): Entries => Object.create(null) as Entries

/**
 * How many lines and names an env document may have, and how many tokens (names, values, brackets, commas, colons) a
 * JSON one.
 */
export const MOST_LINES = 20_000
export const MOST_NAMES = 10_000
export const MOST_TOKENS = 20_000

const ENV_LINE_END = /\r\n?|\n/g
const ENV_NOTHING = /[^\S\n]*(?:#[^\n]*)?(?:\n|$)/y
// What dotenv takes for an assignment, bound to the place where it is tried: dotenv itself looks for the next place
// that matches, and so skips without a word what it does not understand.
const ENV_ASSIGNMENT =
  /[^\S\n]*(?:export\s+)?([\w.-]+)((?:\s*=\s*?|:\s+?)(\s*'(?:\\'|[^'])*'|\s*"(?:\\"|[^"])*"|\s*`(?:\\`|[^`])*`|[^#\n]+)?\s*(?:#.*)?$)/my

// What nearly all lines are: a name and a value that dotenv takes as it is, with nothing in it that means something
// else.
const ENV_PLAIN = /([\w.-]+)=([^\s'"`#][^\n'"`#]*)(?:\n|$)/y

/** dotenv's rules, without variable expansion; a line that is neither blank, comment nor assignment spoils it all. */
function readEnv (text: string, entries: Entries) {
  // Before anything is made of it: each line costs something, also one that says nothing.
  ENV_LINE_END.lastIndex = 0
  if (text.length > MOST_LINES) {
    for (let lines = 1; ENV_LINE_END.test(text); lines++) if (lines > MOST_LINES) return undefined
  }
  const source = text.includes('\r') ? text.replace(ENV_LINE_END, '\n') : text
  let at = 0
  let names = 0
  while (at < source.length) {
    ENV_PLAIN.lastIndex = at
    const plain = ENV_PLAIN.exec(source)
    if (plain) {
      if (++names > MOST_NAMES) return undefined
      entries[plain[1]!] = plain[2]!.trim()
      at = ENV_PLAIN.lastIndex
      continue
    }
    ENV_NOTHING.lastIndex = at
    if (ENV_NOTHING.test(source)) {
      at = ENV_NOTHING.lastIndex
      continue
    }
    if (++names > MOST_NAMES) return undefined
    ENV_ASSIGNMENT.lastIndex = at
    const match = ENV_ASSIGNMENT.exec(source)
    if (!match) return undefined
    const [, name = '', rest = '', written = ''] = match
    if (isUnterminated(written.trim())) return undefined
    // One assignment at a time and under a name of ours: dotenv collects into an object with a prototype, and is
    // quadratic on a long run of blank lines.
    entries[name] = parseEnv(`X${rest}`)['X'] ?? ''
    at = ENV_ASSIGNMENT.lastIndex
  }
  return entries
}

/** dotenv reads a lone opening quote as a part of the value; whoever wrote it meant the lines that follow too. */
function isUnterminated (written: string) {
  const quote = written[0]
  return quote !== undefined && '"\'`'.includes(quote) && written.indexOf(quote, 1) === -1
}

const JSON_TOKEN = /\s*("[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+)/y

/** An object. A name given twice has its last value, as everywhere in JSON. */
function readJson (text: string, entries: Entries) {
  // Before anything is made of it.
  JSON_TOKEN.lastIndex = 0
  for (let tokens = 1; JSON_TOKEN.test(text); tokens++) if (tokens > MOST_TOKENS) return undefined
  const parsed: unknown = JSON.parse(text)
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return undefined
  // The text is known to be good here, so its members can be cut out as they are written: JSON.parse has already
  // rounded the numbers, and stringifying them again would hand out other digits than were stored.
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

/**
 * The longest YAML text that is read, and how many tokens of the package's own lexer may be in it (`name: value` and
 * its line end are seven): some microseconds each.
 */
export const YAML_LENGTH = 64 * 1024
export const MOST_YAML_TOKENS = 4000
/** Aliases are looked up through the whole document each, and can make a small document a huge one. */
const YAML_ALIASES = 50
const YAML_DEPTH = 100
/**
 * What its values may take together with the aliases written out: this many characters and four times the text's own.
 */
const YAML_OUTPUT = 64 * 1024

/** One YAML 1.2 document that is a mapping, or empty. No tags but the core schema's, no merge keys, no name twice. */
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
 * What `parseDocument` of the package does, but for two things: it takes no more tokens than are allowed, and it throws
 * at the first error. The package would go on and make an object for each, of which one quoted text can have tens of
 * thousands.
 */
function parseYaml (text: string): Document.Parsed {
  const parser = new Parser()
  const composer = new Composer({
    schema: 'core',
    resolveKnownTags: false,
    merge: false,
    customTags: null,
    // Done below: the parser compares every key with every other one.
    uniqueKeys: false,
    // Pretty errors quote the document, and one day somebody logs one.
    prettyErrors: false
  })
  // Warnings too: of an unknown tag, which is then read as something else than was meant. Always the same error,
  // because the package catches it and reports another one at each depth.
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
    if (++tokens > MOST_YAML_TOKENS) throw YAML_UNREADABLE
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

/** Names and values of a mapping. Throws on a name that is no plain value, or is there twice. */
function pairs (items: { key: unknown, value: unknown }[]) {
  const found = new Map<string, unknown>()
  for (const { key, value } of items) {
    if (!isScalar(key) || key.value === null) throw new Error('A mapping key is not a scalar')
    const name = yamlText(key)
    // `<<` merges in YAML 1.1; serving it as a secret of that name would be neither here nor there.
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

/** Writes nodes as JSON text, within one allowance of depth and length for the whole document. */
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
  // JSON has no .inf, .nan, 0x1F or 007: what has a value keeps it, the rest its text.
  return Number.isFinite(value) ? String(value) : JSON.stringify(written)
}
