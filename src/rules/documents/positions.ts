/** A position in a document. Both numbers start at 1; the column counts characters (code points). */
export interface Position { line: number, column: number }

/** The position after a text that begins at `from`. */
export function positionAfter (text: string, from: Position = { line: 1, column: 1 }): Position {
  const lines = text.match(/\r\n?|\n/g)?.length ?? 0
  const lineStart = Math.max(text.lastIndexOf('\n'), text.lastIndexOf('\r')) + 1
  const pairs = text.slice(lineStart).match(/[\u{10000}-\u{10ffff}]/gu)?.length ?? 0
  const characters = text.length - lineStart - pairs
  return { line: from.line + lines, column: (lines === 0 ? from.column : 1) + characters }
}

/** A document without its byte order mark. */
export const withoutMark = (text: string) => text.startsWith('\uFEFF') ? text.slice(1) : text
