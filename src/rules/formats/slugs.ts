import { SLUG_LENGTH, ULID_PATTERN } from '../../../schemas/shapes.ts'
import { ROUTE_WORDS } from './route-words.ts'

export type SlugKind = 'organization' | 'project' | 'target' | 'environment' | 'team'

const wordsOf = (parameter: SlugKind): readonly string[] => ROUTE_WORDS[parameter] ?? []

/** Reserved slugs. A static route would shadow a level with such a slug. */
export const RESERVED: Readonly<Record<SlugKind, readonly string[]>> = {
  organization: wordsOf('organization'),
  project: wordsOf('project'),
  target: wordsOf('target'),
  // S-3.4 also reserves words that no route needs.
  environment: [...wordsOf('environment'), 'history', 'rotate'],
  team: wordsOf('team')
}

/** Whether a static route has this word in the place of the parameter and takes precedence. */
export function isWordOfRoute (parameter: string, word: string): boolean {
  return (RESERVED[parameter as SlugKind] ?? ROUTE_WORDS[parameter] ?? []).includes(word)
}

export function isReserved (kind: SlugKind, slug: string): boolean {
  return RESERVED[kind].includes(slug)
}

/**
 * Whether the slug is not allowed: a reserved word, or for an organization also a text in the form of an id, because a
 * path accepts the id or the slug of an organization.
 */
export function isForbidden (kind: SlugKind, slug: string): boolean {
  return isReserved(kind, slug) || (kind === 'organization' && ULID.test(slug.toUpperCase()))
}
const ULID = new RegExp(ULID_PATTERN)

/** Makes a slug from a name: lower case, no accents, hyphens between words; the kind if nothing remains. */
export function slugFrom (name: string, kind: SlugKind): string {
  const slug = name.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase()
    .replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '')
    .slice(0, SLUG_LENGTH).replace(/-$/, '')
  return slug === '' ? kind : slug
}

const MOST_NUMBERED = 50

/** Candidates for a new slug in order of preference: `slug`, `slug-2`, `slug-3`, …, without forbidden slugs. */
export function numberedSlugs (slug: string, kind: SlugKind): string[] {
  return Array.from({ length: MOST_NUMBERED }, (_, i) =>
    i === 0 ? slug : withSuffix(slug, String(i + 1))).filter((candidate) => !isForbidden(kind, candidate))
}

/** Appends a suffix and shortens the slug to the maximum length. */
export function withSuffix (slug: string, suffix: string): string {
  return `${slug.slice(0, SLUG_LENGTH - 1 - suffix.length).replace(/-$/, '')}-${suffix}`
}
