import {
  Composer, CST, isAlias, isMap, isScalar, isSeq, Lexer, Parser, Schema, visit, type Alias, type Document,
  type ErrorCode, type Scalar, type ScalarTag
} from 'yaml'
import type { UnreadableReason } from '../../../schemas/documents.ts'
import { UnreadableDocument, type Entries } from './entries.ts'
import { LINES, MAX_LINES } from './env.ts'
import { WORK, type Work } from './work.ts'

/** Limits of a YAML document: characters and lexer tokens (a line `name: value` has seven). */
export const YAML_LENGTH = 256 * 1024
export const MAX_YAML_TOKENS = 10_000
const TOKENS = 'a line `name: value` has seven'
/** Maximum aliases, because aliases can expand a small document exponentially. */
const YAML_ALIASES = 50
const YAML_DEPTH = 100
/** Maximum characters of all values with expanded aliases, in addition to four times the length of the text. */
const YAML_OUTPUT = 64 * 1024

/** A parsed document with its tokens, for a change of the text. */
export interface YamlSource {
  document?: Document.Parsed
  /** The node that each alias refers to. */
  targets?: ReadonlyMap<Alias, unknown>
  /** The compact JSON of a node, with the numbers as they are spelled. */
  typedOf?: (node: unknown) => string
  /** Where the content ends: before the line `...`, or at the end of the text. */
  end?: number
}

/**
 * Reads one YAML 1.2 document: a mapping or empty. Rejects tags outside the core schema, merge keys and duplicate keys.
 *
 * @param found receives the parsed document
 * @param typed receives the value of each name as compact JSON, in which each number keeps its spelling, such as `0x1F`
 * @param work counts the lines, the tokens and the written values
 */
export function readYaml (
  text: string, entries: Entries, found?: YamlSource, typed?: Entries, work: Work = { done: 0 }
) {
  if (text.length > YAML_LENGTH) throw UnreadableDocument.ofLimit(YAML_LENGTH, `${YAML_LENGTH.toLocaleString('en')} characters`)
  // Check the number of lines separately from the tokens, because a scalar of many lines is one token.
  for (let lines = 1, at = text.indexOf('\n'); at !== -1; at = text.indexOf('\n', at + 1)) {
    work.done += WORK.yamlLine
    if (++lines > MAX_LINES) throw UnreadableDocument.ofLimit(at + 1, LINES)
  }
  const document = parseYaml(text, work, found)
  const aliases: Alias[] = []
  visit(document, { Alias: (_, alias) => aliases.push(alias) > YAML_ALIASES ? visit.BREAK : undefined })
  if (aliases.length > YAML_ALIASES) throw beyond(aliases.at(-1), `${YAML_ALIASES} aliases`)
  const targets = targetsOf(document, aliases.length)
  const allowance = YAML_OUTPUT + 4 * text.length
  const writerOf = (scalarJson: ScalarJson) => yamlWriter(targets, allowance, scalarJson, work)
  const typedOf = (node: unknown) => writerOf(typedText).write(node)
  if (found) Object.assign(found, { document, targets, typedOf } satisfies YamlSource)

  const { contents } = document
  if (contents === null || (isScalar(contents) && contents.source === '' && contents.tag === undefined)) return
  if (!isMap(contents)) throw new UnreadableDocument(0, 'not_a_mapping')
  const { write, spend, isRespelled } = writerOf(jsonText)
  const typedWriter = typed && writerOf(typedText)
  for (const [name, value] of pairs(contents.items)) {
    const node = isAlias(value) ? targets.get(value) : value
    const json = isScalar(node) || value === null ? undefined : write(value)
    entries[name] = json ?? (value === null ? '' : spend(scalarText(node as Scalar), node))
    if (typed === undefined || typedWriter === undefined) continue
    typed[name] = value === null ? 'null' : json !== undefined && !isRespelled() ? json : typedWriter.write(value)
  }
}

/** Finds the node of each alias: the last node before the alias that has its anchor. Visits the document once. */
function targetsOf (document: Document.Parsed, aliases: number): Map<Alias, unknown> {
  const targets = new Map<Alias, unknown>()
  if (aliases === 0) return targets
  const anchored = new Map<string, unknown>()
  visit(document, {
    Node: (_, node) => {
      if (isAlias(node)) targets.set(node, anchored.get(node.source))
      else if (node.anchor !== undefined) anchored.set(node.anchor, node)
    }
  })
  return targets
}

