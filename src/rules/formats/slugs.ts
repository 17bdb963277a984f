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

/** Whether a static route has this word at the position of the parameter, so that the static route takes precedence. */
export const isWordOfRoute = (parameter: string, word: string): boolean =>
  (RESERVED[parameter as SlugKind] ?? ROUTE_WORDS[parameter] ?? []).includes(word)

export const isReserved = (kind: SlugKind, slug: string): boolean => RESERVED[kind].includes(slug)

const ULID = new RegExp(ULID_PATTERN)
/** Whether a slug is reserved, or looks like the id of an organization, which paths accept instead of the slug. */
export const isForbidden = (kind: SlugKind, slug: string): boolean =>
  isReserved(kind, slug) || (kind === 'organization' && ULID.test(slug.toUpperCase()))

/** Makes a slug from a name: lower case, no accents, hyphens between words; `kind` if nothing remains. */
export function slugFrom (name: string, kind: SlugKind): string {
  const slug = name.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase()
    .replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '')
    .slice(0, SLUG_LENGTH).replace(/-$/, '')
  return slug === '' ? kind : slug
}

const MAX_NUMBERED = 50

/** Candidates for a new slug in order of preference: `slug`, `slug-2`, `slug-3`, …, without forbidden slugs. */
export function numberedSlugs (slug: string, kind: SlugKind): string[] {
  const numbered = Array.from({ length: MAX_NUMBERED }, (_, i) => i === 0 ? slug : withSuffix(slug, String(i + 1)))
  return numbered.filter((candidate) => !isForbidden(kind, candidate))
}

/** Appends a suffix and shortens the slug to the maximum length. */
export function withSuffix (slug: string, suffix: string): string {
  return `${slug.slice(0, SLUG_LENGTH - 1 - suffix.length).replace(/-$/, '')}-${suffix}`
}
