import { isAlias, isMap, isNode, visit, type CST, type Node, type Pair, type Scalar, type YAMLMap } from 'yaml'
import { emptyEntries, type Entries } from '../documents/entries.ts'
import { mergedJson, type PatchValue } from '../documents/json-values.ts'
import { readYaml, scalarText, type YamlSource } from '../documents/yaml.ts'
import type { Editor, Plan, Refusal } from './plan.ts'
import { endOfMatch, lineEndOf, spliced, withLines, type Splice } from './splices.ts'
import { changeFlow } from './yaml-flow.ts'
import { flowValue, isPrintable, pairText, type ScalarStyle } from './yaml-scalars.ts'
import {
  blockHeader, blockIndent, blockScalarBody, isEmpty, itemEnd, itemStart, lastBlockScalar, tokenEnd, type Item
} from './yaml-tokens.ts'

/** A pair of the top-level mapping. */
interface Member { name: string, node: Pair, item: Item }

/** The tokens of the top-level mapping. Unlike a parsed mapping (YAMLMap), tokens have the positions of comments. */
type MapToken = CST.BlockMap | CST.FlowCollection

interface Source {
  text: string
  lineEnd: string
  found: YamlSource
  map: YAMLMap | undefined
  token: MapToken | undefined
  members: Member[]
}

export function yamlEditor (text: string, entries: Entries): Editor {
  const typed = emptyEntries()
  const source = sourceOf(text, entries, typed)
  const open = openBlock(source)
  return {
    typed,
    attempts: 4,
    ambiguous: (names) => new Set(source.members.flatMap(({ name, item }) =>
      open !== undefined && lastBlockScalar(item) === open && names.has(name) ? [name] : [])),
    edit: (plan, attempt) => edit(source, plan, attempt)
  }
}

/** Reads a document for a change. Throws UnreadableDocument. */
function sourceOf (text: string, entries: Entries, typed?: Entries): Source {
  const found: YamlSource = {}
  readYaml(text, entries, found, typed)
  const contents = found.document?.contents
  const map = isMap(contents) ? contents as YAMLMap : undefined
  // The parser takes a carriage return alone as a part of a line.
  const lineEnd = text.includes('\n') ? lineEndOf(text) : '\n'
  return { text, lineEnd, found, map, ...partsOf(map) }
}

function partsOf (map: YAMLMap | undefined): Pick<Source, 'token' | 'members'> {
  const members = (map?.items ?? []).map((node) => {
    return { name: scalarText(node.key as Scalar), node, item: node.srcToken as Item }
  })
  return { token: map?.srcToken as MapToken | undefined, members }
}

/**
 * Writes the changes in one of four ways. The result of the first attempt can be wrong if a block scalar is before a
 * removed name: lines after the name become lines of the scalar. The second attempt outdents the first comment below a
 * removed name, so that the comment ends the scalar. It also keeps the line ending before a removed last line, which is
 * a part of a value with `|+`. The third attempt also removes the blank lines below a removed name. The last attempt
 * also writes all values in double quotes, which mean the same in each context.
 */
