import { OneOf } from './shapes.ts'

/** All scopes (S-2.6) with their descriptions. */
export const SCOPES = {
  'secret:read': 'Read encrypted secrets',
  'secret:write': 'Create, update, delete secrets',
  'secret:decrypt': 'Decrypt secrets server-side (server-managed keys only)',
  'secret:history': 'List and read version history',
  'secret:restore': 'Restore a version',
  'secret:purge': 'Delete versions, purge history',
  'key:retrieve': 'Retrieve encryption keys',
  'key:rotate': 'Rotate encryption keys',
  'project:create': 'Create projects',
  'project:read': 'View projects',
  'project:update': 'Change projects',
  'project:delete': 'Delete projects',
  'target:create': 'Create targets',
  'target:read': 'View targets',
  'target:update': 'Change targets',
  'target:delete': 'Delete targets',
  'environment:create': 'Create environments',
  'environment:read': 'View environments',
  'environment:update': 'Change environments',
  'environment:delete': 'Delete environments',
  'team:create': 'Create teams',
  'team:read': 'View teams',
  'team:update': 'Change teams',
  'team:delete': 'Delete teams',
  'organization:create': 'Create organizations, and accept invitations',
  'organization:read': 'View the organization',
  'organization:update': 'Change the organization',
  'organization:delete': 'Delete the organization',
  'api-token:create': 'Create API tokens',
  'api-token:read': 'View API tokens',
  'api-token:update': 'Change API tokens',
  'api-token:delete': 'Revoke API tokens',
  'member:create': 'Add members',
  'member:read': 'View members',
  'member:update': 'Update member permissions',
  'member:delete': 'Remove members, leave, and decline invitations',
  'billing:read': 'View billing information',
  'billing:write': 'Manage subscriptions and payments'
} as const

export type Scope = keyof typeof SCOPES
/** A scope, or `*` for all scopes. */
export type Ability = Scope | '*'

export const SCOPE_NAMES = Object.keys(SCOPES) as Scope[]

export const AbilityName = OneOf(['*', ...SCOPE_NAMES], { title: 'Ability' })

const ALIASES: Record<string, readonly Scope[]> = {
  'encryption:read': ['key:retrieve'],
  'encryption:write': ['key:rotate'],
  'secret:write': ['secret:write'],
  'secrets:write': ['secret:write'],
  'billing:write': ['billing:write']
}
for (const scope of SCOPE_NAMES) ALIASES[scope.replace(':', 's:')] ??= [scope]
for (const noun of ['project', 'target', 'environment', 'team', 'organization', 'member', 'api-token']) {
  const written = (['create', 'update', 'delete'] as const).map((verb) => `${noun}:${verb}` as Scope)
  for (const spelling of [noun, `${noun}s`]) ALIASES[`${spelling}:write`] = written
}
for (const [alias, noun] of [['apikeys', 'api-token'], ['env', 'environment']] as const) {
  for (const verb of ['create', 'read', 'update', 'delete', 'write']) {
    const scope = `${noun}:${verb}`
    ALIASES[`${alias}:${verb}`] = ALIASES[scope] ?? [scope as Scope]
  }
}

/**
 * Resolves a spelling (scope, alias or `*`) to canonical abilities; undefined if the spelling is unknown. Matches
 * exactly, without case folding or patterns.
 */
export function canonicalAbilities (spelling: string): readonly Ability[] | undefined {
  if (spelling === '*') return ['*']
  if (Object.hasOwn(SCOPES, spelling)) return [spelling as Scope]
  return Object.hasOwn(ALIASES, spelling) ? ALIASES[spelling] : undefined
}
