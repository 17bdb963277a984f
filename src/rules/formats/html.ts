/** Trusted markup that is not escaped again. */
export class Html {
  readonly text: string
  constructor (text: string) { this.text = text }
}

type Piece = Html | string | number | undefined | readonly Piece[]

/** Template tag: escapes every value that is not Html. */
export function html (strings: TemplateStringsArray, ...values: Piece[]): Html {
  return new Html(strings.map((text, i) => text + (i < values.length ? render(values[i]) : '')).join(''))
}

function render (value: Piece): string {
  if (value === undefined) return ''
  if (value instanceof Html) return value.text
  if (Array.isArray(value)) return value.map(render).join('')
  return String(value).replace(INVISIBLE, '').replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`)
}

// Control characters, direction marks and line separators could change how the text around a name is displayed (OA-16).
// Joiners stay, because words and emoji need them.
const INVISIBLE = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu
