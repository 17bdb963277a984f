import { random } from '../../crypto/primitives.ts'
import { isUniqueViolation, type Db } from '../../db/database.ts'
import { MAX_FORMER_SLUGS } from '../../../schemas/organizations.ts'
import { listTakenOrganizations, SlugRefused } from '../../repositories/levels/organizations.ts'
import { listTakenSlugs } from '../../repositories/levels/projects.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { isForbidden, numberedSlugs, slugFrom, withSuffix, type SlugKind } from '../../rules/formats/slugs.ts'
import type { Rule } from './types.ts'

/**
 * The slug of a new resource: the given slug, or a slug from the name, with a number or a random suffix if a sibling
 * has that slug. Call this under the parent's lock. Organizations have no parent (`among` is undefined), so no lock
 * protects the slug: of two concurrent creations with the same name, the second fails with `slug_taken`.
 */
export async function chooseSlug (
  db: Db, kind: SlugKind, among: Parameters<typeof listTakenSlugs>[1] | undefined,
  { name, slug }: { name: string, slug?: string | undefined }
): Promise<string> {
  if (slug !== undefined) return slug
  const made = slugFrom(name, kind)
  const candidates = numberedSlugs(made, kind)
  const taken = among === undefined
    ? await listTakenOrganizations(db, candidates)
    : await listTakenSlugs(db, among, candidates)
  return candidates.find((one) => !taken.has(one)) ?? withSuffix(made, random(4).toString('hex'))
}

/** Rejects slugs that are reserved words of static routes or could be read as an id. */
export const slugRule = (kind: SlugKind): Rule => ({
  reads: ['slug'],
  check: ({ body }) => {
    const { slug } = body as { slug?: string }
    if (slug !== undefined && isForbidden(kind, slug)) refuse('slug', 'This word is reserved')
  }
})

/** Runs an insert or update; 422 if the slug is taken. Other unique values are generated, so they cannot conflict. */
export async function orSlugTaken<T> (work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof SlugRefused && error.reason === 'limit') fail('limit_reached', { limit: MAX_FORMER_SLUGS })
    if (isUniqueViolation(error) || error instanceof SlugRefused) refuse('slug', 'This slug is taken', 'slug_taken')
    throw error
  }
}
