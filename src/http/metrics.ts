import type { FastifyInstance } from 'fastify'
import { ERRORS, type ErrorCode } from '../../schemas/errors.ts'
import { sameBytes } from '../crypto/primitives.ts'
import { databaseError, findAuthority, type Database } from '../db/database.ts'
import { queueOf } from '../db/queue.ts'
import { readBacklog } from '../repositories/backlog.ts'
import { fail } from '../rules/errors.ts'
import type { Measured } from '../telemetry/common.ts'
import { render, type Count, type Distribution, type Family, type Metrics } from '../telemetry/metrics.ts'
import type { ObserveRequest } from './log.ts'
import { knownMethod } from './methods.ts'
import { shared } from './shared.ts'

// Seconds.
const BOUNDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]
const TYPE = 'text/plain; version=0.0.4; charset=utf-8'

/** Answers that are errors, by the row of the catalogue. */
export type Refusals = Readonly<Record<ErrorCode, Count>>

/** All of them are there from the start, at 0: what appears with 1 has not increased to who watches it. */
export function countRefusals (metrics: Metrics): Refusals {
  const refusals = metrics.counter('strongroom_refusals_total', 'Answers that are errors, by their code')
  return Object.fromEntries(Object.keys(ERRORS).map((code) => [code, refusals({ code })])) as unknown as Refusals
}

/** Measures every request by what its log line says. A path that no route has is `none`: nobody makes up labels. */
export function measureRequests (metrics: Metrics, refusals: Refusals): ObserveRequest {
  const requests = metrics.counter(
    'strongroom_requests_total', 'Requests by route, method and status; without a status nobody was there for the answer'
  )
  const durations = metrics.histogram(
    'strongroom_request_duration_seconds', 'How long requests took until the end of their answer', BOUNDS
  )

  interface Route { duration: Distribution, statuses: Map<number | null, Count> }
  const routes = new Map<string | null, Map<string, Route>>()

  function routeOf (url: string | null, method: string): Route {
    let methods = routes.get(url)
    if (methods === undefined) routes.set(url, methods = new Map())
    let route = methods.get(method)
    if (route === undefined) {
      route = { duration: durations({ route: url ?? 'none', method }), statuses: new Map() }
      methods.set(method, route)
    }
    return route
  }

  return (_request, url, method, status, ms, code) => {
    const known = knownMethod(method)
    const route = routeOf(url, known)
    let count = route.statuses.get(status)
    if (count === undefined) {
      count = requests({ route: url ?? 'none', method: known, status: String(status ?? 'none') })
      route.statuses.set(status, count)
    }
    count.add()
    if (ms !== undefined) route.duration.observe(ms / 1000)
    if (code !== undefined) refusals[code].add()
  }
}

/** Measures what a database knows of its connections, and of the events that this process recorded. */
export function measureDatabase (metrics: Metrics, database: Database, refusals: Refusals): void {
  const ofPools = (value: (pool: Database['pools'][string]) => number) => () =>
    Object.entries(database.pools).map(([pool, one]) => [{ pool }, value(one)] as const)
  metrics.watch('gauge', 'strongroom_database_pool_in_use', 'Uses of the database that are under way', ofPools(
    ({ slots, free }) => slots - free
  ))
  metrics.watch('gauge', 'strongroom_database_pool_idle', 'Uses that could begin at once', ofPools(({ free }) => free))
  metrics.watch('gauge', 'strongroom_database_pool_waiting', 'Uses that wait for their turn', ofPools(
    ({ waiting }) => waiting.length
  ))
  metrics.watch('counter', 'strongroom_database_pool_timeouts_total', 'Uses that waited too long and were refused',
    ofPools(({ timeouts }) => timeouts))
  metrics.watch('counter', 'strongroom_database_pool_refused_total', 'Uses that were refused because too many waited',
    ofPools(({ refused }) => refused))

  const { figures } = queueOf(database.db)
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
  // Some of what was changed counts as not there, and is reported; what was asked of the rest is refused.
  metrics.watch('counter', 'strongroom_integrity_violations_total',
    'Times that something was found to have been changed outside the service',
    () => authority.reports() + refusals.integrity_error.value)
}

/** What the database alone knows, of all organizations together: what waits for its turn, and the newest backup. */
async function measureBacklog (app: FastifyInstance, database: Database): Promise<Family[]> {
  const gauge = (name: string, help: string, value: number | null): Family =>
    ({ name: `strongroom_${name}`, help, kind: 'gauge', samples: value === null ? [] : [['', '', value]] })
  const up = (value: 0 | 1) => gauge('database_up', 'Whether the database answers', value)
  try {
    const backlog = await readBacklog(database.background)
    return [
      up(1),
      gauge('late_events', 'Events that wait for their number', backlog.late_events),
      gauge('late_events_oldest_seconds', 'How long the first of those counted has been waiting', backlog.late_seconds),
      gauge('reencryption_projects', 'Projects whose history is being re-encrypted', backlog.reencryptions),
      gauge('reencryption_versions_left', 'Versions that are still to be re-encrypted', backlog.versions_left),
      gauge('removal_organizations', 'Deleted organizations of which rows are left', backlog.organizations),
      gauge('removal_histories', 'Purged and deleted histories of which rows are left', backlog.histories),
      gauge('removal_tokens', 'Endings with API tokens that are left to remove', backlog.tokens),
      gauge('last_backup_time_seconds', 'The moment of the newest backup, in seconds since 1970', backlog.backup_seconds),
      gauge('last_backup_bytes', 'How large the newest backup is', backlog.backup_bytes)
    ]
  } catch (error) {
    app.log.warn({ err: databaseError(error) }, 'what waits in the database could not be measured')
    return [up(0)]
  }
}

/**
 * `GET /metrics`, for whoever has METRICS_TOKEN; without that variable there is no such path. It is about the service
 * and no organization, so no organization's limit counts it: one answer is made at a time, and shared by all who ask
 * meanwhile.
 */
export function installMetrics (
  app: FastifyInstance, token: string, database: Database, readAll: () => Promise<Measured>
): void {
  const expected = Buffer.from(token)
  const measure = shared(async () => {
    const [processes, backlog] = await Promise.all([readAll(), measureBacklog(app, database)])
    return render([...processes, ['', backlog]])
  })

  app.get('/metrics', {
    config: { access: 'public', limit: 'none' },
    schema: { hide: true },
    handler: async (request, reply) => {
      const [, given] = /^Bearer ([\x21-\x7e]{1,512})$/i.exec(request.headers.authorization ?? '') ?? []
      if (given === undefined || !sameBytes(Buffer.from(given), expected)) return fail('unauthenticated')
      return reply.type(TYPE).send(await measure())
    }
  })
}
