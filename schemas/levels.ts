import { OneOf } from './shapes.ts'

/** The levels of the hierarchy that can have a document. */
export const LEVELS = ['project', 'target', 'environment'] as const
export type Level = (typeof LEVELS)[number]
export const LevelName = OneOf(LEVELS, { title: 'Level' })
