/**
 * The master keys. The newest key wraps new values; every key unwraps the values that it has wrapped. A wrapped value
 * contains the authenticated id of its master key, so that a missing key (MasterKeyMissing) is distinguished from a
 * manipulated value (IntegrityError). Error messages contain no key material.
 *
 * Wrapped form: length of the id (1) ‖ id ‖ the sealed bytes of `at-rest.ts`.
 */
import type { KeyObject } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { IntegrityError, openAtRest, sealAtRest } from './at-rest.ts'
import { decodeBase64, encodeContext, random, sameBytes, takeKey } from './primitives.ts'

/** The id of a master key. */
export const ID_PATTERN = /^[A-Za-z0-9._-]{1,32}$/
const CACHED_KEYS = 1000
const CACHE_MILLISECONDS = 10 * 60 * 1000
const CANARY = Buffer.from('strongroom canary, rows are authenticated under the key ')

/** A master key. The id is not secret: it is stored in each wrapped value. */
export interface MasterKey { id: string, key: KeyObject }

/** Operations with master keys. None of the operations returns a master key. */
export interface Keyring {
  /** The id of the newest key. */
  currentId: string
  /** All ids of the ring, newest first. */
  ids: string[]
  /** Wraps a value for one context, with the newest key or the key with the id `under`. */
  wrap (plaintext: Buffer, context: Buffer, under?: string): Buffer
  /** Unwraps a value of this context. Throws MasterKeyMissing or IntegrityError. */
  unwrap (wrapped: Buffer, context: Buffer): Buffer
  /** Like `unwrap`, for a 32-byte key. Caches the key for ten minutes. */
  unwrapKey (wrapped: Buffer, context: Buffer): KeyObject
  /** Reads the id of the master key, without verification. Throws IntegrityError for a malformed value. */
  idOf (wrapped: Buffer): string
}

/** A value was wrapped by the master key `id`, which is not in the ring. */
export class MasterKeyMissing extends Error {
  override readonly name = 'MasterKeyMissing'
  readonly id: string

  constructor (id: string) {
    super(`the master key "${id}" is not in the ring`)
    this.id = id
  }
}

/** Creates a ring from keys, newest first. Throws if there is no key, or an id is invalid or repeated. */
export function createKeyring (keys: MasterKey[]): Keyring {
  const [current] = keys
  if (!current) throw new Error('a keyring needs at least one master key')
  const ring = new Map(keys.map(({ id, key }) => [id, key]))
  if (ring.size !== keys.length) throw new Error('two master keys have the same id')
  for (const id of ring.keys()) if (!ID_PATTERN.test(id)) throw new Error('a master key has an invalid id')
  const cache = new LRUCache<string, { wrapped: Buffer, key: KeyObject }>({ max: CACHED_KEYS, ttl: CACHE_MILLISECONDS })

  function unwrap (wrapped: Buffer, context: Buffer): Buffer {
    const id = readId(wrapped)
    const key = ring.get(id)
    if (!key) throw new MasterKeyMissing(id)
    return openAtRest(key, wrapped.subarray(1 + id.length), wrappedContext(id, context))
  }

  return {
    currentId: current.id,
    ids: [...ring.keys()],
    wrap (plaintext, context, id = current.id) {
      const key = ring.get(id)
      if (!key) throw new MasterKeyMissing(id)
      return Buffer.concat([
        Buffer.of(id.length), Buffer.from(id), sealAtRest(key, plaintext, wrappedContext(id, context))
      ])
    },
    unwrap,
    unwrapKey (wrapped, context) {
      // The cached key is used only for equal wrapped bytes, so a replaced or manipulated value is unwrapped again.
      const name = context.toString('latin1')
      const known = cache.get(name)
      if (known?.wrapped.equals(wrapped)) return known.key
      const bytes = unwrap(wrapped, context)
      if (bytes.length !== 32) throw new IntegrityError()
      const key = takeKey(bytes)
      cache.set(name, { wrapped, key })
      return key
    },
    idOf: readId
  }
}

/** Parses `id:base64 of 32 bytes`. Error messages do not repeat the text, because it may contain the key. */
export function parseMasterKey (text: string): MasterKey {
  const line = text.trim()
  const colon = line.indexOf(':')
  if (colon < 0) throw new Error('a master key is written as id:base64, but there is no colon in it')
  const id = line.slice(0, colon)
  if (!ID_PATTERN.test(id)) throw new Error('a master key id is 1 to 32 letters, digits, dots, hyphens or underscores')
  const bytes = decodeBase64(line.slice(colon + 1))
  if (!bytes) throw new Error('a master key is standard, padded base64 behind the colon')
  if (bytes.length !== 32) throw new Error(`a master key decodes to 32 bytes, but this one to ${bytes.length}`)
  return { id, key: takeKey(bytes) }
}

export function makeKeyId (): string {
  return `mk-${random(4).toString('hex')}`
}

/** A new random master key in the form that `parseMasterKey` reads, for a key file of mode 0600. */
export function generateMasterKey (): { id: string, text: string } {
  const id = makeKeyId()
  return { id, text: `${id}:${random(32).toString('base64')}` }
}

/**
 * Makes a canary: a known value that is wrapped by a master key and stored in the database. At start, the service
 * unwraps the canary, to check that the ring has its master key (CR-13). `fingerprint` identifies the key of row MACs
 * and the first key of the audit chains.
 */
export function makeCanary (keyring: Keyring, fingerprint: Buffer, id = keyring.currentId): Buffer {
  return keyring.wrap(Buffer.concat([CANARY, fingerprint]), encodeContext('canary'), id)
}

/** Returns the fingerprint in a canary. Throws MasterKeyMissing or IntegrityError. */
export function openCanary (keyring: Keyring, canary: Buffer): Buffer {
  const content = keyring.unwrap(canary, encodeContext('canary'))
  if (!sameBytes(content.subarray(0, CANARY.length), CANARY)) throw new IntegrityError()
  return content.subarray(CANARY.length)
}

// The context includes the id of the master key, so that a changed id in a wrapped value is detected.
function wrappedContext (id: string, context: Buffer): Buffer {
  return Buffer.concat([encodeContext('master key', id), context])
}

function readId (wrapped: Buffer): string {
  const end = 1 + (wrapped[0] ?? 0)
  const id = wrapped.toString('latin1', 1, end)
  if (wrapped.length < end || !ID_PATTERN.test(id)) throw new IntegrityError()
  return id
}
