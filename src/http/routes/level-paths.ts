import type { Level } from '../../../schemas/secrets.ts'

/** The levels, with their paths below the organization and the middle of the operation ids. */
export const LEVEL_PATHS = [
  { level: 'project', path: '/:project', word: 'Project' },
  { level: 'target', path: '/:project/:target', word: 'Target' },
  { level: 'environment', path: '/:project/:target/:environment', word: 'Environment' }
] as const satisfies { level: Level, path: string, word: string }[]
