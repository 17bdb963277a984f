import type { CST } from 'yaml'
import { endOfMatch, type Splice } from './splices.ts'
import { itemEnd, itemStart } from './yaml-tokens.ts'

/** A pair of a mapping in braces. */
interface FlowPair {
  start: number
  end: number
  /** The position of the comma after the pair. */
  comma: number | undefined
  hasCommentAbove: boolean
}

function pairsOf (token: CST.FlowCollection): FlowPair[] {
  const pairs: FlowPair[] = []
  for (const item of token.items) {
    const comma = item.start.find(({ type }) => type === 'comma')
    const last = pairs.at(-1)
    if (comma && last) last.comma = comma.offset
    const end = itemEnd(item)
    if (end !== undefined) {
      const hasCommentAbove = item.start.some(({ type }) => type === 'comment')
      pairs.push({ start: itemStart(item), end, comma: undefined, hasCommentAbove })
    }
  }
  return pairs
}

const COMMENT = /[ \t]+#[^\r\n]*/y
const BLANKS = /[ \t]*/y
const LINE_END = /[ \t]*(?:\r?\n|$)/y

/** The end of a pair, with its comma and the comment after the pair. */
const endWithComment = (text: string, { end, comma }: FlowPair) =>
  endOfMatch(COMMENT, text, comma === undefined ? end : comma + 1)

/**
 * Removes pairs, each with its comma and with the comment after the pair on the same line. Adds new pairs after the
 * last pair that stays: on the same line, or on separate lines if the mapping's last pair is at the start of a line.
 */
export function changeFlow (
  text: string, token: CST.FlowCollection, isRemoved: readonly boolean[], added: readonly string[], lineEnd: string
): Splice[] {
  const pairs = pairsOf(token)
  const open = token.start.offset + 1
  const last = pairs.at(-1)
  const before = last === undefined ? '' : text.slice(pairs.at(-2)?.end ?? open, last.start)
  const indentation = /\n([ \t]*)$/.exec(before)?.[1]
  const ownLine = indentation === undefined ? undefined : lineEnd + indentation
  const members = added.join(`,${ownLine ?? ' '}`)
  const trailingComma = last?.comma === undefined ? '' : ','
  const kept = pairs[isRemoved.lastIndexOf(false)]
  const splices: Splice[] = []
  const [first] = pairs
  const isReplaced = added.length > 0 && kept === undefined
  // After a pair without a value, readers in Go take a comma directly after the colon as a part of the name.
  const newComma = kept !== undefined && text[kept.end - 1] === ':' ? ' ,' : ','
  if (isReplaced) {
    // The parser needs a comma between a value and a comment that is not indented.
    const comma = first === undefined && text.slice(open, token.end[0]!.offset).includes('#') ? ',' : trailingComma
    const at = first?.start ?? open
    splices.push({ from: at, to: at, text: members + comma })
  } else if (added.length > 0 && kept !== undefined && ownLine === undefined) {
    splices.push({ from: kept.end, to: kept.end, text: `${newComma} ${members}` })
  } else if (added.length > 0 && kept !== undefined) {
    if (kept.comma === undefined) splices.push({ from: kept.end, to: kept.end, text: newComma })
    const at = endWithComment(text, kept)
    splices.push({ from: at, to: at, text: ownLine + members + trailingComma })
  }
  for (const run of runsOf(pairs, isRemoved)) {
    splices.push(removal(text, run, isReplaced && run.start === first?.start))
  }
  // The removed last pair had no comma, so the comma of the new last pair is removed.
  const needsComma = added.length > 0 && ownLine !== undefined
  if (isRemoved.at(-1) && trailingComma === '' && kept?.comma !== undefined && !needsComma) {
    splices.push({ from: kept.comma, to: kept.comma + 1, text: '' })
  }
  return splices
}

/** The removed pairs. Pairs without a comment between them are removed as one. */
function runsOf (pairs: readonly FlowPair[], isRemoved: readonly boolean[]): FlowPair[] {
  const runs: FlowPair[] = []
  for (const [index, pair] of pairs.entries()) {
    if (!isRemoved[index]) continue
    const { start, hasCommentAbove } = (isRemoved[index - 1] && !pair.hasCommentAbove && runs.pop()) || pair
    runs.push({ ...pair, start, hasCommentAbove })
  }
  return runs
}

function removal (text: string, pair: FlowPair, isReplaced: boolean): Splice {
  const to = endWithComment(text, pair)
  let from = pair.start
  if (isReplaced) return { from, to, text: '' }
  while (/[ \t\r\n]/.test(text[from - 1] ?? '')) from--
  // A comment above the pair needs a line ending: the one before the pair, or the one after the pair.
  const isAlone = !pair.hasCommentAbove || endOfMatch(LINE_END, text, to) > to
  return isAlone && from < pair.start
    ? { from, to, text: '' }
    : { from: pair.start, to: endOfMatch(BLANKS, text, to), text: '' }
}
