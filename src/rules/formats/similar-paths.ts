import { distance } from 'fastest-levenshtein'
import { isWordOfRoute } from './slugs.ts'

/** The segments of a route's path; a segment such as `:project` is a parameter. */
export type Pattern = readonly string[]

// Longer paths are not compared.
const MAX_SEGMENTS = 12
const MAX_SIMILAR = 5
const MAX_COST = 3
const MAX_EDITS = 2

// Costs of superfluous segments. Callers often add words such as `projects`, which the path of a level does not have,
// so these words cost little. An empty segment is a slash at the end.
const EXCESS: Readonly<Record<string, number>> = { '': 1, projects: 1, targets: 1, environments: 1, organizations: 2 }
const MISSING_WORD = 2
const OTHER_WORD = 1

// Other names of a resource.
const SYNONYMS: Readonly<Record<string, string>> = {
  tokens: 'api-keys', 'api-tokens': 'api-keys', audit: 'audit-events', events: 'audit-events', users: 'members'
}

/** The patterns that are most similar to a path that fits no pattern; empty if the path is too different. */
export function similarPatterns<P extends Pattern> (patterns: readonly P[], path: Pattern): P[] {
  if (path.length > MAX_SEGMENTS) return []
  let least = MAX_COST
  let similar: P[] = []
  for (const pattern of patterns) {
    const cost = costOf(pattern, path, least)
    if (cost < least) similar = []
    if (cost <= least) similar.push(pattern)
    least = Math.min(least, cost)
  }
  return similar.slice(0, MAX_SIMILAR)
}

/** Whether a path fits a pattern. A parameter matches every segment except reserved words of static routes. */
export const fits = (pattern: Pattern, path: Pattern): boolean =>
  pattern.length === path.length && pattern.every((segment, i) => costOfSegment(segment, path[i]!) === 0)

// The edit distance between the pattern from segment `i` on and the path from segment `j` on; Infinity above `most`.
function costOf (pattern: Pattern, path: Pattern, most: number, i = 0, j = 0): number {
  if (most < 0) return Infinity
  const segment = pattern[i]
  const word = path[j]
  if (segment === undefined && word === undefined) return 0
  let least = Infinity
  const attempt = (cost: number, nextI: number, nextJ: number) => {
    least = Math.min(least, cost + costOf(pattern, path, Math.min(most, least) - cost, nextI, nextJ))
  }
  if (segment !== undefined && word !== undefined) attempt(costOfSegment(segment, word), i + 1, j + 1)
  if (word !== undefined && Object.hasOwn(EXCESS, word)) attempt(EXCESS[word]!, i, j + 1)
  if (segment !== undefined && !segment.startsWith(':')) attempt(MISSING_WORD, i + 1, j)
  return least
}

function costOfSegment (segment: string, word: string): number {
  if (segment.startsWith(':')) return word !== '' && !isWordOfRoute(segment.slice(1), word) ? 0 : Infinity
  if (segment === word) return 0
  const hasLength = segment.length > MAX_EDITS && word.length <= segment.length + MAX_EDITS
  const isNear = hasLength && distance(segment, word) <= MAX_EDITS
  return isNear || SYNONYMS[word] === segment ? OTHER_WORD : Infinity
}
