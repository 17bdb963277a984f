import type { Plan } from '../../schemas/organizations.ts'
import { fail } from './errors.ts'

/** The state of a level at a point in time. */
interface PastLevel {
  held: string
  /** The slugs of the level and its parents; null if `held` is not `unknown`. */
  path: string | null
  locked: boolean
  version_created_at: Date | null
}

/** Throws `version_locked` if a version is outside the retention window: it can be neither read nor restored. */
export function requireKeptVersion (version: { locked: boolean, created_at: Date }, { retention_days }: Plan): void {
  if (!version.locked) return
  fail('version_locked', { retention_days: retention_days!, version_created_at: version.created_at })
}

/** Throws `version_locked` if a level has a locked version, else `version_gone` if a document is `unknown`. */
export function requireKeptAt (levels: readonly PastLevel[], { retention_days }: Plan): void {
  const locked = levels.find(({ held, locked }) => held === 'version' && locked)
  if (locked !== undefined) {
    fail('version_locked', { retention_days: retention_days!, version_created_at: locked.version_created_at! })
  }
  const gone = levels.find(({ held }) => held === 'unknown')
  if (gone !== undefined) fail('version_gone', { level: gone.path! })
}
