import { distance } from 'fastest-levenshtein'
import { isWordOfRoute } from './slugs.ts'

/** The segments of a route's path; a segment such as `:project` is a parameter. */
export type Pattern = readonly string[]

// Longer paths are not compared.
const MAX_SEGMENTS = 12
const MAX_SIMILAR = 5
const MAX_COST = 3
const MAX_EDITS = 2

// Words that a path has too many, with their costs: the path of a level has only slugs, and no slash at its end.
const EXCESS: Readonly<Record<string, number>> = { '': 1, projects: 1, targets: 1, environments: 1, organizations: 2 }
const MISSING_WORD = 2
const OTHER_WORD = 1

// Other names of a resource.
const SYNONYMS: Readonly<Record<string, string>> = {
  tokens: 'api-keys', 'api-tokens': 'api-keys', audit: 'audit-events', events: 'audit-events', users: 'members'
}

/** The patterns that are most like a path that fits none of them; none if the path is too different. */
export function similarPatterns<P extends Pattern> (patterns: readonly P[], path: Pattern): P[] {
  if (path.length > MAX_SEGMENTS) return []
  const costs = patterns.map((pattern) => costOf(pattern, path))
  const least = Math.min(MAX_COST, ...costs)
  return patterns.filter((_, i) => costs[i] === least).slice(0, MAX_SIMILAR)
}

/** Whether a path fits a pattern. A parameter matches every segment except reserved words of static routes. */
export const fits = (pattern: Pattern, path: Pattern): boolean =>
  pattern.length === path.length && pattern.every((segment, i) => costOfSegment(segment, path[i]!) === 0)

// The edit distance of the segments.
function costOf (pattern: Pattern, path: Pattern): number {
  let row = pattern.reduce((costs, segment) => [...costs, costs.at(-1)! + costOfMissing(segment)], [0])
  for (const word of path) {
    const next = [row[0]! + (EXCESS[word] ?? Infinity)]
    for (const [i, segment] of pattern.entries()) {
      next.push(Math.min(
        row[i]! + costOfSegment(segment, word), row[i + 1]! + (EXCESS[word] ?? Infinity), next[i]! + costOfMissing(segment)
      ))
    }
    row = next
  }
  return row.at(-1)!
}

const costOfMissing = (segment: string) => segment.startsWith(':') ? Infinity : MISSING_WORD

function costOfSegment (segment: string, word: string): number {
  if (segment.startsWith(':')) return word !== '' && !isWordOfRoute(segment.slice(1), word) ? 0 : Infinity
  if (segment === word) return 0
  const isNear = word.length <= segment.length + MAX_EDITS && segment.length > MAX_EDITS && distance(segment, word) <= MAX_EDITS
  return isNear || SYNONYMS[word] === segment ? OTHER_WORD : Infinity
}
