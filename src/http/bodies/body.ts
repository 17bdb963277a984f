import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { IncomingMessage } from 'node:http'
import type { TSchema } from '@sinclair/typebox'
import { fail, refuse } from '../../rules/errors.ts'
import { boundsOf, readJson, type Bounds } from './json.ts'

const JSON_TYPE = /^\s*application\/json\s*(?:;\s*charset\s*=\s*(?:utf-8|"utf-8")\s*)?$/i

/**
 * Takes JSON in UTF-8 and nothing else. Routes without a body schema ignore whatever is sent. An empty body is no
 * body, whatever its content type says. How much a body may hold is what the route's schema has a place for.
 */
export function installBodyParser (app: FastifyInstance) {
  const known = new WeakMap<object, Bounds>()
  app.addHook('onRoute', ({ schema, config }) => {
    if (schema?.body !== undefined && config?.speaks === undefined) {
      known.set(schema.body as object, boundsOf(schema.body as TSchema))
    }
  })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'buffer' }, async (request: FastifyRequest, bytes: Buffer) => {
    const schema = request.routeOptions.schema?.body
    if (schema === undefined || bytes.length === 0) return undefined
    requireJson(request)
    return bodyIn(request, readJson(bytes, known.get(schema as object)!))
  })

  // A client that asks before it sends its body gets the answer of the guard first.
  const asking = new WeakSet<IncomingMessage>()
  app.server.on('checkContinue', (raw, response) => {
    asking.add(raw)
    app.server.emit('request', raw, response)
  })
  // Of other expectations there are none (RFC 9110, 10.1.1): a request that has one is judged as any other is.
  app.server.on('checkExpectation', (raw, response) => app.server.emit('request', raw, response))
  app.addHook('preParsing', (request, reply, payload, done) => {
    if (asking.delete(request.raw)) reply.raw.writeContinue()
    // What is ignored may be of any type, even of one that there is not.
    if (request.routeOptions.schema?.body === undefined) delete request.headers['content-type']
    done(null, payload)
  })
}

/** 415 for what is not plain JSON in UTF-8, by what its headers say. */
export function requireJson ({ headers }: FastifyRequest) {
  const encoding = headers['content-encoding']
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') fail('unsupported_media_type')
  if (!JSON_TYPE.test(headers['content-type'] ?? '')) fail('unsupported_media_type')
}

/** Whether a body of this schema may be left out: it has no member that is required. */
export const mayBeLeftOut = ({ required }: Readonly<Record<string, unknown>>) =>
  !(Array.isArray(required) && required.length > 0)

/**
 * The body that JSON makes. Some clients send `null` for a body that they leave out; where there has to be one, it is
 * refused here: for the validator it stands for `{}`.
 */
export function bodyIn ({ routeOptions: { schema } }: FastifyRequest, value: unknown): unknown {
  if (value === null && mayBeLeftOut(schema?.body as TSchema)) return undefined
  return value === null || Array.isArray(value) ? refuse('body', 'Expected object') : value
}
