import type { FastifyContextConfig, RouteOptions } from 'fastify'
import type { TSchema } from '@sinclair/typebox'
import { codeOf, ERRORS, ErrorBodies, type ErrorCode } from '../../../schemas/errors.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { LIMITS } from '../limits/limits.ts'
import { isReader } from '../routes/routes.ts'
import { namesLevel } from './level-lookup.ts'

// Errors that every operation can return. The description of an operation lists its other errors.
const OF_ALL = new Set<ErrorCode>([
  'malformed_request', 'malformed_json', 'unsupported_api_version', 'unauthenticated', 'insufficient_permissions',
  'organization_inactive', 'second_factor_required', 'not_found', 'payload_too_large', 'unsupported_media_type',
  'validation_failed', 'rate_limit_exceeded', 'internal_error', 'integrity_error', 'service_unavailable',
  // Errors of every operation that supports `Idempotency-Key`.
  'conflict', 'idempotency_key_reused'
])

/**
 * Adds security, error responses, limits and audit events to the schema of a route, from its `access`, `limit` and
 * `errors`. Throws if a route does not declare `access`, or changes something without declaring `audit`.
 */
export function documentAccess (route: RouteOptions): void {
  const { access, audit, errors = [], limit = 'api', limitOfEffect } = route.config ?? {}
  if (access === undefined) throw new Error(`${String(route.method)} ${route.url} does not declare config.access`)
  if (audit === undefined && !isReader(route)) {
    throw new Error(`${String(route.method)} ${route.url} changes something and does not declare config.audit`)
  }
  const codes: ErrorCode[] = [
    'malformed_request', 'unsupported_api_version', 'internal_error', 'service_unavailable', ...errors
  ]
  if (limit !== 'none') codes.push('rate_limit_exceeded')
  if (access !== 'public') {
    codes.push('unauthenticated', 'second_factor_required')
    if (access !== 'authenticated') codes.push('insufficient_permissions')
    if (!route.config?.whenInactive) codes.push('organization_inactive')
  }
  if (route.url.includes(':organization')) codes.push('not_found')
  // The look-up of the level verifies the MACs of the rows.
  if (namesLevel(route.config?.at)) codes.push('integrity_error')
  const own = new Set<ErrorCode>(errors.filter((code) => !OF_ALL.has(code)))
  const { body, querystring, response } = route.schema ?? {}
  if (body || querystring) codes.push('validation_failed')
  if (body) codes.push('malformed_json', 'unsupported_media_type')
  // Without a body schema a body is ignored, but its size is limited.
  if (!isReader(route)) codes.push('payload_too_large')
  const replaced = limitOfEffect && LIMITS[limitOfEffect].insteadOf
  const { mayNeed, lessAccess } = route.config ?? {}
  const less = lessAccess?.anyOf ?? []
  // If `access` has no scope, a request needs one of the scopes in `mayNeed`.
  const alternatives = access === 'authenticated'
    ? mayNeed?.map((scope) => [scope]) ?? [[]]
    : [scopesOf(access)]
  const extra = access === 'authenticated' ? [] : mayNeed ?? []
  route.schema = {
    ...route.schema,
    ...(limitOfEffect !== undefined && { 'x-limit-of-effect': limitOfEffect }),
    ...(replaced !== undefined && { 'x-limit-instead-of': replaced }),
    ...(audit !== undefined && audit !== 'none' && { 'x-audit-events': [audit].flat() }),
    ...(own.size > 0 && { 'x-own-statuses': [...own].map((code) => ERRORS[code].status) }),
    description: descriptionOf(route, access === 'public' ? [] : alternatives, extra, less, own),
    security: access === 'public' ? [] : [...alternatives, ...less.map((scope) => [scope])].flatMap(securityOf),
    response: route.config?.responseFormat === undefined ? { ...(response as object), ...errorsOf(codes) } : response
  }
}

// Appends the names of the scopes and the own errors to the description that the route declares. The purpose of each
// scope is in the security scheme `oauth`.
function descriptionOf (
  { schema }: RouteOptions, alternatives: readonly (readonly Scope[])[], extra: readonly Scope[],
  less: readonly Scope[], own: ReadonlySet<ErrorCode>
): string {
  const { description } = (schema ?? {}) as { description?: string }
  const parts = [description, needsOf(alternatives), ...extra.length > 0
    ? [`Some requests also need ${extra.map(nameOf).join(' and ')}.`]
    : [], ...less.length > 0
    ? [`Some requests need only ${less.map(nameOf).join(' or ')}.`]
    : []]
  const byStatus = [...new Set([...own].map((code) => ERRORS[code].status))].sort().map((status) =>
    `${status} ${[...own].filter((code) => ERRORS[code].status === status).map((code) => `\`${codeOf(code)}\``).join(', ')}`)
  if (byStatus.length > 0) parts.push(`${OWN_ERRORS} ${byStatus.join('; ')}.`)
  return parts.filter(Boolean).join(' ')
}

/** The beginning of the last sentence of a description, if the operation has errors of its own. */
export const OWN_ERRORS = 'Own errors:'

function needsOf (alternatives: readonly (readonly Scope[])[]): string {
  if (alternatives.length === 0) return 'Needs no token.'
  if (alternatives.flat().length === 0) return 'Any token is accepted.'
  const ways = alternatives.map((scopes) => scopes.map(nameOf).join(' and '))
  return `Needs${ways.length > 1 ? ', depending on the request,' : ''} ${ways.join(' or ')}.`
}

const nameOf = (scope: Scope) => `\`${scope}\``

const securityOf = (scopes: readonly Scope[]): Record<string, Scope[]>[] =>
  [{ bearerToken: [...scopes] }, { oauth: [...scopes] }]

/** The scopes that a route always needs. */
export function scopesOf (access: FastifyContextConfig['access']): readonly Scope[] {
  if (access === undefined || access === 'public' || access === 'authenticated') return []
  return typeof access === 'string' ? [access] : access
}

// Cached, because nearly all routes have the same few statuses.
const errorBodies = new Map<number, TSchema>()

function errorsOf (codes: readonly ErrorCode[]): Record<number, TSchema> {
  return Object.fromEntries(codes.map((code) => {
    const { status } = ERRORS[code]
    const schema = errorBodies.get(status) ?? ErrorBodies(status)
    errorBodies.set(status, schema)
    return [status, schema]
  }))
}
