export type ScalarStyle = 'plain' | 'single' | 'double'

// Words that YAML reads as a string without quotes, in block and in flow mappings. Some versions of YAML read
// `WORDS_OF_OTHER_TYPES` as another type.
const PLAIN = /^[A-Za-z_/](?:[ :]?[\w./@+-])*$/
const WORDS_OF_OTHER_TYPES = /^(?:true|false|yes|no|on|off|y|n|null|nan|inf|e\d+)$/i
const NOT_PRINTABLE = /[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\u{10000}-\u{10ffff}]/u
// Valid in JSON strings, but not printable in YAML.
const TO_ESCAPE = /[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]/g

/** Whether a text without line ends needs no escapes. */
export const isPrintable = (text: string) => !NOT_PRINTABLE.test(text)

/** Writes a string as a flow scalar in this style, or in the next style that can hold it. Double quotes always can. */
export function flowScalar (value: string, style: ScalarStyle): string {
  if (style === 'plain' && PLAIN.test(value) && !WORDS_OF_OTHER_TYPES.test(value)) return value
  if (style !== 'double' && isPrintable(value)) return `'${value.replaceAll("'", "''")}'`
  return withEscapes(JSON.stringify(value))
}

/** Writes a JSON value in one line: a string in this style, other values as JSON, which YAML includes. */
export function flowValue (json: string, style: ScalarStyle): string {
  return json.startsWith('"') ? flowScalar(JSON.parse(json) as string, style) : withExplicitKeys(withEscapes(json))
}

const withEscapes = (json: string) =>
  json.replace(TO_ESCAPE, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`)

/** The limit of YAML for a key before a colon on the same line is 1024 characters. */
const MAX_IMPLICIT_KEY = 1000
const STRING = /("[^"\\]*(?:\\.[^"\\]*)*")(:?)/g

/** JSON without blanks, with each long name of an object as an explicit key, which has no limit. */
const withExplicitKeys = (json: string) => json.length <= MAX_IMPLICIT_KEY
  ? json
  : json.replace(STRING, (written, name: string, colon) =>
    colon !== '' && name.length > MAX_IMPLICIT_KEY ? `? ${name} : ` : written)

/**
 * Writes a pair of a mapping.
 *
 * @param written the value as `flowValue` writes it
 * @param between the text before the colon of an explicit key: a line ending and indentation, or a blank
 */
export function pairText (name: string, written: string, style: ScalarStyle, between: string): string {
  const key = flowScalar(name, style)
  return key.length > MAX_IMPLICIT_KEY ? `? ${key}${between}: ${written}` : `${key}: ${written}`
}
