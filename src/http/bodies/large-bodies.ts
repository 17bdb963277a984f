import type { FastifyInstance, FastifyReply, FastifyRequest, FastifySchemaCompiler } from 'fastify'
import { principalOf } from '../routes/actor.ts'
import { Type, type TArray, type TObject, type TSchema } from '@sinclair/typebox'
import { rest } from '../../crypto/rest.ts'
import { ApiError, fail } from '../../rules/errors.ts'
import { bodyIn, requireJson } from './body.ts'
import { boundsOf, readLargeJson } from './json.ts'
import { errorsByMember, judging } from './validation.ts'

// A body that carries everything of a project may be this many times as large as others, within bounds; and few of them
// are in memory at once, never all of them one organization's.
const TIMES = 16
const LARGEST = 64 * 1024 * 1024
const MOST = 4
const MOST_OF_ONE = 2

const STEP = 1024 * 1024

export interface LargeBody {
  schema: TObject
  /** The member that makes it large: a list, which is judged element by element. */
  list: string
  /** Ends the request when the caller may not go on, by what its path names: before any of the body is read. */
  judgePlace: (request: FastifyRequest) => Promise<unknown>
}

/**
 * What a route takes a large body by, in a plugin of its own. One of few slots is taken for it when scope and place are
 * judged, before the body is read, and given back when the answer goes out, or as soon as the client is gone with
 * nothing read whole; a body that is no larger than others needs none. Everything is read and judged in steps.
 */
export function takeLargeBodies (app: FastifyInstance, { schema, list, judgePlace }: LargeBody) {
  const bodyLimit = Math.max(app.config.bodyLimit, Math.min(app.config.bodyLimit * TIMES, LARGEST))
  const bounds = boundsOf(schema)
  const takeSlot = createSlots(MOST, MOST_OF_ONE)
  const held = new WeakMap<FastifyRequest, { giveBack: () => void, isWhole: boolean }>()
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', async (
    request: FastifyRequest, payload: AsyncIterable<Buffer> & { iterator?: (options: object) => AsyncIterable<Buffer> }
  ) => {
    if (Number(request.headers['content-length']) > bodyLimit) fail('payload_too_large')
    if (request.headers['content-length'] === '0') return undefined
    requireJson(request)
    try {
      // Not the stream itself, which would close the connection before a refusal is sent.
      const body = await readLargeJson(payload.iterator?.({ destroyOnReturn: false }) ?? payload, bounds, bodyLimit)
      // From here on it is in memory, until it is answered, whether or not somebody still waits for the answer.
      const slot = held.get(request)
      if (slot !== undefined) slot.isWhole = true
      return bodyIn(request, body)
    } catch (error) {
      // Anything else says that the client is gone.
      if (error instanceof ApiError) throw error
      return fail('malformed_request')
    }
  })

  app.setValidatorCompiler(inSteps(schema, list))

  return {
    bodyLimit,
    onRequest: async (request: FastifyRequest, reply: FastifyReply) => {
      await judgePlace(request)
      if (Number(request.headers['content-length']) <= app.config.bodyLimit) return
      const giveBack = takeSlot(principalOf(request).organization.id) ?? fail('service_unavailable')
      const slot = { giveBack, isWhole: false }
      held.set(request, slot)
      const onClose = () => { if (!slot.isWhole) giveBack() }
      reply.raw.once('close', onClose)
      // It may have gone while its place was looked up.
      if (request.raw.destroyed) onClose()
    },
    onSend: async (request: FastifyRequest) => held.get(request)?.giveBack()
  }
}

/** So many slots in all, and for one owner; undefined when there is none. Giving one back twice gives back one. */
export function createSlots (most: number, mostOfOne: number) {
  const held = new Map<string, number>()
  let all = 0
  return function take (owner: string): (() => void) | undefined {
    const own = held.get(owner) ?? 0
    if (all >= most || own >= mostOfOne) return undefined
    all++
    held.set(owner, own + 1)
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      all--
      const left = held.get(owner)! - 1
      if (left === 0) held.delete(owner)
      else held.set(owner, left)
    }
  }
}

/** The elements one by one, with a rest for everybody else whenever some megabyte of them is done. */
export async function * inTurns<T> (
  elements: readonly T[], bytesOf: (element: T) => number, pause: () => Promise<unknown> = rest
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

// The schema with a list of anything in the place of the list, and then each of its elements.
function inSteps (schema: TObject, list: string): FastifySchemaCompiler<TSchema> {
  const { items, ...more } = schema.properties[list] as TArray
  const outside = judging({
    ...schema, properties: { ...schema.properties, [list]: { ...more, items: Type.Unknown() } }
  } as unknown as TObject)
  const element = judging(items)
  return (route) => {
    if (route.httpPart !== 'body') return judging(route.schema, route.httpPart)
    const judge = async (body: unknown) => {
      const { value, error } = outside(body)
      if (error !== undefined) throw refusal(error)
      for await (const [i, one] of inTurns((value as Record<string, unknown[]>)[list]!, sizeOf)) {
        const { error } = element(one, `/${list}/${i}`)
        if (error !== undefined) throw refusal(error)
      }
    }
    // Its type wants a promise of the framework's own kind.
    return judge as never
  }
}

const refusal = (problems: Parameters<typeof errorsByMember>[0]) =>
  new ApiError('validation_failed', undefined, errorsByMember(problems))

// As near as a rest has to be: the text of an element is nearly all of it.
function sizeOf (element: unknown): number {
  if (typeof element === 'string') return element.length
  return typeof element === 'object' && element !== null
    ? Object.values(element).reduce((sum: number, member) => sum + sizeOf(member), 0)
    : 0
}
