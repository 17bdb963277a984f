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
type ResourceOf<S> = S extends `${infer Resource}:${string}` ? Resource : never
type Resource = ResourceOf<Scope>

/**
 * The resources of the scopes and their headings, in the order of the consent page. With `isInProject`, a role in a
 * single project gives the scopes of the resource.
 */
export const SCOPE_RESOURCES: Readonly<Record<Resource, { heading: string, isInProject: boolean }>> = {
  secret: { heading: 'Secrets', isInProject: true },
  key: { heading: 'Encryption keys', isInProject: true },
  project: { heading: 'Projects', isInProject: true },
  target: { heading: 'Targets', isInProject: true },
  environment: { heading: 'Environments', isInProject: true },
  team: { heading: 'Teams', isInProject: false },
  organization: { heading: 'Organizations', isInProject: false },
  'api-token': { heading: 'API tokens', isInProject: false },
  member: { heading: 'Members', isInProject: false },
  billing: { heading: 'Billing', isInProject: false }
}

/** A scope, or `*` for all scopes. */
export type Ability = Scope | '*'

export const SCOPE_NAMES = Object.keys(SCOPES) as Scope[]

/** Whether a role in a single project gives the scope. `project:create` is a scope of the organization. */
export const isScopeOfProject = (scope: Scope): boolean =>
  SCOPE_RESOURCES[scope.split(':')[0] as Resource].isInProject && scope !== 'project:create'

/** An ability in a response. */
export const AbilityName = OneOf(['*', ...SCOPE_NAMES], { title: 'Ability' })

const ALIASES: Record<string, readonly Scope[]> = {
  'encryption:read': ['key:retrieve'],
  'encryption:write': ['key:rotate'],
  'secret:write': ['secret:write'],
  'secrets:write': ['secret:write'],
  'billing:write': ['billing:write']
}
for (const scope of SCOPE_NAMES) ALIASES[scope.replace(':', 's:')] ??= [scope]
for (const noun of Object.keys(SCOPE_RESOURCES)) {
  const written = SCOPE_NAMES.filter((scope) => ['create', 'update', 'delete'].some((verb) => scope === `${noun}:${verb}`))
  if (written.length > 0) for (const spelling of [noun, `${noun}s`]) ALIASES[`${spelling}:write`] = written
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

/** The canonical abilities of known spellings, each once. */
export const canonicalList = (spellings: readonly string[]): Ability[] =>
  [...new Set(spellings.flatMap((spelling) => canonicalAbilities(spelling)!))]
