// The creator of a row, with the name at the time of the creation; null for an operator.

/** The caller who creates a row; undefined for an operator. A row of a person's token belongs to that person. */
export type Maker = {
  type: 'user' | 'api_token'
  id: number
  name: string
  person: { user_id: number, grant_id: number | null, has_second_factor?: boolean } | null
} | undefined

interface Creator {
  created_by_type: 'user' | 'api_token' | null
  created_by_id: number | null
  created_by_name: string | null
}

/** The columns of a new row. */
export const creatorOf = (maker: Maker): Creator & { user_id: number | null } => ({
  created_by_type: maker?.type ?? null,
  created_by_id: maker?.id ?? null,
  created_by_name: maker?.name ?? null,
  user_id: maker?.person?.user_id ?? null
})

/** `created_by` in a response. */
export function shownCreator ({ created_by_type: type, created_by_id: id, created_by_name: name }: Creator) {
  return type === null || id === null ? null : { type, id, name: name ?? '' }
}
