import type { FastifyInstance } from 'fastify'
import { ERRORS, type ErrorCode } from '../../../schemas/errors.ts'
import { sameBytes } from '../../crypto/primitives.ts'
import { databaseError, findAuthority, type Database } from '../../db/database.ts'
import { readBacklog } from '../../repositories/operations/backlog.ts'
import { fail } from '../../rules/api-error.ts'
import { bearerIn, missingToken } from '../bodies/request-format.ts'
import type { Measured } from '../../telemetry/worker-metrics.ts'
import { gauge, render, type Family, type Metrics, type QueueFigures } from '../../telemetry/metrics.ts'
import type { ObserveRequest } from './log.ts'
import { knownMethod } from '../routes/methods.ts'
import { singleFlight } from './health.ts'

const BUCKETS_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]
const TYPE = 'text/plain; version=0.0.4; charset=utf-8'

/** The number of error responses with each code. */
export type Refusals = Record<ErrorCode, number>

/** Every code starts at 0, because Prometheus misses the first increase of a series that starts at 1. */
export const createRefusals = (): Refusals =>
  Object.fromEntries(Object.keys(ERRORS).map((code) => [code, 0])) as Refusals

/** Counts and times every request. A path without a route has the label `none`, so that clients cannot add labels. */
export function measureRequests (metrics: Metrics, refusals: Refusals): ObserveRequest {
  const requests = metrics.counter(
    'strongroom_requests_total', 'Requests by route, method and status; `none` for a client that had gone',
    ['route', 'method', 'status']
  )
  const durations = metrics.histogram(
    'strongroom_request_duration_seconds', 'How long requests took until the end of their response', BUCKETS_SECONDS,
    ['route', 'method']
  )
  metrics.watch('counter', 'strongroom_refusals_total', 'Error responses by their code',
    () => Object.entries(refusals).map(([code, count]) => [{ code }, count] as const), ['code'])

  return (_request, url, requested, status, ms, code) => {
    const route = url ?? 'none'
    const method = knownMethod(requested)
    requests.inc({ route, method, status: String(status ?? 'none') })
    if (ms !== undefined) durations.observe({ route, method }, ms / 1000)
    if (code !== undefined) refusals[code]++
  }
}

/** Adds metrics of the database connections, the write queue, the audit chains and integrity violations. */
export function measureDatabase (
  metrics: Metrics, database: Database, figures: QueueFigures, refusals: Refusals
): void {
  const watchPools = (
    kind: 'counter' | 'gauge', name: string, help: string, value: (pool: Database['pools'][string]) => number
  ) => metrics.watch(kind, `strongroom_database_pool_${name}`, help, () =>
    Object.entries(database.pools).map(([pool, one]) => [{ pool }, value(one)] as const), ['pool'])
  watchPools('gauge', 'in_use', 'Uses of the database that are under way', ({ running }) => running)
  watchPools('gauge', 'idle', 'Uses that could begin at once', ({ free }) => free)
  watchPools('gauge', 'waiting', 'Uses that wait for their turn', ({ waiting }) => waiting)
  watchPools('counter', 'timeouts_total', 'Uses that waited too long and were refused', ({ refused }) => refused.late)
  watchPools('counter', 'refused_total', 'Uses that were refused because too many waited', ({ refused }) => refused.full)

  metrics.watch('gauge', 'strongroom_write_queue_waiting', 'Changes of organizations that wait for their transaction',
    () => figures.waiting)
  metrics.watch('counter', 'strongroom_write_queue_changes_total', 'Changes that a transaction has taken',
    () => figures.entries)
  metrics.watch('counter', 'strongroom_write_queue_transactions_total', 'Transactions that took them',
    () => figures.transactions)
  metrics.watch('counter', 'strongroom_write_queue_waited_seconds_total', 'How long these changes waited, in all',
    () => figures.waited / 1000)

  const authority = findAuthority(database.db)
  if (authority === undefined) return
  const { chain } = authority
  metrics.watch('gauge', 'strongroom_audit_last_event_time_seconds',
    'When an event was recorded last, in seconds since 1970', () => {
      const { last } = chain.lag()
      return last && last.getTime() / 1000
    })
  metrics.watch('gauge', 'strongroom_audit_unanchored_organizations',
    'Organizations with events that have no anchor in the log yet', () => chain.lag().organizations)
  metrics.watch('gauge', 'strongroom_audit_unanchored_oldest_seconds',
    'How long the first of these has been waiting for its anchor', () => chain.lag().seconds)
  // A row that was changed outside the service is skipped and reported, or the request fails (`integrity_error`).
  metrics.watch('counter', 'strongroom_integrity_violations_total',
    'How often data turned out to be changed outside the service',
    () => authority.reports() + refusals.integrity_error)
}

/** Metrics that are read from the database for all organizations: backlogs of background jobs and the newest backup. */
async function measureBacklog (app: FastifyInstance, database: Database): Promise<Family[]> {
  const known = (name: string, help: string, value: number | null) =>
    gauge(`strongroom_${name}`, help, value === null ? [] : [{ labels: {}, value }])
  const up = (value: 0 | 1) => known('database_up', 'Whether the database answers', value)
  try {
    const backlog = await readBacklog(database.background)
    return [
      up(1),
      known('late_events', 'Events that wait for their number', backlog.late_events),
      known('late_events_oldest_seconds', 'How long the first of those counted has been waiting', backlog.late_seconds),
      known('reencryption_projects', 'Projects whose history is being re-encrypted', backlog.reencryptions),
      known('reencryption_versions_left', 'Versions that are still to be re-encrypted', backlog.versions_left),
      known('removal_organizations', 'Deleted organizations of which rows are left', backlog.organizations),
      known('removal_histories', 'Purged and deleted histories of which rows are left', backlog.histories),
      known('removal_tokens', 'Endings with API tokens that are left to remove', backlog.tokens),
      known('last_backup_time_seconds', 'The moment of the newest backup, in seconds since 1970', backlog.backup_seconds),
      known('last_backup_bytes', 'How large the newest backup is', backlog.backup_bytes)
    ]
  } catch (error) {
    app.log.warn({ err: databaseError(error) }, 'measuring the database backlog failed')
    return [up(0)]
  }
}

/** `GET /metrics`, authenticated by METRICS_TOKEN. Instead of a rate limit, concurrent scrapes share one response. */
export function installMetrics (
  app: FastifyInstance, token: string, database: Database, readAll: () => Promise<Measured>
): void {
  const expected = Buffer.from(token)
  const measure = singleFlight(async () => {
    const [processes, backlog] = await Promise.all([readAll(), measureBacklog(app, database)])
    return render([...processes, backlog])
  })

  app.get('/metrics', {
    config: { access: 'public', limit: 'none' },
    schema: { hide: true },
    handler: async (request, reply) => {
      const given = bearerIn(request.headers.authorization)
      if (given === undefined || !sameBytes(Buffer.from(given), expected)) {
        return fail('unauthenticated', missingToken(request))
      }
      return reply.type(TYPE).send(await measure())
    }
  })
}
