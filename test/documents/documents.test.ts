// runs: no database
import { isDeepStrictEqual } from 'node:util'
import t, { type Test } from 'tap'
import { parse } from 'dotenv'
import { parse as parseYaml, Parser, YAMLError } from 'yaml'
import { emptyEntries, type DocumentFormat } from '../../src/rules/documents/entries.ts'
import { MAX_LINES, MAX_NAMES } from '../../src/rules/documents/env.ts'
import { MAX_TOKENS } from '../../src/rules/documents/json.ts'
import { documentError, encodingError, readDocument } from '../../src/rules/documents/read.ts'
import { checkDocument } from '../../src/rules/documents/check.ts'
import { MAX_YAML_TOKENS, YAML_LENGTH } from '../../src/rules/documents/yaml.ts'

const entries = (format: DocumentFormat, text: string) => {
  const read = readDocument(format, text)
  return read && Object.entries(read)
}

t.test('env: reads by the rules of dotenv', async (t) => {
  const text = [
    '# a comment', '', '   ', 'PLAIN=value', 'export EXPORTED=1', 'EMPTY=', 'SPACED =  two words  # comment', "SINGLE='as \\n is # kept'",
    'DOUBLE="line\\nbreak"', 'MULTI="first', 'second # not a comment', '# nor this"', 'BACK=`it\'s "quoted"`', 'HASH="a#b"', 'dotted.name-x=1',
    'EXPANSION=$PLAIN $' + '{PLAIN}', 'INNER=it\'s', 'JSON={"a":1}', 'YAMLISH: yes', "QUOTED='it's'", 'TRAILING="a" b', 'ESCAPED="say \\"hi\\""',
    '  INDENTED=1', 'TWICE=1', 'TWICE=2', 'URL=postgres://u:p@h/db?x=y=z', 'LAST=end # done'
  ].join('\n')
  t.same(Object.fromEntries(entries('env', text) ?? []), parse(text), 'as the package does')
  t.same(entries('env', text.replaceAll('\n', '\r\n')), entries('env', text), 'whatever the line ends are')
  t.same(entries('env', `\uFEFF${text}\n\n`), entries('env', text), 'and with a byte order mark')
  t.same(entries('env', ''), [])
  t.same(entries('env', '# only a comment'), [])
  t.same(entries('env', 'A=\nB=1'), [['A', ''], ['B', '1']])
})

t.test('env: plain lines, of whatever is no quote and no comment, say what dotenv reads in them', async (t) => {
  const alphabet = [
    'a', 'B', '7', '=', ':', '.', '-', '_', ' ', '\t', '\\', '\\n', '$', ',', '{', 'é', '\u00a0', '\u2028', 'export ',
    '\r'
  ]
  const wrong: string[] = []
  let seed = 1
  const pick = () => alphabet[(seed = seed * 48271 % 2147483647) % alphabet.length]!
  for (let round = 0; round < 2000; round++) {
    const text = Array.from(
      { length: 4 }, (_, line) => `N.${line}-x=a${Array.from({ length: round % 9 }, pick).join('').replace(/\r$/, '')}`
    ).join(round % 2 === 0 ? '\n' : '\r\n')
    const read = readDocument('env', text)
    if (read !== undefined && !isDeepStrictEqual({ ...read }, { ...parse(text) })) wrong.push(JSON.stringify(text))
  }
  t.strictSame(wrong, [])
  t.strictSame(
    { ...readDocument('env', 'A=1\nB= \nC=x y \nD="q"\nE=a#b\n') }, { A: '1', B: '', C: 'x y', D: 'q', E: 'a' }
  )
})

t.test('env: what dotenv would skip or guess is unreadable', async (t) => {
  for (const text of [
    'A=1\nnot an assignment\nB=2', 'JUST_A_NAME', 'export A', 'A B=1', '=1', 'A="open', "A='open\nB=1", 'A=`open', 'A="one\ntwo" x',
    'A="x\nB=2\nC=3', '{"A": "1"}', 'A=1\n- item', 'Ä=1', 'A="', '\0'
  ]) t.equal(readDocument('env', text), undefined, JSON.stringify(text))
})

