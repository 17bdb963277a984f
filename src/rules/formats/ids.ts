/** A positive whole number below 2^53, written plainly; undefined for everything else, which names nothing. */
export function parseId (text: string): number | undefined {
  if (!/^[1-9][0-9]{0,15}$/.test(text)) return undefined
  const id = Number(text)
  return Number.isSafeInteger(id) ? id : undefined
}
