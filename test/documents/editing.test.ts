// runs: no database
import { isDeepStrictEqual } from 'node:util'
import t, { type Test } from 'tap'
import { parse as parseEnv } from 'dotenv'
import { compareEntries, emptyEntries, type NamedFormat } from '../../src/rules/documents/entries.ts'
import { MAX_LINES, MAX_NAMES } from '../../src/rules/documents/env.ts'
import { MAX_TOKENS } from '../../src/rules/documents/json.ts'
import { documentError, readDocument } from '../../src/rules/documents/read.ts'
import { YAML_LENGTH } from '../../src/rules/documents/yaml.ts'
import { changeNames } from '../../src/rules/editing/change.ts'
import { texts } from '../helpers/texts.ts'

/** Sets names to texts. A text replaces an object or a list. */
const change = (format: NamedFormat, text: string, set: Record<string, string> = {}, unset: string[] = []) => {
  const replace = new Set<string>()
  while (true) {
    const result = changeNames(format, text, { set: texts(Object.entries(set)), unset, replace })
    if (!('refused' in result) || result.refused !== 'structured') return result
    replace.add(result.name)
  }
}

/** The changed text. For a refusal, the refusal as JSON. */
const changed = (...args: Parameters<typeof change>) => {
  const result = change(...args)
  return 'refused' in result ? JSON.stringify(result) : result.text
}

// A line separator in the name of a test would end the line of TAP output.
const ascii = (value: unknown) => JSON.stringify(value).replace(/[^ -~]/g, '?')

type Case = [text: string, set: Record<string, string>, unset: string[], expected: string, message?: string]

const check = (t: Test, format: NamedFormat, cases: Case[]) => {
  for (const [text, set, unset, expected, message] of cases) {
    t.equal(changed(format, text, set, unset), expected, message ?? ascii([text, set, unset]))
  }
}

t.test('a byte order mark below the first line is not part of a name where dotenv and YAML skip it', async (t) => {
  const joined = 'A=1\n\uFEFFB=2\r\n\uFEFF# c\nC=3\n'
  t.same(readDocument('env', joined), { A: '1', B: '2', C: '3' })
  check(t, 'env', [
    [joined, { B: '4', C: '5' }, [], 'A=1\n\uFEFFB=4\r\n\uFEFF# c\nC=5\n'],
    [joined, {}, ['B'], 'A=1\n\uFEFF# c\nC=3\n', 'a removed line is removed with its mark']
  ])
  const below = '# c\n\n\uFEFFA: 1\nB: 2\n'
  t.same(readDocument('yaml', below), { A: '1', B: '2' })
  t.same(readDocument('yaml', 'A: 1\n\uFEFFB: 2\n'), { A: '1', '\uFEFFB': '2' }, 'in the content it is part of the name')
  check(t, 'yaml', [
    [below, { A: 'x' }, [], '# c\n\n\uFEFFA: x\nB: 2\n'],
    [below, { C: 'x' }, ['A'], '# c\n\n\uFEFFB: 2\nC: x\n', 'the mark stays in front of the content']
  ])
})

t.test('env: a changed value is replaced in its quotes, and every other byte stays', async (t) => {
  check(t, 'env', [
    ['# c\n\nA=1\n B = two # c\nexport C="x" # d\n', { A: '2', B: 'x', C: 'y' }, [], '# c\n\nA=2\n B = x # c\nexport C="y" # d\n'],
    ["A='1'\r\nB=`2`\r\nC: 3", { A: '4', B: '5', C: '6' }, [], "A='4'\r\nB=5\r\nC: 6", 'backticks do not stay'],
    ['\uFEFFA=1', { A: '2' }, [], '\uFEFFA=2'],
    ['A=\nB=# c\nC= # c\nD:  \nE:\n', { A: '1', B: '2', C: '3', D: '4', E: '5' }, [], 'A=1\nB=2\nC=3 # c\nD: 4  \nE: 5\n'],
    ['A="1"\nA=\'2\'\nB=3', { A: '4' }, [], 'A="1"\nA=\'4\'\nB=3', 'the last of two is changed'],
    ['A="1\n2"\r\nB=3\r\n', { A: 'x\ny' }, [], 'A="x\\ny"\r\nB=3\r\n', 'several lines are escaped in a document with CRLF'],
    ['A="1\n2"\r\nB=3\r\n', { A: '"x"\ny' }, [], 'A=\'"x"\r\ny\'\r\nB=3\r\n', 'lines of a value end like those of the document'],
    ['A="1\\n2"\n', { A: 'x\ny' }, [], 'A="x\\ny"\n', 'escapes stay escapes'],
    ['A="1"\n', { A: 'say "x"' }, [], 'A=\'say "x"\'\n', 'other quotes if the value has these'],
    ['A=1\n', { A: '' }, [], 'A=\n'],
    ['A=1\n', { A: ' 1 ' }, [], "A=' 1 '\n"],
    ['A=\n\n"x"\n', { A: 'y' }, [], 'A="y"\n', 'a value on another line comes to its name'],
    ['A:\n  x # c\n', { A: 'y' }, [], 'A: y # c\n'],
    ["A='abc\\'\nB=1\n", { B: "it'" }, [], 'A=\'abc\\\'\nB="it\'"\n', 'a quote that would end an earlier value is written otherwise'],
    ['A=1\rB=2\r', { A: '3' }, ['B'], 'A=3\r'],
    ['A=1 # c\u2028B=2\n', {}, ['A'], 'B=2\n'],
    ['A=1 # c\u2028B=2\n', {}, ['A', 'B'], ''],
    ['A=old#\u2028#old\u2029 # n\nB=2\n', {}, ['A'], 'B=2\n']
  ])
})

t.test('env: a new name after a line `NAME:` is no value of that name, whatever the line ends are', async (t) => {
  check(t, 'env', [
    ['A:\n', { B: '2' }, [], 'A:\n\nB=2\n'],
    ['A:\r\n', { B: '2' }, [], 'A:\r\n\r\nB=2\r\n'],
    ['A:\r', { B: '2' }, [], 'A:\r\rB=2\r'],
    ['A=1\nC:\r', { B: '2' }, [], 'A=1\nC:\r\n\nB=2\n'],
    ['A=1\r\nC:\r', { B: '2' }, [], 'A=1\r\nC:\r\r\nB=2\r\n']
  ])
})

t.test('env: a line separator of JavaScript ends no line for other readers', async (t) => {
  for (const [before, after, why = ''] of [
    ['A=old#\u2028#old\n', 'A=new\n'],
    ['A=old#\u2028\u2029\u2028', 'A=new'],
    ['A=old\u2028\n', 'A=new\n'],
    ["A='old'#\u2028#old # note\n", "A='new' # note\n"],
    ['A=old#\u2028B=2\n', 'A="new"\u2028B=2\n', 'without quotes, the next line would be a part of the value'],
    ['A=old # note\u2028B=2\n', 'A=new # note\u2028B=2\n'],
    ['A=old # note\u2028\n', 'A=new # note\u2028\n'],
    ['A=old # note\u2028 # more\n', "A='new' # note\u2028 # more\n", 'godotenv would take the first note as a part of the value']
  ] as const) {
    const changed = changeNames('env', before, { set: texts([['A', 'new']]), unset: [], replace: null })
    t.equal('text' in changed && changed.text, after, ascii([before, why]))
  }
})

