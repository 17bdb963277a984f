import { distance } from 'fastest-levenshtein'

// Maximum edits between a misspelt value and the value that the message suggests.
const MAX_EDITS = 2

/** The message for a value that is none of the choices. Never contains the value, which may be a secret. */
export function mustBeOneOf (choices: readonly unknown[], value: unknown): string {
  const listed = choices.map(String)
  return `must be ${listed.length === 1 ? '' : 'one of '}${listed.join(', ')}${didYouMean(listed, value)}`
}

/** ` (did you mean secret:read?)`, with the nearest choice within two edits; empty if no choice is that near. */
export function didYouMean (choices: readonly string[], value: unknown): string {
  if (typeof value !== 'string') return ''
  let nearest: string | undefined
  let fewest = MAX_EDITS + 1
  for (const choice of choices) {
    if (Math.abs(choice.length - value.length) > MAX_EDITS) continue
    // A choice that shares no character with the value is no suggestion.
    const edits = distance(choice.toLowerCase(), value.toLowerCase())
    if (edits < fewest && edits < choice.length) [nearest, fewest] = [choice, edits]
  }
  return nearest === undefined ? '' : ` (did you mean ${nearest}?)`
}

/** A count with its noun in singular or plural: `1 version`, `2 versions`. */
export const counted = (number: number, noun: string): string => `${number} ${noun}${number === 1 ? '' : 's'}`

/** The slugs of a level as a path: `shop/backend/live`. */
export const pathOfSlugs = (
  { project, target, environment }: { project: string, target?: string, environment?: string }
): string => [project, target, environment].filter((slug) => slug !== undefined).join('/')

export interface NamedInviter { type: 'user' | 'api_token', name: string }

/** The inviter as a phrase: the user's name, `the API token NAME`, or `the operator` for null. */
export function inviterOf (inviter: NamedInviter | null): string {
  if (inviter === null) return 'the operator'
  return inviter.type === 'user' ? inviter.name : `the API token ${inviter.name}`
}
