/** A place in the hierarchy by ids: the deepest one given is the place itself. */
export interface Place {
  project_id: string
  target_id?: string | null | undefined
  environment_id?: string | null | undefined
}

/** Part of the hierarchy that a token may act in; ids, so that a rename moves nothing in or out. */
export interface Slice { project_id: string, target_id: string | null, environment_id: string | null }

/** Whether a token narrowed to `inner` can reach nothing that one narrowed to `outer` cannot. */
export function coversAll (outer: readonly Slice[], inner: readonly Slice[]): boolean {
  return outer.length === 0 || (inner.length > 0 && inner.every((slice) => isInside(outer, slice)))
}

/** Whether the place lies inside one of the slices. No slices: the token acts in the whole organization. */
export function isInside (slices: readonly Slice[], place: Place): boolean {
  return slices.length === 0 || slices.some((slice) =>
    slice.project_id === place.project_id &&
    (slice.target_id === null || slice.target_id === place.target_id) &&
    (slice.environment_id === null || slice.environment_id === place.environment_id))
}

/** The ids of a slice from its project down as one text, which no other slice has. */
export const pathOf = ({ project_id, target_id, environment_id }: Slice): string =>
  [project_id, target_id, environment_id].filter((id) => id !== null).join('/')

/** The projects that a slice covers whole; null without slices, which means all projects. */
export function projectsInside (slices: readonly Slice[]): string[] | null {
  if (slices.length === 0) return null
  return slices.filter(({ target_id }) => target_id === null).map(({ project_id }) => project_id)
}
