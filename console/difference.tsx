import { diffArrays } from 'diff'
import { escapeValue, needsEscapes } from './values.ts'

type Line = readonly [sign: '-' | '+' | ' ', line: string]
const MAX_EDITS = 1_000

/** The lines of two texts: only in the first one, only in the second one, or in both. */
export function diffLines (before: string, after: string): Line[] {
  const [a, b] = [before.split('\n'), after.split('\n')]
  const parts = diffArrays(a, b, { maxEditLength: MAX_EDITS }) ??
    [{ value: a, removed: true, added: false }, { value: b, removed: false, added: true }]
  return parts.flatMap(({ value, added, removed }) =>
    value.map((line): Line => [removed ? '-' : added ? '+' : ' ', line]))
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
