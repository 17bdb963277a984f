/**
 * MACs over database rows. Two rows have the same MAC only if their tables, field names and values are equal, because
 * the encoding is injective and typed.
 */
import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import { deriveKey, hmac, hmacMatches, isWellFormed } from './primitives.ts'

/** Encodes a row injectively: each value with its type, and each text with its length. */
export function encodeRow (table: string, fields: readonly (readonly [name: string, value: unknown])[]): string {
  let text = counted(table)
  for (const [name, value] of fields) text += counted(name) + encodeValue(value)
  return wellFormed(text)
}

// All lone surrogates would be hashed as U+FFFD, so different texts would have the same MAC.
function wellFormed (text: string): string {
  if (!isWellFormed(text)) throw new Error('a row needs well-formed text')
  return text
}

/**
 * The fields to encode, in order. Of a field in `presence`, only whether it has a value is encoded, as a boolean. The
 * fields in `later` came with a later release: they are the last ones, and are left out while they are null, so that
 * the rows of the former release keep their MACs (decision 0047).
 */
export interface RowFormat { fields: readonly string[], presence?: readonly string[], later?: readonly string[] }

/** A faster `encodeRow` for the rows of one format. */
export function createRowEncoder (table: string, { fields, presence = [], later = [] }: RowFormat) {
  if (later.some((name, i) => fields[fields.length - later.length + i] !== name)) {
    throw new Error(`the fields of ${table} from a later release are not the last ones`)
  }
  const head = counted(table)
  const parts = fields.map((name) =>
    ({ name, prefix: counted(name), isPresence: presence.includes(name), isLater: later.includes(name) }))
  return (row: Readonly<Record<string, unknown>>): string => {
    let text = head
    for (const { name, prefix, isPresence, isLater } of parts) {
      const value = row[name]
      if (isLater && value === null) continue
      text += prefix + encodeValue(isPresence ? value !== null && value !== false : value)
    }
    return wellFormed(text)
  }
}

/** The encoding of one more field, to append to an encoded row. */
export const encodeField = (name: string, value: unknown): string => wellFormed(counted(name) + encodeValue(value))

export function rowMac (
  key: KeyObject, table: string, fields: readonly (readonly [name: string, value: unknown])[]
): Buffer {
  return hmac(key, encodeRow(table, fields))
}

const MAX_CHARACTERS = 4 * 2 ** 20

/**
 * Makes and verifies MACs of encoded rows. Caches rows with valid MACs, to skip the HMAC; compares other MACs in
 * constant time.
 */
export function createRowChecker (key: KeyObject) {
  const valid = new LRUCache<string, string>({ maxSize: MAX_CHARACTERS, sizeCalculation: (row) => row.length + 100 })
  return {
    mac (row: string): Buffer {
      const mac = hmac(key, row)
      valid.set(mac.toString('latin1'), row)
      return mac
    },
    matches (row: string, mac: Buffer): boolean {
      const name = mac.toString('latin1')
      if (valid.get(name) === row) return true
      if (!hmacMatches(key, row, mac)) return false
      valid.set(name, row)
      return true
    }
  }
}

/**
 * Derives the key for `lookupHash`, which hashes guessable values by which rows are found. The key is derived from the
 * row key, so that it need not be stored. The keys differ, so that no such hash is a valid MAC of a row.
 */
export function deriveLookupKey (key: KeyObject): KeyObject {
  return deriveKey(key, Buffer.from('strongroom lookups'), 'hash')
}

/** A fingerprint of a row key, which reveals nothing about the key. */
export function rowKeyFingerprint (key: KeyObject): Buffer {
  return deriveKey(key, Buffer.from('strongroom rows'), 'fingerprint').export()
}

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
  // `getTime` is NaN for a time outside JavaScript's range, which the service never writes.
  if (value instanceof Date) return `d${counted(String(value.getTime()))}`
  if (Array.isArray(value)) return `a${value.length}:${value.map(encodeValue).join('')}`
  const members = Object.entries(value as object).sort(([a], [b]) => a < b ? -1 : 1)
  return `o${members.length}:${members.map(([name, member]) => counted(name) + encodeValue(member)).join('')}`
}

const counted = (text: string) => `${text.length}:${text}`