/** The position of a node; the start of the text for a pair without a written value, whose position is unknown. */
const offsetOf = (node: unknown) => ((node ?? {}) as { range?: readonly number[] | null }).range?.[0] ?? 0
const unreadable = (node: unknown, reason: UnreadableReason) => new UnreadableDocument(offsetOf(node), reason)
const beyond = (node: unknown, limit: string) => UnreadableDocument.ofLimit(offsetOf(node), limit)

const FLOAT_TEXT = /^(?:[-+]?(?:(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))$/
// The tag `!!float`. The package resolves it only for texts with a point or an exponent, but the core schema of YAML
// 1.2 also for integers. Without a test, the tag is not tried for scalars without a tag.
const FLOAT: ScalarTag = {
  tag: 'tag:yaml.org,2002:float',
  resolve: (text, onError) => {
    if (!FLOAT_TEXT.test(text)) onError('no number')
    return Number(text)
  }
}
// One schema for all documents, because the package would make one for each.
const SCHEMA = new Schema({ schema: 'core', resolveKnownTags: false, merge: false, customTags: [FLOAT] })

/**
 * Like the package's `parseDocument`, with a token limit. Throws at the first error, because the package would create
 * an object for each error, possibly tens of thousands.
 */
function parseYaml (text: string, work: Work, found?: YamlSource): Document.Parsed {
  const parser = new Parser()
  const misread = BLANK_LINE_BELOW_ESCAPE.test(text) || INDENTED_HEADER.test(text)
  const composer = new Composer({
    schema: SCHEMA,
    // `pairs` finds duplicate keys in linear time; the parser compares each key with all others.
    uniqueKeys: false,
    // Pretty errors quote the document, and its secrets could reach a log.
    prettyErrors: false,
    keepSourceTokens: found !== undefined || misread
  })
  // Also throws on warnings: the package only warns of an unknown tag, and gives the value another type. The package
  // catches the error and calls `onError` again at each nesting level, so each call throws the first error again.
  let failure: UnreadableDocument | undefined
  // The first quote that is not closed. The package gives the end of the text as its position.
  let unclosed: number | undefined
  const onError = (at: ErrorSource, reason: UnreadableReason, limit?: string) => {
    const offset = typeof at === 'number' ? at : 'offset' in at ? at.offset : at[0]
    failure ??= unclosed !== undefined && unclosed <= offset
      ? new UnreadableDocument(unclosed, 'quote_not_closed')
      : new UnreadableDocument(offset, reason, { limit })
    throw failure
  }
  Object.assign(composer, {
    onError: (at: ErrorSource, code: ErrorCode, message: string) => onError(at, reasonOf(code, message))
  })
  const documents: Document.Parsed[] = []
  const compose = (parsed: Iterable<CST.Token>) => {
    for (const token of parsed) {
      if (token.type === 'error') onError(token, 'syntax')
      if (token.type === 'doc-end' && found && found.end === undefined) found.end = token.offset
      documents.push(...composer.next(token))
      if (documents.length > 1) onError(token, 'several_documents')
    }
  }
  let tokens = 0
  let offset = 0
  let isText = false
  for (const lexeme of new Lexer().lex(text)) {
    work.done += WORK.yamlToken
    if (++tokens > MAX_YAML_TOKENS) {
      onError(offset, 'limit', `${MAX_YAML_TOKENS.toLocaleString('en')} tokens (${TOKENS})`)
    }
    if (!isText && isUnclosed(lexeme)) unclosed ??= offset
    isText = lexeme === CST.SCALAR
    compose(parser.next(lexeme))
    offset = parser.offset
  }
  compose(parser.end())
  documents.push(...composer.end(true, text.length))
  const [document, second] = documents
  if (document === undefined || second !== undefined || document.errors.length > 0 || document.warnings.length > 0) {
    throw new UnreadableDocument(second?.range[0] ?? 0, second === undefined ? 'syntax' : 'several_documents')
  }
  if (misread) correctTexts(document, text)
  return document
}

const BLANK_LINE_BELOW_ESCAPE = /\\\r?\n[ \t]*\r?\n/
const ESCAPE = /\\(?:(\r?\n)((?:[ \t]*\r?\n)+)|[^])/g
// The header of a block scalar with an indentation indicator.
const INDENTED_HEADER = /[|>](?:[-+]?[1-9]|[1-9][-+])[ \t]*(?:#.*)?$/m
const BLANK_LINES = /(?: *\r?\n)*(?: +$)?/y

/** Reads again the texts in whose blank lines the package loses characters. The document must have source tokens. */
function correctTexts (document: Document.Parsed, text: string): void {
  visit(document, {
    Scalar: (_, scalar) => {
      if (typeof scalar.value !== 'string') return
      const [from, to] = scalar.range!
      if (scalar.type === 'QUOTE_DOUBLE') scalar.value = quotedText(text.slice(from, to)) ?? scalar.value
      const { srcToken: token } = scalar
      if (token?.type === 'block-scalar') scalar.value = blockText(token, text, from, to) ?? scalar.value
    }
  })
}

// A blank line below a line that ends with a backslash is a line feed. The package gives one less, or a blank.
function quotedText (source: string): string | undefined {
  if (!BLANK_LINE_BELOW_ESCAPE.test(source)) return undefined
  const escaped = source.replace(ESCAPE, (escape, lineEnd?: string, blankLines = '') =>
    lineEnd === undefined ? escape : `${'\\n'.repeat(blankLines.split('\n').length - 1)}\\${lineEnd}`)
  return CST.resolveAsScalar({ type: 'double-quoted-scalar', offset: 0, indent: 0, source: escaped })!.value
}

// The package takes blank lines at the end that are indented no more than the first line as no part of the text, also
// with an indicator of less indentation, and a text of blanks as an empty one.
function blockText (token: CST.BlockScalar, text: string, from: number, to: number): string | undefined {
  const digit = /^[|>][-+]?([1-9])/.exec(text.slice(from, from + '|-1'.length))?.[1]
  if (digit === undefined) return undefined
  BLANK_LINES.lastIndex = to
  const source = token.source + BLANK_LINES.exec(text)![0]
  const firstLine = /[^ \r\n]/.test(source) ? '' : `${' '.repeat(token.indent + Number(digit))}x\n`
  return CST.resolveAsScalar({ ...token, source: firstLine + source })!.value.slice(firstLine === '' ? 0 : 'x\n'.length)
}

const ESCAPED_AT_END = /(?:\\"|'')[ \t\r]*$/m

/**
 * The position of a quote that is not closed and that the package overlooks, because the text in quotes ends with an
 * escaped one. Such a document is read here, and refused by other readers.
 */
export function unclosedQuote (text: string): number | undefined {
  if (!ESCAPED_AT_END.test(text)) return undefined
  let offset = 0
  let isText = false
  for (const lexeme of new Lexer().lex(text)) {
    if (!isText && isUnclosed(lexeme)) return offset
    isText = lexeme === CST.SCALAR
    if (!CONTROLS.has(lexeme)) offset += lexeme.length
  }
  return undefined
}

/**
 * The position of a tab that takes the place of the indentation of a text with `|` or `>`. The package takes such a
 * line as the text, and can then read the names below as names of an outer mapping. Other readers take the text as
 * empty, or refuse the document.
 */
export function tabAsIndentation (text: string): number | undefined {
  if (!/^ *\t/m.test(text)) return undefined
  let found: number | undefined
  for (const token of new Parser().parse(text)) {
    if (token.type === 'document') CST.visit(token, ({ key, value }) => { found ??= tabIn(key) ?? tabIn(value) })
  }
  return found
}

function tabIn (token: CST.Token | null | undefined): number | undefined {
  if (token?.type !== 'block-scalar') return undefined
  const props = token.props as CST.SourceToken[]
  const { offset, source } = props.at(-1)!
  const [, blankLines = '', spaces] = /^((?: *\r?\n)*)( *)\t/.exec(token.source) ?? []
  const isContent = spaces === undefined || spaces.length > token.indent
  return isContent || props.some(({ source }) => /^[|>].?[1-9]/.test(source))
    ? undefined
    : offset + source.length + blankLines.length + spaces.length
}

/**
 * The position of a value that follows a name with `?` without a colon. The package leaves such a value out, and other
 * readers refuse the document.
 */
export function valueWithoutColon (text: string): number | undefined {
  if (!/(?:^|[ \t])\?(?:\s|$)/m.test(text)) return undefined
  let found: number | undefined
  for (const token of new Parser().parse(text)) {
    if (token.type === 'document') {
      CST.visit(token, ({ sep, value }) => {
        const isWritten = value && !('source' in value && value.source === '')
        if (!isWritten || !sep?.every(({ type }) => type !== 'map-value-ind')) return undefined
        found ??= value.offset
        return CST.visit.BREAK
      })
    }
  }
  return found
}

// Lexemes that are not in the text: they announce a document, a scalar, or the end of a flow collection.
const CONTROLS = new Set<string>([CST.DOCUMENT, CST.FLOW_END, CST.SCALAR])

/** Whether a lexeme is a scalar in quotes without its closing quote. */
function isUnclosed (lexeme: string): boolean {
  const last = lexeme.length - 1
  if (lexeme[0] === '"') return last === 0 || lexeme[last] !== '"' || repeatedBefore(lexeme, '\\', last) % 2 === 1
  return lexeme[0] === "'" && repeatedBefore(lexeme, "'", last + 1) % 2 === 0
}

/** How often a character is repeated directly before a position, not counting the first character of the text. */
function repeatedBefore (text: string, character: string, to: number): number {
  let from = to
  while (from > 1 && text[from - 1] === character) from--
  return to - from
}

/** The forms in which the package passes the position of an error. */
type ErrorSource = number | readonly [number, number] | { offset: number }

// Of the package's messages, only the end of this one is used: others quote the document.
function reasonOf (code: ErrorCode, message: string): UnreadableReason {
  if (code === 'MISSING_CHAR' && message.endsWith('quote')) return 'quote_not_closed'
  return code === 'TAB_AS_INDENT' ? 'tab' : code === 'TAG_RESOLVE_FAILED' ? 'tag' : 'syntax'
}

/** Names and values of a mapping. Throws on duplicate names and on names that are not scalars. */
function pairs (items: { key: unknown, value: unknown }[]) {
  const found = new Map<string, unknown>()
  for (const { key, value } of items) {
    if (!isScalar(key) || key.value === null) throw unreadable(key, 'no_scalar_name')
    const name = scalarText(key)
    // A plain `<<` is rejected, because its meaning depends on the version: a merge in YAML 1.1, a name in 1.2.
    if (name === '<<' && key.type === 'PLAIN') throw unreadable(key, 'merge_key')
    if (found.has(name)) {
      const first = items.find(({ key }) => isScalar(key) && scalarText(key) === name)
      throw new UnreadableDocument(offsetOf(key), 'duplicate_name', { known: { name, offset: offsetOf(first?.key) } })
    }
    found.set(name, value)
  }
  return found
}

export function scalarText (scalar: Scalar) {
  const { value, source } = scalar
  if (value === null || value === undefined) return ''
  return typeof value === 'number' ? source ?? String(value) : String(value)
}

type ScalarJson = (scalar: Scalar) => string

/** A written node: its text, its part of the allowance, and the levels below it. */
interface Written { text: string, length: number, levels: number }

/**
 * Writes nodes as JSON text. Limits the nesting depth and the total length of the document's values. Writes each node
 * once, also if many aliases refer to it. `isRespelled`: whether a number so far has another spelling than in the
 * document.
 */
function yamlWriter (targets: Map<Alias, unknown>, allowance: number, scalarJson: ScalarJson, work: Work) {
  let left = allowance
  let deepest = 0
  let hasOtherNumber = false
  /** The text of each scalar, which aliases can need very often. */
  const texts = new Map<Scalar, string>()
  /** The nodes that aliases refer to; undefined until they are written. */
  const shared = new Map<unknown, Written | undefined>()
  for (const target of targets.values()) shared.set(target, undefined)
  return { write, spend, isRespelled: () => hasOtherNumber }

  function write (node: unknown, depth = 0): string {
    requireDepth(depth, node)
    if (isAlias(node)) {
      const target = targets.get(node)
      if (target === undefined) throw unreadable(node, 'unknown_alias')
      return write(target, depth + 1)
    }
    return isScalar(node) || !shared.has(node) ? writeNode(node, depth) : writeShared(node, depth)
  }

  function writeShared (node: unknown, depth: number): string {
    const known = shared.get(node)
    if (known !== undefined) {
      requireDepth(depth + known.levels, node)
      take(known.length, node)
      return known.text
    }
    const [before, outer] = [left, deepest]
    deepest = depth
    const text = writeNode(node, depth)
    shared.set(node, { text, length: before - left, levels: deepest - depth })
    deepest = Math.max(deepest, outer)
    return text
  }

  function writeNode (node: unknown, depth: number): string {
    if (isMap(node)) {
      spend('', node)
      const members = [...pairs(node.items)].map(([name, value]) =>
        `${spend(JSON.stringify(name), node)}:${write(value, depth + 1)}`)
      return `{${members.join(',')}}`
    }
    if (isSeq(node)) {
      // Also an empty list takes time for each alias.
      spend('', node)
      return `[${node.items.map((item) => write(item, depth + 1)).join(',')}]`
    }
    return spend(isScalar(node) ? textOf(node) : 'null', node)
  }

  function textOf (scalar: Scalar): string {
    const known = texts.get(scalar) ?? scalarJson(scalar)
    texts.set(scalar, known)
    hasOtherNumber ||= typeof scalar.value === 'number' && known !== scalarText(scalar)
    return known
  }

  function requireDepth (depth: number, node: unknown) {
    if (depth > YAML_DEPTH) throw beyond(node, `${YAML_DEPTH} nested levels`)
    deepest = Math.max(deepest, depth)
  }

  function spend (text: string, node: unknown) {
    take(text.length + 2, node)
    return text
  }

  function take (length: number, node: unknown) {
    left -= length
    work.done += length / 1024 * WORK.writtenKilobyte
    if (left < 0) throw beyond(node, `${allowance.toLocaleString('en')} characters in its values with expanded aliases`)
  }
}

/** Like `jsonText`, but each number has its spelling in the document, so that a change to another one has an effect. */
const typedText = (scalar: Scalar): string =>
  typeof scalar.value === 'number' ? scalarText(scalar) : jsonText(scalar)

function jsonText (scalar: Scalar) {
  const { value } = scalar
  if (typeof value !== 'number') return JSON.stringify(value ?? null)
  const written = scalarText(scalar)
  if (/^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$/.test(written)) return written
  // JSON has no .inf, .nan, 0x1F or 007: a number that a Number holds exactly is written in decimal, others as a text.
  const decimal = String(value)
  return Number.isFinite(value) && isSameNumber(written, decimal) ? decimal : JSON.stringify(written)
}

/** Whether two finite numbers, as YAML or `String` writes them, are the same number. */
function isSameNumber (one: string, other: string): boolean {
  const [a, b] = [normalized(one), normalized(other)]
  return a.digits === b.digits && (a.digits === '' || (a.isNegative === b.isNegative && a.exponent === b.exponent))
}

/**
 * A number as its sign, its digits without zeros at both ends (none for zero), and the exponent of ten after these. The
 * time is linear in the length of the text.
 */
function normalized (text: string): { isNegative: boolean, digits: string, exponent: number } {
  const decimal = /^0[xo]/.test(text) ? BigInt(text).toString() : text
  const [, sign, whole = '', fraction = '', power = '0'] = /^([-+]?)(\d*)\.?(\d*)(?:e([-+]?\d+))?$/i.exec(decimal)!
  const all = whole + fraction
  let [from, to] = [0, all.length]
  while (from < to && all[from] === '0') from++
  while (to > from && all[to - 1] === '0') to--
  // An exponent that a Number does not hold exactly is larger than that of each finite Number.
  const exponent = Number(power) - fraction.length + (all.length - to)
  return { isNegative: sign === '-', digits: all.slice(from, to), exponent }
}
