import { sql } from 'drizzle-orm'
import { AUTHENTICATED, fromJson, type AuthenticatedTable } from './authenticated.ts'
import { requireAuthentic } from './authority.ts'
import type { Db } from '../postgres/handle.ts'
import { isKeyOf } from './lists.ts'
import { preparedSql, type Value } from '../postgres/prepared.ts'

const LEVELS = ['projects', 'targets', 'environments'] as const satisfies AuthenticatedTable[]

interface Found { name: (typeof LEVELS)[number], row: Record<string, unknown> }

// The columns that verification needs, and the name: a description can be ten times as long as all of them.
const columnsOf = (name: AuthenticatedTable) => sql.raw([...AUTHENTICATED[name].fields, 'name', 'mac']
  .map((column) => `'${column}', l.${column}`).join(', '))

const rowsById = preparedSql<Found, { organization_id: string, ids: string }>('slugs', ($: Value) =>
  sql.join(LEVELS.map((name) => sql`
    SELECT ${sql.raw(`'${name}'`)} AS name, jsonb_build_object(${columnsOf(name)}) AS row FROM ${sql.raw(name)} l
    WHERE l.organization_id = ${$('organization_id')}::char(26)
      AND ${isKeyOf(sql`l.id`, sql`SELECT value::char(26) FROM jsonb_array_elements_text(${$('ids')}::jsonb)`)}`),
  sql` UNION ALL `))

// Levels that one statement looks up. To verify their MACs takes some 5 ms.
const TOGETHER = 500

/** A level as people see it. */
export interface NamedLevel { slug: string, name: string }

/** The ids of the levels of restrictions, for `findSlugs`. */
export function idsOf (
  slices: readonly Record<'project_id' | 'target_id' | 'environment_id', string | null>[]
): Set<string | null> {
  // A list of all tokens can have 100,000 restrictions of few levels, so this makes no list of all their ids.
  const ids = new Set<string | null>()
  for (const { project_id, target_id, environment_id } of slices) ids.add(project_id).add(target_id).add(environment_id)
  return ids
}

/**
 * Maps ids of levels to slugs and names. Omits deleted levels. Throws TamperedRow if a MAC does not verify. The MAC of
 * a level does not cover its name. Looks up many levels in steps, and calls `pace` after each of them with its begin
 * (`performance.now`).
 */
export async function findSlugs (
  db: Db, organization_id: string, ids: Iterable<string | null>, pace?: (began: number) => Promise<void>
): Promise<Map<string, NamedLevel>> {
  const wanted = [...new Set(ids)].filter((id) => id !== null)
  const levels = new Map<string, NamedLevel>()
  for (let at = 0; at < wanted.length; at += TOGETHER) {
    const found = await rowsById(db, { organization_id, ids: JSON.stringify(wanted.slice(at, at + TOGETHER)) })
    const began = performance.now()
    for (const { name, row } of found) {
      const level = fromJson(name, row)!
      requireAuthentic(db, name, level)
      levels.set(level.id, { slug: level.slug, name: row.name as string })
    }
    await pace?.(began)
  }
  return levels
}
