import type { TSchema } from '@sinclair/typebox'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import { jsonErrorOffset, parseJson } from '../../rules/documents/json.ts'
import { positionAfter, type Position } from '../../rules/documents/positions.ts'
import { fail, MAX_FAULTS } from '../../rules/api-error.ts'
import { BodyRefused, refuseBody } from './faults.ts'

/**
 * Limits of a body: number of fields and array elements, nesting depth. `nul`: strings may contain NUL characters.
 * `piece`: maximum characters of a part of a large body that is parsed in one call.
 */
export interface Bounds { members: number, depth: number, nul?: boolean | undefined, piece?: number }

const MAX_DEPTH = 20
// A body may have this many members more than its schema allows, so that a body with a few unknown fields reaches the
// validator, whose error names these fields.
const SLACK = 100
const MAX_PATH = 200

// Bytes of a large body that are read per step; between steps, the event loop serves other requests.
const STEP = 256 * 1024
// The default maximum of characters of one list element, and of the body without its list elements.
const MAX_PIECE = 3 * 1024 * 1024

/** The limits of a body with one of these schemas. Throws for an unbounded schema. */
export function boundsOf (...schemas: TSchema[]): Bounds {
  return { members: Math.max(...schemas.map(membersOf)) + SLACK, depth: MAX_DEPTH }
}

function membersOf (schema: TSchema): number {
  const choices = (schema.anyOf ?? []) as TSchema[]
  if (choices.length > 0) return Math.max(...choices.map(membersOf))
  if (schema.type === 'array') {
    if (schema.maxItems === undefined) throw new Error('an array in a body needs maxItems')
    return 1 + (schema.maxItems as number) * (1 + membersOf(schema.items as TSchema))
  }
  if (schema.type !== 'object') return 0
  if (typeof schema.additionalProperties === 'object') {
    if (schema.maxProperties === undefined) throw new Error('an object with any names in a body needs maxProperties')
    return schema.maxProperties as number * (1 + membersOf(schema.additionalProperties as TSchema))
  }
  if (schema.additionalProperties !== false) throw new Error('an object in a body needs additionalProperties: false')
  const members = Object.values(schema.properties as Record<string, TSchema>)
  return members.reduce((sum, member) => sum + 1 + membersOf(member), 0)
}

/**
 * Parses JSON in UTF-8 within the limits, which are checked before parsing. Rejects duplicate names in an object
 * (parsers disagree about them), lone surrogates and, unless the limits allow them, NUL characters (the database cannot
 * store them).
 */
export function readJsonBody (bytes: Buffer, bounds: Bounds): unknown {
  const text = decode(new TextDecoder('utf-8', { fatal: true }), bytes, false)
  new Scanner(bounds).push(text)
  const badText = new BadText(bounds.nul)
  const value = parse(text, '', (offset) => positionAfter(text.slice(0, offset)), badText)
  badText.refuse(value)
  return value
}

/**
 * Like `readJsonBody`, for a stream of up to `limit` bytes. Parses lists in the top-level object element by element
 * while they arrive, and calls `pause` between the steps, so that no step blocks the event loop for long.
 */
export async function readLargeJson (
  source: AsyncIterable<Buffer>, bounds: Bounds, limit: number, pause: () => Promise<unknown> = yieldToEventLoop
): Promise<unknown> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  const pieces = new Pieces(bounds.piece)
  const scanner = new Scanner(bounds, pieces)
  let bytes = 0
  let step = 0
  let held = ''
  // Positions count CR LF as one line end, so the scanner gets both in one text.
  const push = (text: string, isLast: boolean) => {
    const whole = held + text
    held = !isLast && whole.endsWith('\r') ? '\r' : ''
    scanner.push(whole.slice(0, whole.length - held.length))
  }
  for await (const chunk of source) {
    bytes += chunk.length
    if (bytes > limit) fail('payload_too_large')
    for (let at = 0; at < chunk.length; at += STEP) {
      const part = chunk.subarray(at, at + STEP)
      push(decode(decoder, part, true), false)
      step += part.length
      if (step < STEP) continue
      step = 0
      await pause()
    }
  }
  if (bytes === 0) return undefined
  push(decode(decoder, Buffer.alloc(0), false), true)
  return pieces.whole()
}

function decode (decoder: InstanceType<typeof TextDecoder>, bytes: Buffer, stream: boolean): string {
  try {
    return decoder.decode(bytes, { stream })
  } catch {
    return fail('malformed_json')
  }
}

// `positionOf` converts an offset in the text to a position in the body.
function parse (text: string, path: string, positionOf: (offset: number) => Position, badText: BadText): unknown {
  const value = parseSyntax(text, positionOf)
  // JSON text can express NUL and lone surrogates only by escape sequences; other text needs no check.
  if (/\\u(?:0000|d[89a-f])/i.test(text)) badText.search(value, path)
  return value
}

function parseSyntax (text: string, positionOf: (offset: number) => Position): unknown {
  try {
    return parseJson(text)
  } catch {
    return fail('malformed_json', positionOf(jsonErrorOffset(text)))
  }
}

