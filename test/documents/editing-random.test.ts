// runs: no database
import { isDeepStrictEqual } from 'node:util'
import t from 'tap'
import { parse as parseEnv } from 'dotenv'
import { isMap, parseDocument, type Node, type Scalar } from 'yaml'
import type { NamedFormat } from '../../src/rules/documents/entries.ts'
import { readDocument } from '../../src/rules/documents/read.ts'
import { changeNames } from '../../src/rules/editing/change.ts'
import { LONG } from '../helpers/long.ts'
import { texts } from '../helpers/texts.ts'
import { random } from '../helpers/traffic.ts'

const DOCUMENTS = LONG ? 20_000 : 3000
// The usual run has the same documents each time. `npm run test:proofs` draws new ones.
const SEED = Number(process.env.TEST_SEED ?? (LONG ? Math.floor(Math.random() * 2 ** 32) : 1))

const next = random(SEED)
const below = (count: number) => Math.floor(next() * count)
const chance = (probability: number) => next() < probability
const one = <T>(choices: readonly T[]): T => choices[below(choices.length)]!
const some = <T>(count: number, make: (index: number) => T) => Array.from({ length: count }, (_, index) => make(index))

/**
 * A part of a document as the generator made it. A piece with a name belongs to this name: when the value changes,
 * `value` and `lines` are replaced; when the name is removed, only `above` stays. Other pieces stay.
 */
interface Piece {
  name?: string
  above?: string
  fixed: string
  value: string
  /** The end of `value` that dotenv does not read, but other readers do. */
  glued?: string
  rest: string
  lines?: string
}

interface Generated {
  format: NamedFormat
  pieces: Piece[]
  /** Texts before and after the pieces, and between two of them. */
  open: string
  close: string
  comma: string
  lineEnd: string
  /** Names with an anchor, and the names whose values refer to it. */
  users: Map<string, string[]>
}

const NASTY = [
  "'", '"', '`', '\\', '\\n', '\\r', '\n', '\r', '\r\n', '#', ' #', ' ', '\t', '$X', '${X}', '=', ':', ': ', ', ', '{', '}', '[', ']', '- ', '? ', '&a ', '*a', // eslint-disable-line no-template-curly-in-string
  '!', '%', '@', '---', '...', 'true', 'null', '~', '12', '0x1F', 'é', '😀', '\u2028', '\u0085', '\ufeff', '\0', '\ud800', 'a', 'b', 'word', 'two words', '|', '>', '<<',
  '\\"', "\\'", '\n\n', '\n# c\n', '\nX=1\n', '\n---\n'
]
const anyText = () => some(below(6), () => one(NASTY)).join('')

const NAMES = {
  env: ['A', 'b', 'NAME_1', 'dotted.name', '-', 'x-y', 'export', '__proto__', 'constructor', '7', 'Z'],
  json: ['A', '', 'a b', '"', '\\', 'é', '😀', '__proto__', 'constructor', '7', '\n', '#', '\ud800', 'null', '<<'],
  yaml: ['A', '', 'a b', '"', "'", '\\', 'é', '😀', '__proto__', 'constructor', '7', '\n', '#', ' # x', 'null', '<<', 'true', '? a', '- a', ': ', 'k'.repeat(1100), '\ud800', '{', '*a', '007']
}

function names (format: NamedFormat) {
  return [...new Set(some(below(8), () => one(NAMES[format])))]
}

const lineEndOf = () => one(['\n', '\n', '\r\n'])

function envDocument (): Generated {
  const lineEnd = chance(0.1) ? '\r' : lineEndOf()
  const other = () => ({ fixed: one(['', '  ', '# c', ' # A=1', "# it's", '#"']) + lineEnd, value: '', rest: '' })
  const values = [
    '1', 'a b', 'x=y', "it's", '\\n', '"a b"', '"a\\nb"', "'a#b'", '`a"b`', `"a${lineEnd}# b"`, "''", 'a\\', '"say \\"x\\""', `'${lineEnd}${lineEnd}x'`, '$A', 'é', '{"a":1}',
    '"a"b', 'a"b', "'a' 'b'"
  ]
  const used = names('env')
  if (used.length > 0 && chance(0.3)) used.splice(below(used.length), 0, one(used))
  const pieces = used.flatMap((name): Piece[] => {
    const separator = one(['=', '=', '=', ' = ', '= ', ': '])
    const glued = chance(0.3) ? `#old${below(10 ** 9)}` : ''
    const value = one(values) + glued
    const rest = one(['', '', glued === '' ? ' ' : '', ' # c', " # don't", '\t#'])
    const fixed = one(['', '', ' ', 'export ', '\texport\t']) + name + separator
    const own = { name, fixed, value, glued, rest: rest + lineEnd }
    return [...some(below(3), other), own]
  })
  const all = [...pieces, ...some(below(3), other)]
  return { format: 'env', pieces: all, open: '', close: '', comma: '', lineEnd, users: new Map() }
}

