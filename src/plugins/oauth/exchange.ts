import type { FastifyInstance, FastifyRequest } from 'fastify'
import {
  ACCESS_TOKEN_TYPE, ASSERTION_TYPES, JWT_BEARER, TOKEN_EXCHANGE, type TokenAnswer
} from '../../../schemas/oauth.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import type { FailedCheck } from '../../../schemas/workloads.ts'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import { sha256 } from '../../crypto/primitives.ts'
import { databaseError } from '../../db/database.ts'
import { workloadOf } from '../../http/routes/actor.ts'
import { waitFor } from '../../http/routes/request-deadline.ts'
import { eventOf, type AuditEvent } from '../../repositories/audit/audit.ts'
import { findActiveRule, makeWorkloadToken, type ActiveRule } from '../../repositories/people/principals.ts'
import { spendAssertion } from '../../repositories/people/workloads.ts'
import { parseWorkloadId } from '../../rules/formats/ids.ts'
import { isBeforeRestore } from '../../rules/workload-presets.ts'
import { isText, type AssertionClaims } from '../../rules/workloads.ts'
import { verifyAssertion, verifyInVain } from '../../workloads/assertions.ts'
import { required, type Parameters } from './body.ts'
import { clientIdOf } from './client.ts'
import { failOAuth } from './oauth-errors.ts'

/** The grant types of workloads. */
export type AssertionGrant = typeof TOKEN_EXCHANGE | typeof JWT_BEARER

// One text for all reasons, also for an unknown rule, because the response must not tell strangers what a rule demands.
const REFUSED = 'the assertion is not accepted for this client_id'

// Refusals that are recorded in a minute, for each organization: strangers must not fill the audit log.
const MAX_REFUSALS = 60
const MINUTE_MS = 60_000
// Characters of a claim that an event has.
const MAX_SHOWN = 256

/** Refused by a check. `verified` has the claims if the signature is valid. */
interface Refused { check: FailedCheck, verified: AssertionClaims | null }

/** Exchanges the assertions of workloads for access tokens (RFC 8693, RFC 7523). */
export function createExchange (app: FastifyInstance) {
  const recording = new Set<Promise<void>>()
  app.addHook('onClose', async () => { await Promise.all(recording) })

  return async (request: FastifyRequest, parameters: Parameters, type: AssertionGrant): Promise<TokenAnswer> => {
    const assertion = type === JWT_BEARER ? required(parameters, 'assertion') : subjectIn(parameters)
    const audience = parameters.get('audience') ?? app.issuer()
    if (parameters.has('resource') || audience !== app.issuer()) failOAuth('invalid_target')
    const key = parseWorkloadId(clientIdOf(request, parameters).id)
    const found = key && await waitFor(request, findActiveRule(app.reads, key))
    if (found === undefined) await verifyInVain(assertion)
    const answer = found && await exchange(request, found, assertion, parameters.get('scope'))
    if (answer === undefined) failOAuth(type === JWT_BEARER ? 'invalid_grant' : 'invalid_request', REFUSED)
    return type === JWT_BEARER ? answer : { ...answer, issued_token_type: ACCESS_TOKEN_TYPE }
  }

  // Undefined if the assertion is refused.
  async function exchange (
    request: FastifyRequest, found: ActiveRule, assertion: string, scope: string | undefined
  ): Promise<TokenAnswer | undefined> {
    const { rule, restoredAt, now } = found
    const { organization_id, id, revision } = rule
    const refuse = (refused: Refused): undefined => {
      recordRefusal(request, found, refused)
      return undefined
    }
    // First, so that strangers cause no requests to the issuer of a disabled rule.
    if (!rule.enabled) {
      await verifyInVain(assertion)
      return refuse({ check: 'disabled', verified: null })
    }
    const result = await verifyAssertion(app.issuers, rule, assertion, now)
    if (!result.accepted) return refuse(result)
    const { claims: verified, subject, run, issuedAt, expires } = result
    // Before the assertion is spent, so that the request can be corrected.
    const scopes = narrow(rule.scopes, scope)
    if (rule.single_use) {
      if (isBeforeRestore(restoredAt, issuedAt)) return refuse({ check: 'restored', verified })
      const spent = { organization_id, rule_id: id, spend: result.spend, expires_at: result.spentUntil }
      if (!await waitFor(request, spendAssertion(app.db, spent))) return refuse({ check: 'used', verified })
    }
    const latest = now.getTime() + rule.lifetime * 1000
    // Without `single_use`, the assertion can be exchanged again until it expires.
    const ends = new Date(rule.single_use ? latest : Math.min(latest, expires.getTime()))
    const seconds = Math.floor((ends.getTime() - now.getTime()) / 1000)
    const login = { issuer: rule.issuer, subject: shown(subject), run: run === null ? null : shown(run), seconds }
    await app.recordAlone(workloadOf(request, rule), eventOf('workload.login', id, login))
    const token = { organizationId: organization_id, id, revision, ends, scopes }
    return {
      access_token: makeWorkloadToken(app.reads, token, [digestOf(subject), run === null ? null : digestOf(run)]),
      token_type: 'Bearer',
      expires_in: seconds,
      scope: (scopes?.map((index) => rule.scopes[index]) ?? rule.scopes).join(' ')
    }
  }

  // Records the refusal after the response, so that the duration of the response does not tell whether the rule exists.
  function recordRefusal (request: FastifyRequest, { rule, organization }: ActiveRule, { check, verified }: Refused) {
    request.log.warn({ organization: organization.id, workload: rule.id, check }, 'assertion refused')
    // No text of a stranger: neither the request id, which clients can set, nor the name of the browser.
    const actor = { ...workloadOf(request, rule), request_id: null, user_agent: null }
    const event = eventOf('workload.refuse', rule.id, { check, ...demandedIn(rule, verified) })
    const recorded = yieldToEventLoop().then(async () => {
      const [count] = await app.counters.count(['workload_refusals', organization.id, MINUTE_MS, MAX_REFUSALS])
      if (count <= MAX_REFUSALS) await app.recordRead(actor, event)
    }).catch((error: unknown) => {
      app.log.warn({ err: databaseError(error) }, 'recording a refused assertion failed')
    }).finally(() => recording.delete(recorded))
    recording.add(recorded)
  }
}

