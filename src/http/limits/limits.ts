import rateLimit, { type FastifyRateLimitStore } from '@fastify/rate-limit'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { RATE_LIMITS, type Config } from '../../config.ts'
import { fail } from '../../rules/api-error.ts'
import type { Counters } from './counters.ts'

const MINUTE = 60_000

// The default `api_per_minute` of plans (S-14.2). Only a higher value in a plan can raise the configured limit.
const DEFAULT_PLAN_LIMIT = 100

type Setting = keyof Config['rateLimits']
interface Limit { setting: Setting, window: number, times?: number, isPerAction?: true, insteadOf?: 'api' }
const groups = <G extends string>(all: Record<G, Limit>) => all

/**
 * The rate-limit groups (S-14.2). A request counts in the group of its route (`limit`), and when its effect begins,
 * also in the group of the effect (`limitOfEffect`). With `insteadOf`, it then counts only in the group of the effect.
 */
export const LIMITS = groups({
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
})
export type LimitGroup = keyof typeof LIMITS

declare module 'fastify' {
  interface FastifyRequest {
    /** What the request counts in now. The key is such as `org:<id>`, `user:<id>`, `device:<id>` or `ip:<address>`. */
    limit: { group: LimitGroup, key: string, max: number } | null
    /** Removes the request from its window in the group of its route; null if it does not count for an organization. */
    giveBack: (() => Promise<unknown>) | null
  }
}

/**
 * Counts a request in a group and sets the X-RateLimit headers. Ends the request with 429 if the limit is exceeded.
 * Returns a function that removes the request from its window; undefined if the group has no limit.
 */
export type Consume = (
  group: LimitGroup, key: string, fromPlan: number, request: FastifyRequest, reply: FastifyReply
) => Promise<FastifyRequest['giveBack'] | undefined>

/**
 * The requests per window that a group allows; 0: unlimited. `fromPlan` is `api_per_minute` of the organization's plan;
 * 0: no plan.
 */
export function limitOf ({ rateLimits }: Pick<Config, 'rateLimits'>, group: LimitGroup, fromPlan: number): number {
  const { setting, times = 1 } = LIMITS[group]
  const configured = rateLimits[setting] * times
  const isRaised = group === 'api' && configured > 0 && fromPlan > DEFAULT_PLAN_LIMIT
  return isRaised ? Math.max(configured, fromPlan) : configured
}

/** `config.rateLimit` is unused, because it counts each route separately (issue 463). */
export async function installLimits (app: FastifyInstance, counters: Counters): Promise<Consume> {
  app.decorateRequest('limit', null)
  app.decorateRequest('giveBack', null)
  await app.register(rateLimit, {
    global: false,
    keyGenerator: ({ limit }) => `${limit!.group}:${limit!.key}`,
    timeWindow: ({ limit }: FastifyRequest) => LIMITS[limit!.group].window,
    max: ({ limit }) => limit!.max,
    store: storeOf(counters)
  })
  const limiter = app.createRateLimit()

  return async function consume (group, key, fromPlan, request, reply) {
    const { setting, window } = LIMITS[group]
    const max = limitOf(app.config, group, fromPlan)
    if (max === 0) return undefined
    request.limit = { group, key, max }
    const result = await limiter(request)
    if (result.isAllowed) return undefined
    const { remaining, ttl: end, isExceeded } = result
    reply.header('x-ratelimit-limit', max)
    reply.header('x-ratelimit-remaining', remaining)
    reply.header('x-ratelimit-reset', Math.ceil(end / 1000))
    if (isExceeded) {
      const retryAfter = Math.max(1, Math.ceil((end - Date.now()) / 1000))
      reply.header('retry-after', retryAfter)
      const lever = max > limitOf(app.config, group, 0) ? {} : { variable: RATE_LIMITS[setting].variable }
      fail('rate_limit_exceeded', { retry_after: retryAfter, group, limit: max, window: window / 1000, ...lever })
    }
    return async () => counters.count([group, key, window, max, end])
  }
}

/**
 * The store of `@fastify/rate-limit`. As `ttl`, the plugin expects the remaining time, but gets the end of the window:
 * computed from the remaining time, X-RateLimit-Reset varies within a window.
 */
function storeOf (counters: Counters) {
  return class Store implements FastifyRateLimitStore {
    async incr (name: string, done: Parameters<FastifyRateLimitStore['incr']>[1], window: number, max: number) {
      const [group = '', key = ''] = name.split(/:(.*)/s)
      const [current, ttl] = await counters.count([group, key, window, max])
      done(null, { current, ttl })
    }

    child () {
      return this
    }
  }
}