function jsonDocument (): Generated {
  const lineEnd = lineEndOf()
  const blank = one(['', ' ', `${lineEnd}  `, `${lineEnd}\t`])
  const colon = one([':', ': ', ' : '])
  const values = ['1', '1.10', 'null', 'true', '"x"', '"\\u0061\\n"', '{}', '{"A": [1, {"b": ","}]}', '[]', `[${lineEnd}1${lineEnd}]`, '1E400', '"}"']
  const used = names('json')
  if (used.length > 0 && chance(0.3)) used.splice(below(used.length), 0, one(used))
  const pieces = used.map((name): Piece => {
    const key = chance(0.2) && name === 'A' ? '"\\u0041"' : JSON.stringify(name)
    return { name, fixed: blank + key + colon, value: one(values), rest: '' }
  })
  return {
    format: 'json',
    pieces,
    comma: ',',
    lineEnd,
    users: new Map(),
    open: `${one(['', ' ', lineEnd])}{`,
    close: `${blank.includes(lineEnd) ? lineEnd : ''}}${one(['', lineEnd])}`
  }
}

function yamlKey (name: string) {
  if (/^(?:A|b|word|constructor|__proto__|é|7|007)$/.test(name) && chance(0.7)) return name
  return name.includes("'") || /[^ -~]/.test(name) || chance(0.5) ? JSON.stringify(name) : `'${name}'`
}

const FLOW_VALUES = ['1', '007', 'x', "'it''s'", '"a\\nb"', 'a b', '~', '[1, 2]', '{x: 1, y: [z]}', '!!int 12', '!!str 12', '']

function yamlDocument (): Generated {
  const lineEnd = lineEndOf()
  const other = () => ({ fixed: one(['', '# c', '# a: 1', '  # c', '#"']) + lineEnd, value: '', rest: '' })
  const users = new Map<string, string[]>()
  const anchors: [anchor: string, name: string][] = []
  const used = names('yaml').filter((name) => name.length < 1000)
  const pieces = used.flatMap((name, index): Piece[] => {
    const key = yamlKey(name)
    const comment = one(['', '', ' # c', " # it's"])
    const style = below(8)
    const user = anchors.length > 0 && chance(0.3) ? one(anchors) : undefined
    const own: Piece = { name, fixed: `${key}:`, value: '', rest: comment + lineEnd }
    if (user) {
      users.set(user[1], [...users.get(user[1]) ?? [], name])
      own.value = one([` *${user[0]}`, ` [1, *${user[0]}]`])
    } else if (style === 0) {
      own.value = one([' |', ' >', ' |-', ' >-', ' |3'])
      own.lines = `   a${lineEnd}   # b: 1${lineEnd}`
    } else if (style === 1) {
      own.lines = `  x: 1${lineEnd}  # in${lineEnd}  y:${lineEnd}  - 1${lineEnd}`
    } else if (style === 2) {
      own.lines = `- 1 # x${lineEnd}- {a: b}${lineEnd}`
    } else if (style === 3) {
      anchors.push([`n${index}`, name])
      own.fixed += ` &n${index}`
      own.value = one([' x', ' "y"', '', ' {z: 1}'])
    } else if (style === 4) {
      own.fixed = `? ${key}${lineEnd}:`
      own.value = one([' x', ' "y"', ' [1]'])
    } else {
      const value = one(FLOW_VALUES)
      own.value = value === '' ? '' : ` ${value}`
    }
    // An indented comment, which could become part of a block scalar above when a name is removed.
    const deeper = own.lines === undefined && chance(0.2) ? [{ fixed: `    # c${lineEnd}`, value: '', rest: '' }] : []
    return [...some(below(3), other), own, ...deeper]
  })
  const hasEnd = chance(0.15)
  return {
    format: 'yaml',
    pieces: [...pieces, ...some(below(3), other)],
    users,
    comma: '',
    lineEnd,
    open: one(['', '', '', `---${lineEnd}`, `%YAML 1.2${lineEnd}---${lineEnd}`]),
    close: hasEnd ? `...${lineEnd}# end` : ''
  }
}

