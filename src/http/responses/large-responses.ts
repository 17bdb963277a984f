import { rest } from '../../crypto/rest.ts'

/** Characters of JSON text that are made before other requests are served. */
const STEP = 256 * 1024

/**
 * What `JSON.stringify` makes of an object, as UTF-8. Between pieces of about `STEP` characters the event loop serves
 * other requests; a single string is one piece, however long it is. Fastify sends the bytes as they are: it runs no
 * `preSerialization` hooks, and the type of the answer has to be set.
 */
export async function writeInSteps (answer: object): Promise<Buffer> {
  const pieces: Buffer[] = []
  let text = ''
  await write(answer)
  return Buffer.concat([...pieces, Buffer.from(text)])

  async function write (object: object): Promise<void> {
    let before = '{'
    for (const [name, value] of Object.entries(object) as [string, unknown][]) {
      if (value === undefined) continue
      text += `${before}${JSON.stringify(name)}:`
      before = ','
      if (isPlainObject(value)) await write(value)
      else text += JSON.stringify(value)
      if (text.length >= STEP) {
        pieces.push(Buffer.from(text))
        text = ''
        await rest()
      }
    }
    text += before === '{' ? '{}' : '}'
  }
}

function isPlainObject (value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || prototype === Object.prototype
}
