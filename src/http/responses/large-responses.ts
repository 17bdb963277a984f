import type { FastifyReply } from 'fastify'
import { READ_TYPE } from '../../../schemas/secrets.ts'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'

/** In characters. Responses of at least this size are serialized in steps, with turns of the event loop in between. */
const LARGE = 256 * 1024

/** Returns the response, or its JSON text if the response is large. */
export const writeIfLarge = async (answer: object, characters: number): Promise<object> =>
  characters < LARGE ? answer : writeInSteps(answer)

/** Sends the JSON response of a read, in steps if it is large. */
export async function sendRead (reply: FastifyReply, answer: object, characters: number): Promise<FastifyReply> {
  reply.type(READ_TYPE).serializer(JSON.stringify)
  return reply.send(await writeIfLarge(answer, characters))
}

/** Characters of JSON text per step; between steps, the event loop serves other requests. */
const STEP = 256 * 1024

/**
 * Writes JSON as UTF-8 in steps of about `STEP` characters. A step ends only between members of objects or items of
 * arrays, never within an object in an array. Fastify runs no `preSerialization` hooks for a buffer, and the caller
 * must set the content type.
 */
export async function writeInSteps (answer: object): Promise<Buffer> {
  const pieces: Buffer[] = []
  let text = ''
  await write(answer)
  return Buffer.concat([...pieces, Buffer.from(text)])

  async function write (object: object): Promise<void> {
    const [open, close] = Array.isArray(object) ? '[]' : '{}'
    let before = open
    for (const [name, value] of Object.entries(object) as [string, unknown][]) {
      if (value === undefined) continue
      text += Array.isArray(object) ? before : `${before}${JSON.stringify(name)}:`
      before = ','
      const isSplit = Array.isArray(value) || (isPlainObject(value) && !Array.isArray(object))
      if (isSplit) await write(value as object)
      else text += JSON.stringify(value)
      if (text.length >= STEP) {
        pieces.push(Buffer.from(text))
        text = ''
        await yieldToEventLoop()
      }
    }
    text += before === open ? `${open}${close}` : close
  }
}

function isPlainObject (value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || prototype === Object.prototype
}
