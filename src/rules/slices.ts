import type { ExceptStatus } from '../../schemas/teams.ts'
import { MAX_SHOWN_NAMES, type Restriction, type RestrictionNames } from '../../schemas/tokens.ts'

/** A level of the hierarchy: a project, target or environment. The deepest id that is set identifies the level. */
export interface Place {
  project_id: string
  target_id?: string | null | undefined
  environment_id?: string | null | undefined
  /** The status of the environment. Without a status, the level is outside of restrictions with `except_status`. */
  status?: string | null | undefined
}

/**
 * A restriction of a token, or of a team's role in a project, to a part of the hierarchy. It contains ids, so a rename
 * does not change it. With `except_status`, it includes only environments that currently have another status. With
 * `inherited`, merged reads of its levels also use the documents of the levels above (see `inherits`).
 */
export interface Slice {
  project_id: string
  target_id: string | null
  environment_id: string | null
  except_status?: ExceptStatus
  inherited?: true
}

/** Whether a token restricted to `inner` can read and change only what a token restricted to `outer` can. */
export function coversAll (outer: readonly Slice[], inner: readonly Slice[]): boolean {
  if (outer.length === 0) return true
  const including = outer.filter(includesAllAbove)
  const isCovered = (slice: Slice) =>
    isInside(outer, slice) && (slice.inherited !== true || (including.length > 0 && isInside(including, slice)))
  return inner.length > 0 && inner.every(isCovered)
}

/** Whether a level is inside of a restriction. Without restrictions, the caller can access the whole organization. */
export function isInside (slices: readonly Slice[], place: Place): boolean {
  return slices.length === 0 || slices.some((slice) =>
    slice.project_id === place.project_id &&
    (slice.target_id === null || slice.target_id === place.target_id) &&
    (slice.environment_id === null || slice.environment_id === place.environment_id) &&
    (slice.except_status === undefined || hasOtherStatus(place, slice.except_status)))
}

/**
 * Whether a merged read of a level that is inside of the restrictions uses the documents of all levels above: one
 * restriction to the level, or to a level above, has `inherited`, or is to the whole project.
 */
export function inherits (slices: readonly Slice[], place: Place): boolean {
  const including = slices.filter(includesAllAbove)
  return slices.length === 0 || (including.length > 0 && isInside(including, place))
}

/** Whether merged reads by a restriction use the documents of all levels above its level; a project has none above. */
export const includesAllAbove = (slice: Slice): boolean => slice.inherited === true || isWholeProject(slice)

/** A restriction of a request. Without `inherited`, a present restriction to the same part keeps its `inherited`. */
export type SentSlice = Omit<Slice, 'inherited'> & { inherited?: boolean | undefined }

/**
 * The restrictions that a request sets in place of the present ones, without duplicates. One restriction with
 * `inherited` is enough for its part.
 */
export function keepInherited (sent: readonly SentSlice[], present: readonly SentSlice[]): Slice[] {
  const partOf = ({ inherited: _, ...slice }: SentSlice): Slice => slice
  const inheriting = (slices: readonly SentSlice[]) =>
    new Set(slices.filter(({ inherited }) => inherited).map((slice) => textOf(partOf(slice))))
  const [kept, set] = [inheriting(present), inheriting(sent)]
  return distinct(sent.map((slice): Slice => {
    const part = partOf(slice)
    const isKept = slice.inherited === undefined && kept.has(textOf(part))
    return isKept || set.has(textOf(part)) ? { ...part, inherited: true } : part
  }))
}

/** The restrictions to a project, or to parts of it. */
export const slicesIn = (slices: readonly Slice[], projectId: string): Slice[] =>
  slices.filter(({ project_id }) => project_id === projectId)

const hasOtherStatus = ({ environment_id, status }: Place, except: ExceptStatus) =>
  (environment_id ?? null) !== null && (status ?? null) !== null && status !== except

/** A unique text of the level of a restriction: its ids from the project down. */
export const pathOf = ({ project_id, target_id, environment_id }: SentSlice): string =>
  [project_id, target_id, environment_id].filter((id) => id !== null).join('/')

/** A unique text of a restriction. */
export const textOf = (slice: SentSlice): string => pathOf(slice) +
  (slice.except_status === undefined ? '' : `!${slice.except_status}`) +
  (slice.inherited === true ? '+inherited' : '')

/** The projects that the restrictions include as a whole; null without restrictions, which means all projects. */
export function projectsInside (slices: readonly Slice[]): string[] | null {
  if (slices.length === 0) return null
  return slices.filter(isWholeProject).map(({ project_id }) => project_id)
}

