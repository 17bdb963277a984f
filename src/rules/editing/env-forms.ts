/**
 * How a value can be written in an `.env` document (docs/formats.md). `plain`: without quotes, with the same meaning in
 * every reader and in a shell. `escaped`: in double quotes on one line, with `\n` and `\r`. `unquoted`: without quotes,
 * with characters that a shell treats specially.
 */
export type EnvForm = 'plain' | 'single' | 'double' | 'escaped' | 'unquoted' | 'backtick'

export interface WrittenValue { form: EnvForm, text: string }

/** Values that mean the same without quotes in dotenv, Docker Compose and a shell. */
const SIMPLE = /^[\w.,:/@%+-]*$/
// Values that most readers, except shells, read without quotes: one line that begins with no quote, has no blanks at
// its ends, and has no character that begins a comment, an escape, an expansion or a command.
const UNQUOTED = /^(?!["'\s])[^#`$\\;&|<>()\n\r]*(?<!\s)$/

/**
 * The ways to write a value, in the order in which most readers read them alike. The last ones contain their own quote,
 * which dotenv cannot escape: only dotenv reads them, and not every value.
 *
 * @param lineEnd the line ending of the document. Some readers keep CRLF within quotes, so that `escaped` is the better
 *   form for several lines.
 */
export function envForms (value: string, lineEnd: string): WrittenValue[] {
  const lines = value.replaceAll('\n', lineEnd)
  const single: WrittenValue = { form: 'single', text: `'${lines}'` }
  const double: WrittenValue = { form: 'double', text: `"${lines}"` }
  const escaped: WrittenValue = {
    form: 'escaped', text: `"${value.replaceAll('\n', '\\n').replaceAll('\r', '\\r')}"`
  }
  const unquoted: WrittenValue = { form: 'unquoted', text: value }
  const backtick: WrittenValue = { form: 'backtick', text: `\`${lines}\`` }
  const quoted = lineEnd !== '\n' && value.includes('\n') ? [escaped, single, double] : [single, double, escaped]
  return [
    ...SIMPLE.test(value) ? [{ form: 'plain' as const, text: value }] : [],
    ...quoted.filter(({ text }) => !value.includes(text[0]!)),
    ...UNQUOTED.test(value) ? [unquoted] : [],
    ...value.includes('`') ? [] : [backtick],
    unquoted, ...quoted, backtick
  ]
}
