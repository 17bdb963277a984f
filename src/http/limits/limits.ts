import rateLimit, { type FastifyRateLimitStore } from '@fastify/rate-limit'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { RATE_LIMITS, type Config } from '../../config.ts'
import { fail } from '../../rules/api-error.ts'
import { createCounters, type Counters, type Counting } from './counters.ts'

const MINUTE = 60_000

// The default `api_per_minute` of plans (S-14.2). Only a higher value in a plan can raise the configured limit.
const DEFAULT_PLAN_LIMIT = 100

/**
 * The rate-limit groups (S-14.2). A request counts in the group of its route (`limit`), and when its effect begins,
 * also in the group of the effect (`limitOfEffect`). With `insteadOf`, it then counts only in the group of the effect.
 */
export const LIMITS = {
  api: { setting: 'api', window: MINUTE },
  oauth_token: { setting: 'oauth', window: MINUTE },
  oauth_revoke: { setting: 'oauth', window: MINUTE },
  /** Sign-in attempts per address or known device: twice the limit of the token endpoint. */
  sign_in: { setting: 'oauth', times: 2, window: MINUTE },
  /** Requests to the documentation and the console; one page view takes about ten requests. */
  docs: { setting: 'api', window: MINUTE },
  key_rotation: { setting: 'keyRotation', window: 60 * MINUTE, insteadOf: 'api' },
  /** Changes of custody. Refused changes count too, because each refusal tells whether a guessed key is right. */
  key_custody: { setting: 'longOperations', window: 60 * MINUTE },
  client_key_rotation: { setting: 'longOperations', window: 60 * MINUTE },
  /** `restore-to`. */
  project_restore: { setting: 'longOperations', window: 60 * MINUTE },
  /** Dry runs of `restore-to`, which read as much as a restore, but change nothing. */
  project_restore_dry_run: { setting: 'longOperations', times: 10, window: 60 * MINUTE },
  /** Deletions of more than 1,000 levels. */
  level_deletion: { setting: 'longOperations', window: 60 * MINUTE },
  /** Changes of billing. Each action has its own count. */
  billing: { setting: 'billing', window: MINUTE, isPerAction: true },
  /** Downloads of invoices; enough to download the invoices of two years at once. */
  invoice_files: { setting: 'billing', times: 3, window: MINUTE },
  /** Invitations and changes of roles. Limited because each sends an unsolicited e-mail. */
  memberships: { setting: 'api', window: 60 * MINUTE }
} as const satisfies Record<string, {
  setting: keyof Config['rateLimits'], window: number, times?: number, isPerAction?: true, insteadOf?: 'api'
}>
export type LimitGroup = keyof typeof LIMITS

export const replacedBy = (group: LimitGroup): LimitGroup | undefined => {
  const limit = LIMITS[group]
  return 'insteadOf' in limit ? limit.insteadOf : undefined
}

declare module 'fastify' {
  interface FastifyRequest {
    /** The rate-limit key, such as `org:<id>`, `user:<id>`, `device:<id>` or `ip:<address>`. */
    limitKey: string
    /** `api_per_minute` of the organization's plan; 0 if no plan applies. */
    limitFromPlan: number
    /** The request as counted in the group of its route; null if it is not counted for an organization. */
    counted: CountedRequest | null
    /** The request as counted in the group of its effect; null before the effect is counted. */
    countedEffect: CountedRequest | null
  }
}

/** `end` is the end of the window (Unix time in milliseconds). */
interface CountedRequest { counting: Counting, end: number }

/**
 * Counts a request in a group and sets the X-RateLimit headers. Ends the request with 429 if the limit is exceeded.
 * Returns undefined if the group has no limit.
 */
export interface Consume {
  (
    group: LimitGroup, key: string, fromPlan: number, request: FastifyRequest, reply: FastifyReply
  ): Promise<CountedRequest | undefined>
  /** Removes the request from its window; does nothing if the window has ended. */
  giveBack (counted: CountedRequest): Promise<void>
  /** Whether the key has exceeded its limit in the current window. Counts nothing. */
  isPast (group: LimitGroup, key: string): boolean
}

const withPlan = (configured: number, fromPlan: number) =>
  fromPlan > DEFAULT_PLAN_LIMIT ? Math.max(configured, fromPlan) : configured

/** The requests per minute that an organization may send; null: unlimited. `fromPlan` is its `api_per_minute`. */
export function requestsOf ({ rateLimits }: Pick<Config, 'rateLimits'>, fromPlan: number): number | null {
  return rateLimits.api === 0 ? null : withPlan(rateLimits.api, fromPlan)
}

/** Creates a limiter per group. `config.rateLimit` is unused, because it counts each route separately (issue 463). */
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
  ): Promise<CountedRequest | undefined> {
    const limiter = limiters.get(group)
    if (limiter === undefined) return undefined
    request.limitKey = key
    request.limitFromPlan = fromPlan
    const result = await limiter(request)
    if (result.isAllowed) return undefined
    const { max, remaining, ttl: end, isExceeded } = result
    reply.header('x-ratelimit-limit', max)
    reply.header('x-ratelimit-remaining', remaining)
    reply.header('x-ratelimit-reset', Math.ceil(end / 1000))
    if (isExceeded) {
      const retryAfter = Math.max(1, Math.ceil((end - Date.now()) / 1000))
      reply.header('retry-after', retryAfter)
      const { setting, window } = LIMITS[group]
      const isOfPlan = group === 'api' && max > app.config.rateLimits[setting]
      const lever = isOfPlan ? {} : { variable: RATE_LIMITS[setting].variable }
      fail('rate_limit_exceeded', { retry_after: retryAfter, group, limit: max, window: window / 1000, ...lever })
    }
    return { counting: [group, key, LIMITS[group].window, max], end }
  }
}

/**
 * The store of `@fastify/rate-limit`, with a child store per group. As `ttl`, the plugin expects the remaining time,
 * but gets the end of the window: computed from the remaining time, X-RateLimit-Reset varies within a window.
 */
function storeOf (counters: Counters) {
  return class Store implements FastifyRateLimitStore {
    readonly #group: string

    constructor (options: object) {
      this.#group = (options as { group?: LimitGroup }).group ?? ''
    }

    incr (key: string, done: Parameters<FastifyRateLimitStore['incr']>[1], window: number, most: number) {
      counters.count([this.#group, key, window, most], (count, end) => done(null, { current: count, ttl: end }))
    }

    child (options: object) {
      return new Store(options)
    }
  }
}