t.test('json: an object, whose values keep every digit', async (t) => {
  t.same(entries('json', ` {
    "text": "a \\"b\\"\\n\\u00e9", "number": 12345678901234567890, "price": 1.10, "big": 1E400, "yes": true, "no": false, "nothing": null,
    "list": [1, "two , }", {"x": null}], "object": {"a": {"b": [ ]}, "a b": "c : d"}, "": "unnamed", "2": "second", "esc\\u0061pe": "\\\\"
  } `)?.sort(), [
    ['text', 'a "b"\né'], [
      'number', '12345678901234567890'
    ], ['price', '1.10'], ['big', '1E400'], ['yes', 'true'], ['no', 'false'],
    ['nothing', ''], ['list', '[1,"two , }",{"x":null}]'], [
      'object', '{"a":{"b":[]},"a b":"c : d"}'
    ], ['', 'unnamed'], ['2', 'second'],
    ['escape', '\\']
  ].sort())
  t.same(entries('json', '{}'), [])
  t.same(entries('json', '{"a":1,"a":{"b":2}}'), [['a', '{"b":2}']], 'the last of two wins')
  t.same(entries('json', '{"null":"null","t":"true"}'), [['null', 'null'], ['t', 'true']])
  for (const text of [
    '', 'null', '[]', '"text"', '1', '{', '{"a":1,}', '{a:1}', '{"a":1} {"b":2}', "{'a':1}", '{"a":NaN}', 'A=1'
  ]) {
    t.equal(readDocument('json', text), undefined, JSON.stringify(text))
  }
})

t.test('yaml: a mapping, whose values keep every digit', async (t) => {
  t.same(entries('yaml', `
# comment
text: some words
quoted: "a\\nb"
block: |
  first
  second
number: 12345678901234567890
pin: 007
price: 1.10
flag: True
answer: yes
nothing:
tilde: ~
date: 2026-01-01
list: [1, two, 1.10, 007, .inf, null]
object: {a: {b: "c"}, "x y": true}
anchor: &anchor {k: v}
alias: *anchor
word: &word w
same: *word
8080: port
tagged: !!str 12
`), [
    ['8080', 'port'], ['text', 'some words'], ['quoted', 'a\nb'], ['block', 'first\nsecond\n'], [
      'number', '12345678901234567890'
    ],
    ['pin', '007'], ['price', '1.10'], ['flag', 'true'], ['answer', 'yes'], ['nothing', ''], ['tilde', ''], [
      'date', '2026-01-01'
    ],
    [
      'list', '[1,"two",1.10,7,".inf",null]'
    ], ['object', '{"a":{"b":"c"},"x y":true}'], ['anchor', '{"k":"v"}'], ['alias', '{"k":"v"}'],
    ['word', 'w'], ['same', 'w'], ['tagged', '12']
  ])
  t.same(entries('yaml', ''), [])
  t.same(entries('yaml', '# only a comment\n'), [])
  t.same(entries('yaml', '---\na: 1\n'), [['a', '1']])
  t.same(entries('yaml', '%YAML 1.1\n---\na: yes\n'), [['a', 'yes']], 'a directive does not change the rules')
})

t.test('yaml: a tag of the core schema gives its type to what YAML 1.2 can write so', async (t) => {
  const text = 'a: !!float 1\nb: !!float -012 # c\nc: !!float "7"\nd: !!float -.INF\ne: !!int 1\nf: !!str 1\n' +
    'g: [!!float 1, !!float 012, !!float 1.50, !!float 12345678901234567890, !!float +.5, !!float .nan, !!int 0x1F, !!str 1, !!bool "true"]\n'
  t.same(entries('yaml', text), [
    ['a', '1'], ['b', '-012'], ['c', '7'], ['d', '-.INF'], ['e', '1'], ['f', '1'],
    ['g', '[1,12,1.50,12345678901234567890,0.5,".nan",31,"1",true]']
  ])
  for (const value of ['!!float x', '!!float 0x1F', '!!float 1.2.3', '!!float e1', '!!float .', '!!float ""', '!!float 1_000', '!!int 1.5', '!!int x', '!!bool yes']) {
    t.equal(documentError('yaml', `a: ${value}\n`)?.reason, 'tag', value)
  }
})

type Refused = readonly [text: string, line: number, column: number]
/** Asserts that the texts are refused when they are stored, at these positions, and read as before. */
function refusesToStore (t: Test, reason: string, cases: readonly Refused[]) {
  for (const [text, line, column] of cases) {
    const { error, refusal, warnings } = checkDocument('yaml', text)
    t.same(error, undefined, 'a stored document is read as before')
    t.same(refusal, { line, column, reason }, JSON.stringify(text))
    t.same(warnings, { warnings: [{ line, column, name: null, reason }] })
  }
}

