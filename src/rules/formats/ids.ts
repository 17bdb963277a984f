/** Parses an id: a positive decimal integer below 2^53 without leading zeros; undefined for other texts. */
export function parseId (text: string): number | undefined {
  if (!/^[1-9][0-9]{0,15}$/.test(text)) return undefined
  const id = Number(text)
  return Number.isSafeInteger(id) ? id : undefined
}