/** Whether a restriction includes a project as a whole. */
export const isWholeProject = (slice: Slice): boolean =>
  pathOf(slice) === slice.project_id && slice.except_status === undefined

/** Restrictions without duplicates. */
export const distinct = (slices: readonly Slice[]): Slice[] =>
  [...new Map(slices.map((slice) => [textOf(slice), slice])).values()]

/**
 * The levels that are inside of both lists; a level inherits if it does so by both lists. Unlike in `isInside`, an
 * empty list includes no level. The duration grows with the sum of the lengths, not with their product.
 */
export function intersect (one: readonly Slice[], other: readonly Slice[]): Slice[] {
  return distinct([...partsInside(one, other), ...partsInside(other, one)])
}

// The restrictions of `inner` whose level is equal to, or below, a level of `outer`.
function partsInside (inner: readonly Slice[], outer: readonly Slice[]): Slice[] {
  const byPath = new Map<string, Map<string, Slice>>()
  for (const slice of outer) {
    const path = pathOf(slice)
    const known = byPath.get(path) ?? new Map<string, Slice>()
    byPath.set(path, known.set(textOf(slice), slice))
  }
  return inner.flatMap((slice) => {
    const ids = pathOf(slice).split('/')
    return ids.flatMap((_, i) => [...byPath.get(ids.slice(0, i + 1).join('/'))?.values() ?? []])
      .map((other) => intersectionOf(slice, other))
  })
}

// The intersection of a restriction with another one, whose level is equal or above.
function intersectionOf (slice: Slice, other: Slice): Slice {
  const { inherited: _, ...place } = slice
  const { except_status = slice.except_status } = other
  const both = { ...place, ...(except_status !== undefined && { except_status }) }
  const isInheriting = !isWholeProject(both) && includesAllAbove(slice) && includesAllAbove(other)
  return isInheriting ? { ...both, inherited: true } : both
}

/** Levels by id, as people see them. */
export type LevelsById = ReadonlyMap<string, { slug: string, name: string }>
type ShownRestriction = Restriction & { except_status?: ExceptStatus }

/** A restriction with slugs, as the API shows it, in an array; an empty array if the level was deleted. */
export function restrictionOf (
  { project_id, target_id, environment_id, except_status, inherited }: Slice, levels: LevelsById
): ShownRestriction[] {
  const project = levels.get(project_id)?.slug
  const target = levels.get(target_id ?? '')?.slug
  const environment = levels.get(environment_id ?? '')?.slug
  if (project === undefined || (target_id !== null && target === undefined) ||
    (environment_id !== null && environment === undefined)) {
    return []
  }
  return [{
    project,
    ...(target !== undefined && { target }),
    ...(environment !== undefined && { environment }),
    ...(except_status !== undefined && { except_status }),
    ...(inherited === true && { inherited })
  }]
}

/** The approximate number of characters of a restriction with its names in a response. */
export const CHARACTERS_OF_RESTRICTION = 200

// The characters of names that have been shown for these levels, which are looked up for one response.
const charactersShown = new WeakMap<LevelsById, number>()
const NO_NAMES: RestrictionNames = { project: null, target: null, environment: null }

/**
 * Restrictions to levels that exist, as the API shows them, with the names of these levels beside them. The names of a
 * response end at `MAX_SHOWN_NAMES`, because a list can have 100,000 restrictions, whose names would take much longer
 * than their slugs.
 */
export function shownRestrictions (
  slices: readonly Slice[] | null, levels: LevelsById
): { restrictions: ShownRestriction[], restriction_names: RestrictionNames[] } {
  const present = (slices ?? []).flatMap((slice) =>
    restrictionOf(slice, levels).map((restriction) => ({ restriction, names: namesWithin(slice, levels) })))
  return {
    restrictions: present.map(({ restriction }) => restriction),
    restriction_names: present.map(({ names }) => names)
  }
}

function namesWithin (slice: Slice, levels: LevelsById): RestrictionNames {
  const names = namesOf(slice, levels)
  const characters = [names.project, names.target, names.environment]
    .reduce((sum, name) => sum + (name?.length ?? 0), charactersShown.get(levels) ?? 0)
  if (characters > MAX_SHOWN_NAMES) return NO_NAMES
  charactersShown.set(levels, characters)
  return names
}

/** The names of the levels of a restriction. */
const namesOf = (
  { project_id, target_id, environment_id }: Omit<Slice, 'except_status' | 'inherited'>, levels: LevelsById
): RestrictionNames => ({
  project: levels.get(project_id)?.name ?? null,
  target: levels.get(target_id ?? '')?.name ?? null,
  environment: levels.get(environment_id ?? '')?.name ?? null
})
