import type { Entries } from '../documents/entries.ts'
import { readJson, type JsonObject } from '../documents/json.ts'
import type { Editor, Plan } from './plan.ts'
import { lineEndOf, spliced, type Splice } from './splices.ts'

const INDENTATION = '  '

export function jsonEditor (text: string, entries: Entries): Editor {
  const object: JsonObject = { open: 0, close: 1, members: [] }
  if (text === '') return { attempts: 1, edit: (plan) => `${edit('{}', object, plan)}\n` }
  readJson(text, entries, object)
  return { attempts: 1, edit: (plan) => edit(text, object, plan) }
}

function edit (text: string, object: JsonObject, { set, removed }: Plan): string {
  const { open, close, members } = object
  const afterComma = (index: number) => text.indexOf(',', members[index]!.valueTo) + 1
  const beforeComma = (index: number) => text.slice(members[index]!.valueTo, afterComma(index) - 1)
  const afterPrevious = (index: number) => index === 0 ? open + 1 : afterComma(index - 1)

  const lastKept = members.findLastIndex(({ name }) => !removed.has(name))
  const added = new Map(set)
  const splices: Splice[] = []
  for (const { name, valueFrom, valueTo } of members.toReversed()) {
    // Of duplicate names, the value of the last one applies.
    const value = added.get(name)
    if (value === undefined) continue
    added.delete(name)
    splices.push({ from: valueFrom, to: valueTo, text: JSON.stringify(value) })
  }
  if (added.size > 0) splices.push(addition([...added]))
  for (const [index, { name }] of members.entries()) {
    if (index < lastKept && removed.has(name)) {
      splices.push({ from: afterPrevious(index), to: afterComma(index), text: '' })
    }
  }
  if (lastKept < members.length - 1) {
    const blanks = lastKept === -1 ? '' : beforeComma(lastKept)
    // If the comma is at the start of a line, the line ending before the comma is removed, too.
    const from = lastKept === -1 ? open + 1 : afterComma(lastKept) - 1 - (isMultiline(blanks) ? blanks.length : 0)
    splices.push({ from, to: members.at(-1)!.valueTo, text: '' })
  }
  return spliced(text, splices)

  /** The new members, formatted like the last member. */
  function addition (values: [name: string, value: string][]): Splice {
    const last = members.at(-1)
    if (last === undefined) {
      const lines = values.map(([name, value]) => `${lineEnd()}${INDENTATION}${member(name, value, ': ')}`)
      const end = isMultiline(text.slice(open + 1, close)) ? '' : lineEnd()
      return { from: open + 1, to: open + 1, text: lines.join(',') + end }
    }
    const colon = text.slice(last.nameTo, last.valueFrom)
    const before = text.slice(afterPrevious(members.length - 1), last.nameFrom)
    const blanks = members.length === 1 ? '' : beforeComma(members.length - 2)
    const separator = `${newLine(blanks)},${
      before === '' && members.length === 1 && colon.endsWith(' ') ? ' ' : newLine(before) || before}`
    const items = values.map(([name, value]) => `${separator}${member(name, value, isMultiline(colon) ? ': ' : colon)}`)
    if (lastKept !== -1) {
      const at = members[lastKept]!.valueTo
      return { from: at, to: at, text: items.join('') }
    }
    const first = text.slice(open + 1, members[0]!.nameFrom)
    return { from: open + 1, to: open + 1, text: first + items.join('').slice(separator.length) }
  }

  /** A line ending and the indentation of the last line of `blanks`; empty if `blanks` contains no line ending. */
  function newLine (blanks: string) {
    return isMultiline(blanks) ? lineEnd() + blanks.slice(Math.max(blanks.lastIndexOf('\n'), blanks.lastIndexOf('\r')) + 1) : ''
  }

  function lineEnd () { return lineEndOf(text) }
}

const isMultiline = (text: string) => /[\r\n]/.test(text)

const member = (name: string, value: string, colon: string) => JSON.stringify(name) + colon + JSON.stringify(value)