function edit (source: Source, plan: Plan, attempt: number): string | Refusal {
  const quoted = attempt > 2
  const { text, lineEnd, token, members, found } = source
  const { set, removed } = plan
  const anchored = anchorInUse(source, plan)
  if (anchored !== undefined) return { refused: 'anchored', name: anchored }

  const added = new Map(set)
  const splices: Splice[] = []
  for (const member of members) {
    const patch = added.get(member.name)
    if (patch === undefined) continue
    added.delete(member.name)
    splices.push(...changeValue(source, member, patch, attempt))
  }
  const items = members.map(({ item }) => item)
  const isRemoved = members.map(({ name }) => removed.has(name))
  if (token?.type === 'flow-collection') {
    const pairs = pairsOf(added, flowStyle(items, quoted), ' ')
    return spliced(text, [...splices, ...changeFlow(text, token, isRemoved, pairs, lineEnd)])
  }
  const indentation = ' '.repeat(token?.indent ?? 0)
  splices.push(...removals(text, items, isRemoved, indentation, attempt))
  const last = items.at(-1)
  if (attempt > 0 && added.size > 0 && last !== undefined) {
    const tabs = withoutTabs(text, restOfLine(text, itemEnd(last) ?? text.length))
    // The lines below a last pair that is changed or removed have their splice already.
    splices.push(...tabs.filter(({ from }) => splices.every((splice) => splice.from !== from)))
  }
  const end = found.end ?? text.length
  // Without a pair, a tag of the mapping would become the tag of an empty scalar, and readers of YAML 1.1 refuse a line
  // `...` without a document above. So write an empty mapping.
  const needsMapping = quoted || (end < text.length && !/^---/m.test(text))
  if (needsMapping && items.length > 0 && added.size === 0 && isRemoved.every(Boolean)) {
    const at = lines(text, items[0]!).from
    splices.push({ from: at, to: at, text: `{}${lineEnd}` })
  }
  const pairs = pairsOf(added, quoted ? 'double' : 'plain', lineEnd + indentation)
  const original = text.slice(0, end)
  const content = spliced(original, splices)
  const changed = original.endsWith('\n') ? undefined : withOpenBlock(content, pairs)
  if (changed !== undefined || (attempt > 0 && pairs.length === 0)) return (changed ?? content) + text.slice(end)
  return withLines(content, original, pairs.map((pair) => indentation + pair), lineEnd) + text.slice(end)
}