t.test('yaml: a tab in the place of the indentation of a text is refused when the document is stored', async (t) => {
  refusesToStore(t, 'tab', [
    ['P:\n  K: |\n  \t\n  B: x\n', 3, 3], ['P:\r\n  K: >- # c\r\n\r\n  \t\r\n  B: x\r\n', 4, 3], ['P:\n  - |\n  \t# c\n', 3, 3],
    ['\ufeffA: 1\nP:\n  K: &a !!str |+\n\n  \t# c\n  B: x\n', 5, 3], ['P:\n  ? a\n  : |\n  \t\n  B: x\n', 4, 3]
  ])
  for (const text of [
    'K: |\n  \tx\n', 'K: |\n \tx\n', 'P:\n- |\n \tx\n', 'K: |1\n \tx\n', 'P:\n  K: |1\n   \tx\n', 'K: |\n  x\n  \ty\n', 'K: "x\n \ty"\n',
    'K: x\n\t\n', 'K: |\n# c\nB:\n\t# d\n'
  ]) {
    t.same(checkDocument('yaml', text), { warnings: {} }, JSON.stringify(text))
  }
})

t.test('yaml: a value without a colon after `? NAME` is refused when the document is stored', async (t) => {
  refusesToStore(t, 'syntax', [
    ['? A\n- x\nB: y\n', 2, 1], ['? "" x\nB: y\n', 1, 6], ['? A\r\n# c\r\n x\r\nB: y\r\n', 3, 2], ["? 'a'b\n", 1, 6],
    ['\ufeffP:\n  ? A\n  - |\n   x\n', 3, 3], ['P:\n- ? A\n  # c\n  - &a x\n', 4, 3], ['A: 1\n? B\n-\n', 3, 1]
  ])
  for (const text of [
    '? A\n: - x\n', '? A\n:\n- x\n', '? A\n? B\n', '? A\n\n# c\n', '? - a\n  - b\n', 'A: {? b, ? c : d}\n', 'A: what ? x\n',
    '? A\n  b\n: c\n', '?\n  A\n:\n  x: y\n'
  ]) {
    t.equal(checkDocument('yaml', text).refusal, undefined, JSON.stringify(text))
  }
})

t.test('yaml: a quote that is not closed is refused at its place, also with an escaped quote at its end', async (t) => {
  for (const [text, line, column] of [
    ['A: 1\nB: "x\nC: 2\n', 2, 4], ['A: 1\r\nB: \'x\r\nC: 2\r\n', 2, 4], ['A: "', 1, 4], ["A: '", 1, 4], ['A: "x\\"', 1, 4],
    ["A: 'x''", 1, 4], ["A: '''", 1, 4], ['A: "x\\\\\\"', 1, 4], ['A:\n  B: "x\\"\nC: 1\n', 2, 6], ["A:\n  B: 'x''\nC: '1'\n", 2, 6],
    ['A:\n  - "x\\"\nC: "y"\n', 2, 5], ['A: "x\\"\n...\n', 1, 4], ["A: 'x''\n---\nB: 1\n", 1, 4], ['{A: "x\\"', 1, 5], ['A: ["x\\"', 1, 5],
    ['A: 1\n"B: 2\n', 2, 1], ['A: x\nB: {C: "y}\n# c\n', 2, 8], ['\ufeffA: 1\nB: "x\n', 2, 4], ['A: !!str "x\nB: !hunter y\n', 1, 10]
  ] as const) {
    const { error, refusal } = checkDocument('yaml', text)
    t.same(error ?? refusal, { line, column, reason: 'quote_not_closed' }, JSON.stringify(text))
  }
  t.same(entries('yaml', 'A: "x\\"'), [['A', 'x"']], 'a stored document is read as before')
  t.match(documentError('yaml', 'A: !hunter x\nB: "y\n'), { line: 1, reason: 'tag' }, 'the first error')
  t.same(entries('yaml', 'A: "\\\\"\nB: "\\""\nC: \'\'\'\'\nD: \'\'\nE: ""\nF: |\n  "x\nG: x"\nH: "a\n  b"\nI: x \'\n\'J": 1\': 1'), [
    ['A', '\\'], ['B', '"'], ['C', "'"], ['D', ''], ['E', ''], ['F', '"x\n'], ['G', 'x"'], ['H', 'a b'], ['I', "x '"], ['J": 1', '1']
  ])
  t.same(documentError('yaml', '--- |\n"x\n'), { line: 1, column: 1, reason: 'not_a_mapping' }, 'a text of lines is not in quotes')
})

