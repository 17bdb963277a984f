import { RESERVED_ENVIRONMENT_SLUGS } from '../../../schemas/environments.ts'
import { RESERVED_PROJECT_SLUGS } from '../../../schemas/projects.ts'
import { SLUG_LENGTH, ULID_PATTERN } from '../../../schemas/shapes.ts'
import { RESERVED_TARGET_SLUGS } from '../../../schemas/targets.ts'

/** Path segments of static routes. A slug must not equal one of them, because the static route would shadow it. */
export const RESERVED = {
  organization: ['user', 'organization', 'organizations', 'plans', 'cli'],
  project: RESERVED_PROJECT_SLUGS,
  target: RESERVED_TARGET_SLUGS,
  environment: RESERVED_ENVIRONMENT_SLUGS,
  team: []
} as const satisfies Record<string, readonly string[]>
export type SlugKind = keyof typeof RESERVED

const WORDS: Readonly<Record<string, readonly string[]>> = { ...RESERVED, version: ['purge'] }

/** Whether a static route has this word in the place of the parameter and takes precedence. */
export function isWordOfRoute (parameter: string, word: string): boolean {
  return WORDS[parameter]?.includes(word) ?? false
}

export function isReserved (kind: SlugKind, slug: string): boolean {
  return (RESERVED[kind] as readonly string[]).includes(slug)
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
