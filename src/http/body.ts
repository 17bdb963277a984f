import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { IncomingMessage } from 'node:http'
import { fail, refuse } from '../rules/errors.ts'

const MOST_DEPTH = 20
// No body of the API has half as many members and elements. A parser makes objects of whatever it gets.
const MOST_MEMBERS = 100_000
const MOST_PATH = 200
const JSON_TYPE = /^\s*application\/json\s*(?:;\s*charset\s*=\s*(?:utf-8|"utf-8")\s*)?$/i
const utf8 = new TextDecoder('utf-8', { fatal: true })

/**
 * Takes JSON in UTF-8 and nothing else. Routes without a body schema ignore whatever is sent. An empty body is no
 * body, whatever its content type says; invalid UTF-8, NUL characters, lone surrogates and deep nesting are refused
 * here, because each would otherwise be stored altered or fail in the database.
 */
export function installBodyParser (app: FastifyInstance) {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'buffer' }, async (request: FastifyRequest, bytes: Buffer) => {
    if (request.routeOptions.schema?.body === undefined) return undefined
    if (bytes.length === 0) return undefined
    const encoding = request.headers['content-encoding']
    if (encoding !== undefined && encoding.toLowerCase() !== 'identity') fail('unsupported_media_type')
    if (!JSON_TYPE.test(request.headers['content-type'] ?? '')) fail('unsupported_media_type')
    return parseJson(bytes)
  })

  // A client that asks before it sends its body gets the answer of the guard first.
  const asking = new WeakSet<IncomingMessage>()
  app.server.on('checkContinue', (raw, response) => {
    asking.add(raw)
    app.server.emit('request', raw, response)
  })
  app.addHook('preParsing', async (request, reply) => {
    if (asking.delete(request.raw)) reply.raw.writeContinue()
    // What is ignored may be of any type, even of one that there is not.
    if (request.routeOptions.schema?.body === undefined) delete request.headers['content-type']
  })
}

function parseJson (bytes: Buffer): unknown {
  let text: string
  try {
    text = utf8.decode(bytes)
  } catch {
    return fail('malformed_json')
  }
  const { depth, commas } = shapeOf(text)
  if (depth > MOST_DEPTH) refuse('body', `nested deeper than ${MOST_DEPTH} levels`)
  if (commas > MOST_MEMBERS) refuse('body', `more than ${MOST_MEMBERS} members and elements`)
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return fail('malformed_json')
  }
  // For the validator null stands for an absent body.
  if (value === null || Array.isArray(value)) refuse('body', 'Expected object')
  // Only an escape can bring one of these into a string, so most bodies are not walked.
  if (/\\u(?:0000|d[89a-f])/i.test(text)) refuseBadText(value, '')
  return value
}

// Counted on the text: a parser that recurses would already be in trouble.
function shapeOf (text: string): { depth: number, commas: number } {
  let depth = 0
  let deepest = 0
  let commas = 0
  let quoted = false
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i)
    if (quoted) {
      if (c === 0x5c) i++
      else if (c === 0x22) quoted = false
    } else if (c === 0x22) quoted = true
    else if (c === 0x7b || c === 0x5b) deepest = Math.max(deepest, ++depth)
    else if (c === 0x7d || c === 0x5d) depth--
    else if (c === 0x2c) commas++
  }
  return { depth: deepest, commas }
}

function refuseBadText (value: unknown, path: string): void {
  if (typeof value === 'string') {
    if (value.includes('\0')) refuse(path.slice(1, MOST_PATH) || 'body', 'NUL characters are not allowed')
    if (/\p{Surrogate}/u.test(value)) refuse(path.slice(1, MOST_PATH) || 'body', 'not well-formed Unicode')
  } else if (typeof value === 'object' && value !== null) {
    for (const [key, member] of Object.entries(value)) {
      refuseBadText(key, path)
      refuseBadText(member, `${path}.${key}`)
    }
  }
}