t.test('yaml: blank lines below an escaped line end in double quotes are line feeds, as YAML 1.2 says', async (t) => {
  for (const [text, value] of [
    ['a\\\n\n  b', 'a\nb'], ['a\\\n\n\n  b', 'a\n\nb'], ['a\\\r\n\r\n  b', 'a\nb'], ['a \\\n \t\n  \\ b', 'a \n b'],
    ['\\\n\n  b', '\nb'], ['a\\\n\n  \\\n\n  b', 'a\n\nb'], ['a\n  \\\n\n  b', 'a \nb'], ['a\\\\\\\n\n  b\\"', 'a\\\nb"'],
    // As before.
    ['a\\\n  b', 'ab'], ['a\n\n  b', 'a\nb'], ['a\\\\\n\n  b', 'a\\\nb'], ['a\n\n  \\\n  b', 'a\nb'], ['a\\ \n\n  b', 'a \nb']
  ] as const) {
    const document = `A: 1\nB: "${text}"\nC: ["${text}"]\n? "${text}"\n: 2\n`
    t.same(entries('yaml', document), [['A', '1'], ['B', value], ['C', JSON.stringify([value])], [value, '2']], JSON.stringify(text))
  }
  t.same(entries('yaml', 'A: a\\\n\n  b\nB: |\n  a\\\n\n  b\nC: \'a\\\n\n  b\'\nD: !!int "1\\\n  2"\n'), [
    ['A', 'a\\\nb'], ['B', 'a\\\n\nb\n'], ['C', 'a\\\nb'], ['D', '12']
  ], 'only in double quotes')
})

t.test('yaml: blank lines of a block scalar with an indentation indicator keep their blanks', async (t) => {
  for (const [block, value] of [
    ['|2\n    a\n   \n', '  a\n \n'], ['|2-\n    a\n\n   \n', '  a\n\n '], ['>1\n  a\n  \n\n', ' a\n \n'], ['|2 # c\n    a\n   \n  \n', '  a\n \n'],
    ['|2\n   \n', ' \n'], ['>-2\n    \n', '  '], ['|1\n\n  \n\n', '\n \n'], ['|2+\n   \n\n', ' \n\n'], ['|2-\n   \n \n', ' '],
    // As before.
    ['|\n  a\n    \n', 'a\n  \n'], ['|2\n    a\n  \n', '  a\n'], ['|2+\n    a\n   \n\n', '  a\n \n\n'], ['|2\n    a\n   \n  b\n', '  a\n \nb\n'],
    ['|2\n\n', ''], ['|2+\n\n', '\n'], ['|2-\n', ''], ['>2\n    a\n    b\n', '  a\n  b\n'], ['>2\n  a\n  b\n', 'a b\n'], ['|\n    \n', '']
  ] as const) {
    for (const text of [block, block.replaceAll('\n', '\r\n')]) {
      t.same(entries('yaml', `A: ${text}B: 1\r\n`), [['A', value], ['B', '1']], JSON.stringify(text))
      t.same(entries('yaml', `A: 1\r\nB: ${text}`), [['A', '1'], ['B', value]], JSON.stringify(text))
      t.same(entries('yaml', `B:\r\n  C: ${text.replaceAll(/\n(?=.*[^])/g, '\n  ')}D: 1\r\n`), [['B', JSON.stringify({ C: value })], ['D', '1']])
    }
  }
  t.same(entries('yaml', 'A: "|2"\nB: a |2\n\n# >1\n'), [['A', '|2'], ['B', 'a |2']])
})

t.test('yaml: what is no plain mapping is unreadable', async (t) => {
  for (const text of [
    '- a', 'text', '~', '1', 'a: 1\na: 2', 'x: {a: 1, a: 2}', 'a: 1\n"a": 2', 'a: !custom 1', 'a: !!binary aGk=', 'a: !!js/function "x"',
    'a: 1\n---\nb: 2', '? [a]\n: 1', '? : 1', 'a: *nowhere', 'base: &b {x: 1}\nc:\n  <<: *b', 'a: [', 'a: "open', 'a:\n\t- b', '{a: &a [*a]}',
    'a: b: c', '!!set {a}'
  ]) t.equal(readDocument('yaml', text), undefined, JSON.stringify(text))
})

t.test('env: a document with line separators in comments is read alike with and without positions', async (t) => {
  for (const text of ['A="x"\n#c\u2028B=s\n', 'A=\'x\'\n# c\u2028it\'s\n', 'A="a"\n\n  # c\u2028B="x\ny"\n', 'A="x" # c\u2029\n']) {
    const read = readDocument('env', text)
    const { error } = checkDocument('env', text)
    // A line separator in the message would hide the result: the lines of TAP end there.
    t.equal(read === undefined, error !== undefined, JSON.stringify(text).replace(/[^ -~]/g, '?'))
    t.same(documentError('env', text), error)
  }
})

