import type { Entries } from './entries.ts'
import { eachToken, jsonTree, readJsonDocument, withoutBlanks, type JsonNode } from './json.ts'

/**
 * A JSON text, without blanks around it, as a text without blanks. Numbers keep their spelling, and equal strings have
 * the same spelling. So two texts of equal values with the same order of members and the same numbers are equal.
 */
export const compactJson = (text: string): string => withoutBlanks(text, compactToken)

const compactToken = (token: string): string =>
  token.startsWith('"') && token.includes('\\') ? JSON.stringify(JSON.parse(token)) : token

/** The compact text of a node with the members of its objects in the order of their names. No name occurs twice. */
function sortedNode (text: string, { from, to, members }: JsonNode): string {
  if (members === undefined) return compactJson(text.slice(from, to))
  const sorted = members.toSorted((one, other) => one.name < other.name ? -1 : 1)
  return `{${sorted.map(({ name, value }) => `${JSON.stringify(name)}:${sortedNode(text, value)}`).join(',')}}`
}

// Sorting writes each level again. A request has fewer nested levels (`CHANGE_LIMITS`).
const MAX_SORTED_DEPTH = 110

/** Whether two compact JSON texts are the same value with the same spelling of numbers, in any order of members. */
export function isSameJson (one: string | undefined, other: string | undefined): boolean {
  if (one === other) return true
  if (!one?.startsWith('{') || !other?.startsWith('{') || one.length !== other.length) return false
  const [a, b] = [jsonTree(one), jsonTree(other)]
  return a.depth === b.depth && a.depth <= MAX_SORTED_DEPTH && sortedNode(one, a) === sortedNode(other, b)
}

/**
 * Like `readJsonDocument`. `typed` receives the value of each name as compact JSON; of duplicate names in an object,
 * the last one counts. Returns the positions.
 */
export function readTypedJson (text: string, entries: Entries, typed: Entries): JsonNode {
  readJsonDocument(text, entries)
  const tree = jsonTree(text)
  const source = withoutReplaced(text, tree.replaced)
  for (const { name, value } of (source === text ? tree : jsonTree(source)).members ?? []) {
    typed[name] = compactJson(source.slice(value.from, value.to))
  }
  return tree
}

/** A text without the nested members that later ones of the same name replace. */
function withoutReplaced (text: string, replaced: readonly { from: number, to: number }[]): string {
  let source = ''
  let at = 0
  for (const { from, to } of replaced.toSorted((one, other) => one.from - other.from)) {
    if (from >= at) source += text.slice(at, from)
    at = Math.max(at, to)
  }
  return source + text.slice(at)
}

/** The numbers of a JSON text that `JSON.parse` does not keep as they are spelled. */
export function changedNumbers (text: string): string[] {
  const numbers: string[] = []
  eachToken(text, (token) => {
    if (/^[-\d]/.test(token) && String(Number(token)) !== token) numbers.push(token)
  })
  return numbers
}

/**
 * The values and lists of a JSON text with numbers that `JSON.parse` does not keep, each with its place among all
 * values in the order of names. So two texts that `JSON.parse` reads alike have the same result only if each number is
 * spelled alike, in any order of members outside of these lists.
 */
export function valuesAsSpelled (text: string): [place: number, json: string][] {
  const found: [number, string][] = []
  let place = 0
  const visit = ({ from, to, members }: JsonNode) => {
    if (members !== undefined) {
      for (const { value } of members.toSorted((one, other) => one.name < other.name ? -1 : 1)) visit(value)
      return
    }
    place++
    const json = text.slice(from, to)
    if (changedNumbers(json).length > 0) found.push([place, compactJson(json)])
  }
  visit(jsonTree(text))
  return found
}

/** The value of a member of a merge patch (RFC 7396): a JSON text that replaces, or members to merge. */
export type PatchValue = { text: string } | { members: ReadonlyMap<string, PatchValue | null> }

/** The patch that a node of a JSON text is. A null in an object removes the member. */
export function patchIn (text: string, { from, to, members }: JsonNode): PatchValue {
  if (members === undefined) return { text: compactJson(text.slice(from, to)) }
  return {
    members: new Map(members.map(({ name, value }) =>
      [name, text.slice(value.from, value.to) === 'null' ? null : patchIn(text, value)]))
  }
}

/**
 * The compact JSON text after a merge patch, as RFC 7396, section 2 computes it.
 *
 * @param before the compact text before; undefined without a value
 */
export function mergedJson (before: string | undefined, patch: PatchValue): string {
  return mergedNode(before ?? '', before?.startsWith('{') ? jsonTree(before) : undefined, patch)
}

function mergedNode (text: string, node: JsonNode | undefined, patch: PatchValue): string {
  if ('text' in patch) return patch.text
  const members = new Map((node?.members ?? []).map(({ name, value }) => [name, value]))
  const parts: string[] = []
  const push = (name: string, value: string) => { parts.push(`${JSON.stringify(name)}:${value}`) }
  for (const [name, value] of members) {
    const change = patch.members.get(name)
    if (change === undefined) push(name, compactJson(text.slice(value.from, value.to)))
    else if (change !== null) push(name, mergedNode(text, value, change))
  }
  for (const [name, change] of patch.members) {
    if (change !== null && !members.has(name)) push(name, mergedNode('', undefined, change))
  }
  return `{${parts.join(',')}}`
}

/**
 * The part of a merge patch that changes a compact JSON text: without the values that are there already, so that a
 * change writes only the others. Undefined if the patch changes nothing.
 *
 * @param before the text before; undefined without a value
 * @param isOpen whether the last value is written also if it is there already (`Editor.ambiguous`)
 */
export const effectOf = (before: string | undefined, patch: PatchValue, isOpen: boolean): PatchValue | undefined =>
  before?.startsWith('{') ? effectOnNode(before, jsonTree(before), patch, isOpen) : patch

function effectOnNode (
  text: string, { from, to, members }: JsonNode, patch: PatchValue, isOpen: boolean
): PatchValue | undefined {
  if ('text' in patch) return !isOpen && text.slice(from, to) === patch.text ? undefined : patch
  if (members === undefined) return patch
  const present = new Map(members.map(({ name, value }) => [name, value]))
  const last = members.at(-1)?.value
  const effects = [...patch.members].flatMap(([name, change]): [string, PatchValue | null][] => {
    const value = present.get(name)
    if (value === undefined || change === null) return value === undefined && change === null ? [] : [[name, change]]
    const effect = effectOnNode(text, value, change, isOpen && value === last)
    return effect === undefined ? [] : [[name, effect]]
  })
  return effects.length === 0 ? undefined : { members: new Map(effects) }
}
