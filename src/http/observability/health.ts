import { Type } from '@sinclair/typebox'
import type { Database } from '../../db/database.ts'
import { isWritable } from '../../repositories/levels/organizations.ts'
import { fail } from '../../rules/api-error.ts'
import type { Domain } from '../routes/types.ts'

const Health = Type.Object({ status: Type.Literal('ok') }, { title: 'Health', examples: [{ status: 'ok' }] })

/** `/healthz`: the process is running. `/readyz`: the database is writable, and the service is not shutting down. */
export function health (database: Pick<Database, 'ping'>, isLeaving: () => boolean): Domain {
  return async (app) => {
    // These requests have no rate limit, so concurrent requests share one database check.
    const look = singleFlight(async () => {
      await database.ping()
      if (!await isWritable(app.reads)) fail('service_unavailable')
    })
    // Some load balancers add parameters.
    const config = { access: 'public', limit: 'none', ignoresUnknownParameters: true } as const
    const schema = (operationId: string, summary: string, description: string) =>
      ({ operationId, tags: ['operations'], summary, description, response: { 200: Health } })
    app.get('/healthz', {
      config,
      schema: schema(
        'getHealth', 'Check that the process is running',
        'For a supervisor that restarts the process. It does not use the database.'
      ),
      handler: async () => ({ status: 'ok' as const })
    })
    app.get('/readyz', {
      config,
      schema: schema(
        'getReadiness', 'Check that the service is ready for requests',
        'For a load balancer: 503 while the service stops, or cannot write to the database.'
      ),
      handler: async () => {
        if (isLeaving()) fail('service_unavailable')
        await look()
        return { status: 'ok' as const }
      }
    })
  }
}

/** Concurrent calls of the returned function share one call of `run` and its result. */
export function singleFlight<T> (run: () => Promise<T>): () => Promise<T> {
  let underWay: Promise<T> | undefined
  return async () => {
    underWay ??= run().finally(() => { underWay = undefined })
    return underWay
  }
}
