import abilities from '../dist/openapi-abilities.json'
import type { Schemas } from './api.ts'

export type Ability = Schemas['Ability']

export const ALL_SCOPES = (abilities as Ability[]).filter((one) => one !== '*')

/** The scopes of a token: `*` is all of them. */
export const scopesOf = (abilities: readonly Ability[]): readonly Ability[] => abilities.includes('*') ? ALL_SCOPES : abilities

/** Roles whose permissions the daily token has. Who changes another role needs all permissions of that role. */
const DAILY_ROLES: readonly string[] = ['developer', 'member', 'auditor', 'api_user', 'guest']

/** The scopes of the short token for a change of members with these roles. */
export const scopesOfRoles = (scope: string, ...roles: readonly string[]): readonly string[] =>
  roles.every((role) => DAILY_ROLES.includes(role)) ? [scope] : ALL_SCOPES

/** Scopes in words, such as `secret (read, decrypt), project (read)`. */
export function wordsOfScopes (scopes: readonly string[]): string {
  if (scopes.includes('*')) return 'everything'
  const groups = new Map<string, string[]>()
  for (const scope of scopes) {
    const [resource = '', verb = ''] = scope.split(':')
    groups.set(resource, [...groups.get(resource) ?? [], verb])
  }
  return [...groups].map(([resource, verbs]) => `${resource} (${verbs.join(', ')})`).join(', ') || 'nothing'
}