t.test('env: a changed value leaves nothing of the old value for any reader', async (t) => {
  const secret = 'hunter'
  const old = [
    'hunter#2hunter', '#hunter', 'hunter#', '#hunter # note', 'a#hunter # note', 'hunter#2 hunter', "'hunter'#hunter",
    '"hunter"#hunter', '`hunter`#hunter', "'a'# hunter", '"hunter\nhunter"#hunter', "'hunter' 'hunter'", '"hunter"hunter',
    "'hunter'\\''hunter'", '\n"hunter"#hunter', '$hunter#hunter', 'hunter#\thunter', '"#hunter"#hunter # note'
  ]
  for (const before of old) {
    for (const [start, end] of [['A=', ''], [' export A = ', ''], ['A: ', ''], ['X=1\n\nA=', '\nB=2'], ['A=', '\r\nB=2\r\n']] as const) {
      const text = start + before + end
      // After a blank, `#` starts a comment.
      if (start.endsWith(' ') && before.startsWith('#')) continue
      for (const value of ['new', '', 'it is', "it's", 'a\nb', '#', '{"k": "it\'s"}']) {
        const after = changed('env', text, { A: value })
        t.notOk(after.includes(secret), ascii([text, value, after]))
        t.equal(readDocument('env', after)?.['A'], value)
      }
      t.notOk(changed('env', text, {}, ['A']).includes(secret), ascii([text, 'removed']))
    }
  }
  check(t, 'env', [
    ['PASSWORD=hunter#2secret\n', { PASSWORD: 'new' }, [], 'PASSWORD=new\n'],
    ['A=x # note\nB=\'x\' # note\nC=x\t#note', { A: 'y', B: 'z', C: 'w' }, [], 'A=y # note\nB=\'z\' # note\nC=\'w\'\t#note', 'a comment after a blank stays'],
    ['A=x#y # note\n', { A: 'z' }, [], 'A=z # note\n'],
    ['A=x#y\nB=1#2', { A: 'x' }, [], 'A=x\nB=1#2', 'also if the value stays the same for dotenv'],
    ['A= # note\n', { A: 'z' }, [], 'A=z # note\n']
  ])
})

t.test('env: a value has the form that most readers read alike', async (t) => {
  const forms: [value: string, written: string, inCrlf?: string][] = [
    ['', ''], ['simple/1.0', 'simple/1.0'], ['a b', "'a b'"], ['$HOME', "'$HOME'"], ['a\\b', "'a\\b'"], ["it's", '"it\'s"'],
    ['say "x"', "'say \"x\"'"], ['a\nb', "'a\nb'", '"a\\nb"'], ['a\rb', '"a\\rb"'], ["it's\nb", '"it\'s\nb"', '"it\'s\\nb"'],
    ['{"k": "it\'s"}', '{"k": "it\'s"}'], ['"it\'s"', '`"it\'s"`'], ['a "b" it\'s # c', '`a "b" it\'s # c`'],
    ['a "b" it\'s $C', '`a "b" it\'s $C`'], ['"a"\n\'b\'', '`"a"\n\'b\'`', '`"a"\r\n\'b\'`'], ['a\'b"c`d', 'a\'b"c`d']
  ]
  for (const [value, written, inCrlf = written] of forms) {
    for (const old of ['1', '`1`', '']) {
      t.equal(changed('env', `A=${old}\nB=2\n`, { A: value }), `A=${written}\nB=2\n`)
      t.equal(changed('env', `A=${old}\r\nB=2\r\n`, { A: value }), `A=${inCrlf}\r\nB=2\r\n`)
    }
    t.equal(changed('env', 'B=2\n', { A: value }), `B=2\nA=${written}\n`)
  }
})

t.test('env: a removed name goes with its lines and the comment behind it; the comment above stays', async (t) => {
  check(t, 'env', [
    ['A=1\n# above\nB="x" # behind\n# below\n\nC=3', {}, ['B'], 'A=1\n# above\n# below\n\nC=3'],
    ['A=1\nB="1\n2\n3"\nC=3', {}, ['B'], 'A=1\nC=3'],
    ['A=1\r\nB=2', {}, ['B'], 'A=1', 'a missing final line ending stays missing'],
    ['A=1\r\nB="x\r\ny"\r\nC=3 # c', {}, ['C', 'B'], 'A=1'],
    ['A=1\n\n# c\nB=2', {}, ['B'], 'A=1\n\n# c'],
    ['A=1\n\nB=2', {}, ['B'], 'A=1\n', 'only one line ending is removed'],
    ['A=1\rB=2', {}, ['B'], 'A=1'],
    ['A=1\nB=2\n  ', {}, ['B'], 'A=1\n  '],
    ['A:\n# c\nB=2', {}, ['B'], 'A:\n# c'],
    ['A=1', {}, ['A'], ''],
    ['A=1\nB=2\nA=3\n', {}, ['A'], 'B=2\n', 'each of two'],
    ['\uFEFFA=1', {}, ['A'], '\uFEFF'],
    ['A=1\n', {}, ['B', 'B'], 'A=1\n'],
    ['A=1\nB=2', { C: '3' }, ['B'], 'A=1\nC=3']
  ])
})

t.test('env: a new name goes to the end with the line ending of the document', async (t) => {
  check(t, 'env', [
    ['', { B: '2' }, [], 'B=2\n'],
    ['\uFEFF', { B: '2' }, [], '\uFEFFB=2\n'],
    ['A=1\n', { B: '2', C: 'a b' }, [], "A=1\nB=2\nC='a b'\n"],
    ['A=1', { B: '2' }, [], 'A=1\nB=2'],
    ['X=1\r\nA=1', { B: '2', C: '3' }, [], 'X=1\r\nA=1\r\nB=2\r\nC=3'],
    ['A=1\r\n# c\r\n', { B: '2' }, [], 'A=1\r\n# c\r\nB=2\r\n'],
    ['# c', { B: '2' }, [], '# c\nB=2'],
    ['A:\n', { B: '2' }, [], 'A:\n\nB=2\n', 'dotenv would read the next line as the value'],
    ['A=1\n', { B: 'x\ny', C: 'it\'s "so" `it` is', D: '#', E: '' }, [], 'A=1\nB=\'x\ny\'\nC=it\'s "so" `it` is\nD=\'#\'\nE=\n']
  ])
})

