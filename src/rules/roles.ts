import { SCOPE_NAMES, type Ability, type Scope } from '../../schemas/scopes.ts'
import type { Role } from '../../schemas/users.ts'

const READS: Scope[] = [
  'project:read', 'target:read', 'environment:read', 'organization:read', 'member:read', 'team:read'
]

/** What each role may do in its organization (api.md, section 6). */
const SCOPES_OF: Record<Role, readonly Scope[]> = {
  owner: SCOPE_NAMES,
  administrator: SCOPE_NAMES.filter((scope) => !scope.startsWith('billing:') && scope !== 'organization:delete'),
  developer: [
    'secret:read', 'secret:write', 'secret:decrypt', 'secret:history', 'secret:restore', 'key:retrieve',
    'project:read', 'project:update',
    'target:create', 'target:read', 'target:update', 'environment:create', 'environment:read', 'environment:update',
    'organization:read', 'member:read', 'team:read'
  ],
  member: ['secret:read', 'secret:write', 'secret:decrypt', 'secret:history', 'key:retrieve', ...READS],
  auditor: ['secret:history', 'api-token:read', 'billing:read', ...READS],
  billing_manager: ['billing:read', 'billing:write', 'organization:read'],
  api_user: ['secret:read', 'project:read', 'target:read', 'environment:read', 'organization:read']
}

export function scopesOfRole (role: Role): readonly Scope[] {
  return SCOPES_OF[role]
}

/**
 * What a user may do in an organization through a grant: the granted scopes and the role, whichever is narrower. An
 * owner who granted everything holds `*`.
 */
export function effectiveScopes (granted: readonly Ability[], role: Role): Set<Ability> {
  const all = granted.includes('*') || SCOPE_NAMES.every((scope) => granted.includes(scope))
  const held = new Set<Ability>(scopesOfRole(role).filter((scope) => all || granted.includes(scope)))
  if (all && role === 'owner') held.add('*')
  return held
}
