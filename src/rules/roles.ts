import { isScopeOfProject, SCOPE_NAMES, type Ability, type Scope } from '../../schemas/scopes.ts'
import type { Role } from '../../schemas/users.ts'
import { distinct, intersect, isWholeProject, textOf, type Slice } from './slices.ts'

const READS: Scope[] = [
  'project:read', 'target:read', 'environment:read', 'organization:read', 'member:read', 'team:read'
]

/** The scopes of each role in its organization (S-11.2). */
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
  api_user: ['secret:read', 'project:read', 'target:read', 'environment:read', 'organization:read'],
  guest: ['organization:read']
}

export const scopesOfRole = (role: Role): readonly Scope[] => SCOPES_OF[role]

const SCOPES_IN_PROJECT = Object.fromEntries(Object.entries(SCOPES_OF).map(([role, scopes]) =>
  [role, new Set(scopes.filter(isScopeOfProject))])) as unknown as Record<Role, ReadonlySet<Scope>>

/** The scopes of a team's role in a project; empty for a role without such scopes. */
export const scopesInProject = (role: Role): ReadonlySet<Scope> => SCOPES_IN_PROJECT[role]

// Every user may create organizations and leave an organization, so these scopes need no role. A user needs a role to
// remove other members.
const ROLELESS_SCOPES: readonly Scope[] = ['organization:create', 'member:delete']

/** The scopes that a user with these roles can grant to an application. `teams`: the roles that teams give the user. */
export function grantableScopes (
  { organizations, teams }: Record<'organizations' | 'teams', readonly Role[]>
): ReadonlySet<Scope> {
  return new Set([
    ...ROLELESS_SCOPES, ...organizations.flatMap(scopesOfRole), ...teams.flatMap((role) => [...scopesInProject(role)])
  ])
}

/**
 * Whether requests with this scope alone change nothing, and return neither plaintext nor keys. "Read only" on the
 * consent page selects all scopes for which this function returns true.
 */
export const readsOnly = (scope: Scope): boolean => scope.endsWith(':read') || scope === 'secret:history'

/** Whether a scope was granted; does not check the role. */
export const grants = (granted: readonly Ability[], scope: Scope): boolean =>
  granted.includes('*') || granted.includes(scope)

export const grantsEverything = (granted: readonly Ability[]): boolean =>
  granted.includes('*') || SCOPE_NAMES.every((scope) => granted.includes(scope))

/**
 * The intersection of the granted scopes and the role's scopes. Includes `*` for an owner who granted all scopes,
 * unless the owner added a second factor after the grant (`isOfFactor`).
 */
export function effectiveScopes (granted: readonly Ability[], role: Role, isWithFactor = true): Set<Ability> {
  const all = grantsEverything(granted)
  const held = new Set<Ability>(scopesOfRole(role).filter((scope) => all || granted.includes(scope)))
  if (all && role === 'owner' && isWithFactor) held.add('*')
  return held
}

/**
 * Whether the grant is newer than the user's second factor, or the user has no second factor. An older grant was
 * approved without the second factor, so it does not count as a grant of all scopes. Larger ids are newer.
 */
export const isOfFactor = (grantId: number | null, factorId: number | null): boolean =>
  factorId === null || (grantId !== null && grantId > factorId)

/** A role that a team gives a user in a project. */
export interface TeamRole {
  team_id: string
  project_id: string
  /** The project's slug. */
  project: string
  role: Role
  /** The parts of the project to which the role is restricted; null for the whole project. */
  slices: readonly Slice[] | null
}

/** The caller's scopes in the whole organization. */
export interface Powers {
  scopes: ReadonlySet<Ability>
  /** The scopes granted to the application or token: the upper bound for all roles. */
  granted: readonly Ability[]
}

/** The roles that teams give the caller, loaded with the membership. */
export interface TeamPowers {
  /** The roles in the project that the request path names; empty if the path names no project. */
  inProject: readonly TeamRole[]
  /**
   * Roles in any project, if the request path names no project. The MACs of these roles are not verified: they only
   * decide whether the request is refused at once. Otherwise the guard loads verified roles together with the level.
   */
  anywhere: readonly Role[]
}

type RoleOfTeam = Pick<TeamRole, 'role'>

/** Whether the caller has the scope in the whole organization. */
export const holds = ({ scopes }: Pick<Powers, 'scopes'>, scope: Scope): boolean =>
  scopes.has('*') || scopes.has(scope)

/** Whether the caller has the scope in the whole organization or by one of these team roles. */
export function holdsBy (powers: Powers, teams: readonly RoleOfTeam[], scope: Scope): boolean {
  return holds(powers, scope) ||
    (teams.some(({ role }) => scopesInProject(role).has(scope)) && grants(powers.granted, scope))
}

/**
 * The parts of the organization in which the caller has a scope: null for the whole organization, if the caller's
 * organization role gives the scope. Otherwise the parts of all team roles that include the scope. An empty list means
 * no part (unlike in `isInside`, where an empty list means no restriction).
 */