t.test('env: each value that dotenv can read from some text can be set', async (t) => {
  const alphabet = ["'", '"', '`', '\\', 'n', 'r', '#', ' ', '\n']
  const values = new Set<string>()
  const grow = (text: string, length: number) => {
    values.add(parseEnv(`X=${text}`)['X'] ?? '')
    if (length > 0) for (const character of alphabet) grow(text + character, length - 1)
  }
  grow('', 5)
  t.ok(values.size > 10_000, `${values.size} values`)
  const wrong = [...values].filter((value) => {
    const result = change('env', 'A=1\nX=0\nB=1\n', { X: value })
    return 'refused' in result || !isDeepStrictEqual({ ...parseEnv(result.text) }, { A: '1', X: value, B: '1' })
  })
  t.strictSame(wrong, [])
})

t.test('json: a changed value is a string, and every other byte stays', async (t) => {
  check(t, 'json', [
    ['{"a":1 , "b" : {"c":[1,2]}}', { b: 'x"\n' }, [], '{"a":1 , "b" : "x\\"\\n"}'],
    ['\uFEFF {\r\n\t"a": 1.10,\r\n\t"b": null\r\n}', { b: 'x' }, [], '\uFEFF {\r\n\t"a": 1.10,\r\n\t"b": "x"\r\n}'],
    ['{"a":1,"\\u0061":2}', { a: '3' }, [], '{"a":1,"\\u0061":"3"}', 'the last of two is changed'],
    ['{"":1}', { '': 'x\ud800' }, [], '{"":"x\\ud800"}'],
    ['{"\\u0000":1}', { '\0': '\0' }, [], '{"\\u0000":"\\u0000"}'],
    ['{"a":1.10,"b":null,"c":{ }}', { a: '1.10', b: '', c: '{}' }, [], '{"a":1.10,"b":null,"c":{ }}', 'the same value, as it is read'],
    ['{"__proto__":1}', { ['__proto__']: '2' }, [], '{"__proto__":"2"}']
  ].slice(0, 5) as Case[])
  t.equal(
    'text' in change('json', '{"__proto__":1}', { ['__proto__']: '2' }), true,
    'a name of the prototype is a name like any other'
  )
})

t.test('json: a removed member goes with one comma', async (t) => {
  const text = '{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}\n'
  check(t, 'json', [
    [text, {}, ['a'], '{\n  "b": 2,\n  "c": 3\n}\n'],
    [text, {}, ['b'], '{\n  "a": 1,\n  "c": 3\n}\n'],
    [text, {}, ['c'], '{\n  "a": 1,\n  "b": 2\n}\n'],
    [text, {}, ['a', 'b'], '{\n  "c": 3\n}\n'],
    [text, {}, ['b', 'c'], '{\n  "a": 1\n}\n'],
    [text, {}, ['a', 'c'], '{\n  "b": 2\n}\n'],
    [text, {}, ['a', 'b', 'c'], '{\n}\n'],
    ['{"a":1,"b":2,"a":3}', {}, ['a'], '{"b":2}', 'each of two'],
    ['{ "a": 1 , "b": [1, {"a": 2}] }', {}, ['b'], '{ "a": 1  }'],
    ['{"a":1}', {}, ['b'], '{"a":1}']
  ])
})

t.test('json: a new member goes to the end, written like the last one', async (t) => {
  check(t, 'json', [
    ['', { a: '1', b: '2' }, [], '{\n  "a": "1",\n  "b": "2"\n}\n'],
    ['{}', { a: '1' }, [], '{\n  "a": "1"\n}'],
    ['{\r\n}\r\n', { a: '1' }, [], '{\r\n  "a": "1"\r\n}\r\n'],
    ['{"a":1}', { b: '2', c: '3' }, [], '{"a":1,"b":"2","c":"3"}'],
    ['{"a": 1}', { b: '2' }, [], '{"a": 1, "b": "2"}'],
    ['{ "a": 1 }', { b: '2' }, [], '{ "a": 1, "b": "2" }'],
    ['{\r\n\t"a" : 1\r\n}', { b: '2' }, [], '{\r\n\t"a" : 1,\r\n\t"b" : "2"\r\n}'],
    ['{\n    "a": 1,\n\n    "b": 2\n}', { c: '3' }, ['b'], '{\n    "a": 1,\n    "c": "3"\n}'],
    ['{\n  "a": 1\n}', { c: '3' }, ['a'], '{\n  "c": "3"\n}'],
    ['{"a":1}', { c: '3' }, ['a'], '{"c":"3"}']
  ])
})

t.test('json: commas at the start of lines stay there', async (t) => {
  const text = '{ "a": 1\r\n, "b": 2\r\n  , "c": 3\r\n}'
  check(t, 'json', [
    [text, {}, ['a'], '{ "b": 2\r\n  , "c": 3\r\n}'],
    [text, {}, ['b'], '{ "a": 1\r\n, "c": 3\r\n}'],
    [text, {}, ['c'], '{ "a": 1\r\n, "b": 2\r\n}'],
    [text, {}, ['b', 'c'], '{ "a": 1\r\n}'],
    [text, {}, ['a', 'c'], '{ "b": 2\r\n}'],
    [text, { d: '4' }, [], '{ "a": 1\r\n, "b": 2\r\n  , "c": 3\r\n  , "d": "4"\r\n}'],
    [text, { d: '4', e: '5' }, ['b', 'c'], '{ "a": 1\r\n  , "d": "4"\r\n  , "e": "5"\r\n}'],
    [text, { d: '4', e: '5' }, ['a', 'b', 'c'], '{ "d": "4"\r\n  , "e": "5"\r\n}'],
    ['{"a":1\n ,"b":2}', { a: '3', c: '4' }, [], '{"a":"3"\n ,"b":2\n ,"c":"4"}'],
    ['{"a":1\n ,"b":2}', {}, ['b'], '{"a":1}'],
    ['{"a":1\n ,\n "b":2\n}', { c: '3' }, [], '{"a":1\n ,\n "b":2\n ,\n "c":"3"\n}'],
    ['{\n  "a": 1\n}', { b: '2', c: '3' }, [], '{\n  "a": 1,\n  "b": "2",\n  "c": "3"\n}']
  ])
})

