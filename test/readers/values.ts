const PEM = '-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC+/=\n-----END PRIVATE KEY-----'
/** A key with Windows line endings. */
export const PEM_WITH_CR = `${PEM.replaceAll('\n', '\r\n')}\r\n`
const ENDS = ['', ' ', '\n']

/** Values that some readers read wrongly in some forms of a document. */
export const VALUES: readonly string[] = [...new Set([
  '', '1', 'true', 'null', 'a.b-c_d', 'user@host', '%41+x', 'https://u:p@h:5432/db?x=1', '/usr/bin:/bin', '~/x', '~',
  '=', '==', 'a=b=c', '-', '*', '?', '!x', 'a!b', '^', '[a]', 'a,b', 'é', '😀', 'пароль', '\u00a0x', 'a\u00a0b',
  // Blanks and comments
  ' ', '  ', ' x', 'x ', ' x ', '\t', '\tx', 'x\t', 'a b', 'a  b', 'a\tb', '#', '#x', ' #', 'a#b', 'a #b', 'a# b', 'a # b',
  'hunter#2secret', 'a\t#b', 'https://h/#x', '# a # b',
  // Quotes
  "'", "''", "'x'", "it's", "'x", "x'", "a 'b' c", '"', '""', '"x"', '"x', 'x"', 'say "x"', 'a"b', '`', '``', '`x`', '`x', 'x`',
  'a`b', '\'"', '"\'', 'it\'s "x"', '"it\'s"', '\'a" b', 'x"y\'z', 'it\'s `x`', '"a`b"', '\'"`', 'a\'b"c`d', ' \'"', '\'" ', ' \'"` ',
  'it\'s "x" #1', 'it\'s "x" $HOME', 'it\'s "x"; y', 'it\'s "x" (y)', 'it\'s #1', '"x" #1', "it's\u00a0\"x\"", "it's {x}", "it's; y",
  // Expansions
  '$', '$$', '$HOME', '${HOME}', '${HOME:-x}', 'a$', 'p$ss', 'pa$$word', '$(id)', '$(id', '`id`', "it's $HOME", "it's ${HOME}", // eslint-disable-line no-template-curly-in-string
  '"$HOME"', "it's $(id)", '$1', '$AFTER', "'$AFTER'", '"$AFTER"', "it's $AFTER",
  // Backslashes
  '\\', '\\\\', 'a\\', 'a\\\\', 'C:\\new\\temp', 'C:\\new\\temp\\', 'a\\b', 'a\\nb', 'a\\rb', 'a\\tb', 'a\\\\b', 'a\\\\nb',
  "a\\'b", 'a\\"b', 'a\\`b', 'a\\$b', 'a\\ b', "it's \\", "it's \\n", "it's \\t", "it's \\x", '"x" \\', '\\"', "\\'", '\\u0041', '\\n', '\\d+\\.\\w*$',
  // Characters of shells
  'a;b', 'a&b', 'a|b', '<x>', '(x)', '{x}', 'a && b', "it's (x)", '"a";b', '>x', 'a{b,c}', '*.{a,b}', "O'Neil & Sons",
  // Lines
  '\n', 'a\nb', 'a\n', '\na', 'a\n\nb', 'a\n# b\nc', 'a\nAFTER=9\nb', "it's\nb", 'say "x"\nb', '\'"\nb', 'a\n$HOME', "it's\n$HOME", 'a\\nb\nc', 'a\\\nb',
  'a\\tb\nc', "it's\n\\n", '`a\nb`', 'a #b\nc', PEM, `${PEM}\n`, '{\n  "a": 1\n}', '{\n  "a": "it\'s"\n}', 'a\n\\', "it's\na\\",
  // Carriage returns
  '\r', 'a\rb', 'a\r', 'a\r\nb', "it's\r\nb", 'say "x"\r\nb', '$HOME\r', PEM_WITH_CR,
  // JSON
  '{}', '{"k":"v"}', '{"k": "v"}', '{"k": "it\'s"}', '{"k": "a\\"b"}', '{"k": "a\\nb"}', '{"k": "it\'s\\n"}', '{"k": "$x"}', '["a", "it\'s"]',
  '{"k": "#1"}', '{"k": "it\'s #1"}', '[]', '{"type":"service_account","private_key":"-----BEGIN\\nx\\n-----END\\n"}',
  ...ENDS.map((end) => `x'y${end}`), ...ENDS.map((end) => `x"y${end}`), 'x'.repeat(5000), `it's ${'y '.repeat(2000)}z`
])]
