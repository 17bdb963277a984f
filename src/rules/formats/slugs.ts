import { RESERVED_ENVIRONMENT_SLUGS } from '../../../schemas/environments.ts'
import { RESERVED_PROJECT_SLUGS } from '../../../schemas/projects.ts'
import { SLUG_LENGTH, ULID_PATTERN } from '../../../schemas/shapes.ts'
import { RESERVED_TARGET_SLUGS } from '../../../schemas/targets.ts'

/** Path segments of static routes, which are not allowed as slugs: the static route would take precedence. */
export const RESERVED = {
  organization: ['user', 'organization', 'organizations', 'plans', 'cli'],
  project: RESERVED_PROJECT_SLUGS,
  target: RESERVED_TARGET_SLUGS,
  environment: RESERVED_ENVIRONMENT_SLUGS,
  team: []
} as const satisfies Record<string, readonly string[]>
export type SlugKind = keyof typeof RESERVED

const WORDS: Readonly<Record<string, readonly string[]>> = { ...RESERVED, version: ['purge'] }

/** Whether a static route has this word at the position of the parameter, and so takes precedence. */
export const isWordOfRoute = (parameter: string, word: string): boolean => WORDS[parameter]?.includes(word) ?? false

export const isReserved = (kind: SlugKind, slug: string): boolean =>
  (RESERVED[kind] as readonly string[]).includes(slug)

const ULID = new RegExp(ULID_PATTERN)
/** Whether a slug is reserved or, for an organization, looks like an id: a path accepts both. */
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
