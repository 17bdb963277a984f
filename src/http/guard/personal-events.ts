import type { FastifyRequest } from 'fastify'
import type { EventName } from '../../../schemas/events.ts'
import type { Db } from '../../db/database.ts'
import { createPersonalEvent, type PersonalEvent } from '../../repositories/people/personal-events.ts'
import { originOf } from '../routes/actor.ts'

// Events of a person, such as a sign-in. The person sees these events on /account, with address and browser. The
// person's organizations see them in the audit log, without address and browser. Organizations that only invited the
// person see no event.

/** The details of an event. */
export type Details = Record<string, string | number | boolean | null>

/** The user, with the name that audit logs show. */
export interface Person { id: number, name: string }

/** Records an event only for its user, not in organizations. */
export async function recordForPersonAlone (
  db: Db, request: FastifyRequest, { id }: Pick<Person, 'id'>, action: EventName, details: Details = {}
): Promise<void> {
  await createPersonalEvent(db, personalEventOf(request, id, action, details))
}

/** The event for the user, with the address and the browser of the request. */
export function personalEventOf (
  request: FastifyRequest, id: number, action: EventName, details: Details
): PersonalEvent {
  const { ip, user_agent } = originOf(request)
  return { user_id: id, action, actor_type: 'user', ip, user_agent, details }
}
