// runs: no database
import t from 'tap'
import { readDocument } from '../../src/rules/documents/read.ts'
import { readValue } from '../../src/rules/documents/value.ts'
import { random } from '../helpers/traffic.ts'

const SEED = Number(process.env.TEST_SEED ?? Math.floor(Math.random() * 2 ** 32))
const next = random(SEED)
const pick = <T>(list: readonly T[]) => list[Math.floor(next() * list.length)]!
const DOCUMENTS = 4_000

const NAMES = ['A', 'B', 'C', 'D', '_x.y-z', '', '__proto__', 'toString', 'null', 'true', 'True', 'NULL', 'é']
const LINES = {
  env: ['A=1', 'B="x\\ny"', "A='it'", '# c', '', 'export C=1', 'A', 'D: 1', 'A="'],
  json: [
    '"A":"1"', '"A":1', '"B":null', '"":"e"', '"__proto__":"p"', '"A":{"A":"x"}', '"B":"\\u0041"', '"A":[1]', '"A": "2"',
    '"B":1.50', '"\\u0041":"escaped"', '"toString":"x"', '"C":true', '"D":"\\ud800"', 'A:1', '"é":"é"'
  ],
  yaml: [
    'A: 1', 'A: 007', 'B: true', 'A: True', 'A: null', 'A: ~', 'A:', 'A: "x y"', "A: 'it'", "A: 'it''s'", 'A: "a\\nb"',
    '# c', '#', '# é', '', ' ', 'A: a:b', 'A: a: b', 'A: a:', 'A: x #c', 'A: x#c', 'null: 1', 'True: 1', 'true: 2',
    'B: http://x.y/z', 'B: 1_000', 'B: 0x1F', 'B: 0o7', 'B: 1e400', 'B: 1.50', 'B: -1', '_x.y-z: a=b', 'C: 2001-01-01',
    'C: 12:30:45', '---', '...', '- a', 'A: |', '  text', 'A: [1, 2]', 'A: {a: 1}', '"A": 1', "'B': 2", 'A: &a 1', 'B: *a',
    'A : 1', 'A: "a', '\tA: 1', 'A: "#"', "A: '#: x'", '%YAML 1.2', 'A: y', 'A: .inf', 'A: 1 ', 'A: --- x', 'D: 1.',
    'D: 1e', 'D: +1', 'D: 9007199254740993', 'é: 1', 'A: é', 'NULL: x', 'A:  1', 'A: "\t"', '<<: 1', 'A: !!str 1'
  ]
}

t.test(`the value of a name is the one of the whole document, also in large and invalid ones (seed ${SEED})`, async (t) => {
  const wrong: unknown[] = []
  const compare = (format: keyof typeof LINES, text: string) => {
    const entries = readDocument(format, text)
    for (const name of NAMES) {
      const found = readValue(format, text, name)
      const isSame = entries === undefined ? found === undefined : found !== undefined && found.value === entries[name]
      if (!isSame) wrong.push({ format, text: text.slice(0, 200), name, found })
    }
  }
  for (let i = 0; i < DOCUMENTS; i++) {
    const format = pick(['env', 'json', 'yaml', 'yaml'] as const)
    const parts = Array.from({ length: 1 + Math.floor(next() * 4) }, () => pick(LINES[format]))
    const mark = pick(['', '', '', '\uFEFF', ' '])
    compare(format, format === 'json'
      ? `${mark}{${parts.join()}}${pick(['', '\n', ',', ' '])}`
      : mark + parts.join(pick(['\n', '\n', '\n', '\r\n', '\r'])) + pick(['', '\n', '\n\n']))
  }
  for (const lines of [399, 400, 401, 570, 600, 5_000]) {
    compare('yaml', Array.from({ length: lines }, (_, i) => `N${i}: 1\n`).join('') + 'A: 1')
    compare('yaml', '# comment\n'.repeat(lines) + 'A: 1')
    compare('yaml', `${'\n'.repeat(lines)}A: "${'x'.repeat(lines * 20)}"`)
  }
  for (const length of [99, 100, 101, 1023, 1024, 1025]) compare('yaml', `A: 1\n${'k'.repeat(length)}: 1`)
  for (const tokens of [4_000, 9_000, 11_000]) {
    compare('json', `{${Array.from({ length: tokens }, (_, i) => `"k${i}":1`).join()},"A":"x"}`)
    compare('json', `{"C":[${Array.from({ length: tokens }, () => 1).join()}],"A":"x"}`)
  }
  for (const text of ['', '[]', 'null', '"A"', '{', '{"A":"1"']) for (const format of ['json', 'yaml'] as const) compare(format, text)
  t.strictSame(wrong.slice(0, 5), [])
  t.equal(readValue('text', 'A=1', 'A'), undefined)
})