// The header of a block scalar that keeps its last line feed.
const KEEPING_HEADER = /[|>][1-9+]{0,2}[ \t]*(?:#.*)?$/m

/**
 * A text without a line ending at its end, with new pairs, if its last value is a block scalar that keeps its last line
 * feed; undefined otherwise. Without a line ending, readers in JavaScript read a line feed there, and others none. So
 * the line ending is neither removed nor added, and new pairs are added before the first pair.
 */
function withOpenBlock (text: string, pairs: readonly string[]): string | undefined {
  if (!KEEPING_HEADER.test(text)) return undefined
  let source
  try {
    source = sourceOf(text, emptyEntries())
  } catch {
    return undefined
  }
  const { token, members, lineEnd } = source
  const block = lastBlock(source)
  if (block === undefined || (pairs.length > 0 && block !== openBlock(source))) return undefined
  const at = itemStart(members[0]!.item)
  const between = lineEnd + ' '.repeat((token as CST.BlockMap).indent)
  return spliced(text, pairs.map((pair) => ({ from: at, to: at, text: pair + between })))
}

/** The block scalar at the end of a text, if it keeps its last line feed. */
function lastBlock ({ text, token, members }: Source): CST.BlockScalar | undefined {
  const last = members.at(-1)
  if (token?.type !== 'block-map' || last === undefined) return undefined
  const block = lastBlockScalar(last.item)
  const isLast = block !== undefined && block.source !== '' && /^[ \t]*$/.test(text.slice(tokenEnd(block)))
  return isLast && !blockHeader(block).includes('-') ? block : undefined
}

/** A block scalar at the end of a text that keeps its last line feed, although the text has no line ending there. */
function openBlock (source: Source): CST.BlockScalar | undefined {
  return source.text.endsWith('\n') ? undefined : lastBlock(source)
}

/** New pairs of a mapping. `between`: as in `pairText`. */
function pairsOf (added: ReadonlyMap<string, PatchValue>, style: ScalarStyle, between: string): string[] {
  return [...added].map(([name, patch]) =>
    pairText(name, flowValue(mergedJson(undefined, patch), style), style, between))
}

/** If a mapping in braces has quoted names, as JSON has, new pairs are quoted, too. */
function flowStyle (items: readonly Item[], quoted: boolean): ScalarStyle {
  return quoted || items.at(-1)?.key?.type === 'double-quoted-scalar' ? 'double' : 'plain'
}

/** Finds a changed or removed name with an anchor to which a remaining alias refers. */
function anchorInUse ({ members, found: { targets } }: Source, { set, removed }: Plan): string | undefined {
  if (targets === undefined || targets.size === 0) return undefined
  const owners = new Map<unknown, string>()
  for (const { name, node } of members) {
    const change = removed.has(name) ? null : set.get(name)
    if (change !== undefined) visitChanged(node, change, (changed) => { owners.set(changed, name) })
  }
  for (const [alias, target] of targets) {
    const owner = owners.get(target)
    if (owner !== undefined && !owners.has(alias)) return owner
  }
  return undefined
}

/** Visits the nodes of a pair that a patch (null: a removal) changes; in a mapping, not the pairs that stay. */
function visitChanged ({ key, value }: Pair, patch: PatchValue | null, changed: (node: unknown) => void) {
  const all = (part: unknown) => { if (isNode(part)) visit(part as Node, { Node: (_, node) => changed(node) }) }
  if (patch === null) all(key)
  if (patch === null || 'text' in patch || !isMap(value)) return all(value)
  changed(value)
  for (const pair of value.items) {
    const change = patch.members.get(scalarText(pair.key as Scalar))
    if (change !== undefined) visitChanged(pair, change, changed)
  }
}

/** Removes the lines of a pair in a block mapping, with the comment after the pair. */
function lines (text: string, item: Item): Splice {
  const start = itemStart(item)
  const lineStart = text.lastIndexOf('\n', start - 1) + 1
  const from = start > 0 && /^ *$/.test(text.slice(lineStart, start)) ? lineStart : start
  return { from, to: restOfLine(text, itemEnd(item) ?? start), text: '' }
}

const LINES_BELOW = /(?:[ \t]*(?:#[^\r\n]*)?\r?\n)*(?:[ \t]*(?:#[^\r\n]*|$))?/y

/** Removes pairs of a block mapping. `attempt`: as in `edit`. */
function removals (
  text: string, items: readonly Item[], isRemoved: readonly boolean[], indentation: string, attempt: number
): Splice[] {
  let block: CST.BlockScalar | undefined
  return items.flatMap((item, index) => {
    if (!isRemoved[index]) {
      block = lastBlockScalar(item)
      return []
    }
    const removed = lines(text, item)
    if (attempt === 0 || block === undefined) return [removed, ...withoutTabs(text, removed.to)]
    const below = linesBelow(text, removed.to, block, indentation, attempt > 1)
    if (below.text.includes('#')) block = undefined
    return [removed, below]
  })
}

/**
 * The blank lines and comments below a pair that is changed or removed, without tabs in their indentation: libyaml and
 * yaml.v3 of Go read such a tab below a plain value, and refuse it below other values.
 */
function withoutTabs (text: string, from: number): Splice[] {
  const to = endOfMatch(LINES_BELOW, text, from)
  const below = text.slice(from, to)
  const changed = untabbed(below)
  return changed === below ? [] : [{ from, to, text: changed }]
}

const untabbed = (lines: string): string => lines.replace(/^( *)\t[ \t]*(?=#|\r?$)/gm, '$1')

/**
 * The lines below a removed pair. Outdents the first comment if it would become a line of the block scalar above the
 * pair; then it ends the scalar. If `isTight`, removes the blank lines above the comment that would be in its value.
 */
function linesBelow (
  text: string, from: number, block: CST.BlockScalar, indentation: string, isTight: boolean
): Splice {
  const to = endOfMatch(LINES_BELOW, text, from)
  const indent = blockIndent(block) ?? block.indent + 1
  const below = untabbed(text.slice(from, to)).replace(/^ *(?=#)/m, (spaces) =>
    spaces.length < indent ? spaces : indentation)
  const blanks = /^(?:[ \t]*\r?\n)*(?:[ \t]+$)?/.exec(below)?.[0] ?? ''
  const isKept = blockHeader(block).includes('+') || /[ \t]/.test(blanks)
  return { from, to, text: isTight && isKept ? below.slice(blanks.length) : below }
}

const LINE_REST = /[ \t]*(?:#[^\r\n]*)?(?:\r?\n|$)/y

function restOfLine (text: string, at: number) {
  // A block scalar contains its last line ending, so the line has no rest.
  if (text[at - 1] === '\n') return at
  return endOfMatch(LINE_REST, text, at)
}

/** Gives the value of a pair a patch. The pairs of a mapping that the patch does not name stay as they are. */
function changeValue (source: Source, { item, node }: Member, patch: PatchValue, attempt: number): Splice[] {
  const quoted = attempt > 2
  // Members are merged into the mapping that an alias refers to, which replaces the alias.
  const before = 'members' in patch && isAlias(node.value) ? source.found.typedOf!(node.value) : undefined
  const replaced = (removed?: readonly Splice[]) => [
    ...replaceValue(source, item, mergedJson(before, patch), quoted, removed),
    ...(source.token?.type === 'block-map' ? withoutTabs(source.text, restOfLine(source.text, itemEnd(item)!)) : [])
  ]
  if ('text' in patch || !isMap(node.value)) return replaced()
  const nested: Source = { ...source, map: node.value as YAMLMap, ...partsOf(node.value as YAMLMap) }
  const { token, members } = nested
  const isRemoved = members.map(({ name }) => patch.members.get(name) === null)
  const firstKept = members[isRemoved.indexOf(false)]
  const indentation = ' '.repeat(token?.type === 'block-map' ? token.indent : 0)
  const remove = () => removals(source.text, members.map(({ item }) => item), isRemoved, indentation, attempt)
  // A patch of a mapping without another pair, as RFC 7396 computes it, is the new value.
  if (token === undefined || members.length === 0) return replaced()
  if (firstKept === undefined && token.type === 'block-map') return replaced(remove())
  const added = new Map([...patch.members].filter((change): change is [string, PatchValue] => change[1] !== null))
  const splices = members.flatMap((member) => {
    const change = added.get(member.name)
    return added.delete(member.name) ? changeValue(nested, member, change!, attempt) : []
  })
  if (token.type === 'flow-collection') {
    const pairs = pairsOf(added, flowStyle(members.map(({ item }) => item), quoted), ' ')
    return [...splices, ...changeFlow(source.text, token, isRemoved, pairs, source.lineEnd)]
  }
  const between = source.lineEnd + indentation
  const at = itemStart(firstKept!.item)
  const pairs = pairsOf(added, quoted ? 'double' : 'plain', between).map((pair) => ({ from: at, to: at, text: pair + between }))
  return [...splices, ...remove(), ...pairs]
}

/**
 * Replaces the value of a pair by a JSON value. The anchor and the comments around the value stay. `removed`: removes
 * the pairs of the value, so that the comments between them stay, too.
 */
function replaceValue (
  source: Source, item: Item, json: string, quoted: boolean, removed?: readonly Splice[]
): Splice[] {
  const { text, lineEnd, token: map } = source
  const { key, sep = [], value: token } = item
  // In a mapping in braces, the value of a name in double quotes also gets double quotes, as in JSON.
  const isJson = map?.type === 'flow-collection' && key?.type === 'double-quoted-scalar'
  const style: ScalarStyle = quoted || isJson ? 'double' : styleOf(token)
  const written = flowValue(json, style)
  const colon = sep.findIndex(({ type }) => type === 'map-value-ind')
  if (colon === -1) {
    const at = key ? tokenEnd(key) : itemStart(item)
    if (map?.type === 'flow-collection') return [{ from: at, to: at, text: `: ${written}` }]
    const line = `${' '.repeat(map?.indent ?? 0)}: ${written}`
    return [{ from: at, to: at, text: text[at - 1] === '\n' ? line + lineEnd : lineEnd + line }]
  }
  // Removes tags, because a tag could give the new value another type.
  const tags = sep.flatMap(({ type, offset, source }, index) => {
    const before = sep[index - 1]
    // The value needs the indentation of its line.
    const isIndentation = sep[index - 2]?.type === 'newline' && sep[index + 1]?.type !== 'newline'
    const from = before?.type === 'space' && !isIndentation ? before.offset : offset
    return type === 'tag' ? [{ from, to: offset + source.length, text: '' }] : []
  })
  const last = sep.findLastIndex(({ type }) => type === 'map-value-ind' || type === 'anchor' || type === 'tag')
  const afterProperties = sep[last]!.offset + sep[last]!.source.length
  const insertion = { from: afterProperties, to: afterProperties, text: ` ${written}` }
  if (!token || isEmpty(token)) return [...tags, insertion]

  if (token.type === 'block-scalar') {
    const isText = !quoted && json.startsWith('"')
    const block = isText ? blockText(token, JSON.parse(json) as string, map?.indent ?? 0, lineEnd) : undefined
    const header = token.props[0]!
    const body = blockScalarBody(token)
    return [
      ...tags,
      { from: header.offset, to: tokenEnd(header), text: block?.header ?? written },
      block ? { from: body, to: tokenEnd(token), text: block.body } : withoutLines(text, body, tokenEnd(token))
    ]
  }
  const newline = sep.findLast(({ type }, index) => index > last && type === 'newline')
  if (newline && (token.type === 'block-map' || token.type === 'block-seq')) {
    const from = newline.offset + newline.source.length
    return [...tags, insertion, ...removed ?? [withoutLines(text, from, restOfLine(text, tokenEnd(token)))]]
  }
  // In braces, a list or a mapping may directly follow the colon, and other values only after a name in quotes.
  const isAdjacent = text[token.offset - 1] === ':' && !(key?.type !== 'scalar' && /^["'[{]/.test(written))
  return [...tags, { from: token.offset, to: tokenEnd(token), text: isAdjacent ? ` ${written}` : written }]
}

/** Removes lines. If the last removed line has no line ending, removes the line ending of the line before, too. */
function withoutLines (text: string, from: number, to: number): Splice {
  const keepsEnd = from === to || text[to - 1] === '\n'
  const lineEnd = text[from - 2] === '\r' ? 2 : 1
  return { from: keepsEnd ? from : from - lineEnd, to, text: '' }
}

function styleOf (token: CST.Token | null | undefined): ScalarStyle {
  if (token?.type === 'double-quoted-scalar') return 'double'
  return token?.type === 'single-quoted-scalar' ? 'single' : 'plain'
}

/** A value as a block scalar in the style of the old value. Undefined if a block scalar cannot hold the value. */
function blockText (token: CST.BlockScalar, value: string, mapIndent: number, lineEnd: string) {
  const clipped = value.endsWith('\n') ? value.slice(0, -1) : value
  const content = clipped.split('\n')
  const isHeld = !/^[ \t\n]|^$|\n$/.test(clipped) && content.every((line) => isPrintable(line.replaceAll('\t', '')))
  const [header, next] = token.props
  if (!isHeld || header?.type !== 'block-scalar-header' || next === undefined) return undefined
  const explicit = /[1-9]/.exec(header.source)?.[0]
  const indentation = ' '.repeat(blockIndent(token) ?? mapIndent + 2)
  // The style `>` folds line endings, so it is kept only for a value of one line.
  const style = content.length > 1 ? '|' : header.source[0]
  // Other readers need the line ending of a last line to read the line feed.
  const isLast = token.source !== '' && !token.source.endsWith('\n') && !value.endsWith('\n')
  return {
    header: `${style}${explicit ?? ''}${value.endsWith('\n') ? '' : '-'}`,
    body: content.map((line) => line === '' ? '' : indentation + line).join(lineEnd) + (isLast ? '' : lineEnd)
  }
}