t.test('yaml: a changed value keeps its style if the style can hold it, and every other byte stays', async (t) => {
  check(t, 'yaml', [
    ['# c\na: 007 # d\n\n"b": \'x\'\nc: "y"  # e\n', { a: 'new', b: "it's", c: 'z' }, [], '# c\na: new # d\n\n"b": \'it\'\'s\'\nc: "z"  # e\n'],
    ['a: x', { a: '12' }, [], "a: '12'", 'what YAML would read as another type is quoted'],
    ['a: x', { a: 'yes' }, [], "a: 'yes'"],
    ['a: x', { a: '' }, [], "a: ''"],
    ['a: x', { a: 'a: b' }, [], "a: 'a: b'"],
    ['a: x', { a: 'https://x:1/y' }, [], 'a: https://x:1/y'],
    ['a: x', { a: 'x\ny\u0000\u2028\ud800' }, [], 'a: "x\\ny\\u0000\\u2028\\ud800"'],
    ['\uFEFFa: 1\r\nb: two\r\n  lines\r\nc: 3', { b: 'x' }, [], '\uFEFFa: 1\r\nb: x\r\nc: 3'],
    ['a:\nb: # c\n? c\n? d # c\ne: !!int 12\nf: !!str\n', { a: '1', b: '2', c: '3', d: '4', e: '5', f: '6' }, [],
      "a: '1'\nb: '2' # c\n? c\n: '3'\n? d\n: '4' # c\ne: '5'\nf: '6'\n"],
    ['a: | # c\n   one\n   two\n\n# d\nb: 1\n', { a: 'x\n\ny\n' }, [], 'a: | # c\n   x\n\n   y\n\n# d\nb: 1\n', 'a block stays a block'],
    ['a: >-\n  one\n  two\nb: 1\n', { a: 'x' }, [], 'a: >-\n  x\nb: 1\n'],
    ['a: >-\n  one\n  two\nb: 1\n', { a: 'x\ny' }, [], 'a: |-\n  x\n  y\nb: 1\n'],
    ['a: |\n  one', { a: 'x\n' }, [], 'a: |\n  x\n', 'other readers need the line ending'],
    ['a: |\n  one', { a: 'x' }, [], 'a: |-\n  x'],
    ['a: |+ # c\n  one\n\n\nb: 1\n', { a: ' x' }, [], "a: ' x' # c\nb: 1\n"],
    ['a: |\n  one', { a: '\u0000' }, [], 'a: "\\u0000"'],
    ['a: # c\n  x: 1 # d\n  # e\n# f\nb:\n- 1\n- 2\nc: [1,\n  2] # g\n', { a: '1', b: '2', c: '3' }, [],
      "a: '1' # c\n  # e\n# f\nb: '2'\nc: '3' # g\n"],
    ['a:\n  x: 1', { a: 'z' }, [], 'a: z'],
    ['a: &x\n  - 1\nb: 2\n', { a: 'z' }, [], 'a: &x z\nb: 2\n'],
    ['? a\n: x: 1\n  y: 2\n? b\n: - 1\n', { a: 'z', b: 'w' }, [], '? a\n: z\n? b\n: w\n'],
    ['? |\n  a\n? b\n', { 'a\n': 'x' }, [], '? |\n  a\n: x\n? b\n'],
    [' a: 1\n b: 2\n', { a: 'x', c: 'z' }, [], ' a: x\n b: 2\n c: z\n']
  ])
})

t.test('yaml: a removed name goes with its lines and the comment behind it; the comment above stays', async (t) => {
  check(t, 'yaml', [
    ['a: 1\n# above\nb: 2 # behind\n  # c\n# below\nc: 3', {}, ['b'], 'a: 1\n# above\n  # c\n# below\nc: 3'],
    ['a: 1\nb:\n  x: 1\n  # in\n  y: 2\n\nc: |\n  x\n\n# d\nd: 4\n', {}, ['b', 'c'], 'a: 1\n\n\n# d\nd: 4\n'],
    ['? a\n: 1\n? b\n: 2\n', {}, ['a'], '? b\n: 2\n'],
    ['---\na: 1\n...\n', {}, ['a'], '---\n...\n'],
    ['a: 1\n...\n', {}, ['a'], '{}\n...\n', 'other readers refuse a line `...` without a document'],
    ['# c\r\n a: |\r\n  x\r\n b: 2\r\n...', {}, ['a', 'b'], '# c\r\n{}\r\n...'],
    ['# c\r\na: 1\r\n', {}, ['a'], '# c\r\n'],
    ['a: 1\nb: 2', {}, ['b'], 'a: 1', 'a missing final line ending stays missing'],
    ['a: 1\r\nb:\r\n  x: 1\r\nc: |\r\n  x', {}, ['b', 'c'], 'a: 1'],
    ['a: 1\n# c\nb: 2 # d', {}, ['b'], 'a: 1\n# c'],
    ['a: |\n  x\nb: 2', {}, ['b'], 'a: |\n  x\n', 'other readers need the line ending'],
    ['a: |+\n  x\n\nb: 2', {}, ['b'], 'a: |+\n  x\n\n', 'the line ending is a part of the value'],
    ['c: two words\na: |+\n  x\n\nb: 2', { c: 'three words' }, ['b'], 'c: three words\na: |+\n  x\n\n'],
    ['a: |+\n  x\n\n# c\nb: 2', {}, ['b'], 'a: |+\n  x\n\n# c'],
    ['--- !!map\na: 1', {}, ['a'], '--- !!map\n{}\n'],
    ['a: 1', {}, ['a'], ''],
    ['---\na: 1', {}, ['a'], '---'],
    ['--- !!map\na: 1\n', {}, ['a'], '--- !!map\n{}\n', 'a tagged mapping stays one'],
    ['  a:\n    !!str x\n  b: 1\n', { a: 'z' }, [], '  a:\n     z\n  b: 1\n', 'a tag on its own line'],
    ['  a:\n    !!null "" # c\n  b: 1\n', { a: 'y' }, [], '  a:\n     "y" # c\n  b: 1\n'],
    ['  a:\n    !!str &x y\n  b: 1\n', { a: 'z' }, [], '  a:\n     &x z\n  b: 1\n'],
    ['  a:\n    &x !!str y\n  b: 1\n', { a: 'z' }, [], '  a:\n    &x z\n  b: 1\n'],
    ['  a: !!str\n    y\n  b: 1\n', { a: 'z' }, [], '  a:\n    z\n  b: 1\n'],
    ['{a: 1, b: 2, c: 3}', {}, ['a'], '{b: 2, c: 3}'],
    ['{a: 1, b: 2, c: 3}', {}, ['b', 'c'], '{a: 1}'],
    ['{a: 1, b: 2,}', {}, ['b'], '{a: 1,}'],
    ['{\n  # above\n  a: 1, # behind\n  b, # c\n  c: 3 # d\n}\n', {}, ['a'], '{\n  # above\n  b, # c\n  c: 3 # d\n}\n'],
    ['{\n  a: 1, # behind\n  b, # c\n  c: 3 # d\n}\n', {}, ['c'], '{\n  a: 1, # behind\n  b # c\n}\n'],
    ['{\n  # above\n  a: 1, b: 2\n}', {}, ['a'], '{\n  # above\n  b: 2\n}'],
    ['{a: 1}', {}, ['a'], '{}']
  ])
})

