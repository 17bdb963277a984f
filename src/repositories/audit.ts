import { sql, type SQL } from 'drizzle-orm'
import type { EventName } from '../../schemas/events.ts'
import type { Role } from '../../schemas/users.ts'
import type { Db } from '../db/database.ts'

/** What a request was let in by: an API token, or an access token of a member with this role. */
export type Caller = { api_token: number } | { access_token: number, role: Role }

/** Who did it, from where. */
export interface Actor {
  organization_id: string
  type: 'api_token' | 'user' | 'operator' | 'system'
  id: number | null
  name: string
  request_id: string | null
  ip: string | null
  user_agent: string | null
  /** Has to live when what it does commits; null for whoever was not let in by a token. */
  caller: Caller | null
}

/** The caller of a change was revoked, expired or lost its role before the change could commit: nothing was changed. */
export class CallerEnded extends Error {
  override readonly name = 'CallerEnded'

  constructor () {
    super('the caller has ended')
  }
}

const withoutRequest = (organization_id: string, type: 'operator' | 'system'): Actor =>
  ({ organization_id, type, id: null, name: type, request_id: null, ip: null, user_agent: null, caller: null })

/** The operator at the command line. */
export const operatorOf = (organizationId: string): Actor => withoutRequest(organizationId, 'operator')

/** The service itself, at work in the background. */
export const systemOf = (organizationId: string): Actor => withoutRequest(organizationId, 'system')

export interface AuditEvent {
  action: EventName
  resource_type: string
  resource_id: string | null
  details?: Record<string, string | number | boolean | null>
}

/** An actor's caller as parameters of `callerCtes`. */
export function callerValues ({ caller }: Actor) {
  return {
    api_token: caller !== null && 'api_token' in caller ? caller.api_token : null,
    access_token: caller !== null && 'access_token' in caller ? caller.access_token : null,
    role: caller !== null && 'role' in caller ? caller.role : null
  }
}

/** Parameters of `callerCtes`: values, or placeholders for them. */
type CallerParameters = Record<keyof ReturnType<typeof callerValues> | 'organization_id', unknown>

/**
 * Common table expressions that take the rows which let a caller in, until the end of the transaction: whoever revokes
 * waits for what is under way, and what comes after finds nothing. Closing an account or shutting a client out revokes
 * its grants, so the grant speaks for both. `callerLives` says whether they were found.
 */
export const callerCtes = ({ organization_id, api_token, access_token, role }: CallerParameters): SQL => sql`
  api_caller AS (
    SELECT id FROM api_tokens
    WHERE id = ${api_token}::bigint AND organization_id = ${organization_id}::char(26) AND (expires_at IS NULL OR expires_at > now())
    FOR SHARE
  ), user_caller AS (
    SELECT t.id FROM oauth_tokens t
    JOIN oauth_grants g ON g.id = t.grant_id
    JOIN members m ON m.user_id = g.user_id AND m.organization_id = ${organization_id}::char(26)
    WHERE t.id = ${access_token}::bigint AND t.used_at IS NULL AND t.access_expires_at > now()
      AND g.revoked_at IS NULL AND g.expires_at > now() AND m.status = 'active' AND m.role = ${role}::varchar
    FOR SHARE OF t, g, m
  )`

/** True for whoever needs no caller, too. */
export const callerLives = ({ api_token, access_token }: Omit<CallerParameters, 'organization_id' | 'role'>): SQL => sql`(
  (${api_token}::bigint IS NULL AND ${access_token}::bigint IS NULL)
  OR EXISTS (SELECT FROM api_caller) OR EXISTS (SELECT FROM user_caller))`

/**
 * Records an event as the last statement of its transaction: the counter row it takes is the last lock in the order
 * (project, level, caller, counter), and gives the event the next number without a gap.
 *
 * It is the gate of every change, too: the caller is held here, in the same statement, and the change fails with
 * CallerEnded when there is none any more. A change that records nothing is none (`audit` of its route says so).
 */
export async function recordEvent (db: Db, actor: Actor, event: AuditEvent): Promise<void> {
  const caller = { organization_id: actor.organization_id, ...callerValues(actor) }
  const rows = await db.execute(sql`
    WITH ${callerCtes(caller)}, counter AS (
      UPDATE organization_counters SET next_event = next_event + 1
      WHERE organization_id = ${actor.organization_id} AND ${callerLives(caller)} RETURNING next_event - 1 AS seq
    )
    INSERT INTO audit_events (organization_id, seq, action, actor_type, actor_id, resource_type, resource_id, request_id, ip, user_agent, details)
    SELECT ${actor.organization_id}, seq, ${event.action}, ${actor.type}, ${actor.id}::bigint, ${event.resource_type}, ${event.resource_id},
           ${actor.request_id}, ${actor.ip}, ${actor.user_agent}, ${detailsOf(event)}
    FROM counter RETURNING seq`) as unknown as unknown[]
  if (rows.length === 0 && actor.caller !== null) throw new CallerEnded()
}

/** Records an event in several organizations, in one order for everybody: each takes its organization's counter. */
export async function recordInEach (db: Db, organizationIds: readonly string[], actorIn: (organizationId: string) => Actor, event: AuditEvent): Promise<void> {
  for (const id of [...organizationIds].sort()) await recordEvent(db, actorIn(id), event)
}

function detailsOf ({ details }: AuditEvent): SQL {
  return details === undefined ? sql`NULL` : sql`${JSON.stringify(details)}::jsonb`
}
