import type { FastifyRequest } from 'fastify'
import type { EventName } from '../../../schemas/events.ts'
import type { Db } from '../../db/database.ts'
import { personOf } from '../../http/actor.ts'
import { recordInEach } from '../../repositories/audit.ts'
import { listMemberships } from '../../repositories/users.ts'

/** Records what a person, or an application for them, did, in every organization that it concerns: those they are in. */
export async function recordForUser (
  db: Db, request: FastifyRequest, user: { id: number, name: string }, action: EventName, details: Record<string, string | number | boolean | null> = {}
): Promise<void> {
  const organizations = (await listMemberships(db, user.id)).map(({ id }) => id)
  await recordInEach(db, organizations, (id) => personOf(request, id, user), { action, resource_type: 'user', resource_id: String(user.id), details })
}