function flowDocument (): Generated {
  const lineEnd = lineEndOf()
  const blank = one(['', ' ', `${lineEnd}  `])
  const used = names('yaml').filter((name) => name.length < 1000)
  const isCommented = used.length > 0 && blank.startsWith(lineEnd) && chance(0.3)
  const pieces = used.map((name, index): Piece => {
    const own = index > 0 && blank.startsWith(lineEnd) && chance(0.3) ? ' ' : blank
    const above = own.startsWith(lineEnd) && chance(0.3) ? `${own}# above` : ''
    return { name, above, fixed: `${own}${yamlKey(name)}:`, value: one(FLOW_VALUES.map((value) => value && ` ${value}`)), rest: '' }
  })
  return {
    format: 'yaml',
    pieces,
    comma: ',',
    lineEnd,
    users: new Map(),
    open: isCommented ? '{ # open' : '{',
    close: `${blank.startsWith(lineEnd) ? lineEnd : ''}${pieces.length === 0 && chance(0.5) ? one([' # c', `${lineEnd}# c`]) + lineEnd : ''}}${one(['', lineEnd])}`
  }
}

const text = (document: Generated, pieces = document.pieces) =>
  document.open + pieces.map(({ above = '', fixed, value, rest, lines = '' }) => above + fixed + value + rest + lines).join(document.comma) + document.close

const ESCAPE = /[\\^$.*+?()[\]{}|/]/g
const literally = (text: string) => text.replace(ESCAPE, '\\$&')

/** The values that an independent parser reads. The test does not compare other values than strings as strings. */
function parsed (format: NamedFormat, source: string): Map<string, unknown> {
  const text = source.replace(/^\uFEFF/, '')
  if (format === 'env') {
    // The result of dotenv has a prototype, so `__proto__` needs another name.
    const safe = parseEnv(text.replaceAll('__proto__', '__PROTO__'))
    return new Map(Object.entries(safe).map(([name, value]) => [name.replace('__PROTO__', '__proto__'), value]))
  }
  if (format === 'json') return parsedJson(text)
  const document = parseDocument(text, { schema: 'core', merge: false, uniqueKeys: false })
  if (document.errors.length > 0) throw new Error('not valid YAML')
  const items = isMap(document.contents) ? document.contents.items as { key: Scalar, value: Node | null }[] : []
  // The names 7 and 007 are the same number.
  return new Map(items.map(({ key, value }) =>
    [typeof key.value === 'number' ? key.source! : String(key.value), value?.toJS(document) ?? null]))
}

// JSON.parse of Node.js 24 confuses names that end in an escape, such as `\"` and `\\`, so reads objects as arrays of
// their names and values.
const AS_ARRAY: Record<string, string> = { '{': '["{}",', '}': ']', ':': ',' }

function parsedJson (text: string): Map<string, unknown> {
  const arrays = text.replace(/"(?:[^"\\]|\\.)*"|\{\s*\}|[{}:]/g, (token) =>
    AS_ARRAY[token] ?? (token.startsWith('{') ? '["{}"]' : token))
  const [, ...members] = JSON.parse(arrays) as unknown[]
  const names = members.filter((_, i) => i % 2 === 0) as string[]
  return new Map(names.map((name, i) => [name, members[2 * i + 1]]))
}

/**
 * Whether dotenv can read the value from any form that a value can be written in, before the rest of the document. A
 * quote in the rest can become the end of a value that ends with a backslash. No variable can have a NUL.
 */
function isHeldByEnv (value: string, rest: string) {
  const escaped = value.replaceAll('\n', '\\n').replaceAll('\r', '\\r')
  return !/\0|\p{Surrogate}/u.test(value) && [value, `'${value}'`, `"${value}"`, `\`${value}\``, `"${escaped}"`]
    .some((form) => isDeepStrictEqual(parseEnv(`X=${form}${rest}`), { ...parseEnv(`X=${rest}`), X: value }))
}

const not = (name: string) => (other: string) => other !== name

/** Removes the last line ending of the document. */
function withoutEnd ({ pieces, lineEnd }: Generated) {
  const last = pieces.at(-1)!
  const part = last.lines !== undefined ? 'lines' : last.rest !== '' ? 'rest' : 'fixed'
  last[part] = last[part]!.slice(0, -lineEnd.length)
}

/**
 * The pattern of the changed document: everything that belongs to unchanged names stays the same, in the same order.
 */
