import type { FastifyContextConfig, FastifySchema, RouteOptions } from 'fastify'
import { codeOf, COMMON_ERRORS, ERROR_BODIES, ERRORS, type ErrorCode } from '../../../schemas/errors.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { LIMITS } from '../limits/limits.ts'
import { isReader } from '../routes/routes.ts'

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
  // Without `Idempotency-Key`, a conflict is an error of the operation itself.
  const isCommon = (code: ErrorCode) =>
    COMMON_ERRORS.includes(code) && (code !== 'conflict' || route.config?.repeatable === true)
  const own = new Set<ErrorCode>(errors.filter((code) => !isCommon(code)))
  const { response, deprecated } = (route.schema ?? {}) as FastifySchema & { deprecated?: boolean }
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
    // A duplicate of an operation is described by that operation.
    ...(deprecated !== true && {
      'x-own-statuses': [...own].map((code) => ERRORS[code].status),
      description: descriptionOf(route, access === 'public' ? [] : alternatives, extra, less, own)
    }),
    security: access === 'public' ? [] : [...alternatives, ...less.map((scope) => [scope])].flatMap(securityOf),
    response: route.config?.responseFormat === undefined
      ? { ...(response as object), ...(limit === 'none' ? UNLIMITED : ERROR_BODIES) }
      : response
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

const { 429: _, ...UNLIMITED } = ERROR_BODIES
