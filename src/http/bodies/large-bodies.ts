import type { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest, FastifySchemaCompiler } from 'fastify'
import { principalOf } from '../routes/actor.ts'
import { Type, type TArray, type TObject, type TSchema } from '@sinclair/typebox'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import { Gate } from '../../gate.ts'
import { ApiError, fail, MAX_FAULTS } from '../../rules/api-error.ts'
import { bodyIn, requireJson } from './body.ts'
import { boundsOf, readJsonBody, readLargeJson } from './json.ts'
import { errorsByMember, validatorOf } from './validation.ts'

// Maximum number of large bodies in memory at once, of all routes.
const MAX_SLOTS = 4
const MAX_SLOTS_OF_ORGANIZATION = 2

const STEP = 1024 * 1024

interface LargeBody {
  schema: TObject
  /** The limit of the body is this multiple of the normal body limit, but at most `maxBytes`. */
  factor: number
  maxBytes: number
  /** The field with the large list, which is validated by elements. Without `list`, the body is parsed at once. */
  list?: string
  /** Looks up the level of the path and ends the request if the caller has no access, before the body is read. */
  validatePlace?: (request: FastifyRequest) => Promise<unknown>
}

const gates = new WeakMap<object, Gate>()

/**
 * Route options for a large body, which is read in steps. Changes the parser and, with `list`, the validator of `app`,
 * so call this in a separate plugin. A body above the normal limit occupies a slot from the access checks until the
 * response. So does a body without Content-Length: with `list` from the access checks, otherwise when it becomes larger
 * than the normal limit. The request ends with 503 if no slot is free. If the client disconnects before the body is
 * complete, the slot is released at once.
 */
export function takeLargeBodies (app: FastifyInstance, { schema, list, factor, maxBytes, validatePlace }: LargeBody) {
  const { bodyLimit: normalLimit } = app.config
  const bodyLimit = Math.max(normalLimit, Math.min(normalLimit * factor, maxBytes))
  const bounds = { ...boundsOf(schema), ...(list === undefined && { piece: bodyLimit }) }
  const gate = gates.get(app.server) ?? new Gate([{ running: MAX_SLOTS }, { running: MAX_SLOTS_OF_ORGANIZATION }])
  gates.set(app.server, gate)
  const held = new WeakMap<FastifyRequest, { giveBack: () => void, isWhole: boolean }>()

  // For bodies without Content-Length.
  const replies = new WeakMap<FastifyRequest, FastifyReply>()

  function occupy (request: FastifyRequest, reply: FastifyReply) {
    const giveBack = gate.tryEnter([principalOf(request).organization.id]) ?? fail('service_unavailable')
    const slot = { giveBack, isWhole: false }
    held.set(request, slot)
    const onClose = () => { if (!slot.isWhole) giveBack() }
    reply.raw.once('close', onClose)
    // The client may have disconnected before `onClose` was registered.
    if (request.raw.destroyed) onClose()
  }

  async function * occupying (request: FastifyRequest, source: AsyncIterable<Buffer>) {
    let bytes = 0
    for await (const chunk of source) {
      bytes += chunk.length
      if (bytes > normalLimit && !held.has(request)) occupy(request, replies.get(request)!)
      yield chunk
    }
  }

  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', async (
    request: FastifyRequest, payload: AsyncIterable<Buffer> & { iterator?: (options: object) => AsyncIterable<Buffer> }
  ) => {
    if (Number(request.headers['content-length']) > bodyLimit) fail('payload_too_large')
    if (request.headers['content-length'] === '0') return undefined
    requireJson(request)
    try {
      if (list === undefined && Number(request.headers['content-length']) <= normalLimit) {
        return bodyIn(request, readJsonBody(await collect(payload), bounds))
      }
      // Without `destroyOnReturn: false`, an error in `readLargeJson` destroys the connection before the error response
      // is sent.
      const source = occupying(request, payload.iterator?.({ destroyOnReturn: false }) ?? payload)
      const body = await readLargeJson(source, bounds, bodyLimit)
      // The body now stays in memory until the response, even if the client disconnects. So the slot stays occupied.
      const slot = held.get(request)
      if (slot !== undefined) slot.isWhole = true
      return bodyIn(request, body)
    } catch (error) {
      // Other errors mean that the client disconnected.
      if (error instanceof ApiError) throw error
      return fail('malformed_request')
    }
  })

  if (list !== undefined) app.setValidatorCompiler(inSteps(schema, list))
  return {
    bodyLimit,
    onRequest: async (request: FastifyRequest, reply: FastifyReply) => {
      await validatePlace?.(request)
      const length = request.headers['content-length']
      if (length === undefined && list === undefined) replies.set(request, reply)
      else if (length === undefined || Number(length) > normalLimit) occupy(request, reply)
    },
    onSend: async (request: FastifyRequest) => held.get(request)?.giveBack()
  }
}

// As events, which cost less than an iterator: most bodies are one chunk.
const collect = (payload: AsyncIterable<Buffer> & Partial<Pick<Readable, 'on'>>): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    ;(payload as Readable).on('data', (chunk: Buffer) => { chunks.push(chunk) })
      .on('end', () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)))
      .on('error', reject)
  })

/** Iterates over the elements and yields to the event loop after each megabyte. */
export async function * yieldingBetween<T> (
  elements: readonly T[], bytesOf: (element: T) => number, pause: () => Promise<unknown> = yieldToEventLoop
): AsyncGenerator<[number, T]> {
  let bytes = 0
  for (const [i, element] of elements.entries()) {
    yield [i, element]
    bytes += 100 + bytesOf(element)
    if (bytes < STEP) continue
    bytes = 0
    await pause()
  }
}

// Validates the body without the elements of the list, then each element of the list by itself.
function inSteps (schema: TObject, list: string): FastifySchemaCompiler<TSchema> {
  const { items, ...more } = schema.properties[list] as TArray
  const outside = validatorOf({
    ...schema, properties: { ...schema.properties, [list]: { ...more, items: Type.Unknown() } }
  } as unknown as TObject)
  const element = validatorOf(items)
  return (route) => {
    if (route.httpPart !== 'body') return validatorOf(route.schema, route.httpPart)
    const validate = async (body: unknown) => {
      const { value, error: errors = [] } = outside(body)
      const { [list]: elements } = value as Record<string, unknown>
      for await (const [i, one] of yieldingBetween(Array.isArray(elements) ? elements : [], sizeOf)) {
        if (errors.length >= MAX_FAULTS) break
        errors.push(...element(one, `/${list}/${i}`).error ?? [])
      }
      if (errors.length > 0) throw new ApiError('validation_failed', undefined, errorsByMember(errors.slice(0, MAX_FAULTS)))
    }
    // Fastify accepts async validators, but its types do not.
    return validate as never
  }
}

// An estimate: the characters of all strings in the element.
function sizeOf (element: unknown): number {
  if (typeof element === 'string') return element.length
  return typeof element === 'object' && element !== null
    ? Object.values(element).reduce((sum: number, member) => sum + sizeOf(member), 0)
    : 0
}
