import { rest } from '../../crypto/rest.ts'

/** Characters of JSON text per step; between steps, the event loop serves other requests. */
const STEP = 256 * 1024

/**
 * Writes JSON as UTF-8 in steps of about `STEP` characters; only objects are split. Fastify runs no `preSerialization`
 * hooks for a buffer, and the caller must set the content type.
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
