import { fail } from '../rules/errors.ts'

const ETAGS = /\*|(?:W\/)?"[^"]*"/g

/** Whether an If-None-Match or If-Match header lists the ETag, or any with `*` (RFC 9110, 13.1). */
export function listsEtag (header: string | undefined, etag: string | undefined): boolean {
  if (header === undefined || etag === undefined) return false
  return (header.match(ETAGS) ?? []).some((listed) => listed === '*' || listed.replace(/^W\//, '') === etag)
}

/**
 * Ends with 412 when the level has moved on since `If-Match`, or exists against `If-None-Match: *`. `etag` is undefined
 * without a document.
 */
export function requirePrecondition (
  headers: { 'if-match'?: string | undefined, 'if-none-match'?: string | undefined }, etag: string | undefined
) {
  const { 'if-match': match, 'if-none-match': noneMatch } = headers
  // If-Match compares strongly: a weak ETag matches nothing.
  if (match !== undefined && !listsEtag(match.replace(/W\/"[^"]*"/g, ''), etag)) fail('precondition_failed')
  if (noneMatch !== undefined && listsEtag(noneMatch, etag)) fail('precondition_failed')
}