t.test('yaml: a removed name below a block scalar leaves its lines out of the scalar', async (t) => {
  check(t, 'yaml', [
    ['a: |\n  x\nb: 1\n  # c\nc: 2\n', {}, ['b'], 'a: |\n  x\n# c\nc: 2\n', 'a comment is outdented'],
    ['a: |\n   x\nb: 1\n    # c\n  # d\nc: 2\n', {}, ['b'], 'a: |\n   x\n# c\n  # d\nc: 2\n', 'a second comment stays'],
    ['a: |\n  x\nb: 1\n # c\nc: 2\n', {}, ['b'], 'a: |\n  x\n # c\nc: 2\n', 'unless it ends the scalar anyway'],
    ['a: >\r\n  x\r\nb: 1 # d\r\n  # c\r\n\r\n    # e\r\nc: 2', {}, ['b'], 'a: >\r\n  x\r\n# c\r\n\r\n    # e\r\nc: 2'],
    ['a:\n  k: |\n    x\nb: 1\n    # c', {}, ['b'], 'a:\n  k: |\n    x\n# c'],
    ['a: |\n  x\nb: 1\n  # c\nd: 1\n  # e\nf: y\n', { f: 'z' }, ['b', 'd'], 'a: |\n  x\n# c\n  # e\nf: z\n'],
    [' a: |\n   x\n b: 1\n   # c\n', {}, ['b'], ' a: |\n   x\n # c\n'],
    ['a: |+\n  x\nb: 1\n\nc: 2\n', {}, ['b'], 'a: |+\n  x\nc: 2\n', 'blank lines would belong to the value'],
    ['a: |+\n  x\nb: 1\n\n  # c\n\nc: 2\n', {}, ['b'], 'a: |+\n  x\n# c\n\nc: 2\n'],
    ['a: |\n  x\nb: 1\n  # c\nd: |\n   x\ne: 1\n  # f\n', {}, ['b', 'e'], 'a: |\n  x\n# c\nd: |\n   x\n  # f\n',
      'only a comment that would be a line of a scalar is outdented'],
    ['a: |2\n   x\nb: 1\n# c\n  # d\ne: |\n  x\nf: 1\n  # g', {}, ['b', 'f'], 'a: |2\n   x\n# c\n  # d\ne: |\n  x\n# g'],
    ['a: |\n  x\nb: 1\n\n# c\nd: |+\n  x\ne: 1\n\n# f\n', {}, ['b', 'e'], 'a: |\n  x\n\n# c\nd: |+\n  x\n# f\n',
      'only blank lines that would be in a value are removed'],
    ['a: |+\n  x\nb: 1\n   ', { c: 'z' }, ['b'], 'a: |+\n  x\nc: z']
  ])
})

t.test('yaml: no tab indents a line below a changed or removed value, for other readers', async (t) => {
  check(t, 'yaml', [
    ['a: 1\n \t\nb: 2\n', { a: 'x: y' }, [], "a: 'x: y'\n \nb: 2\n"],
    ['a: 1\r\n\t\r\n \t# c\r\nb: 2\r\n', { a: '3' }, [], "a: '3'\r\n\r\n # c\r\nb: 2\r\n"],
    ['a: 1\n\t\nb: 2\n \t', {}, ['a', 'b'], '\n '],
    ['a:\n- 1\n \t\nb: 2\n', { a: 'x: y' }, [], "a: 'x: y'\n \nb: 2\n"],
    ['a: 1\n \t\nb: 2\n \t\n', { b: '3' }, [], "a: 1\n \t\nb: '3'\n \n", 'other lines stay'],
    ['a: 1\n\t\n', { b: '2' }, [], "a: 1\n\t\nb: '2'\n", 'lines above a new name stay'],
    ['a: |+\n  x\nb: 1\n \t\nc: 2\n', {}, ['b'], 'a: |+\n  x\nc: 2\n'],
    ['a: |\n  x\nb: 1\n   \t \t# c\nd: 2\n', {}, ['b'], 'a: |\n  x\n# c\nd: 2\n', 'a tab among the blanks'],
    ['a: |\n  x\nb: 1\n   \t \t# c\nd: 2\n', { a: 'no' }, ['b'], 'a: |-\n  no\n# c\nd: 2\n'],
    ['a: x\nb:\n\t\n# c\n', { d: '2' }, [], "a: x\nb:\n\n# c\nd: '2'\n", 'a tab that would indent the new name'],
    ['a: x\r\nb: \r\n \t# c\r\n', { d: '2' }, [], "a: x\r\nb: \r\n \t# c\r\nd: '2'\r\n", 'other lines stay'],
    ['a: x\nb:\n \t\n', { b: 'y', d: '2' }, [], "a: x\nb: 'y'\n \nd: '2'\n"]
  ])
})

t.test('yaml: a last line of a block scalar without a line ending stays the last line, also for other readers', async (t) => {
  check(t, 'yaml', [
    ['# c\na: 1\nk: |\n  x', { b: '2', c: '3' }, [], "# c\nb: '2'\nc: '3'\na: 1\nk: |\n  x", 'new names go to the top'],
    ['---\r\nk: >+ # c\r\n  x', { b: '2' }, [], "---\r\nb: '2'\r\nk: >+ # c\r\n  x"],
    [' a: 1\n k:\n  - l: |2\n      x', { b: '2' }, ['a'], " b: '2'\n k:\n  - l: |2\n      x"],
    ['a: 1\nk: |\n  x', { a: '2', b: '3' }, [], "b: '3'\na: '2'\nk: |\n  x"],
    ['a: 1\nk: |\n  x', {}, ['a'], 'k: |\n  x'],
    ['a: 1\nk: |+\n  x\n  ', { b: '2' }, [], "b: '2'\na: 1\nk: |+\n  x\n  ", 'blanks in the last line'],
    ['k:\n- >+\n  x\n\n ', { b: '2' }, [], "b: '2'\nk:\n- >+\n  x\n\n "],
    ['k: |\n  x', { k: 'y\n', b: '2' }, [], "k: |\n  y\nb: '2'"],
    ['k: |\n  x', { k: 'x\n' }, [], 'k: |\n  x\n', 'the same text is written, because others read it without the line feed'],
    ['k: |\n  x\n', { k: 'x\n' }, [], 'k: |\n  x\n'],
    ['k: |-\n  x', { b: '2' }, [], "k: |-\n  x\nb: '2'", 'readers agree on a block scalar without its last line feed'],
    ['k: |\n  x\n# c', { b: '2' }, [], "k: |\n  x\n# c\nb: '2'"],
    ['k: |', { b: '2' }, [], "k: |\nb: '2'"],
    ['a:\nk: "|"', { a: '', b: '2' }, [], "a:\nk: \"|\"\nb: '2'"],
    ['k:\n  l: |\n    x\nb: 1', {}, ['b'], 'k:\n  l: |\n    x\n'],
    ['k: |-\n  x\nb: 1', {}, ['b'], 'k: |-\n  x']
  ])
})

