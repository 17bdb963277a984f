/** Parses an id: a positive decimal integer below 2^53 without leading zeros; undefined for other texts. */
export function parseId (text: string): number | undefined {
  if (!/^[1-9][0-9]{0,15}$/.test(text)) return undefined
  const id = Number(text)
  return Number.isSafeInteger(id) ? id : undefined
}

/** The public id of a trust rule, which names its organization: the `client_id` of an exchange. */
export const workloadIdOf = (organizationId: string, id: number): string => `wl_${organizationId}_${id}`

/** The organization and the id of a rule in its public id; undefined for another text. */
export function parseWorkloadId (text: string): { organizationId: string, id: number } | undefined {
  const [, organizationId, number = ''] = /^wl_([0-7][0-9A-HJKMNP-TV-Z]{25})_([0-9]+)$/.exec(text) ?? []
  const id = parseId(number)
  return organizationId === undefined || id === undefined ? undefined : { organizationId, id }
}
