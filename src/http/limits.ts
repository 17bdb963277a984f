import rateLimit, { type FastifyRateLimitStore } from '@fastify/rate-limit'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { LRUCache } from 'lru-cache'
import type { Config } from '../config.ts'
import { fail } from '../rules/errors.ts'

const MINUTE = 60_000
// Counters kept per group; the ones that nobody used for longest go first.
const MOST_KEYS = 20_000

// Plans carry the specification's number unless the operator raised it; only then does a plan count for more than the configuration.
const OF_SPECIFICATION = 100

/** The groups of the specification: how many requests, in which window. */
export const LIMITS = {
  api: { setting: 'api', window: MINUTE },
  oauth_token: { setting: 'oauth', window: MINUTE },
  oauth_revoke: { setting: 'oauth', window: MINUTE },
  /** Passwords that one address may try: twice what it may ask the token endpoint. */
  sign_in: { setting: 'oauth', times: 2, window: MINUTE },
  /** The documentation and its pages, of which one look takes about ten. */
  docs: { setting: 'api', window: MINUTE },
  key_rotation: { setting: 'keyRotation', window: 60 * MINUTE },
  /** Changes of custody: as many as rotations, counted by themselves. */
  key_custody: { setting: 'keyRotation', window: 60 * MINUTE },
  billing: { setting: 'billing', window: MINUTE }
} as const satisfies Record<string, { setting: keyof Config['rateLimits'], window: number, times?: number }>
export type LimitGroup = keyof typeof LIMITS

declare module 'fastify' {
  interface FastifyRequest {
    /** Whom the request counts against: `org:<id>`, `user:<id>` or `ip:<address>`. */
    limitKey: string
    /** The allowance of the organization's plan, where it is above the configured one. */
    limitFromPlan: number
  }
}

/** Counts a request in its group; past the limit it ends with 429. The headers go on every answer. */
export interface Consume {
  (group: LimitGroup, key: string, fromPlan: number, request: FastifyRequest, reply: FastifyReply): Promise<void>
  /** Whether the last request of this key was past the limit, and its window goes on. Counts nothing. */
  isPast (group: LimitGroup, key: string): boolean
}

/**
 * One limiter per group, in fixed windows. (The plugin's own per-route limits would give every route a bucket of its
 * own, fastify-rate-limit #463.) The window's end is kept per key, so that X-RateLimit-Reset is one value for a window.
 */
export async function installLimits (app: FastifyInstance): Promise<Consume> {
  await app.register(rateLimit, { global: false, store: Windows })
  app.decorateRequest('limitKey', '')
  app.decorateRequest('limitFromPlan', 0)
  const limiters = new Map(Object.entries(LIMITS).map(([group, { setting, window, ...more }]) => {
    const configured = app.config.rateLimits[setting] * ('times' in more ? more.times : 1)
    const limiter = configured === 0
      ? undefined
      : app.createRateLimit({
        max: (request: FastifyRequest) => group === 'api' && request.limitFromPlan > OF_SPECIFICATION ? Math.max(configured, request.limitFromPlan) : configured,
        timeWindow: window,
        keyGenerator: (request: FastifyRequest) => request.limitKey
      })
    return [group as LimitGroup, limiter]
  }))
  const ends = new LRUCache<string, number>({ max: MOST_KEYS * limiters.size })

  const past = new LRUCache<string, number>({ max: MOST_KEYS })

  return Object.assign(consume, { isPast: (group: LimitGroup, key: string) => (past.get(`${group} ${key}`) ?? 0) > Date.now() })

  async function consume (group: LimitGroup, key: string, fromPlan: number, request: FastifyRequest, reply: FastifyReply) {
    const limiter = limiters.get(group)
    if (limiter === undefined) return
    request.limitKey = key
    request.limitFromPlan = fromPlan
    const result = await limiter(request)
    if (result.isAllowed) return
    const end = windowEnd(`${group} ${key}`, Date.now() + result.ttl)
    const retryAfter = Math.max(1, Math.ceil(result.ttl / 1000))
    reply.headers({ 'x-ratelimit-limit': result.max, 'x-ratelimit-remaining': result.remaining, 'x-ratelimit-reset': end })
    if (result.isExceeded) {
      past.set(`${group} ${key}`, Date.now() + result.ttl)
      reply.header('retry-after', retryAfter)
      fail('rate_limit_exceeded', { retry_after: retryAfter })
    }
  }

  // Now plus what is left jitters by a millisecond or two from one request to the next.
  function windowEnd (key: string, milliseconds: number): number {
    const known = ends.get(key)
    if (known !== undefined && Math.abs(known - milliseconds) < 500) return Math.ceil(known / 1000)
    ends.set(key, milliseconds)
    return Math.ceil(milliseconds / 1000)
  }
}

// The plugin's own store hands out the counter itself: calls of one tick would all read the number of the last.
class Windows implements FastifyRateLimitStore {
  readonly #counters = new LRUCache<string, { count: number, end: number }>({ max: MOST_KEYS })

  incr (key: string, done: Parameters<FastifyRateLimitStore['incr']>[1], window: number) {
    const now = Date.now()
    let counter = this.#counters.get(key)
    if (counter === undefined || counter.end <= now) this.#counters.set(key, counter = { count: 0, end: now + window })
    done(null, { current: ++counter.count, ttl: counter.end - now })
  }

  child () {
    return new Windows()
  }
}
