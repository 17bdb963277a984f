const scopesOf = (resources: string, verbs: string) => resources.split(' ')
  .flatMap((resource) => verbs.split(' ').map((verb) => `${resource}:${verb}`))

/** All scopes, as in docs/scopes.md. */
export const ALL_SCOPES: readonly string[] = [
  ...scopesOf('secret', 'read write decrypt history restore purge'),
  ...scopesOf('key', 'retrieve rotate'),
  ...scopesOf('project target environment team organization api-token member', 'create read update delete'),
  ...scopesOf('billing', 'read write')
]

/** Roles whose permissions the daily token has. Who changes another role needs all permissions of that role. */
const DAILY_ROLES: readonly string[] = ['developer', 'member', 'auditor', 'api_user']

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