export const partsWith = (powers: Powers, teams: readonly TeamRole[], scope: Scope): Slice[] | null =>
  holds(powers, scope) ? null : partsByTeams(powers, teams, scope)

/** A request needs at least one of these scopes. */
export type AnyOf = readonly [Scope, ...Scope[]]

/** Whether the caller has one of the scopes in the whole organization or by one of these team roles. */
export const meets = (powers: Powers, teams: readonly RoleOfTeam[], need: AnyOf): boolean =>
  need.some((scope) => holdsBy(powers, teams, scope))

/**
 * The parts of the organization in which these team roles meet every need, that is, give at least one of its scopes.
 * An empty list means no part (unlike in `isInside`, where an empty list means no restriction).
 */
export function slicesBy (powers: Powers, teams: readonly TeamRole[], needs: readonly AnyOf[]): Slice[] {
  const [first = [], ...others] = needs.map((need) => need.flatMap((scope) => partsByTeams(powers, teams, scope)))
  return others.reduce(intersect, first)
}

const partsByTeams = ({ granted }: Powers, teams: readonly TeamRole[], scope: Scope): Slice[] =>
  teams.filter((team) => holdsBy({ scopes: NOTHING, granted }, [team], scope)).flatMap(slicesOfRole)

const NOTHING: ReadonlySet<Ability> = new Set()

const slicesOfRole = ({ project_id, slices }: TeamRole): readonly Slice[] =>
  slices ?? [{ project_id, target_id: null, environment_id: null }]

/** Scopes that a person has in the same parts of a project. `slices` are these parts; null means the whole project. */
export interface Right { scopes: Scope[], slices: readonly Slice[] | null }

/**
 * The scopes of projects that a person has by the organization role and these team roles, grouped by the parts in which
 * the person has them. Each scope is in at most one group.
 */
export function rightsIn (powers: Powers, teams: readonly TeamRole[]): Right[] {
  const roles = [...new Set(teams.map(({ role }) => role))]
  // The parts depend only on which roles give the scope.
  const parts = new Map<string, { key: string, slices: Slice[] | null } | undefined>()
  const rights = new Map<string, Right>()
  for (const scope of SCOPE_NAMES.filter(isScopeOfProject)) {
    const giving = holds(powers, scope) ? 'all' : roles.filter((role) => holdsBy(powers, [{ role }], scope)).join()
    if (!parts.has(giving)) parts.set(giving, partOf(partsWith(powers, teams, scope)))
    const part = parts.get(giving)
    if (part === undefined) continue
    const right = rights.get(part.key) ?? { scopes: [], slices: part.slices }
    right.scopes.push(scope)
    rights.set(part.key, right)
  }
  return [...rights.values()]
}

// The parts without duplicates, and a text that is the same for the same parts; undefined without a part.
function partOf (parts: Slice[] | null): { key: string, slices: Slice[] | null } | undefined {
  if (parts?.length === 0) return undefined
  if (parts === null || parts.some(isWholeProject)) return { key: '', slices: null }
  const slices = distinct(parts)
  return { key: slices.map(textOf).sort().join(' '), slices }
}

/** The powers of a person with this role, if an application or token was granted all scopes. */
export const powersOfRole = (role: Role): Powers => ({ scopes: effectiveScopes(['*'], role), granted: ['*'] })

/** All scopes of the caller in a project with these team roles. */
export function scopesBy (powers: Powers, teams: readonly RoleOfTeam[]): Ability[] {
  const more = SCOPE_NAMES.filter((scope) => !powers.scopes.has(scope) && holdsBy(powers, teams, scope))
  return powers.scopes.has('*') ? [...powers.scopes] : [...powers.scopes, ...more]
}

/** The stored name of a role: `admin` is an alias of `administrator`. */
export const canonicalRole = <R extends string = Role>(spelling: R | 'admin'): Exclude<R, 'admin'> | 'administrator' =>
  spelling === 'admin' ? 'administrator' : spelling as Exclude<R, 'admin'>

/** Whether the caller may give an invitation with these roles: in the organization, and in a place through a team. */
export const mayInvite = (powers: Powers, { role, place_role }: { role: Role, place_role: Role | null }): boolean =>
  holds(powers, 'member:create') && holdsRole(powers, role) &&
  (place_role === null || (holds(powers, 'team:update') && holdsProjectRole(powers, place_role)))

/** Whether the caller has all scopes of a role in the organization. Any caller may give the role of a guest. */
export const holdsRole = (powers: Powers, role: Role): boolean =>
  role === 'guest' || scopesOfRole(role).every((scope) => holds(powers, scope))

/**
 * Whether the caller has all scopes of a team's role. Does not check team roles of the caller: every role in the
 * organization that may change teams already includes all scopes in projects.
 */
export const holdsProjectRole = (powers: Powers, role: Role): boolean =>
  [...scopesInProject(role)].every((scope) => holds(powers, scope))