// The assertion of a token exchange, in which a workload acts for itself alone.
function subjectIn (parameters: Parameters): string {
  const subject = required(parameters, 'subject_token')
  const types: readonly string[] = ASSERTION_TYPES
  if (!types.includes(required(parameters, 'subject_token_type'))) {
    failOAuth('invalid_request', `subject_token_type must be ${types.join(' or ')}`)
  }
  const actor = ['actor_token', 'actor_token_type'].find((name) => parameters.has(name))
  if (actor !== undefined) failOAuth('invalid_request', `${actor} is not supported`)
  if ((parameters.get('requested_token_type') ?? ACCESS_TOKEN_TYPE) !== ACCESS_TOKEN_TYPE) {
    failOAuth('invalid_request', `requested_token_type must be ${ACCESS_TOKEN_TYPE}`)
  }
  return subject
}

// The indexes of the requested scopes in those of the rule; null for all. As in a refresh, `*` requests all.
function narrow (scopes: readonly Scope[], requested = '*'): number[] | null {
  if (requested === '*') return null
  const indexes = [...new Set(requested.split(' '))].map((scope) => scopes.indexOf(scope as Scope))
  return indexes.includes(-1) ? failOAuth('invalid_scope') : indexes
}

const digestOf = (text: string) => sha256(text).toString('base64url')

// The start of a text. Cuts no surrogate pair, of which a half could not be stored.
const shown = (text: string) => text.length <= MAX_SHOWN
  ? text
  : text.slice(0, MAX_SHOWN).replace(/[\uD800-\uDBFF]$/, '')

// The values of the claims that the rule demands, as JSON.
function demandedIn (
  { claims: demanded }: ActiveRule['rule'], claims: AssertionClaims | null
): AuditEvent['details'] {
  if (claims === null) return {}
  const named = Object.keys(demanded).filter((name) => Object.hasOwn(claims, name)).flatMap((name) => {
    const value = claims[name]
    if (typeof value === 'number' || typeof value === 'boolean') return [[name, value]]
    return isText(value) ? [[name, shown(value)]] : []
  })
  return { claims: JSON.stringify(Object.fromEntries(named)) }
}
