import { Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { sameBytes, sha256 } from '../../crypto/primitives.ts'
import type { Numbered, Table, Values } from '../../repositories/operations/dump.ts'
import type { FrameChain } from '../../vault/audit/backups.ts'
import { StartError } from '../common/command-errors.ts'

// The format of a backup file (decision 0046): an identification line, then frames. A frame is its kind (1 byte), the
// length of its content (4), the content, and a MAC (32) over the MAC of the previous frame and these fields. Readers
// verify each frame before they use its content, so they detect a changed, moved, removed or inserted frame. The last
// frame contains row counts and digests.

const LINE = Buffer.from('strongroom backup 1\n')
const KINDS = { header: 1, rows: 2, end: 3 } as const
const FRAME = { head: 5, mac: 32 }

// Maximum bytes of a frame. A rows frame exceeds 1 MiB by one row at most, and a row is no larger than a request.
const MAX_LENGTH = { header: 1024 * 1024, rows: 256 * 1024 * 1024, end: 1024 * 1024 }

// The length that encodes SQL NULL.
const NULL = 0xffffffff

/** The first frame of a backup. */
export interface Header {
  id: string
  made_at: string
  /** The key of the frame MACs, wrapped by a master key. */
  wrapped: Buffer
  /** The hashes of the migrations that created the schema of the backed-up database. */
  migrations: string[]
  tables: Table[]
  numbered: Numbered[]
}

const text = Type.String()
const HeaderJson = Type.Object({
  id: text,
  made_at: text,
  wrapped: text,
  migrations: Type.Array(text),
  tables: Type.Array(Type.Object({
    name: text, columns: Type.Array(Type.Object({ name: text, type: text })), key: Type.Array(text)
  })),
  numbered: Type.Array(Type.Object({ table: text, column: text, last: text }))
})

/** Rows of a table; `table` is an index into the tables of the header. */
export interface Rows { table: number, rows: Values[] }

/** The number of rows of a table, and a digest that does not depend on the order of the rows. */
export interface Count { table: string, rows: number, digest: string }

/** The parts of a backup in order: a header, rows, an end. */
export type Part =
  { kind: 'header', header: Header } | ({ kind: 'rows' } & Rows) | { kind: 'end', counts: Count[], bytes: number }

/** The file is damaged, or is not a backup in the format of this build. */
export class DamagedBackup extends StartError {
  override name = 'DamagedBackup' as 'StartError'
}

/** Yields the bytes of a backup. Calls `counts` after the last rows. */
export async function * encodeBackup (
  next: FrameChain, header: Header, rows: AsyncIterable<Rows>, counts: () => Count[]
): AsyncGenerator<Buffer> {
  const frame = (kind: keyof typeof KINDS, ...content: Buffer[]) => {
    const head = Buffer.alloc(FRAME.head)
    head.writeUInt8(KINDS[kind])
    head.writeUInt32BE(content.reduce((sum, { length }) => sum + length, 0), 1)
    return [head, ...content, next(head, ...content)]
  }
  const { wrapped, ...fields } = header
  const json = Buffer.from(JSON.stringify({ ...fields, wrapped: wrapped.toString('base64') }))
  yield LINE
  // The header frame also contains a plain digest, so that a reader detects damage before it unwraps the key.
  yield Buffer.concat(frame('header', sha256(json), json))
  for await (const page of rows) yield * frame('rows', encodeRows(page))
  yield Buffer.concat(frame('end', Buffer.from(JSON.stringify(counts()))))
}

/**
 * Yields the verified parts of a backup. Throws a DamagedBackup for an invalid frame, a missing end or trailing data.
 *
 * @param name the file name for messages
 * @param begin starts the chain of MACs; throws an IntegrityError for an invalid header
 */
export async function * decodeBackup (
  name: string, chunks: AsyncIterable<Uint8Array>, begin: (header: Header) => FrameChain
): AsyncGenerator<Part> {
  const reader = createReader(chunks, () => new DamagedBackup(`${name} is truncated`))
  try {
    yield * decodeParts(name, reader, begin)
  } finally {
    await reader.close()
  }
}

async function * decodeParts (
  name: string, reader: ReturnType<typeof createReader>, begin: (header: Header) => FrameChain
): AsyncGenerator<Part> {
  const damaged = (number: number) => new DamagedBackup(`${name} is damaged: frame ${number} fails verification`)
  if (!(await reader.take(LINE.length)).equals(LINE)) {
    throw new DamagedBackup(`${name} is not a backup, or comes from an incompatible build`)
  }
  let next: FrameChain | undefined
  for (let number = 0; ; number++) {
    const head = await reader.take(FRAME.head)
    const kind = (Object.keys(KINDS) as (keyof typeof KINDS)[]).find((one) => KINDS[one] === head[0])
    const length = head.readUInt32BE(1)
    if (kind === undefined || (kind === 'header') !== (number === 0) || length > MAX_LENGTH[kind]) throw damaged(number)
    const content = await reader.take(length)
    const mac = await reader.take(FRAME.mac)
    let header: Header | undefined
    if (kind === 'header') {
      const json = content.subarray(FRAME.mac)
      if (!sha256(json).equals(content.subarray(0, FRAME.mac))) throw damaged(number)
      // The digest has no key, so a forged header is detected only by the MAC of the frame.
      header = decodeHeader(json)
      next = header && chainOf(header, begin)
      if (next === undefined) throw damaged(number)
    }
    if (!sameBytes(next!(head, content), mac)) throw damaged(number)
    if (header !== undefined) yield { kind: 'header', header }
    else if (kind === 'rows') yield { kind, ...decodeRows(content) }
    else {
      if (!await reader.isAtEnd()) throw new DamagedBackup(`${name} has trailing data`)
      yield { kind: 'end', counts: JSON.parse(content.toString('utf8')) as Count[], bytes: reader.taken() }
      return
    }
  }
}

function decodeHeader (json: Buffer): Header | undefined {
  let value: unknown
  try {
    value = JSON.parse(json.toString('utf8'))
  } catch {
    return undefined
  }
  return Value.Check(HeaderJson, value) ? { ...value, wrapped: Buffer.from(value.wrapped, 'base64') } : undefined
}

function chainOf (header: Header, begin: (header: Header) => FrameChain): FrameChain | undefined {
  try {
    return begin(header)
  } catch (error) {
    if (error instanceof IntegrityError) return undefined
    throw error
  }
}

/** Counts rows and computes digests that do not depend on the order of the rows. */
export function createCounter (tables: readonly Table[]) {
  const all = tables.map(() => ({ rows: 0, digest: Buffer.alloc(32) }))
  return {
    add ({ table, rows }: Rows): void {
      const count = all[table]!
      count.rows += rows.length
      for (const row of rows) {
        const digest = sha256(Buffer.concat(encodeRow(row)))
        for (let i = 0; i < digest.length; i++) count.digest[i]! ^= digest[i]!
      }
    },
    counts: (): Count[] => all.map(({ rows, digest }, i) =>
      ({ table: tables[i]!.name, rows, digest: digest.toString('hex') }))
  }
}

/** A digest over all tables. Backups with the same rows in the same tables have the same digest. */
export function digestOf (counts: readonly Count[]): string {
  const lines = counts.map(({ table, rows, digest }) => `${table} ${rows} ${digest}\n`).sort()
  return sha256(lines.join('')).toString('hex')
}

const encodeRows = ({ table, rows }: Rows): Buffer => {
  const head = Buffer.alloc(8)
  head.writeUInt32BE(table)
  head.writeUInt32BE(rows.length, 4)
  return Buffer.concat([head, ...rows.flatMap(encodeRow)])
}

// Prefixes a row with its number of values, and each value with its length.
function encodeRow (row: Values): Buffer[] {
  return [numberOf(row.length), ...row.flatMap((value) =>
    value === null ? [numberOf(NULL)] : [numberOf(value.length), value])]
}

function decodeRows (content: Buffer): Rows {
  let at = 0
  const number = () => {
    at += 4
    return content.readUInt32BE(at - 4)
  }
  const value = () => {
    const length = number()
    if (length === NULL) return null
    at += length
    return content.subarray(at - length, at)
  }
  const list = <T>(length: number, next: () => T) => Array.from({ length }, next)
  const table = number()
  return { table, rows: list(number(), () => list(number(), value)) }
}

function numberOf (number: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(number)
  return bytes
}

// Reads exact lengths from a stream of chunks.
function createReader (chunks: AsyncIterable<Uint8Array>, cutOff: () => Error) {
  const source = chunks[Symbol.asyncIterator]()
  let parts: Buffer[] = []
  let available = 0
  let taken = 0
  async function more () {
    const { value, done } = await source.next()
    if (done) return false
    parts.push(Buffer.from(value.buffer, value.byteOffset, value.byteLength))
    available += value.byteLength
    return true
  }
  return {
    async take (length: number): Promise<Buffer> {
      while (available < length) if (!await more()) throw cutOff()
      const all = parts.length === 1 ? parts[0]! : Buffer.concat(parts)
      parts = [all.subarray(length)]
      available -= length
      taken += length
      return all.subarray(0, length)
    },
    async isAtEnd (): Promise<boolean> {
      while (available === 0) if (!await more()) return true
      return false
    },
    taken: () => taken,
    close: () => source.return?.()
  }
}
