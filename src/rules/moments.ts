import type { Plan } from '../../schemas/organizations.ts'
import { fail } from './errors.ts'

/** What is known of a level at a moment. */
export interface PastLevel {
  held: string
  /** Of the slugs down to it, where nobody can tell what it held. */
  path: string | null
  locked: boolean
  version_created_at: Date | null
}

/**
 * Ends the request where what a level held at a moment is not to be had: retention first, as of a version that is asked
 * for by itself, then what nobody can tell any more.
 */
export function requireKept (levels: readonly PastLevel[], { retention_days }: Plan): void {
  const locked = levels.find(({ held, locked }) => held === 'version' && locked)
  if (locked !== undefined) {
    fail('version_locked', { retention_days: retention_days!, version_created_at: locked.version_created_at! })
  }
  const gone = levels.find(({ held }) => held === 'unknown')
  if (gone !== undefined) fail('version_gone', { level: gone.path! })
}