t.test('yaml: a long number, and what many aliases refer to, is read once, exactly', async (t) => {
  const zeros = `.1${'0'.repeat(80_000)}1`
  t.same(readDocument('yaml', `a: [${zeros}]\nb: [.1${'0'.repeat(80_000)}]\n`), { a: `["${zeros}"]`, b: '[0.1]' })
  const times = (count: number, name: string) => Array(count).fill(`*${name}`).join(', ')
  const zero = `+0e${'9'.repeat(60_000)}`
  const [four, five] = [0, 1].map((i) => `[${times(10, 'xy'[i]!)}]`)
  const read = readDocument('yaml', `x: &x ${zero}\ny: &y ${four}\nz: &z ${five}\ne: [${times(10, 'z')}]\n`)
  t.match(read, { y: `[${Array(10).fill('0').join()}]` })
  const empty = Array.from({ length: 16 }, (_, i) => `a${i + 1}: &a${i + 1} [${times(3, `a${i}`)}]\n`).join('')
  t.match(documentError('yaml', `a0: &a0 []\n${empty}`), { reason: 'limit' })
})

t.test('yaml: aliases of aliases are expanded as other readers do, up to a nesting depth and a length', async (t) => {
  let seed = 1
  const random = (below: number) => (seed = seed * 48271 % 2147483647) % below
  const wrong: string[] = []
  for (let round = 0; round < 300; round++) {
    const aliases = Array.from({ length: 2 + random(4) }, (_, i) => `a${i}`)
    const valueOf = (known: readonly string[], depth: number): string => {
      const kind = depth > 1 ? random(2) * 4 : random(6)
      if (known.length > 0 && kind > 2) return `*${known[random(known.length)]} `
      const items = () => Array.from({ length: random(3) }, () => valueOf(known, depth + 1))
      if (kind === 1) return `[${items().join(', ')}]`
      if (kind === 2) return `{${items().map((item, i) => `k${i}: ${item}`).join(', ')}}`
      return ['x', '1', '~', '"é"', 'true', '[]', '{}'][random(7)]!
    }
    const text = aliases.map((name, i) => `${name}: &${name} [${valueOf(aliases.slice(0, i), 0)}, 0]\n`).join('')
    const known = Object.entries(parseYaml(text, { maxAliasCount: -1 }) as object)
    const expected = known.map(([name, value]) => [name, JSON.stringify(value)])
    if (!isDeepStrictEqual(entries('yaml', text), expected)) wrong.push(text)
  }
  t.same(wrong, [])
  const nested = (levels: number, inner: string) => `${'['.repeat(levels)}${inner}${']'.repeat(levels)}`
  for (const twice of ['', `c: ${nested(30, '*a')}\n`]) {
    const read = (levels: number) => documentError('yaml', `a: &a ${nested(60, '')}\n${twice}b: ${nested(levels, '*a')}\n`)
    t.equal(read(40), undefined)
    t.match(read(41), { reason: 'limit', limit: '100 nested levels' })
    const inside = `a: &a ${nested(60, '')}\nb: &b ${nested(20, '*a')}\n${twice}`
    t.equal(documentError('yaml', `${inside}d: ${nested(19, '*b')}\n`), undefined)
    t.match(documentError('yaml', `${inside}d: ${nested(20, '*b')}\n`), { reason: 'limit', limit: '100 nested levels' })
  }
  // The list with its text counts 4,006 characters, each time, and the other list two.
  const values = `a: &a [${'x'.repeat(4_000)}]\nb: [${Array(20).fill('*a').join()}]\n`
  const counted = 21 * 4_006 + 2
  const ofLength = (length: number) => `${values}#${'x'.repeat(length - values.length - 1)}`
  const least = Math.ceil((counted - 64 * 1024) / 4)
  t.ok(readDocument('yaml', ofLength(least)))
  t.match(documentError('yaml', ofLength(least - 1)), { reason: 'limit', limit: /characters in its values/ })
})

t.test('yaml: what a document costs is bounded by its length, or counted as work', async (t) => {
  const workOf = (text: string) => {
    const work = { done: 0 }
    readDocument('yaml', text, undefined, work)
    return work.done
  }
  // Small documents whose aliases expand to as many values as are allowed, readable and not.
  const levels = (fan: number, count: number) => Array.from({ length: count }, (_, i) =>
    `a${i + 1}: &a${i + 1} [${Array(fan).fill(`*a${i}`).join()}]\n`).join('')
  const documents = [['{}', 4, 12], ['[]', 6, 5], ['{a: {}, b: {}}', 5, 6], ['[[], []]', 3, 10], ['x', 7, 7]] as const
  for (const [leaf, fan, count] of documents) {
    const text = `a0: &a0 ${leaf}\n${levels(fan, count)}#${'x'.repeat(250_000)}\n`
    const before = process.cpuUsage()
    for (let i = 0; i < 10; i++) readDocument('yaml', text)
    const { user } = process.cpuUsage(before)
    t.ok(user < 150_000, `${leaf}: ${user / 10_000} ms for each document`)
    t.ok(workOf(text) > workOf(`a0: &a0 ${leaf}\n${levels(fan, 1)}`), leaf)
  }
  for (const lines of ['a: |\n', 'a: |1\n', 'a: >\n', 'a: x\n']) {
    const perLine = (workOf(lines + ' x\n'.repeat(10_000)) - workOf(`${lines} x\n`)) / 10_000
    t.ok(perLine >= 0.4, `${JSON.stringify(lines)}: ${perLine} for each line`)
  }
})