function patternOf (
  document: Generated, changed: readonly string[], removed: ReadonlySet<string>, added: number, endless: boolean
) {
  const { pieces, open, comma, close } = document
  const string = '"(?:[^"\\\\]|\\\\.)*"'
  const gap = document.format === 'json' ? string : '(?:[^]*?\\S)?'
  const lineEnd = text(document).includes(document.lineEnd) ? literally(document.lineEnd) : '\n'
  const isKept = ({ name }: Piece) => name === undefined || !removed.has(name)
  const inForce = new Map(pieces.map((piece) => [piece.name, piece]))
  const isChanged = (piece: Piece) =>
    piece.name !== undefined && changed.includes(piece.name) && inForce.get(piece.name) === piece
  const isLastKept = (index: number) => !pieces.slice(index + 1).some(isKept)
  const own = (piece: Piece) => {
    const { fixed, value, rest, lines = '' } = piece
    if (!isChanged(piece)) return literally(fixed + value + rest + lines).replace(/^ {4}#/, '(?: {4})?#')
    // A last line without an ending can become the line of the name.
    const end = endless && piece === pieces.at(-1) && lines !== '' ? `${literally(rest.trimEnd())}\\s*` : literally(rest)
    return `${literally(fixed)}${gap}${end}${lines === '' ? '' : '[^]*?'}`
  }
  const news = some(added, () => document.format === 'json' ? `${string}\\s*:\\s*${string}` : '[^]*?\\S')
  if (comma !== '') {
    // The line ending before a removed name can stay, because it ends a comment.
    const follows = (index: number) => document.format === 'yaml' && index > 0 && !isKept(pieces[index - 1]!)
    // After a colon without a value, a blank stands before the comma.
    const blank = document.format === 'yaml' ? ' ?' : ''
    const all = pieces.map((piece, index) => literally(piece.above ?? '') + (isKept(piece)
      ? (follows(index) ? own(piece).replace(/^\s*/, '\\s*') : own(piece)) +
        (isLastKept(index) ? news.map((one, i) => `${i === 0 ? blank : ''},\\s*${one}`).join('') : ',')
      : ''))
    // Names that replace all others go below the comments above the first one. A comment after a value needs a comma.
    const first = pieces.some(isKept) ? '' : `\\s*${news.join(',\\s*')}${pieces.length === 0 ? ',?' : ''}\\s*`
    const [above = '', ...others] = all
    return literally(open) + above + first + others.join('') + literally(close)
  }
  const isNamed = ({ name }: Piece) => name !== undefined
  const withText = (inserted: string, before: number) => literally(open) +
    pieces.map((piece, index) => (index === before ? inserted : '') + (isKept(piece) ? own(piece) : '')).join('')
  const firstKept = pieces.findIndex((piece) => isNamed(piece) && isKept(piece))
  // Readers of YAML 1.1 refuse a line `...` without a document above.
  const isEmptied = close !== '' && open === '' && added === 0 && firstKept === -1
  const all = isEmptied ? withText(`\\{\\}${lineEnd}`, pieces.findIndex(isNamed)) : withText('', -1)
  // Without a line ending at its end, readers disagree about the last line feed of a block scalar.
  const lastKept = pieces.findLast(isKept)
  const endsInBlock = lastKept?.lines !== undefined && (isChanged(lastKept) || isBlockScalar(lastKept))
  if (added === 0) {
    // Without the last line, the line before it has no ending.
    if (!endless || isKept(pieces.at(-1)!)) return all + literally(close)
    const end = endsInBlock ? `(?:${document.lineEnd})?` : ''
    // The lines of a changed value can be its last part.
    return all.replace(/(?:\r\n|[\r\n])((?:\[\^\]\*\?)?)$/, '$1') + end
  }
  const isOpen = endless && isKept(pieces.at(-1)!)
  // dotenv needs an empty line after a line `NAME:`.
  const before = isOpen ? `${lineEnd}(?:${lineEnd})?` : `(?:${lineEnd})?`
  const below = `${all}${before}${news.join(lineEnd)}${endless ? '' : lineEnd}${literally(close)}`
  return isOpen && endsInBlock ? `(?:${below}|${withText(news.map((one) => one + lineEnd).join(''), firstKept)})` : below
}

/** Whether the value is a block scalar that keeps its last line feed. */
const isBlockScalar = ({ value, lines }: Piece) => lines !== undefined && /^ [|>]\d?$/.test(value)

/** Returns a description of what is wrong with a change, if anything. */
function judge (document: Generated): string | undefined {
  const { format, pieces, comma, close, users } = document
  if (comma === '' && close === '' && pieces.length > 0 && chance(0.3)) withoutEnd(document)
  const before = text(document)
  const endless = close === '' && before !== '' && !/[\r\n]$/.test(before)
  const mark = chance(0.1) ? '\uFEFF' : ''
  const old = readDocument(format, before)
  if (old === undefined) return 'the generator made an unreadable document'
  const existing = [...new Set(pieces.flatMap(({ name }) => name === undefined ? [] : [name]))]
  const set = new Map<string, string>()
  const unset = new Set<string>()
  for (const name of existing) {
    if (chance(0.25)) set.set(name, chance(0.1) ? old[name]! : anyText())
    else if (chance(0.25)) unset.add(name)
  }
  for (const name of names(format).slice(0, 3)) if (!unset.has(name)) set.set(name, anyText())
  const replace = new Set(existing.filter((name) => set.has(name) && set.get(name) !== old[name]))
  const result = changeNames(format, mark + before, { set: texts(set), unset: [...unset, 'missing'], replace })

  const added = [...set.keys()].filter((name) => !existing.includes(name))
  // A value that another reader reads differently is written again, even if it stays the same for dotenv or for us.
  const isAmbiguous = (wanted: string) => {
    const piece = pieces.findLast(({ name }) => name === wanted)!
    return (piece.glued ?? '') !== '' || (endless && piece === pieces.at(-1) && isBlockScalar(piece))
  }
  const changed = existing.filter((name) => set.has(name) && (set.get(name) !== old[name] || isAmbiguous(name)))
  const isAffected = (name: string) => unset.has(name) || changed.includes(name)
  const anchored = existing.filter((name) =>
    isAffected(name) && users.get(name)?.filter(not(name)).some((user) => !isAffected(user)))
  if ('refused' in result) {
    if (result.refused === 'anchored') return anchored.includes(result.name) ? undefined : 'refused without an alias'
    const place = pieces.findLastIndex(({ name }) => 'name' in result && name === result.name)
    const rest = place === -1 ? '' : pieces[place]!.rest + text(document, pieces.slice(place + 1))
    const refusedName = 'name' in result ? result.name ?? '' : ''
    const value = set.get(refusedName) ?? ''
    // The quotes of other changed values can also become the end of a value that ends with a backslash.
    const isAlone = changed.length + added.length + unset.size === 1
    const canRunOn = [...set.values()].some((value) => value.endsWith('\\'))
    const isHeld = format !== 'env' || (result.refused === 'together'
      ? !canRunOn
      : result.refused !== 'unholdable' || (isHeldByEnv(value, rest) && (isAlone || !canRunOn)))
    return isHeld ? `refused: ${JSON.stringify([result, [...set], [...unset]])}` : undefined
  }
  if (anchored.length > 0) return 'broke an alias'
  const lists = { added: added.sort(), changed: changed.sort(), removed: [...unset].sort() }
  if (!isDeepStrictEqual({ added: result.added, changed: result.changed, removed: result.removed }, lists)) {
    return 'wrong lists'
  }
  // A comment that a removal outdents keeps its line ending, also if it is now the last line.
  const lastKept = pieces.findLast(({ name }) => name === undefined || !unset.has(name))
  const end = endless && lastKept?.fixed.startsWith('    #') ? '(?:\\r?\\n)?' : ''
  const pattern = `^${mark}${patternOf(document, changed, unset, added.length, endless)}${end}$`
  if (!new RegExp(pattern).test(result.text)) return `changed other bytes: ${JSON.stringify([[...set], [...unset], result.text])}`

  const isReplaced = (piece: Piece) => unset.has(piece.name ?? '') ||
    (changed.includes(piece.name ?? '') && pieces.findLast(({ name }) => name === piece.name) === piece)
  const left = pieces.find((piece) => piece.glued && isReplaced(piece) && result.text.includes(piece.glued))
  if (left) return `left ${left.glued} of an old value: ${JSON.stringify([[...set], [...unset], result.text])}`

  // Compares with an independent parser: changed names have exactly the new strings, and the other names keep their
  // values.
  const expected = parsed(format, before)
  for (const name of unset) expected.delete(name)
  for (const name of [...changed, ...added]) expected.set(name, set.get(name))
  const actual = parsed(format, result.text)
  return isDeepStrictEqual(actual, expected) ? undefined : `reads differently: ${JSON.stringify([[...set], [...unset], result.text])}`
}

t.test(`of ${DOCUMENTS} random documents only the changed names change (seed ${SEED})`, async (t) => {
  const wrong: string[] = []
  for (let index = 0; index < DOCUMENTS; index++) {
    const document = one([envDocument, jsonDocument, yamlDocument, flowDocument])()
    const found = judge(document)
    if (found !== undefined) wrong.push(`${found}\n${JSON.stringify(text(document))}`)
  }
  t.strictSame(wrong.slice(0, 10), [], `${wrong.length} wrong`)
})
