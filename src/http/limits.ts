import rateLimit, { type FastifyRateLimitStore } from '@fastify/rate-limit'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Config } from '../config.ts'
import { fail } from '../rules/errors.ts'
import { createCounters, type Counters, type Counting } from './counters.ts'

const MINUTE = 60_000

// Plans carry the number of S-14.2 unless the operator raised it; only then does a plan count for more than the
// configuration.
const OF_SPECIFICATION = 100

const HEADERS = ['x-ratelimit-limit', 'x-ratelimit-remaining', 'x-ratelimit-reset']

/**
 * The groups of S-14.2: how many requests, in which window. A request may count in two groups: in that of
 * its route and in that of its effect. With `insteadOf` it counts in one of them: in the group of the effect when the
 * effect begins, else in the group of the route.
 */
export const LIMITS = {
  api: { setting: 'api', window: MINUTE },
  oauth_token: { setting: 'oauth', window: MINUTE },
  oauth_revoke: { setting: 'oauth', window: MINUTE },
  /** Passwords that one address may try: twice what it may ask the token endpoint. */
  sign_in: { setting: 'oauth', times: 2, window: MINUTE },
  /** The documentation and its pages, of which one look takes about ten. */
  docs: { setting: 'api', window: MINUTE },
  key_rotation: { setting: 'keyRotation', window: 60 * MINUTE, insteadOf: 'api' },
  /** Changes of custody. Refused changes count too, because each lets the caller test a guess of the key. */
  key_custody: { setting: 'longOperations', window: 60 * MINUTE },
  client_key_rotation: { setting: 'longOperations', window: 60 * MINUTE },
  /** `restore-to`. */
  project_restore: { setting: 'longOperations', window: 60 * MINUTE },
  /** Deletions of more than 1,000 levels. */
  level_deletion: { setting: 'longOperations', window: 60 * MINUTE },
  /** Changes of billing: each action is counted by itself. */
  billing: { setting: 'billing', window: MINUTE, isPerAction: true },
  /** Downloads of invoices: enough for the invoices of two years at once. */
  invoice_files: { setting: 'billing', times: 3, window: MINUTE },
  /** People who are added, or get another role: each gets a mail that they did not ask for. */
  memberships: { setting: 'api', window: 60 * MINUTE }
} as const satisfies Record<string, {
  setting: keyof Config['rateLimits'], window: number, times?: number, isPerAction?: true, insteadOf?: 'api'
}>
export type LimitGroup = keyof typeof LIMITS

/** The group of a route in whose place a group of effects counts; undefined where requests count in both groups. */
export const replacedBy = (group: LimitGroup): LimitGroup | undefined => {
  const limit = LIMITS[group]
  return 'insteadOf' in limit ? limit.insteadOf : undefined
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Whom the request counts against: `org:<id>`, `user:<id>` or `ip:<address>`. */
    limitKey: string
    /** The allowance of the organization's plan, where it is above the configured one. */
    limitFromPlan: number
    /** How the request counts in the group of its route; null when it does not, or not against an organization. */
    counted: CountedRequest | null
    /** How the request counts in the group of its effect; null until then. */
    countedEffect: CountedRequest | null
  }
}

/** A request that was counted: where, until when its window lasts, and how many requests were left then. */
export interface CountedRequest { counting: Counting, end: number, remaining: number }

/**
 * Counts a request in its group; past the limit the request ends with 429. The headers go on every answer. The result
 * is undefined when the group has no limit.
 */
export interface Consume {
  (
    group: LimitGroup, key: string, fromPlan: number, request: FastifyRequest, reply: FastifyReply
  ): Promise<CountedRequest | undefined>
  /** Takes the request out of its window again, if that window still lasts. */
  giveBack (counted: CountedRequest): Promise<void>
  /** Whether the last request of this key was past the limit, and its window goes on. Counts nothing. */
  isPast (group: LimitGroup, key: string): boolean
}

const withPlan = (configured: number, fromPlan: number) =>
  fromPlan > OF_SPECIFICATION ? Math.max(configured, fromPlan) : configured

/** How many requests a minute an organization has whose plan allows so many; null where nothing limits them. */
export function requestsOf ({ rateLimits }: Pick<Config, 'rateLimits'>, fromPlan: number): number | null {
  return rateLimits.api === 0 ? null : withPlan(rateLimits.api, fromPlan)
}

/**
 * One limiter per group, in fixed windows. (The plugin's own per-route limits would give every route a bucket of its
 * own, fastify-rate-limit #463.)
 */
export async function installLimits (app: FastifyInstance, counters: Counters = createCounters()): Promise<Consume> {
  await app.register(rateLimit, { global: false, store: storeOf(counters) })
  app.decorateRequest('limitKey', '')
  app.decorateRequest('limitFromPlan', 0)
  app.decorateRequest('counted', null)
  app.decorateRequest('countedEffect', null)
  const limiters = new Map(Object.entries(LIMITS).map(([group, { setting, window, ...more }]) => {
    const configured = app.config.rateLimits[setting] * ('times' in more ? more.times : 1)
    const options = {
      max: (request: FastifyRequest) => group === 'api' ? withPlan(configured, request.limitFromPlan) : configured,
      timeWindow: window,
      keyGenerator: (request: FastifyRequest) => request.limitKey,
      group
    }
    return [group as LimitGroup, configured === 0 ? undefined : app.createRateLimit(options)]
  }))

  return Object.assign(consume, {
    giveBack: async ({ counting, end }: CountedRequest) =>
      new Promise<void>((resolve) => { counters.giveBack(counting, end, resolve) }),
    isPast: (group: LimitGroup, key: string) => counters.isPast(group, key)
  })

  async function consume (
    group: LimitGroup, key: string, fromPlan: number, request: FastifyRequest, reply: FastifyReply
  ) {
    const limiter = limiters.get(group)
    if (limiter === undefined) return undefined
    request.limitKey = key
    request.limitFromPlan = fromPlan
    const result = await limiter(request)
    if (result.isAllowed) return undefined
    const { max, remaining, ttl: end, isExceeded } = result
    const retryAfter = Math.max(1, Math.ceil((end - Date.now()) / 1000))
    const counted: CountedRequest = { counting: [group, key, LIMITS[group].window, max], end, remaining }
    show(counted, reply)
    if (isExceeded) {
      reply.header('retry-after', retryAfter)
      fail('rate_limit_exceeded', { retry_after: retryAfter })
    }
    return counted
  }

  function show (counted: CountedRequest | null, reply: FastifyReply) {
    if (counted === null) for (const header of HEADERS) reply.removeHeader(header)
    else {
      const { counting: [, , , max], end, remaining } = counted
      for (const [i, value] of [max, remaining, Math.ceil(end / 1000)].entries()) reply.header(HEADERS[i]!, value)
    }
  }
}

/** What the plugin counts in, a child for each group. It hands on what it gets: for what is left, the window's end. */
function storeOf (counters: Counters) {
  return class Store implements FastifyRateLimitStore {
    readonly #group: string

    constructor (options: object) {
      this.#group = (options as { group?: LimitGroup }).group ?? ''
    }

    // What is left would differ by a millisecond or two from one request of a window to the next, and X-RateLimit-Reset
    // too.
    incr (key: string, done: Parameters<FastifyRateLimitStore['incr']>[1], window: number, most: number) {
      counters.count([this.#group, key, window, most], (count, end) => done(null, { current: count, ttl: end }))
    }

    child (options: object) {
      return new Store(options)
    }
  }
}
