import type { Level } from '../../schemas/levels.ts'
import type { Plan } from '../../schemas/organizations.ts'
import { fail } from './api-error.ts'

/** The state of a level at a point in time. */
interface PastLevel {
  level?: Level
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

/**
 * Throws `version_locked` if a level has a locked version, else `version_gone` if a document is `unknown`. For the
 * levels `onlyMerged`, `version_gone` also stands for a locked version, because its time must not be shown.
 */
export function requireKeptAt (
  levels: readonly PastLevel[], { retention_days }: Plan, onlyMerged: readonly Level[] = []
): void {
  const isLocked = ({ held, locked }: PastLevel) => held === 'version' && locked
  const isShown = ({ level }: PastLevel) => level === undefined || !onlyMerged.includes(level)
  const locked = levels.find((level) => isLocked(level) && isShown(level))
  if (locked !== undefined) {
    fail('version_locked', { retention_days: retention_days!, version_created_at: locked.version_created_at! })
  }
  const gone = levels.find((level) => level.held === 'unknown' || isLocked(level))
  if (gone !== undefined) fail('version_gone', { level: gone.path! })
}
