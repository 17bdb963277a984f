/** A level of the hierarchy, by ids: the deepest id that is set is the level. */
export interface Place {
  project_id: string
  target_id?: string | null | undefined
  environment_id?: string | null | undefined
}

/** A restriction of a token to a part of the hierarchy. Uses ids, so a rename does not change it. */
export interface Slice { project_id: string, target_id: string | null, environment_id: string | null }

/** Whether a token restricted to `inner` can access only levels that a token restricted to `outer` can access. */
export function coversAll (outer: readonly Slice[], inner: readonly Slice[]): boolean {
  return outer.length === 0 || (inner.length > 0 && inner.every((slice) => isInside(outer, slice)))
}

/** Whether a level is inside of a restriction. Without restrictions, the token can access the whole organization. */
export function isInside (slices: readonly Slice[], place: Place): boolean {
  return slices.length === 0 || slices.some((slice) =>
    slice.project_id === place.project_id &&
    (slice.target_id === null || slice.target_id === place.target_id) &&
    (slice.environment_id === null || slice.environment_id === place.environment_id))
}

/** A unique text of a restriction: its ids from the project down. */
export const pathOf = ({ project_id, target_id, environment_id }: Slice): string =>
  [project_id, target_id, environment_id].filter((id) => id !== null).join('/')

/** The projects that the restrictions include as a whole; null without restrictions, which means all projects. */
export function projectsInside (slices: readonly Slice[]): string[] | null {
  if (slices.length === 0) return null
  return slices.filter(({ target_id }) => target_id === null).map(({ project_id }) => project_id)
}
