import type { Plan } from '../../schemas/organizations.ts'
import { fail } from './errors.ts'

/** The state of a level at a point in time. */
interface PastLevel {
  held: string
  /** The slugs of the level, if its state is unknown. */
  path: string | null
  locked: boolean
  version_created_at: Date | null
}

/** Ends the request if a past document is outside of the retention window or, checked later, has an unknown state. */
export function requireKept (levels: readonly PastLevel[], { retention_days }: Plan): void {
  const locked = levels.find(({ held, locked }) => held === 'version' && locked)
  if (locked !== undefined) {
    fail('version_locked', { retention_days: retention_days!, version_created_at: locked.version_created_at! })
  }
  const gone = levels.find(({ held }) => held === 'unknown')
  if (gone !== undefined) fail('version_gone', { level: gone.path! })
}