t.test('yaml: comments and blanks in a mapping in braces stay when its only names change', async (t) => {
  check(t, 'yaml', [
    ['{\n# c\n}', { a: 'x' }, [], '{a: x,\n# c\n}'],
    ['{ # c\n}\n', { a: 'x', b: 'y z' }, [], '{a: x, b: y z, # c\n}\n'],
    ['{ A: 1 }', { B: 'x' }, ['A'], '{ B: x }'],
    ['{ A: 1, }', { B: 'x' }, ['A'], '{ B: x, }'],
    ['{ A: 1, B: 2 }', { C: 'x', D: 'z' }, ['A', 'B'], '{ C: x, D: z }'],
    ['{ # c\n  A: 1\n}', { B: 'x' }, ['A'], '{ # c\n  B: x\n}'],
    ['{\n# c\n  A: 1,\n  B: 2\n}', { C: 'x', D: 'z' }, ['A', 'B'], '{\n# c\n  C: x,\n  D: z\n}'],
    ['{ # c\n  A: 1,\n  B: 2, C: 3\n}', {}, ['A', 'B'], '{ # c\n  C: 3\n}', 'the line ending of a comment stays'],
    ['{ # c\n  A: 1 # d\n  , B: 2, C: 3\n}', { D: 'x' }, ['A', 'B'], '{ # c\n  C: 3, D: x\n}'],
    ['{ A: 1, # c\n  B: 2, C: 3,\n  D: 4 }', {}, ['B', 'C'], '{ A: 1, # c\n  D: 4 }'],
    ['{ A: 1, B: 2 }', {}, ['A'], '{ B: 2 }'],
    ['{ A: 1, B: 2 }', { C: 'x' }, ['B'], '{ A: 1, C: x }']
  ])
})

t.test('yaml: a blank stands before a comma after a colon without a value, for readers in Go', async (t) => {
  check(t, 'yaml', [
    ['{A: }\n', { B: 'x' }, [], '{A: , B: x }\n'],
    ['{A:}\n', { B: 'x' }, [], '{A: , B: x}\n'],
    ['{a: 1, A: , C: 2}\n', { B: 'x' }, ['C'], '{a: 1, A: , B: x }\n'],
    ['{\n  A:\n}\n', { B: 'x' }, [], '{\n  A: ,\n  B: x\n}\n'],
    ['{\n  A: # c\n}\n', { B: 'x' }, [], '{\n  A: , # c\n  B: x\n}\n'],
    ['{A: 1}\n', { B: 'x' }, [], '{A: 1, B: x}\n'],
    ['{A}\n', { B: 'x' }, [], '{A, B: x}\n']
  ])
})

t.test('yaml: a value directly after the colon is replaced by any value', async (t) => {
  check(t, 'yaml', [
    ['{a:[x], b:{c: 1}}\n', { a: 'new' }, [], '{a: new, b:{c: 1}}\n'],
    ['{a:[x], b:{c: 1}}\n', { a: '1', b: "it's\n" }, [], '{a: \'1\', b: "it\'s\\n"}\n'],
    ['{"a":[x], \'b\':{c: 1}}\n', { a: 'new', b: 'x' }, [], '{"a":"new", \'b\': x}\n'],
    ['{"a":"x","b":[1]}\n', { a: 'y', b: 'z' }, [], '{"a":"y","b":"z"}\n'],
    ['{a: {b:[1]}}\n', { a: 'new' }, [], '{a: new}\n']
  ])
})

t.test('yaml: a block scalar with an indentation indicator is changed with the blanks in its last lines', async (t) => {
  check(t, 'yaml', [
    ['A: |2\n    a\n   \nB: 1\n', { B: '2' }, [], "A: |2\n    a\n   \nB: '2'\n"],
    ['A: |2\n    a\n   \nB: 1\n', { A: '  a\n \n' }, [], 'A: |2\n    a\n   \nB: 1\n', 'the same value'],
    ['A: |2\n    a\n   \n', { C: 'x' }, [], 'A: |2\n    a\n   \nC: x\n'],
    ['A: |2\n    a\n   \nB: 1\n', { A: 'new' }, [], 'A: "new"\n   \nB: 1\n'],
    ['A: |2\n    a\n   \nB: 1\n', { A: 'x\ny\n' }, [], 'A: "x\\ny\\n"\n   \nB: 1\n'],
    ['A: |2\n    a\n   \nB: 1\n', {}, ['A'], '   \nB: 1\n'],
    ['A: "a\\\n\n  b"\nB: 1\n', { B: '2' }, [], 'A: "a\\\n\n  b"\nB: \'2\'\n'],
    ['A: "a\\\n\n  b"\nB: 1\n', { A: 'a b' }, [], 'A: "a b"\nB: 1\n']
  ])
})

t.test('yaml: a new name goes to the end, into the mapping and before the end of the document', async (t) => {
  check(t, 'yaml', [
    ['', { a: 'x' }, [], 'a: x\n'],
    ['# c', { a: 'x', b: '1' }, [], "# c\na: x\nb: '1'"],
    ['%YAML 1.2\n---', { a: 'x' }, [], '%YAML 1.2\n---\na: x'],
    ['---\n...\n', { a: 'x' }, [], '---\na: x\n...\n'],
    ['...\n', { a: 'x' }, [], 'a: x\n...\n'],
    ['a: 1\r\n# c\r\n...\r\n# d', { b: 'x' }, [], 'a: 1\r\n# c\r\nb: x\r\n...\r\n# d'],
    ['a: 1\n# c', { b: 'x' }, [], 'a: 1\n# c\nb: x'],
    ['a: |+\n  x\n\n', { b: 'x' }, [], 'a: |+\n  x\n\nb: x\n'],
    ['a: |\n  x', { b: 'x' }, [], 'b: x\na: |\n  x'],
    ['a: 1\n', { '<<': 'x', null: 'why', 'a b': 'z', '': 'w', 8080: 'v', '# c': 'u' }, [],
      "a: 1\n'8080': v\n'<<': x\n'null': why\na b: z\n'': w\n'# c': u\n"],
    ['a: 1\n', { ['k'.repeat(2000)]: 'x' }, [], `a: 1\n? ${'k'.repeat(2000)}\n: x\n`, 'a long name is an explicit key'],
    ['a: 1\n', { b: 'x' }, ['a'], 'b: x\n'],
    ['a: 1', { b: 'x' }, ['a'], 'b: x'],
    ['{}', { a: 'x' }, [], '{a: x}'],
    ['{a: 1}', { b: 'x', c: ',' }, [], "{a: 1, b: x, c: ','}"],
    ['{a: 1, b: 2}', { c: 'x' }, ['b'], '{a: 1, c: x}'],
    ['{a: 1,}', { b: 'x' }, ['a'], '{b: x,}'],
    ['{a, b:, "c":1}', { a: '1', b: '2', c: '3', d: '4' }, [], '{a: \'1\', b: \'2\', "c":"3", "d": "4"}'],
    ['{\n  a: 1, # c\n  b: 2 # d\n}\n', { c: 'x' }, [], '{\n  a: 1, # c\n  b: 2, # d\n  c: x\n}\n'],
    ['{\n  a: 1\n  , b: 2\n}\n', { c: 'x' }, [], '{\n  a: 1\n  , b: 2, c: x\n}\n'],
    ['{\r\n  a: 1, # c\r\n  b: 2, # d\r\n}\r\n', { c: 'x' }, ['b'], '{\r\n  a: 1, # c\r\n  c: x,\r\n}\r\n']
  ])
})

