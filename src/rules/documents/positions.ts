/** A position in a document. Both numbers start at 1; the column counts characters (code points). */
export interface Position { line: number, column: number }

const LF = 0x0a
const CR = 0x0d

/** The position after a text that begins at `from`. Makes no list of line ends, which takes half a second. */
export function positionAfter (text: string, from: Position = { line: 1, column: 1 }): Position {
  let { line, column } = from
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code === LF || (code === CR && text.charCodeAt(i + 1) !== LF)) {
      line++
      column = 1
    } else {
      column++
      // A surrogate pair is one character.
      if (code >= 0xd800 && code < 0xdc00 && text.charCodeAt(i + 1) >> 10 === 0xdc00 >> 10) i++
    }
  }
  return { line, column }
}

/** A document without its byte order mark. */
export const withoutMark = (text: string) => text.startsWith('\uFEFF') ? text.slice(1) : text
