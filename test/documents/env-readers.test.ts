// runs: no database
import t from 'tap'
import { changeNames } from '../../src/rules/editing/change.ts'
import { texts } from '../helpers/texts.ts'
import { MISREAD } from '../readers/misread.ts'
import { readers } from '../readers/readers.ts'
import { VALUES } from '../readers/values.ts'

/** The line of the changed name in the old document. Undefined for a new name. */
const OLD = [undefined, 'X=x#old', 'export X="old" # note']

interface Written { value: string, text: string }

/** Writes each value as a new name and over old values, between two other names. */
const written = (lineEnd: string): Written[] => OLD.flatMap((old) => VALUES.map((value) => {
  const lines = old === undefined ? ['BEFORE=1'] : ['BEFORE=1', old, 'AFTER=2']
  const set = texts([['X', value], ['AFTER', '2']])
  const changed = changeNames('env', lines.map((line) => line + lineEnd).join(''), { set, unset: [], replace: null })
  return { value, text: 'text' in changed ? changed.text : '' }
}))

const DOCUMENTS = { lf: written('\n'), crlf: written('\r\n') }

const order = (values: Iterable<string>) => [...new Set(values)].sort()

for (const { names, missing, read } of readers(['BEFORE', 'X', 'AFTER'])) {
  t.test(`${names.join(' and ')} read what PATCH writes, but for the listed values`, { skip: missing ?? false }, async (t) => {
    for (const lineEnds of ['lf', 'crlf'] as const) {
      const documents = DOCUMENTS[lineEnds]
      // A shell includes the CR of each line in the value.
      if (lineEnds === 'crlf' && names.includes('sh')) continue
      const readings = read(documents.map(({ text }) => text))
      for (const name of names) {
        const isRight = documents.map(({ value }, index) => {
          const reading = readings[name]![index]
          return reading != null && reading.BEFORE === '1' && reading.X === value && reading.AFTER === '2'
        })
        const wrong = order(documents.filter((_, index) => !isRight[index]).map(({ value }) => value))
        t.strictSame(wrong, order(MISREAD[lineEnds].flatMap((one) => one.readers.includes(name) ? one.values : [])),
          `${name}, ${lineEnds}`)
        const once = documents.filter(({ value }, index) => isRight[index] && wrong.includes(value))
        t.strictSame(once, [], `${name}, ${lineEnds}: a value is read alike over each old value`)
      }
    }
  })
}

t.test('a document is written for each value, and each listed value is tried', async (t) => {
  t.strictSame([...DOCUMENTS.lf, ...DOCUMENTS.crlf].filter(({ text }) => text === ''), [])
  const listed = [...MISREAD.lf, ...MISREAD.crlf].flatMap(({ values }) => values)
  t.strictSame(listed.filter((value) => !VALUES.includes(value)), [])
})
