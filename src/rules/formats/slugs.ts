import { RESERVED_ENVIRONMENT_SLUGS } from '../../../schemas/environments.ts'
import { RESERVED_PROJECT_SLUGS } from '../../../schemas/projects.ts'
import { SLUG_LENGTH, ULID_PATTERN } from '../../../schemas/shapes.ts'
import { RESERVED_TARGET_SLUGS } from '../../../schemas/targets.ts'

/** Words that static routes use in a parameter's place; a slug may not be one of them, or it could never be reached. */
export const RESERVED = {
  organization: ['user', 'organization', 'organizations', 'plans', 'cli'],
  project: RESERVED_PROJECT_SLUGS,
  target: RESERVED_TARGET_SLUGS,
  environment: RESERVED_ENVIRONMENT_SLUGS,
  team: []
} as const satisfies Record<string, readonly string[]>
export type SlugKind = keyof typeof RESERVED

const WORDS: Readonly<Record<string, readonly string[]>> = { ...RESERVED, version: ['purge'] }

/** Whether a static route uses a word in the place of a parameter, be it a slug or not, and so wins over it. */
export function isWordOfRoute (parameter: string, word: string): boolean {
  return WORDS[parameter]?.includes(word) ?? false
}

export function isReserved (kind: SlugKind, slug: string): boolean {
  return (RESERVED[kind] as readonly string[]).includes(slug)
}

/**
 * Whether nothing may be called so: a reserved word, and of an organization what spells an id, by which another one may
 * be named in its place.
 */
export function isForbidden (kind: SlugKind, slug: string): boolean {
  return isReserved(kind, slug) || (kind === 'organization' && ULID.test(slug.toUpperCase()))
}
const ULID = new RegExp(ULID_PATTERN)

/**
 * Makes a slug out of a name: lower case, no accents, hyphens between words; the kind's own word when nothing is left.
 */
export function slugFrom (name: string, kind: SlugKind): string {
  const slug = name.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase()
    .replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '')
    .slice(0, SLUG_LENGTH).replace(/-$/, '')
  return slug === '' ? kind : slug
}

const MOST_NUMBERED = 50

/** What something new may be called, best first: `slug`, `slug-2`, `slug-3`, … but for what is forbidden. */
export function numberedSlugs (slug: string, kind: SlugKind): string[] {
  return Array.from({ length: MOST_NUMBERED }, (_, i) =>
    i === 0 ? slug : withSuffix(slug, String(i + 1))).filter((one) => !isForbidden(kind, one))
}

/** A slug that ends with something of its own. */
export function withSuffix (slug: string, suffix: string): string {
  return `${slug.slice(0, SLUG_LENGTH - 1 - suffix.length).replace(/-$/, '')}-${suffix}`
}