t.test('yaml: aliases cannot make a small document a large one', async (t) => {
  const laughs = ['a: &a [x, x, x, x, x, x, x, x, x]']
  for (const [from, to] of ['ab', 'bc', 'cd', 'de', 'ef']) laughs.push(`${to}: &${to} [${`*${from}, `.repeat(9)}x]`)
  t.ok(readDocument('yaml', laughs.join('\n')) === undefined)
  t.equal(readDocument('yaml', `a: &a 1\nb: [${'*a, '.repeat(51)}]`), undefined)
  const large = 'x'.repeat(100_000)
  t.equal(
    readDocument('yaml', `a: &a ${large}\n${Array.from({ length: 20 }, (_, i) => `b${i}: *a`).join('\n')}`), undefined
  )
})

t.test('yaml: is read up to a length, and up to a number of lines', async (t) => {
  t.ok(readDocument('yaml', `a: |${'\n x'.repeat(MAX_LINES - 1)}`))
  t.equal(readDocument('yaml', `a: |${'\n x'.repeat(MAX_LINES)}`), undefined)
  t.ok(readDocument('yaml', `a: ${'x'.repeat(YAML_LENGTH - 3)}`))
  t.ok(readDocument('yaml', `a: ${'x'.repeat(YAML_LENGTH - 2)}`) === undefined)
})

t.test('env: too many lines are refused before a line end is replaced, at the same line for each line end', async (t) => {
  const most = `A=1${'\n'.repeat(MAX_LINES - 1)}`
  for (const end of ['\n', '\r', '\r\n']) {
    const text = (lines: number) => `A=1${end.repeat(lines)}`
    t.strictSame({ ...readDocument('env', text(MAX_LINES - 1)) }, { A: '1' }, JSON.stringify(end))
    for (const lines of [MAX_LINES + 1, 1_000_000 / end.length]) {
      const before = process.cpuUsage()
      for (let i = 0; i < 10; i++) {
        t.match(checkDocument('env', text(lines)), { error: { line: MAX_LINES + 2, column: 1, limit: '20,000 lines' } })
      }
      const { user } = process.cpuUsage(before)
      t.ok(user < 250_000, `${JSON.stringify(end)}: ${user / 10_000} ms for each document`)
    }
  }
  t.match(checkDocument('env', `${most}\r\r\n\n#`), { error: { line: MAX_LINES + 2, column: 1 } }, 'of all kinds')
  t.match(checkDocument('env', `\uFEFF${most}\n\n#`), { error: { line: MAX_LINES + 2, column: 1 } }, 'after a mark')
})

t.test('the position of bytes that are not UTF-8 is that of the first of them, also after a U+FFFD', async (t) => {
  for (const bytes of ['ff', 'c3', 'e282', 'efbf', 'ef', 'f09f98', 'eda080', 'c0af', 'ff61', 'efbf61', 'c3c3a9']) {
    for (const [before, line, column] of [
      ['', 1, 1], ['A=1', 1, 4], ['A=\uFFFD\n\uFFFDé😀', 2, 4], ['\uFFFD\r\n', 2, 1]
    ] as const) {
      const document = Buffer.concat([Buffer.from(before), Buffer.from(bytes, 'hex'), Buffer.from('x')])
      t.match(encodingError(document, document.toString()), { line, column, reason: 'not_utf8' }, `${before} ${bytes}`)
    }
  }
  for (const text of ['', 'A=\uFFFD', '\uFEFFA=é😀']) t.equal(encodingError(Buffer.from(text), text), undefined)
})

