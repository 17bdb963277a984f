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
  let stepped = 0
  await write(answer)
  takeText()
  return Buffer.concat(pieces)

  async function write (object: object): Promise<void> {
    if (Array.isArray(object)) return writeItems(object as unknown[])
    const [open, close] = '{}'
    let before = open
    for (const [name, value] of Object.entries(object) as [string, unknown][]) {
      if (value === undefined) continue
      text += `${before}${JSON.stringify(name)}:`
      before = ','
      if (Array.isArray(value) || isPlainObject(value)) await write(value)
      else text += JSON.stringify(value)
      await endStep()
    }
    text += before === open ? `${open}${close}` : close
  }

  // Writes several items at once, because a call for each item takes three times as long. The items so far tell how
  // many fit into a step. Each call is a piece of its own, because to join the texts takes as long as to write them.
  async function writeItems (items: readonly unknown[]): Promise<void> {
    let length = 0
    let count = 1
    text += '['
    for (let at = 0; at < items.length; at += count) {
      if (at > 0) count = Math.max(1, Math.min(2 * count, Math.floor(STEP / 4 * at / length)))
      if (at > 0) text += ','
      takeText()
      const list = Buffer.from(JSON.stringify(items.slice(at, at + count)))
      take(list.subarray(1, -1))
      length += list.length
      await endStep()
    }
    text += ']'
  }

  function take (piece: Buffer) {
    pieces.push(piece)
    stepped += piece.length
  }

  function takeText () {
    if (text !== '') take(Buffer.from(text))
    text = ''
  }

  async function endStep (): Promise<void> {
    if (stepped + text.length < STEP) return
    takeText()
    stepped = 0
    await yieldToEventLoop()
  }
}

function isPlainObject (value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || prototype === Object.prototype
}
