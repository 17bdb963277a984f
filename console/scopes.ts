/** The verbs of the scopes of each resource, as in docs/scopes.md. */
const VERBS = {
  secret: 'read write decrypt history restore purge',
  key: 'retrieve rotate',
  project: 'create read update delete',
  target: 'create read update delete',
  environment: 'create read update delete',
  team: 'create read update delete',
  organization: 'create read update delete',
  'api-token': 'create read update delete',
  member: 'create read update delete',
  billing: 'read write'
}

export const ALL_SCOPES: readonly string[] = Object.entries(VERBS)
  .flatMap(([resource, verbs]) => verbs.split(' ').map((verb) => `${resource}:${verb}`))

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
