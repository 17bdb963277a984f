/** A replacement of a part of a text. */
export interface Splice { from: number, to: number, text: string }

/** Replaces parts of a text. Parts with the same start are replaced in their order; an overlap is replaced once. */
export function spliced (text: string, splices: readonly Splice[]): string {
  const pieces: string[] = []
  let at = 0
  for (const splice of splices.toSorted((a, b) => a.from - b.from)) {
    if (splice.from > at) pieces.push(text.slice(at, splice.from))
    pieces.push(splice.text)
    at = Math.max(at, splice.to)
  }
  pieces.push(text.slice(at))
  return pieces.join('')
}

/** The end of the match of a sticky pattern at an offset, or the offset without a match. */
export function endOfMatch (pattern: RegExp, text: string, at: number): number {
  pattern.lastIndex = at
  return pattern.test(text) ? pattern.lastIndex : at
}

/** The last line ending of a text, because lines are added at the end; a line feed for a text without line endings. */
export function lineEndOf (text: string): string {
  const at = text.lastIndexOf('\n')
  if (at === -1) return text.includes('\r') ? '\r' : '\n'
  return text[at - 1] === '\r' ? '\r\n' : '\n'
}

const endsLine = (text: string) => text.endsWith('\n') || text.endsWith('\r')

/** Removes the line ending at the end of a text. */
const withoutLineEnd = (text: string) => text.replace(/(?:\r\n?|\n)$/, '')

/**
 * Appends lines. The result ends with a line ending if the original document did, or was empty.
 *
 * @param text the document, possibly without removed lines
 * @param original the document before the change
 */
export function withLines (text: string, original: string, lines: readonly string[], lineEnd: string): string {
  if (lines.length === 0) return original === '' || endsLine(original) ? text : withoutLineEnd(text)
  // The line feed of an empty line would become a part of the line ending above.
  const isJoined = text.endsWith('\r') && lines[0] === '' && lineEnd === '\n'
  const before = text === '' || (endsLine(text) && !isJoined) ? '' : lineEnd
  const after = original === '' || endsLine(original) ? lineEnd : ''
  return `${text}${before}${lines.join(lineEnd)}${after}`
}