t.test('yaml: 1,000 names with comments are read, and an alias has the last value before it', async (t) => {
  const lines = Array.from({ length: 1000 }, (_, i) => `NAME_${i}: "${'x'.repeat(200)}" # c\n`).join('')
  t.equal(Object.keys(readDocument('yaml', lines)!).length, 1000)
  t.equal(readDocument('yaml', 'a: &x 1\nc: &x [2, *x]\n'), undefined, 'an alias inside its own value')
  t.strictSame({ ...readDocument('yaml', 'a: &x 1\nb: *x\nc: &x [2, &y 3]\nd: *y\ne: *x\nf: &z {k: *y}\ng: *z\n&k h: *x\ni: *k\n') }, {
    a: '1', b: '1', c: '[2,3]', d: '3', e: '[2,3]', f: '{"k":3}', g: '{"k":3}', h: '[2,3]', i: 'h'
  })
  t.equal(readDocument('yaml', 'a: *x\nb: &x 1\n'), undefined)
})

t.test('text is one opaque value', async (t) => {
  t.equal(readDocument('text', 'A=1'), undefined)
})

t.test('names of the prototype are names like any other', async (t) => {
  const documents = {
    env: '__proto__=a\nconstructor=b\ntoString=c',
    json: '{"__proto__":"a","constructor":"b","toString":"c"}',
    yaml: '__proto__: a\nconstructor: b\ntoString: c'
  }
  for (const [format, text] of Object.entries(documents)) {
    const read = readDocument(format as DocumentFormat, text)
    const expected = '{"__proto__":"a","constructor":"b","toString":"c"}'
    t.equal(JSON.stringify(read), expected, format)
    t.equal(JSON.stringify(readDocument(format as DocumentFormat, text, read)), expected, `${format}, merged`)
    t.equal(JSON.stringify({ ...read }), expected, `${format}, copied`)
  }
  const nested = '{"a":{"__proto__":{"polluted":1}}}'
  t.equal(readDocument('json', nested)?.['a'], '{"__proto__":{"polluted":1}}')
  t.equal(readDocument('yaml', nested)?.['a'], '{"__proto__":{"polluted":1}}')
  t.equal(({} as Record<string, unknown>)['polluted'], undefined)
})

t.test('merging: the later document wins, name by name', async (t) => {
  const documents = {
    env: ['a=1\nb=1', 'b=2\nc=2', 'c='],
    json: ['{"a":"1","b":"1"}', '{"b":"2","c":"2"}', '{"c":""}'],
    yaml: ['a: 1\nb: 1', 'b: 2\nc: 2', 'c: ""']
  }
  for (const [format, texts] of Object.entries(documents)) {
    const merged = emptyEntries()
    for (const text of texts) t.equal(readDocument(format as DocumentFormat, text, merged), merged)
    t.equal(JSON.stringify(merged), '{"a":"1","b":"2","c":""}', format)
  }
})

t.test('hostile documents of the largest size do not throw', async (t) => {
  const size = 1024 * 1024
  const fill = (unit: string, before = '', after = '') => before + unit.repeat(Math.floor(size / unit.length)) + after
  const yaml = (unit: string, before = '', after = '') =>
    before + unit.repeat(Math.floor((YAML_LENGTH - 50) / unit.length)) + after
  const documents: [DocumentFormat, string, string][] = [
    ['env', 'blank lines', fill('\n', '', '#')], ['env', 'blanks', fill(' ', 'A=', '"x')], [
      'env', 'blanks around', fill(' ', 'A', '=1')
    ],
    ['env', 'one name', fill('a')], ['env', 'open quote', fill('a\n', 'A="')], [
      'env', 'escaped quotes', fill('\\"', 'A="', '"')
    ],
    [
      'env', 'short lines', fill('A=1\n')
    ], ['env', 'quotes', fill('"', 'A=')], ['env', 'names', fill('A="\\"x\n')], ['env', 'export', fill('export ')],
    ['env', 'open quotes', fill('A=\'"`\n')],
    [
      'json', 'depth', fill('[', '{"a":', '1' + ']'.repeat(size) + '}')
    ], ['json', 'open', fill('{"a":')], ['json', 'string', fill('\\n', '{"a":"', '"}')],
    ['json', 'blanks', fill(' ', '{', '}')], ['json', 'list', fill('1,', '{"a":[', '1]}')],
    ['json', 'names', `{${Array.from({ length: 80_000 }, (_, i) => `"k${i}":${i}`).join()}}`],
    ['yaml', 'depth', yaml('[', 'a: ')], ['yaml', 'dashes', yaml('- ')], ['yaml', 'anchors', yaml('&a ')], [
      'yaml', 'quotes', yaml('"a" ', 'a: ')
    ],
    [
      'yaml', 'names', Array.from({ length: 20_000 }, (_, i) => `k${i}: ${i}`).join('\n')
    ], ['yaml', 'directives', yaml('%A\n')],
    ['yaml', 'blanks', yaml(' ', 'a:', '1')], [
      'yaml', 'aliases', yaml('*a,', 'b: &a 1\na: [', '*a]')
    ], ['yaml', 'colons', yaml(':')]
  ]
  for (const [format, name, text] of documents) {
    t.doesNotThrow(() => readDocument(format, text), `${format}, ${name}`)
  }
})

