import type { Scope } from './scopes.ts'

// Constants that the service and the console share (decision 0070). This module imports only types, so that the console
// in the browser contains no schema library.

/**
 * The id of the console's OAuth client, which is part of the service: it needs no consent, and no command changes it.
 */
export const CONSOLE_CLIENT = 'strongroom-console'

/** The scopes of daily work, which the normal token of the console has. All other scopes are privileged. */
export const DAILY_SCOPES: readonly Scope[] = [
  'secret:read', 'secret:write', 'secret:decrypt', 'secret:history', 'secret:restore', 'key:retrieve', 'project:create',
  'project:read', 'project:update', 'target:create', 'target:read', 'target:update', 'target:delete',
  'environment:create', 'environment:read', 'environment:update', 'environment:delete', 'team:read', 'team:delete',
  'organization:create', 'organization:read', 'api-token:read', 'api-token:delete',
  'member:read', 'billing:read'
]

/** Seconds: the lifetime of a token with a privileged scope, and the maximum age of the sign-in when it is issued. */
export const PRIVILEGED_SECONDS = 300

/** Hours after its last use at which the session of a browser ends by itself. */
export const SESSION_IDLE_HOURS = 12

/** Whether a token of the console with this scope has the short lifetime. */
export const isPrivileged = (scope: string): boolean => !(DAILY_SCOPES as readonly string[]).includes(scope)