t.test('yaml: rare ways to write a pair or a document keep every other byte', async (t) => {
  check(t, 'yaml', [
    ['a: >2-\n   x\n  y\nb: 1\n', { a: 'p\nq' }, [], 'a: |2-\n  p\n  q\nb: 1\n'],
    ['a: |+\n  x\n\nb: 1\n', {}, ['b'], 'a: |+\n  x\n\n'],
    ['a:\t1\t# c\nb:\t2\n', { a: 'z', c: 'w' }, [], 'a:\tz\t# c\nb:\t2\nc: w\n', 'tabs around a value stay'],
    ['a:\n  # c\n  # d\n  x\nb: 2\n', { a: 'z' }, [], 'a:\n  # c\n  # d\n  z\nb: 2\n', 'comments between name and value stay'],
    ['? |\n  multi\n  key\n: 1\nb: 2\n', { 'multi\nkey\n': 'z' }, [], '? |\n  multi\n  key\n: z\nb: 2\n'],
    ['--- !!map\na: 1\n', { b: '2' }, ['a'], "--- !!map\nb: '2'\n"],
    ['\u00A0a: 1\n', { '\u00A0a': 'z' }, [], '\u00A0a: z\n', 'a no-break space is a part of the name'],
    ['{a: 1,\n b: [1,\n 2], c: 3}', { b: 'z' }, [], '{a: 1,\n b: z, c: 3}'],
    ['a: "x\ry"', { b: 'z' }, [], 'a: "x\ry"\nb: z', 'a carriage return alone ends no line']
  ])
})

t.test('yaml: a value whose anchor is in use is not changed or removed, unless its aliases go too', async (t) => {
  const text = 'a: &a 1\nb: {x: &b y}\nc: *a\nd: [*b]\n'
  for (const name of ['a', 'b']) {
    t.same(change('yaml', text, { [name]: 'x' }), { refused: 'anchored', name })
    t.same(change('yaml', text, {}, [name]), { refused: 'anchored', name })
  }
  check(t, 'yaml', [
    [text, { a: 'x' }, ['c'], 'a: &a x\nb: {x: &b y}\nd: [*b]\n'],
    [text, { c: 'x', d: 'z' }, [], 'a: &a 1\nb: {x: &b y}\nc: x\nd: z\n'],
    [text, { e: 'x' }, ['b', 'd'], 'a: &a 1\nc: *a\ne: x\n'],
    ['a: &a 1\nb: &a 2\nc: *a\n', { a: 'x' }, [], 'a: &a x\nb: &a 2\nc: *a\n', 'an anchor that is defined again']
  ])
})

t.test('the lists of names are sorted and have only names whose value changed', async (t) => {
  const documents = {
    env: 'A=1\nB=2\nC=3\nD=4\n', json: '{"A":1,"B":"2","C":3,"D":4}', yaml: 'A: 1\nB: "2"\nC: 3\nD: 4\n'
  }
  for (const [format, text] of Object.entries(documents) as [NamedFormat, string][]) {
    const result = change(format, text, { D: 'x', A: '1', C: 'y', z: 'z', Z: 'Z', G: '' }, ['B', 'B', 'missing', 'D'])
    t.match(result, { added: ['G', 'Z', 'z'], changed: ['C', 'D'], removed: ['B'] }, format)
    const same = { text, added: [], changed: [], removed: [] }
    t.same(change(format, text, { A: '1', B: '2' }, ['missing']), same, 'and nothing changes nothing')
    t.same(change(format, '', {}, ['missing']), { ...same, text: '' })
  }
  t.same(
    compareEntries({ b: '1', a: '1', c: '1' }, { c: '2', d: '1', b: '1' }), { added: ['d'], removed: ['a'], changed: ['c'] }
  )
})