t.test('how much of a document is taken apart is bounded, however it is written', async (t) => {
  const lines = (count: number, line: (i: number) => string) =>
    Array.from({ length: count }, (_, i) => line(i)).join('\n')
  t.equal(Object.keys(readDocument('env', lines(MAX_NAMES, (i) => `K${i}=${i}`))!).length, MAX_NAMES)
  t.equal(readDocument('env', lines(MAX_NAMES + 1, (i) => `K${i}=${i}`)), undefined)
  t.equal(readDocument('env', lines(MAX_NAMES + 1, () => 'SAME=1')), undefined)
  for (const end of ['\n', '\r', '\r\n']) {
    for (const line of ['', '# x', ' ']) {
      t.same(readDocument('env', (line + end).repeat(MAX_LINES)), {}, 'lines that say nothing')
      t.equal(readDocument('env', (line + end).repeat(MAX_LINES + 1)), undefined, 'are counted too')
    }
  }
  t.equal(readDocument('env', `A="${'\n'.repeat(MAX_LINES + 1)}"`), undefined, 'and those within a value')
  const members = (count: number) => `{${Array.from({ length: count }, (_, i) => `"k${i}":1`).join()}}`
  t.equal(Object.keys(readDocument('json', members(MAX_TOKENS / 4 - 1))!).length, MAX_TOKENS / 4 - 1)
  const { parse } = JSON
  let parsed = 0
  JSON.parse = (...args) => { parsed++; return parse(...args) }
  t.teardown(() => { JSON.parse = parse })
  t.equal(readDocument('json', members(MAX_TOKENS / 4 + 1)), undefined)
  t.equal(readDocument('json', `{"a":[${'1,'.repeat(MAX_TOKENS / 2)}1]}`), undefined)
  t.equal(parsed, 0, 'and what is too much is not parsed at all')
  t.ok(readDocument('json', `{"a":"${','.repeat(1_000_000)}"}`), 'what is in a value is not counted')
})

t.test('yaml: no more tokens than allowed, and no error after the first, whatever indicators are repeated', async (t) => {
  let tokens = 0
  let errors = 0
  const { next } = Parser.prototype
  Parser.prototype.next = function (source) { tokens++; return next.call(this, source) }
  Object.defineProperty(YAMLError.prototype, 'pos', { configurable: true, get: () => undefined, set () { errors++ } })
  t.teardown(() => {
    Parser.prototype.next = next
    delete (YAMLError.prototype as { pos?: unknown }).pos
  })
  const words = [
    '&', '&a', '!', '!b', '!!str', '!<x>', '*', '*a', "''", '""', '"', "'", '@', '`', '|', '>', '|2', '%', '#', '-', '?', ':', ',', '[', ']', '{', '}', 'a', 'a:',
    '---', '...', '\t', '\\q', '\\x0', '\u0000'
  ]
  const LENGTH = 2 * MAX_YAML_TOKENS
  const worst = { tokens: 0, errors: 0 }
  const read = (unit: string, before: string) => {
    tokens = errors = 0
    readDocument('yaml', (before + unit.repeat(LENGTH)).slice(0, LENGTH))
    worst.tokens = Math.max(worst.tokens, tokens)
    worst.errors = Math.max(worst.errors, errors)
  }
  for (const before of ['', 'a: ', 'a: "', 'a: |\n ']) {
    for (const [i, word] of words.entries()) {
      for (const glue of ['', ' ', '\n ']) read(word + glue, before)
      read(`${word} ${words[(i + 7) % words.length]} `, before)
    }
  }
  t.ok(worst.tokens > MAX_YAML_TOKENS / 2, 'the bound is met')
  t.ok(worst.tokens <= MAX_YAML_TOKENS)
  t.ok(worst.errors <= 1, `${worst.errors} errors`)
  const members = (count: number) => Array.from({ length: count }, (_, i) => `k${i}: 1\n`).join('')
  const most = Math.floor((MAX_YAML_TOKENS - 1) / 7)
  t.equal(Object.keys(readDocument('yaml', members(most))!).length, most)
  t.equal(readDocument('yaml', members(most + 1)), undefined)
  t.ok(
    readDocument('yaml', `a: "${'& ! * - '.repeat(2000)}"\nb: |\n${' - a: *b\n'.repeat(2000)}`),
    'what is in a value is not counted'
  )
})
