import { PEM_WITH_CR } from './values.ts'

// Values that not all readers read correctly in any form. A list changes only if the forms change, or with a new
// version of a reader.

/** Values that these readers read wrongly. */
interface Misread { readers: readonly string[], values: readonly string[] }

// Values with both quotes, and with a character that requires quotes.
const BOTH_QUOTES = [
  '\'"', '"\'', '"it\'s"', '\'a" b', '\'"`', ' \'"', '\'" ', ' \'"` ', 'it\'s "x" #1', 'it\'s "x" $HOME', 'it\'s "x"; y',
  'it\'s "x" (y)', '\'"\nb', '{\n  "a": "it\'s"\n}', '{"k": "it\'s\\n"}', '{"k": "it\'s #1"}'
]
// Values with double quotes and a CR. A CR requires an escape in double quotes.
const QUOTE_AND_CR = ['say "x"\r\nb']
// Values with a single quote or a CR are written in double quotes. These readers expand `$` and backslashes there.
const EXPANDED_BY_ALL = ["it's ${HOME}", "it's \\", "it's \\n", "it's\n\\n", "it's\na\\"] // eslint-disable-line no-template-curly-in-string
const EXPANDED_BUT_BY_PYTHON = ["it's $HOME", "'$AFTER'", "it's $AFTER", "it's\n$HOME", '$HOME\r']
// python-dotenv also expands these values in single quotes.
const EXPANDED_BY_PYTHON = ['${HOME}', '${HOME:-x}', 'a\\\\b', 'a\\\\nb'] // eslint-disable-line no-template-curly-in-string
// Values with a backslash before the closing quote, or with an escape that only dotenv and a shell keep in double
// quotes.
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
    // Values with both quotes (written without quotes), with expansions, or with a CR.
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
    // Compose reads the CR of a multi-line value wrongly if the value has double quotes or expansions.
    {
      readers: ['compose'],
      values: ['say "x"\nb', 'x"y\n', '{\n  "a": 1\n}', 'a\n$HOME', 'a\\nb\nc', 'a\\\nb', 'a\\tb\nc']
    }
  ]
}
