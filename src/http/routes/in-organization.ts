import type { FastifyInstance, FastifyRequest } from 'fastify'
import { transaction, type Db } from '../../db/database.ts'
import { lockPlan } from '../../repositories/billing/plans.ts'
import { fail } from '../../rules/errors.ts'
import { actorOf, principalOf } from './actor.ts'

/**
 * Runs a change in a transaction that locks the organization of the request, so that concurrent changes of its members,
 * teams and tokens cannot exceed a limit. 404 if the organization no longer exists.
 */
export async function inOrganization<T> (
  app: FastifyInstance, request: FastifyRequest, change: (db: Db, organizationId: string) => Promise<T>
): Promise<T> {
  const { id } = principalOf(request).organization
  return transaction(app.db, async (db) => {
    await lockPlan(db, id) ?? fail('not_found')
    return change(db, id)
  }, actorOf(request))
}
