/**
 * MACs over rows of the database. It guarantees that two rows have the same MAC only if table, names and values of
 * their fields are equal: the encoding is injective and typed. A MAC costs one HMAC without a key derivation.
 */
import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import { deriveKey, hmac, hmacMatches, isWellFormed } from './primitives.ts'

/** An injective encoding: each value has its type, and each text its length. */
export function encodeRow (table: string, fields: readonly (readonly [name: string, value: unknown])[]): string {
  let text = counted(table)
  for (const [name, value] of fields) text += counted(name) + encodeValue(value)
  return wellFormed(text)
}

// A lone surrogate would be hashed as U+FFFD and collide.
function wellFormed (text: string): string {
  if (!isWellFormed(text)) throw new Error('a row needs well-formed text')
  return text
}

/** The encoded fields of a table, in order. Of a field in `presence`, only whether it is neither null nor false. */
export interface RowFormat { fields: readonly string[], presence?: readonly string[] }

/** `encodeRow` for all rows of one format, at half the cost. */
export function createRowEncoder (table: string, { fields, presence = [] }: RowFormat) {
  const head = counted(table)
  const parts = fields.map((name) => ({ name, prefix: counted(name), isPresence: presence.includes(name) }))
  return (row: Readonly<Record<string, unknown>>): string => {
    let text = head
    for (const { name, prefix, isPresence } of parts) {
      const value = row[name]
      text += prefix + encodeValue(isPresence ? value !== null && value !== false : value)
    }
    return wellFormed(text)
  }
}

/** The suffix that one more field appends to an encoded row. */
export const encodeField = (name: string, value: unknown): string => wellFormed(counted(name) + encodeValue(value))

/** HMAC-SHA256 over a row of a table: 32 bytes. */
export function rowMac (
  key: KeyObject, table: string, fields: readonly (readonly [name: string, value: unknown])[]
): Buffer {
  return hmac(key, encodeRow(table, fields))
}

/** Characters of encoded rows that a checker keeps at most. */
const MAX_CACHED = 4 * 2 ** 20

/**
 * Makes and checks MACs of encoded rows. Caches rows with valid MACs, which are only compared. Other MACs are compared
 * in constant time.
 */
export function createRowChecker (key: KeyObject) {
  const right = new LRUCache<string, string>({ maxSize: MAX_CACHED, sizeCalculation: (row) => row.length + 100 })
  return {
    mac (row: string): Buffer {
      const mac = hmac(key, row)
      right.set(mac.toString('latin1'), row)
      return mac
    },
    matches (row: string, mac: Buffer): boolean {
      const name = mac.toString('latin1')
      if (right.get(name) === row) return true
      if (!hmacMatches(key, row, mac)) return false
      right.set(name, row)
      return true
    }
  }
}

/**
 * The key for hashes of guessable values by which rows are found. Derived from the row key, so that it is wrapped and
 * backed up with it, but a different key, so that no hash is the MAC of a row.
 */
export function deriveLookupKey (key: KeyObject): KeyObject {
  return deriveKey(key, Buffer.from('strongroom lookups'), 'hash')
}

/** A fingerprint of a row key, which reveals nothing about the key. */
export function rowKeyFingerprint (key: KeyObject): Buffer {
  return deriveKey(key, Buffer.from('strongroom rows'), 'fingerprint').export()
}

/** A fingerprint of the key of an event chain. */
export function chainKeyFingerprint (key: KeyObject): Buffer {
  return deriveKey(key, Buffer.from('strongroom events'), 'fingerprint').export()
}

function encodeValue (value: unknown): string {
  if (value === null) return 'n'
  switch (typeof value) {
    case 'string': return `s${counted(value)}`
    case 'boolean': return value ? 't' : 'f'
    case 'number': return `i${counted(String(value))}`
    case 'object': break
    default: throw new Error(`a row has no ${typeof value}`)
  }
  if (Buffer.isBuffer(value)) return `b${counted(value.toString('base64'))}`
  // NaN: a time outside JavaScript's range, which the service never writes.
  if (value instanceof Date) return `d${counted(String(value.getTime()))}`
  if (Array.isArray(value)) return `a${value.length}:${value.map(encodeValue).join('')}`
  const members = Object.entries(value as object).sort(([a], [b]) => a < b ? -1 : 1)
  return `o${members.length}:${members.map(([name, member]) => counted(name) + encodeValue(member)).join('')}`
}

const counted = (text: string) => `${text.length}:${text}`
