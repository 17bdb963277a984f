// Written by `npm run openapi` from the routes.

/** The static segments of paths where another path has this parameter. */
export const ROUTE_WORDS: Readonly<Record<string, readonly string[]>> = {
  environment: ['environments', 'secrets'],
  organization: ['cli', 'organization', 'organizations', 'plans', 'user'],
  project: ['audit-events', 'projects', 'secrets'],
  target: ['encryption-key', 'restore-to', 'secrets', 'targets'],
  version: ['purge']
}
