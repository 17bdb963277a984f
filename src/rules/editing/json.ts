import { emptyEntries, type Entries } from '../documents/entries.ts'
import { mergedJson, readTypedJson, type PatchValue } from '../documents/json-values.ts'
import { jsonTree, type JsonMember, type JsonNode } from '../documents/json.ts'
import type { Editor, Plan } from './plan.ts'
import { lineEndOf, spliced, type Splice } from './splices.ts'

const INDENTATION = '  '

type ObjectNode = JsonNode & { members: JsonMember[] }

export function jsonEditor (text: string, entries: Entries): Editor {
  const typed = emptyEntries()
  if (text === '') return { typed, attempts: 1, edit: (plan) => `${edit('{}', jsonTree('{}') as ObjectNode, plan)}\n` }
  const tree = readTypedJson(text, entries, typed) as ObjectNode
  return { typed, attempts: 1, edit: (plan) => edit(text, tree, plan) }
}

function edit (text: string, tree: ObjectNode, { set, removed }: Plan): string {
  return spliced(text, objectSplices(text, tree, set, removed))
}

/** The changes of the text that set and remove members of an object. All other bytes stay. */
function objectSplices (
  text: string, object: ObjectNode, set: ReadonlyMap<string, PatchValue>, removed: ReadonlySet<string>
): Splice[] {
  const { members } = object
  const open = object.from
  const close = object.to - 1
  const afterComma = (index: number) => text.indexOf(',', members[index]!.value.to) + 1
  const beforeComma = (index: number) => text.slice(members[index]!.value.to, afterComma(index) - 1)
  const afterPrevious = (index: number) => index === 0 ? open + 1 : afterComma(index - 1)

  const lastKept = members.findLastIndex(({ name }) => !removed.has(name))
  const added = new Map(set)
  const splices: Splice[] = []
  for (const { name, value } of members.toReversed()) {
    // Of duplicate names, the value of the last one applies.
    const change = added.get(name)
    if (change === undefined) continue
    added.delete(name)
    splices.push(...valueSplices(text, value, change))
  }
  if (added.size > 0) splices.push(addition([...added].map(([name, change]) => [name, mergedJson(undefined, change)])))
  for (const [index, { name }] of members.entries()) {
    if (index < lastKept && removed.has(name)) {
      splices.push({ from: afterPrevious(index), to: afterComma(index), text: '' })
    }
  }
  if (lastKept < members.length - 1) {
    const blanks = lastKept === -1 ? '' : beforeComma(lastKept)
    // If the comma is at the start of a line, the line ending before the comma is removed, too.
    const from = lastKept === -1 ? open + 1 : afterComma(lastKept) - 1 - (isMultiline(blanks) ? blanks.length : 0)
    splices.push({ from, to: members.at(-1)!.value.to, text: '' })
  }
  return splices

  /** The new members, formatted like the last member. */
  function addition (values: [name: string, json: string][]): Splice {
    const last = members.at(-1)
    if (last === undefined) {
      const before = lineEnd()
      const lines = values.map(([name, json]) => `${before}${INDENTATION}${member(name, json, ': ')}`)
      const end = isMultiline(text.slice(open + 1, close)) ? '' : before
      return { from: open + 1, to: open + 1, text: lines.join(',') + end }
    }
    const colon = text.slice(last.nameTo, last.value.from)
    const before = text.slice(afterPrevious(members.length - 1), last.nameFrom)
    const blanks = members.length === 1 ? '' : beforeComma(members.length - 2)
    const separator = `${newLine(blanks)},${
      before === '' && members.length === 1 && colon.endsWith(' ') ? ' ' : newLine(before) || before}`
    const items = values.map(([name, json]) => `${separator}${member(name, json, isMultiline(colon) ? ': ' : colon)}`)
    if (lastKept !== -1) {
      const at = members[lastKept]!.value.to
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

/** The changes of the text that give a value a patch. The members of an object that the patch does not name stay. */
function valueSplices (text: string, value: JsonNode, patch: PatchValue): Splice[] {
  const { from, to, members = [] } = value
  if ('text' in patch || members.length === 0) return [{ from, to, text: mergedJson(undefined, patch) }]
  const changes = [...patch.members]
  const set = changes.filter((change): change is [string, PatchValue] => change[1] !== null)
  const removed = changes.filter(([, change]) => change === null).map(([name]) => name)
  return objectSplices(text, value as ObjectNode, new Map(set), new Set(removed))
}

const isMultiline = (text: string) => /[\r\n]/.test(text)

const member = (name: string, json: string, colon: string) => JSON.stringify(name) + colon + json
