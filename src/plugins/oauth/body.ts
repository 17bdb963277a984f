import type { FastifyInstance, FastifyRequest } from 'fastify'
import { readJson } from '../../http/json.ts'
import { failOAuth } from './errors.ts'

/** Parameters of a token or revocation request: each once, and none that is empty (RFC 6749, 3.2). */
export type Parameters = ReadonlyMap<string, string>

/**
 * How the body of such a request is documented: as the RFCs have it. A second media type would say nothing that the
 * words do not, and generators stumble over it: one takes no body of two, another writes code that does not load.
 */
export const FORM_BODY = {
  consumes: ['application/x-www-form-urlencoded'], description: 'The same members are taken as `application/json`.'
}

const MOST_BODY = 16 * 1024
const FORM = /^\s*application\/x-www-form-urlencoded\s*(?:;\s*charset\s*=\s*"?utf-8"?\s*)?$/i
const JSON_TYPE = /^\s*application\/json\s*(?:;\s*charset\s*=\s*"?utf-8"?\s*)?$/i
// RFC 6749 has a client ignore what it does not know, and so do we, within reason.
const BOUNDS = { members: 1000, depth: 20 }
const utf8 = new TextDecoder('utf-8', { fatal: true })

/** Takes forms, as RFC 6749 asks, and JSON; both mean the same (S-10.4). */
export function installOAuthBodies (app: FastifyInstance) {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', {
    parseAs: 'buffer', bodyLimit: MOST_BODY
  }, async (request: FastifyRequest, bytes: Buffer) => {
    // A path or a method that there is not: whatever was sent, it is not why.
    if (request.routeOptions.schema?.body === undefined) return undefined
    const type = request.headers['content-type'] ?? ''
    const encoding = request.headers['content-encoding'] ?? 'identity'
    if (encoding.toLowerCase() !== 'identity' || !(FORM.test(type) || JSON_TYPE.test(type))) {
      failOAuth('unsupported_media_type')
    }
    let text: string
    try {
      text = utf8.decode(bytes)
    } catch {
      return failOAuth('invalid_request')
    }
    return FORM.test(type) ? parametersOf([...new URLSearchParams(text)]) : parametersOf(membersOf(bytes))
  })
}

/** What was sent; without a body, nothing was. */
export function parametersIn (request: FastifyRequest): Parameters {
  if (request.body instanceof Map) return request.body as Parameters
  // Without a body no parser ran, and no content type was looked at.
  return failOAuth(request.headers['content-type'] === undefined ? 'unsupported_media_type' : 'invalid_request')
}

function parametersOf (pairs: readonly (readonly [string, unknown])[]): Parameters {
  const parameters = new Map<string, string>()
  const seen = new Set<string>()
  for (const [name, value] of pairs) {
    if (seen.has(name)) failOAuth('invalid_request')
    seen.add(name)
    if (typeof value !== 'string') {
      if (KNOWN.has(name)) failOAuth('invalid_request')
      continue
    }
    // What is no text: a form's decoder puts U+FFFD in its place.
    if (/[\0\uFFFD]|\p{Surrogate}/u.test(value)) failOAuth('invalid_request')
    if (value !== '') parameters.set(name, value)
  }
  return parameters
}

const KNOWN = new Set([
  'grant_type', 'client_id', 'client_secret', 'code', 'code_verifier', 'redirect_uri', 'refresh_token', 'scope',
  'token', 'token_type_hint'
])

function membersOf (bytes: Buffer): [string, unknown][] {
  const value = readJson(bytes, BOUNDS)
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? Object.entries(value)
    : failOAuth('invalid_request')
}
