import { SCOPE_NAMES, type Ability, type Scope } from '../../schemas/scopes.ts'
import type { Role } from '../../schemas/users.ts'

const READS: Scope[] = [
  'project:read', 'target:read', 'environment:read', 'organization:read', 'member:read', 'team:read'
]

/** What each role may do in its organization (S-11.2). */
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

// What is about one project. To make another one is not.
const isOfProject = (scope: Scope) => /^(?:secret|key|project|target|environment):/.test(scope) &&
  scope !== 'project:create'

const SCOPES_IN_PROJECT = Object.fromEntries(Object.entries(SCOPES_OF).map(([role, scopes]) =>
  [role, new Set(scopes.filter(isOfProject))])) as unknown as Record<Role, ReadonlySet<Scope>>

/** What a role gives in a project that a team holds; nothing, for a role that is about the organization alone. */
export function scopesInProject (role: Role): ReadonlySet<Scope> {
  return SCOPES_IN_PROJECT[role]
}

// A person's own, whatever they are anywhere: to begin an organization, and to leave one. What else these scopes give
// takes a role.
const OF_ANYBODY: readonly Scope[] = ['organization:create', 'member:delete']

/** What somebody with these roles, in organizations and in projects through teams, can grant to an application. */
export function grantableScopes (
  { organizations, teams }: { organizations: readonly Role[], teams: readonly Role[] }
): ReadonlySet<Scope> {
  return new Set([
    ...OF_ANYBODY, ...organizations.flatMap(scopesOfRole), ...teams.flatMap((role) => [...scopesInProject(role)])
  ])
}

/** Whether something was granted, whatever a role allows. */
export const grants = (granted: readonly Ability[], scope: Scope): boolean =>
  granted.includes('*') || granted.includes(scope)

/** Whether everything was granted that there is. */
export function grantsEverything (granted: readonly Ability[]): boolean {
  return granted.includes('*') || SCOPE_NAMES.every((scope) => granted.includes(scope))
}

/**
 * What a user may do in an organization through a grant: the granted scopes and the role, whichever is narrower. An
 * owner who granted everything holds `*`, unless that was without a second factor which they have since
 * (`isOfFactor`).
 */
export function effectiveScopes (granted: readonly Ability[], role: Role, isWithFactor = true): Set<Ability> {
  const all = grantsEverything(granted)
  const held = new Set<Ability>(scopesOfRole(role).filter((scope) => all || granted.includes(scope)))
  if (all && role === 'owner' && isWithFactor) held.add('*')
  return held
}

/**
 * Whether a grant was made when its person had the second factor that they have now, or has none: everything is granted
 * with the second factor, and what was agreed to before there was one does not count as that. Later ids are larger.
 */
export const isOfFactor = (grantId: number | null, factorId: number | null): boolean =>
  factorId === null || (grantId !== null && grantId > factorId)

/** The role that somebody has in a project through a team of theirs. */
export interface TeamRole {
  team_id: string
  project_id: string
  /** The project's slug. */
  project: string
  role: Role
}

/** What a caller may do in the whole organization. */
export interface Powers {
  scopes: ReadonlySet<Ability>
  /** What was granted to the application, or given to the token: no role goes beyond it. */
  granted: readonly Ability[]
}

/** The roles through teams that are looked up together with a member. */
export interface TeamPowers {
  /** In the project that the path names; none where the path names no project. */
  inProject: readonly TeamRole[]
  /**
   * The roles that the member has in any project, where the path names none. Their rows are not authenticated: these
   * roles decide only whether the project of the request is looked up.
   */
  anywhere: readonly Role[]
}

type RoleOfTeam = Pick<TeamRole, 'role'>

/** Whether a scope is held everywhere in the organization. */
export const holds = ({ scopes }: Pick<Powers, 'scopes'>, scope: Scope): boolean =>
  scopes.has('*') || scopes.has(scope)

/** Whether a scope is held everywhere, or by one of these roles of teams. */
export function holdsBy (powers: Powers, teams: readonly RoleOfTeam[], scope: Scope): boolean {
  return holds(powers, scope) ||
    (teams.some(({ role }) => scopesInProject(role).has(scope)) && grants(powers.granted, scope))
}

/** Everything that is held where these roles of teams count. */
export function scopesBy (powers: Powers, teams: readonly RoleOfTeam[]): Ability[] {
  const more = SCOPE_NAMES.filter((scope) => !powers.scopes.has(scope) && holdsBy(powers, teams, scope))
  return powers.scopes.has('*') ? [...powers.scopes] : [...powers.scopes, ...more]
}

/** A role as it is stored. */
export const canonicalRole = <R extends string = Role>(spelling: R | 'admin'): Exclude<R, 'admin'> | 'administrator' =>
  spelling === 'admin' ? 'administrator' : spelling as Exclude<R, 'admin'>

/** Whether somebody holds all that a role gives in the organization. */
export function holdsRole (powers: Powers, role: Role): boolean {
  return scopesOfRole(role).every((scope) => holds(powers, scope))
}