t.test('a document that cannot be parsed is not changed, and the position of its first error is known', async (t) => {
  const cases: [NamedFormat, string, number, number, string?][] = [
    ['env', 'A=1\nnot an assignment\n', 2, 1], ['env', 'A=1\r\n\r\nB="open\r\n', 3, 1], ['env', '\uFEFF- x', 1, 1],
    ['env', 'A=1\n'.repeat(MAX_NAMES + 1), MAX_NAMES + 1, 1, 'names'],
    ['env', '\r\n'.repeat(MAX_LINES + 1), MAX_LINES + 2, 1, 'lines'],
    ['json', '', 1, 1], ['json', '[]', 1, 1], ['json', '{"a":1,}', 1, 8], ['json', '{\n  "a": 1\n  "b": 2\n}', 3, 3],
    ['json', '{"a": tru}', 1, 7], ['json', '{"a": 01}', 1, 7], ['json', '{"a": "\\x"}', 1, 8], ['json', '{"é😀": "x\n"}', 1, 10],
    ['json', '{"a": "open', 1, 12], ['json', '{"a": [1, 2}', 1, 12], ['json', '{"a": 1} x', 1, 10], ['json', '{a: 1}', 1, 2],
    ['json', '{"a" 1}', 1, 6], ['json', '{', 1, 2], ['json', '{"a":[1,]}', 1, 9],
    ['json', `{"a":[${'1,'.repeat(MAX_TOKENS)}1]}`, 1, MAX_TOKENS + 3, 'tokens'],
    ['yaml', '- a', 1, 1], ['yaml', 'a: 1\na: 2', 2, 1], ['yaml', 'a: 1\nb: "open', 2, 4], ['yaml', 'a: 1\r\nb: !x 1\r\n', 2, 4],
    ['yaml', 'a: 1\n---\nb: 2', 2, 1], ['yaml', 'a: b: c', 1, 4], ['yaml', 'a: *x', 1, 4], ['yaml', 'a:\n\t- b', 2, 1],
    ['yaml', `a: 1\nb: ${'x'.repeat(YAML_LENGTH)}`, 2, YAML_LENGTH - 4, 'length'],
    ['yaml', 'a: 1\n'.repeat(1500), 1429, 3, 'tokens']
  ]
  const LIMITS: Record<string, RegExp> = {
    names: /^10,000 names$/, lines: /^20,000 lines$/, tokens: /^[12]0,000 tokens \(/, length: /^262,144 characters$/
  }
  for (const [format, text, line, column, message] of cases) {
    const name = `${format}: ${message ?? JSON.stringify(text)}`
    const { limit, line: foundLine, column: foundColumn } = documentError(format, text)!
    t.same([foundLine, foundColumn], [line, column], name)
    t.match(limit ?? '', message === undefined ? /^$/ : LIMITS[message]!, name)
    if (text !== '') t.match(change(format, text, { X: '1' }), { refused: 'unreadable', line, column, limit }, name)
  }
  t.equal(documentError('text', '- a'), undefined)
  for (const format of ['env', 'json', 'yaml'] as const) t.equal(documentError(format, format === 'json' ? '{}' : ''), undefined)
})

t.test('a name or a value that the format cannot hold is refused with the name', async (t) => {
  for (const name of ['', 'A B', 'Ä', 'A\n', '#', 'A=B', 'A:B', '$A', '😀']) {
    t.same(change('env', 'A=1\n', { OK: '1', [name]: 'x' }), { refused: 'unholdable', name }, JSON.stringify(name))
  }
  for (const value of ['\'"`#', 'a\r\\n', '\ud800', 'a\0', ' \'"` #']) {
    t.same(change('env', 'A=1\n', { OK: '1', X: value }), { refused: 'unholdable', name: 'X' }, JSON.stringify(value))
  }
})

t.test('a change that would exceed a limit of the format is refused with the limit', async (t) => {
  const names = Array.from({ length: MAX_NAMES }, (_, i) => `K${i}=${i}\n`).join('')
  t.same(change('env', names, { K0: 'x', X: '1' }), { refused: 'limit', limit: '10,000 names' }, 'one name too many')
  t.ok('text' in change('env', names, { K0: 'x', X: '1' }, ['K1']))
  t.ok('text' in change('env', 'A=1\n', { A: '\n'.repeat(MAX_LINES) }), 'more lines than a document may have are escaped')
  const members = `{${Array.from({ length: MAX_TOKENS / 4 - 1 }, (_, i) => `"k${i}":1`).join()}}`
  t.match(change('json', members, { X: '1' }), { refused: 'limit', limit: /^20,000 tokens/ }, 'one member too many')
  t.match(change('yaml', 'a: 1\n', { X: 'x'.repeat(YAML_LENGTH) }), { refused: 'limit', limit: '262,144 characters' })
  const many = Object.fromEntries(Array.from({ length: 2_500 }, (_, i) => [`n${i}`, 'x']))
  t.match(change('yaml', 'a: 1\n', many), { refused: 'limit', limit: /^10,000 tokens/ })
})

t.test('env: all ways to write a value are tried in documents up to 100 KiB, and only two in the largest', async (t) => {
  const cases: [text: string, set: Record<string, string>][] = [
    ["A='abc\\'\nB=1\n", { C: '  #' }], ['A=1\nB="x\\"\n', { A: "''\\`", C: '"\\', D: ' #' }]
  ]
  for (const [text, set] of cases) {
    const of = (size: number) => `# ${'x'.repeat(size * 1024)}\n${text}`
    for (const size of [0, 64, 100]) t.ok('text' in change('env', of(size), set), `${size} KiB: ${ascii(text)}`)
    t.same(change('env', of(1000), set), { refused: 'untried' })
  }
})

/** Milliseconds of CPU time, which do not depend on the load of the machine. */
function cpuOf (work: () => unknown): number {
  const before = process.cpuUsage()
  work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}

t.test('a change of a small document is cheap, and no document makes one expensive', async (t) => {
  const count = 200
  const documents = {
    env: Array.from({ length: count }, (_, i) => `NAME_${i}=value ${i}\n`).join(''),
    json: JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, i) => [`NAME_${i}`, `value ${i}`])), null, 2)
  }
  for (const [format, text] of Object.entries(documents) as [NamedFormat, string][]) {
    const timed = () => cpuOf(() => change(format, text, { NAME_100: 'x', NEW: 'y' }))
    const times = Array.from({ length: 200 }, timed).sort((a, b) => a - b)
    t.ok(times[100]! < 5, `${format}: ${times[100]!.toFixed(3)} ms`)
  }
  const size = 1024 * 1024
  const fill = (unit: string, before = '', after = '') => before + unit.repeat(Math.floor(size / unit.length)) + after
  const hostile: [NamedFormat, string, string][] = [
    ['env', fill(' ', 'A=1\nX=', '"x"\n'), 'X'], ['env', fill("\\'", "X='", "'\n"), 'X'], ['env', fill('\n', 'X="', '"'), 'X'],
    ['env', fill("'\\'", 'X=', '\n'), 'X'], ['env', "A='\\'\n".repeat(9000), 'A'], ['env', fill(' ', 'A=1 #', '\n'), 'A'],
    ['json', fill(' ', '{"X":1', ',"a":2}'), 'X'], ['json', fill('\\n', '{"X":"', '","a":2}'), 'X'],
    ['json', fill('[', '{"X":', `1${']'.repeat(size)},"a":2}`), 'X'],
    ['yaml', `X: ${'['.repeat(500)}${']'.repeat(500)}\n`, 'X'], ['yaml', `{a: 1,${' '.repeat(60_000)}X: 1}`, 'X'],
    ['yaml', `a: 1\n${' '.repeat(60_000)}\nX: 1\n`, 'X']
  ]
  const values = [fill("'"), fill('\\n'), fill('\n', '"', "'"), fill('\\"'), fill(' '), fill("'\"`\\"), fill('x #'), fill('a ')]
  for (const [format, text, name] of hostile) {
    const time = cpuOf(() => {
      change(format, text, { [name]: 'x' })
      change(format, text, {}, [name])
    })
    t.ok(time < 2000, `${format}, ${JSON.stringify(text.slice(0, 20))}: ${time.toFixed(0)} ms`)
  }
  // A request can set values of at most 256 KiB.
  for (const value of values.map((value) => value.slice(0, 256 * 1024))) {
    for (const format of ['env', 'json', 'yaml'] as const) {
      const time = cpuOf(() => change(format, '', { X: value }))
      t.ok(time < 2000, `${format}, a value ${JSON.stringify(value.slice(0, 10))}: ${time.toFixed(0)} ms`)
    }
  }
})

t.test('changes do not touch the prototype', async (t) => {
  for (const format of ['env', 'json', 'yaml'] as const) {
    const first = change(format, '', { ['__proto__']: 'x', constructor: 'y' }, ['toString'])
    if ('refused' in first) throw new Error(format)
    t.strictSame(first.added, ['__proto__', 'constructor'])
    t.equal(JSON.stringify(readDocument(format, first.text)), '{"__proto__":"x","constructor":"y"}')
    const second = change(format, first.text, { ['__proto__']: 'z' }, ['constructor'])
    t.match(second, { added: [], changed: ['__proto__'], removed: ['constructor'] })
  }
  t.equal(Object.keys(emptyEntries()).length, 0)
})

t.test('env: the present value of a name given twice changes nothing, whatever the line before says', async (t) => {
  for (const [text, name, value] of [
    ['B=x#y\nB=z\n', 'B', 'z'], ['B=\n"x"\nB=z\n', 'B', 'z'], ["D=# c\nD='' # c\n", 'D', ''], ['A=1#2\nB=1\nA=3\n', 'A', '3']
  ] as const) {
    const set = new Map([[name, { text: JSON.stringify(value) }]])
    t.match(changeNames('env', text, { set, unset: [], replace: null }), { text, changed: [] }, text)
  }
  const set = new Map([['B', { text: '"x"' }]])
  t.match(changeNames('env', 'B=z\nB=x#y\n', { set, unset: [], replace: null }), { text: 'B=z\nB=x\n', changed: ['B'] },
    'the line in force is cleaned')
})
