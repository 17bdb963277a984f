import type { Plan } from '../../schemas/organizations.ts'
import { fail } from './errors.ts'

/** The state of a level at a point in time. */
interface PastLevel {
  held: string
  /** Slugs down to the level, if `held` is `unknown`. */
  path: string | null
  locked: boolean
  version_created_at: Date | null
}

/** Throws `version_locked` for a version outside the retention window, which can be neither read nor restored. */
export function requireKeptVersion (version: { locked: boolean, created_at: Date }, { retention_days }: Plan): void {
  if (!version.locked) return
  fail('version_locked', { retention_days: retention_days!, version_created_at: version.created_at })
}

/** Throws `version_locked` for a document outside the retention window, else `version_gone` for an unknown one. */
export function requireKeptAt (levels: readonly PastLevel[], { retention_days }: Plan): void {
  const locked = levels.find(({ held, locked }) => held === 'version' && locked)
  if (locked !== undefined) {
    fail('version_locked', { retention_days: retention_days!, version_created_at: locked.version_created_at! })
  }
  const gone = levels.find(({ held }) => held === 'unknown')
  if (gone !== undefined) fail('version_gone', { level: gone.path! })
}
