import { escapeValue, needsEscapes } from './values.ts'

type Line = readonly [sign: '-' | '+' | ' ', line: string]
const MAX_CELLS = 1_000_000

/** The lines of two texts: only in the first one, only in the second one, or in both. */
export function diffLines (before: string, after: string): Line[] {
  const [a, b] = [before.split('\n'), after.split('\n')]
  const all = [...a.map((line): Line => ['-', line]), ...b.map((line): Line => ['+', line])]
  if (a.length * b.length > MAX_CELLS) return all
  // The number of lines that the rests of both texts have in common.
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1))
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i]![j] = a[i] === b[j] ? common[i + 1]![j + 1]! + 1 : Math.max(common[i + 1]![j]!, common[i]![j + 1]!)
    }
  }
  const lines: Line[] = []
  let [i, j] = [0, 0]
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push([' ', a[i]!])
      i++
      j++
    } else if (j === b.length || (i < a.length && common[i + 1]![j]! >= common[i]![j + 1]!)) lines.push(['-', a[i++]!])
    else lines.push(['+', b[j++]!])
  }
  return lines
}

/** What a change made of a value. Undefined: there was no value, or there is none any more. */
export function Difference ({ before, after }: { before: string | undefined, after: string | undefined }) {
  const isEscaped = [before, after].some((value) => value !== undefined && needsEscapes(value))
  const [from, to] = [before, after].map((value) => value !== undefined && isEscaped ? escapeValue(value) : value)
  const lines = from !== undefined && to !== undefined
    ? diffLines(from, to)
    : (from ?? to ?? '').split('\n').map((line): Line => [from === undefined ? '+' : '-', line])
  return (
    <pre class='diff value' tabIndex={0} aria-label='Difference'>
      {lines.map(([sign, line], i) => {
        const Part = sign === '-' ? 'del' : sign === '+' ? 'ins' : 'span'
        return <Part key={i}><span aria-hidden='true'>{sign} </span>{line}{'\n'}</Part>
      })}
    </pre>
  )
}
