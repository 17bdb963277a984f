// runs: no database
import { readdirSync } from 'node:fs'
import t from 'tap'
import { escapeUnprintable } from '../../schemas/unprintable.ts'
import { isNewName } from '../../src/rules/formats/names.ts'
import { checkDocument } from '../../src/rules/documents/check.ts'
import type { NamedFormat } from '../../src/rules/documents/entries.ts'
import { readDocument } from '../../src/rules/documents/read.ts'
import { changeNames, type NameChanges } from '../../src/rules/editing/change.ts'

// Texts of a request are read on the event loop, so the time may only grow with their length. A reader with quadratic
// time takes seconds or hours for these texts.
const MOST_MS = 500

function cpuOf (work: () => unknown): number {
  const before = process.cpuUsage()
  work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}

const half = (character: string, other: string, length: number) =>
  character.repeat(length / 2) + other.repeat(length / 2)

const LENGTH = 400_000
const DOCUMENTS: Record<string, [NamedFormat, string]> = {
  'single quotes after line separators': ['env', 'A=x' + "\u2028'x".repeat(LENGTH / 3)],
  'double quotes after line separators': ['env', 'A=x' + '\u2029"x'.repeat(LENGTH / 3)],
  'quotes of all kinds after line separators': ['env', 'A=x' + '\u2028\'x\u2028"x\u2028`x'.repeat(LENGTH / 9)],
  'a long name and blanks before the separator': ['env', half('a', ' ', LENGTH) + '=1#'],
  'a long name and lines before the separator': ['env', half('a', '\n', 30_000) + '=$x'],
  'escaped quotes': ['env', "A='" + "\\'".repeat(LENGTH / 2) + "'"],
  'blanks before and in a value': ['env', 'A=' + ' '.repeat(LENGTH / 2) + 'x' + ' '.repeat(LENGTH / 2) + 'y'],
  'many comments in a line': ['env', 'A="x"' + ' #'.repeat(LENGTH / 2)],
  'assignments after line separators': ['env', 'A=1\u2028'.repeat(LENGTH / 50)],
  'blanks in a string of several lines': ['yaml', 'a: "x\n' + half(' ', 'y', 200_000) + '"'],
  'blanks in a plain value of several lines': ['yaml', 'a: x\n' + ' '.repeat(100_000) + 'y '.repeat(50_000) + 'z'],
  'a long number': ['yaml', 'a: [0x' + 'f'.repeat(20_000) + ']'],
  'a long explicit name': ['yaml', '? ' + 'k'.repeat(200_000) + '\n: 1'],
  'a long number in JSON': ['json', `{"a":${'1'.repeat(LENGTH)}}`],
  'escapes in a name': ['json', `{"${'\\"'.repeat(LENGTH / 2)}":1}`],
  'an open string': ['json', `{"a":"${'\\n'.repeat(LENGTH / 2)}`]
}

const ADDED: NameChanges = { set: new Map([['NEW', { text: '"v"' }]]), unset: [], replace: null }

for (const [what, [format, text]] of Object.entries(DOCUMENTS)) {
  t.test(`RL-19: a document is read and changed in linear time: ${what}`, async (t) => {
    t.ok(cpuOf(() => readDocument(format, text)) < MOST_MS, 'read')
    t.ok(cpuOf(() => checkDocument(format, text)) < MOST_MS, 'checked')
    t.ok(cpuOf(() => changeNames(format, text, ADDED)) < 3 * MOST_MS, 'changed, with up to three reads')
  })
}

t.test('quotes at the start of a line are removed as dotenv does', async (t) => {
  const PATTERN = /^(['"`])([\s\S]*)\1$/mg
  const values = [
    "x\u2028'y'", "x\u2028'y'\u2028z", "x\u2028'y\u2028z'", "x\u2028'y\u2028'z\u2028a'\u2028\"b\"", "x\u2028'y\u2028\"z\"",
    "x\u2028''", "x\u2028'", "x\u2028'y' \u2028'", "x'\u2029'y", "x\u2028`'y'`", "x'y'"
  ]
  for (const value of values) {
    t.strictSame({ ...readDocument('env', `A=${value}`) }, { A: value.replace(PATTERN, '$2') }, escapeUnprintable(value))
  }
})

t.test('a warning names the position of a name that blanks or lines separate from its sign', async (t) => {
  const warned = (text: string) => checkDocument('env', text).warnings.warnings
  t.match(warned('AA  =$x\nexport AA\t=2\n'), [{ line: 1, column: 6, name: 'AA' }, { line: 2, column: 8, name: 'AA' }])
  t.match(warned('B: $x\n  B  = "2"\n'), [{ line: 1, column: 4, name: 'B' }, { line: 2, column: 3, name: 'B' }])
})

/** All patterns of a schema. */
function patternsIn (schema: unknown, found: Set<string>, seen = new Set<unknown>()): void {
  if (typeof schema !== 'object' || schema === null || seen.has(schema)) return
  seen.add(schema)
  const { pattern } = schema as { pattern?: unknown }
  if (typeof pattern === 'string') found.add(pattern)
  for (const part of Object.values(schema)) patternsIn(part, found, seen)
}

t.test('RL-19: the patterns of all schemas take linear time, also for a text that is far too long', async (t) => {
  const patterns = new Set<string>()
  for (const file of readdirSync('schemas').filter((name) => name.endsWith('.ts'))) {
    const module = await import(`../../schemas/${file.replace(/ts$/, 'js')}`) as object
    for (const schema of Object.values(module)) patternsIn(schema, patterns)
  }
  t.ok(patterns.size > 15, `${patterns.size} patterns`)
  const repeated = ['a', 'A', '0', ' ', '-', '.', '=', '/', ':', 'a-', 'a ', '0:', '"', '"",', '+', 'é', '\t', '\u2028']
  const texts = repeated.flatMap((part) => ['\u0001', '!', ' '].map((end) => part.repeat(40_000 / part.length) + end))
  for (const pattern of patterns) {
    const expression = new RegExp(pattern)
    t.ok(cpuOf(() => { for (const text of texts) expression.test(text) }) < MOST_MS, pattern)
  }
  const names: [string, boolean][] = [
    ['a', true], [' a ', true], ['a b', true], ['\u200ca', true], ['\ufeff a', true], ['é', true], ['', false], ['  ', false],
    ['\u00a0', false], ['a\u0001', false], ['\u0001a', false], ['a\u2028b', false], [' \t a', false], ['a\u202e', false]
  ]
  for (const [name, isNew] of names) t.equal(isNewName(name), isNew, escapeUnprintable(name))
})
