import { PEM_WITH_CR } from './values.ts'

// Values that no form holds for all readers. A list changes only with the forms, or with a new version of a reader.

/** The values that these readers read otherwise than they were set. */
interface Misread { readers: readonly string[], values: readonly string[] }

// Both quotes, and a character that only a quoted value can have.
const BOTH_QUOTES = [
  '\'"', '"\'', '"it\'s"', '\'a" b', '\'"`', ' \'"', '\'" ', ' \'"` ', 'it\'s "x" #1', 'it\'s "x" $HOME', 'it\'s "x"; y',
  'it\'s "x" (y)', '\'"\nb', '{\n  "a": "it\'s"\n}', '{"k": "it\'s\\n"}', '{"k": "it\'s #1"}'
]
// Double quotes beside a CR, which only an escape in double quotes can hold.
const QUOTE_AND_CR = ['say "x"\r\nb']
// A single quote or a CR, so that the value is in double quotes, in which these readers expand `$` and backslashes.
const EXPANDED_BY_ALL = ["it's ${HOME}", "it's \\", "it's \\n", "it's\n\\n", "it's\na\\"] // eslint-disable-line no-template-curly-in-string
const EXPANDED_BUT_BY_PYTHON = ["it's $HOME", "'$AFTER'", "it's $AFTER", "it's\n$HOME", '$HOME\r']
// python-dotenv expands these also in single quotes.
const EXPANDED_BY_PYTHON = ['${HOME}', '${HOME:-x}', 'a\\\\b', 'a\\\\nb'] // eslint-disable-line no-template-curly-in-string
// A backslash before the closing quote, or an escape in double quotes that only dotenv and a shell keep.
const BACKSLASH_AT_END = ['\\', 'a\\', 'C:\\new\\temp\\', "it's \\t", '"x" \\', 'a\n\\']
const BACKSLASHES = ['\\\\', 'a\\\\', "a\\'b", "\\'"]

export const MISREAD: { lf: Misread[], crlf: Misread[] } = {
  lf: [
    {
      readers: ['sh', 'python-dotenv', 'godotenv', 'compose'],
      values: [...BOTH_QUOTES, ...QUOTE_AND_CR, ...EXPANDED_BY_ALL]
    },
    { readers: ['sh', 'godotenv', 'compose'], values: EXPANDED_BUT_BY_PYTHON },
    { readers: ['python-dotenv', 'godotenv', 'compose'], values: BACKSLASH_AT_END },
    { readers: ['python-dotenv', 'godotenv'], values: BACKSLASHES },
    { readers: ['python-dotenv'], values: EXPANDED_BY_PYTHON },
    { readers: ['godotenv'], values: ["it's \\x"] },
    // Both quotes without quotes, expansions, and CR.
    {
      readers: ['sh'],
      values: [
        'it\'s "x"', 'x"y\'z', "it's `x`", 'a\'b"c`d', 'it\'s\u00a0"x"', "it's $(id)", '{"k": "it\'s"}', '["a", "it\'s"]',
        '\r', 'a\rb', 'a\r', 'a\r\nb', "it's\r\nb", PEM_WITH_CR
      ]
    }
  ],
  crlf: [
    {
      readers: ['python-dotenv', 'godotenv', 'compose'],
      values: [...BOTH_QUOTES, ...QUOTE_AND_CR, ...EXPANDED_BY_ALL, ...BACKSLASH_AT_END]
    },
    { readers: ['godotenv', 'compose'], values: EXPANDED_BUT_BY_PYTHON },
    { readers: ['python-dotenv', 'godotenv'], values: BACKSLASHES },
    { readers: ['python-dotenv'], values: EXPANDED_BY_PYTHON },
    { readers: ['godotenv'], values: ["it's \\x"] },
    // Compose reads the CR of a value of several lines, which has double quotes or is expanded in them.
    {
      readers: ['compose'],
      values: ['say "x"\nb', 'x"y\n', '{\n  "a": 1\n}', 'a\n$HOME', 'a\\nb\nc', 'a\\\nb', 'a\\tb\nc']
    }
  ]
}
