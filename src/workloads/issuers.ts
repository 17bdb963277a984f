import type { JWTVerifyGetKey } from 'jose'
import { LRUCache } from 'lru-cache'
import { WorkOverloaded } from '../gate.ts'
import { OutgoingError, type Outgoing, type OutgoingFailure, type OutgoingLimits } from '../outgoing/client.ts'
import { publishedKeys } from '../rules/workload-presets.ts'

/** The keys of an issuer cannot be loaded. */
export class IssuerError extends Error {
  override name = 'IssuerError'
  readonly check: `issuer_${OutgoingFailure}`

  constructor (failure: OutgoingFailure) {
    super(`the keys of the issuer cannot be loaded: ${failure}`)
    this.check = `issuer_${failure}`
  }
}

export interface Issuers {
  /** Finds the key of an assertion in the key set of its issuer. Throws an IssuerError, or an error of `jose`. */
  keysOf (organization: string, issuer: string): JWTVerifyGetKey
}

/** The key set of an issuer, and its last load, which a request of this organization caused. */
interface Known {
  organization: string
  keys?: JWTVerifyGetKey
  loadedAt: number
  triedAt: number
  failure?: OutgoingFailure
  characters: number
}

export const ISSUER_LIMITS: OutgoingLimits = {
  bytes: 256 * 1024,
  timeout: 5_000,
  concurrency: [{ running: 64 }, { running: 8, waiting: 100 }, { running: 4 }]
}

const NOT_JSON = new OutgoingError('response', 'the response is not JSON')

const MAX_ISSUERS = 1_000
const MAX_CHARACTERS = 8 * 1024 * 1024
/** The part of both that the loads of one organization may have: it must not push out the key sets of others. */
const SHARE = 1 / 8
/** For how long a key set is used without another load. */
const FRESH_MS = 10 * 60_000
/** For how long a key set is used if loads fail. */
const USABLE_MS = 60 * 60_000
/** The minimum time between two loads of a key set, because of an unknown key or a failure. */
const COOLDOWN_MS = 30_000

/**
 * The key sets of issuers, by discovery. All organizations share them. The remote key sets of `jose` repeat a failed
 * load with each assertion, and use no key set while its issuer is away.
 */
export function createIssuers (
  outgoing: Outgoing, log: (line: string) => void, now = () => performance.now()
): Issuers {
  const known = new LRUCache<string, Known>({
    max: MAX_ISSUERS, maxSize: MAX_CHARACTERS, sizeCalculation: ({ characters }) => characters
  })
  const loads = new Map<string, { organization: string, done: Promise<void> }>()
  const mayLoad = (issuer: string) =>
    loads.has(issuer) || now() - (known.get(issuer)?.triedAt ?? -Infinity) >= COOLDOWN_MS

  async function load (organization: string, issuer: string): Promise<void> {
    const running = loads.get(issuer)
    if (running === undefined) return loadAs(organization, issuer)
    try {
      await running.done
    } catch (error) {
      // The other organization had too many requests. Waits for no third one, which may have as many.
      if (running.organization === organization) throw error
      const next = loads.get(issuer)
      await (next?.organization === organization ? next.done : loadAs(organization, issuer))
    }
  }

  function loadAs (organization: string, issuer: string): Promise<void> {
    const done = loadNow(organization, issuer).finally(() => {
      if (loads.get(issuer)?.done === done) loads.delete(issuer)
    })
    loads.set(issuer, { organization, done })
    return done
  }

  async function loadNow (organization: string, issuer: string): Promise<void> {
    try {
      const { keys, characters } = await fetchKeys(outgoing, organization, issuer)
      keep(issuer, { organization, keys, characters, loadedAt: now(), triedAt: now() })
    } catch (error) {
      if (error instanceof WorkOverloaded) throw error
      // The message of another error would quote the response, whose text the server of the issuer chooses.
      const { failure, message } = error instanceof OutgoingError ? error : NOT_JSON
      const before = known.get(issuer) ?? { loadedAt: -Infinity, characters: 1 }
      keep(issuer, { ...before, organization, triedAt: now(), failure })
      log(`The keys of the issuer ${issuer} were not loaded: ${message}`)
    }
  }

  function keep (issuer: string, loaded: Known) {
    known.set(issuer, loaded)
    let [issuers, characters] = [0, 0]
    // `entries` begins with the key set that was used last, so the ones that were not used for longest go.
    for (const [other, { organization, characters: more }] of [...known.entries()]) {
      if (organization !== loaded.organization) continue
      issuers++
      characters += more
      if (issuers > MAX_ISSUERS * SHARE || characters > MAX_CHARACTERS * SHARE) known.delete(other)
    }
  }

  async function current (organization: string, issuer: string): Promise<JWTVerifyGetKey> {
    const isYounger = (milliseconds: number) => now() - (known.get(issuer)?.loadedAt ?? -Infinity) < milliseconds
    if (!isYounger(FRESH_MS) && mayLoad(issuer)) await load(organization, issuer).catch(() => {})
    const { keys, failure = 'unreachable' } = known.get(issuer) ?? {}
    if (keys === undefined || !isYounger(USABLE_MS)) throw new IssuerError(failure)
    return keys
  }

  return {
    keysOf: (organization, issuer) => async (header, token) => {
      const keys = await current(organization, issuer)
      try {
        return await keys(header, token)
      } catch (error) {
        const { errors } = await import('jose')
        if (!(error instanceof errors.JWKSNoMatchingKey) || !mayLoad(issuer)) throw error
        await load(organization, issuer).catch(() => {})
        return await (await current(organization, issuer))(header, token)
      }
    }
  }
}

async function fetchKeys (outgoing: Outgoing, organization: string, issuer: string) {
  const discovery = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
  const { issuer: named, jwks_uri } = Object(JSON.parse(await outgoing.get(organization, discovery)))
  if (named !== issuer) throw new OutgoingError('response', 'the discovery document names another issuer')
  const set = publishedKeys(JSON.parse(await outgoing.get(organization, String(jwks_uri))))
  if (set === undefined) throw new OutgoingError('response', 'no key set, or too many keys')
  const { createLocalJWKSet } = await import('jose')
  return { keys: createLocalJWKSet(set), characters: JSON.stringify(set).length }
}