// Decodes a name in JSON text; undefined if an escape sequence is invalid.
function nameIn (written: string): string | undefined {
  try {
    return JSON.parse(`"${written}"`) as string
  } catch {
    return undefined
  }
}

interface FirstError { position: Position, isSyntax: boolean }

// The first syntax error before `end`, or the position of `end`.
function errorIn (text: string, end: number): FirstError {
  const offset = jsonErrorOffset(text.slice(0, end))
  return { position: positionAfter(text.slice(0, offset)), isSyntax: offset < end }
}

/** Collects lone surrogates and, unless they are allowed, NUL characters in a body: at most `MAX_FAULTS` faults. */
class BadText {
  readonly #errors: Record<string, string[]> = Object.create(null)
  #count = 0
  readonly #allowsNul: boolean

  constructor (allowsNul = false) {
    this.#allowsNul = allowsNul
  }

  /** Removes members with invalid names, so that later faults do not repeat the names. */
  search (value: unknown, path: string): void {
    if (this.#count >= MAX_FAULTS) return
    if (typeof value === 'string') this.#check(value, path)
    else if (typeof value === 'object' && value !== null) {
      for (const [key, member] of Object.entries(value)) {
        if (this.#check(key, path)) this.search(member, `${path}.${key}`)
        else Reflect.deleteProperty(value, key)
      }
    }
  }

  /** Throws 422 with the faults; `body` is the parsed body. */
  refuse (body: unknown) {
    if (this.#count > 0) throw new BodyRefused(this.#errors, body)
  }

  #check (text: string, path: string): boolean {
    const hasNul = !this.#allowsNul && text.includes('\0')
    if (!hasNul && !/\p{Surrogate}/u.test(text)) return true
    const member = path.slice(1, MAX_PATH) || 'body'
    if (!(member in this.#errors)) this.#count++
    this.#errors[member] ??= [hasNul ? 'NUL characters are not allowed' : 'not well-formed Unicode']
    return false
  }
}

/**
 * Checks the limits and duplicate names in chunks of JSON text, in one pass. The parser validates the syntax. Without
 * `pieces`, `push` is called once with the whole text.
 */
class Scanner {
  readonly #bounds: Bounds
  readonly #pieces: Pieces | undefined
  #members = 0
  /** The names in each open object; undefined for an array. */
  readonly #open: (Set<string> | undefined)[] = []
  #quoted = false
  #escaped = false
  #isNameNext = false
  #text = ''
  /** The part of the current name that was read so far. */
  #name: string | undefined

  constructor (bounds: Bounds, pieces?: Pieces) {
    this.#bounds = bounds
    this.#pieces = pieces
  }

  push (text: string): void {
    let i = 0
    // Cached positions of the next quote and backslash, so that each character is scanned once.
    let quote = -1
    let slash = -1
    let nameFrom = 0
    this.#text = text
    this.#pieces?.begin(text)
    while (i < text.length) {
      if (!this.#quoted) {
        const c = text.charCodeAt(i)
        if (c === 0x22) {
          this.#quoted = true
          this.#name = this.#isNameNext ? '' : undefined
          nameFrom = i + 1
        } else if (c === 0x7b || c === 0x5b) this.#enter(c === 0x7b, i)
        else if (c === 0x7d || c === 0x5d) this.#leave(i)
        else if (c === 0x2c) this.#comma(i)
        else if (c === 0x3a) this.#isNameNext = false
        i++
        continue
      }
      if (this.#escaped) {
        this.#escaped = false
        i++
        continue
      }
      if (quote < i) quote = indexOr(text, '"', i)
      if (slash < i) slash = indexOr(text, '\\', i)
      if (slash < quote) {
        this.#escaped = slash + 1 === text.length
        i = slash + 2
      } else if (quote === text.length) {
        i = quote
      } else {
        this.#quoted = false
        if (this.#name !== undefined) this.#named(this.#name + text.slice(nameFrom, quote), quote)
        i = quote + 1
      }
    }
    if (this.#quoted && this.#name !== undefined) this.#name += text.slice(nameFrom)
    this.#pieces?.take(text.length)
  }

  #enter (isObject: boolean, at: number) {
    const isList = !isObject && this.#open.length === 1 && this.#open[0] !== undefined
    this.#open.push(isObject ? new Set() : undefined)
    if (this.#open.length > this.#bounds.depth) refuseBody('body', `nested deeper than ${this.#bounds.depth} levels`)
    this.#isNameNext = isObject
    if (!isObject) this.#count()
    if (isList) this.#pieces?.beginList(at)
  }

  #leave (at: number) {
    if (this.#open.length === 0) this.#fail(at, 0)
    if (this.#open.length === 2 && this.#open[1] === undefined) this.#pieces?.endList(at)
    this.#open.pop()
    this.#isNameNext = false
  }

  #comma (at: number) {
    const names = this.#open.at(-1)
    this.#isNameNext = names !== undefined
    if (names !== undefined || this.#open.length === 0) return
    this.#count()
    if (this.#open.length === 2) this.#pieces?.nextElement(at)
  }

  #named (written: string, end: number) {
    this.#name = undefined
    this.#isNameNext = false
    this.#count()
    // Decode escape sequences: `\u0061` and `a` are the same name.
    const name = written.includes('\\') ? nameIn(written) : written
    const names = this.#open.at(-1)
    if (name === undefined || names?.has(name)) return this.#fail(end, [...written].length + 1, name)
    names?.add(name)
    if (this.#open.length === 1) this.#pieces?.within(name)
  }

  // Reports the first syntax error before `at`. If the text has no syntax error there, reports the position `back`
  // characters before `at`, where the duplicate `name` begins.
  #fail (at: number, back: number, name?: string): never {
    const { position, isSyntax } = this.#pieces?.errorBefore(at) ?? errorIn(this.#text, at)
    if (isSyntax) return fail('malformed_json', position)
    const twice = name === undefined ? {} : { name: name.slice(0, MAX_PATH) }
    return fail('malformed_json', { ...position, column: position.column - back, ...twice })
  }

  #count () {
    if (++this.#members > this.#bounds.members) refuseBody('body', `more than ${this.#bounds.members} members and elements`)
  }
}

function indexOr (text: string, what: string, from: number): number {
  const at = text.indexOf(what, from)
  return at === -1 ? text.length : at
}

/**
 * Splits a body into the elements of its top-level lists and the remaining text. In the remaining text, the index of an
 * element replaces the element. The body is valid JSON if the remaining text and all elements are valid.
 */
class Pieces {
  #rest = ''
  readonly #elements: unknown[] = []
  #element: string | undefined
  #first = true
  #text = ''
  #from = 0
  #member = 'body'
  #place = 0
  /** The position of the text that `take` has not taken yet. `#elementAt` is the position of the current element. */
  #at: Position = { line: 1, column: 1 }
  #elementAt = this.#at
  /** For each part of the remaining text: its offset in that text and its position in the body. */
  readonly #parts: { offset: number, position: Position }[] = []
  readonly #most: number
  readonly #badText = new BadText()

  constructor (most = MAX_PIECE) {
    this.#most = most
  }

  begin (text: string) {
    this.#text = text
    this.#from = 0
  }

  /** Appends the text before `to` to the current element, or outside of elements to the remaining text. */
  take (to: number) {
    const part = this.#text.slice(this.#from, to)
    this.#from = to
    if (this.#element === undefined) {
      this.#parts.push({ offset: this.#rest.length, position: this.#at })
      this.#rest += part
    } else this.#element += part
    this.#at = positionAfter(part, this.#at)
    if ((this.#element ?? this.#rest).length <= this.#most) return
    const member = this.#element === undefined ? 'body' : `${this.#member}.${this.#place}`
    refuseBody(member, `longer than ${this.#most} characters`)
  }

  within (name: string) { this.#member = name.slice(0, MAX_PATH) }

  beginList (at: number) {
    this.take(at + 1)
    this.#element = ''
    this.#elementAt = this.#at
    this.#first = true
    this.#place = 0
  }

  nextElement (at: number) {
    if (this.#element === undefined) return
    this.take(at)
    this.#finish()
    this.#first = false
    this.#place++
    this.take(at + 1)
    this.#element = ''
    this.#elementAt = this.#at
  }

  endList (at: number) {
    if (this.#element === undefined) return
    this.take(at)
    if (!this.#first || this.#element.trim() !== '') this.#finish()
    this.#element = undefined
  }

  #finish () {
    this.#rest += `${this.#first ? '' : ','}${this.#elements.length}`
    const path = `.${this.#member}.${this.#place}`
    this.#elements.push(parse(this.#element!, path, () => this.errorBefore(this.#from).position, this.#badText))
    this.#element = ''
  }

  /** The first syntax error before an offset in the current text, or the position of the offset. */
  errorBefore (end: number): FirstError {
    this.take(end)
    const offset = jsonErrorOffset(this.#rest)
    if (offset < this.#rest.length) return { position: this.#positionOf(offset), isSyntax: true }
    const element = this.#element ?? ''
    const within = jsonErrorOffset(element)
    return within < element.length
      ? { position: positionAfter(element.slice(0, within), this.#elementAt), isSyntax: true }
      : { position: this.#at, isSyntax: false }
  }

  #positionOf (offset: number): Position {
    const part = this.#parts.findLast((one) => one.offset <= offset)
    return part === undefined ? this.#at : positionAfter(this.#rest.slice(part.offset, offset), part.position)
  }

  whole (): unknown {
    // The body ends within a list.
    if (this.#element !== undefined) fail('malformed_json', this.errorBefore(this.#from).position)
    const value = parse(this.#rest, '', (offset) => this.#positionOf(offset), this.#badText)
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    const body = !isObject
      ? value
      : Object.fromEntries(Object.entries(value).map(([name, member]: [string, unknown]) =>
        [name, Array.isArray(member) ? member.map((place: number) => this.#elements[place]) : member]))
    this.#badText.refuse(body)
    return body
  }
}
