import { Type, type TObject, type TProperties } from '@sinclair/typebox'
import type { RouteOptions } from 'fastify'
import type { Level } from '../../../schemas/secrets.ts'

/** A route's hooks of one kind as an array, so that a caller can add hooks. */
export const hooksOf = <T>(hooks: T | T[] | undefined): T[] => hooks === undefined ? [] : [hooks].flat() as T[]

/** Whether a route only reads: its methods are GET and HEAD. */
export const isReader = ({ method }: Pick<RouteOptions, 'method'>) =>
  [method].flat().every((one) => one === 'GET' || one === 'HEAD')

/** Adds headers to the schema of a route. */
export function takeHeaders (route: Pick<RouteOptions, 'schema'>, headers: TProperties) {
  const { headers: own } = (route.schema ?? {}) as { headers?: TObject }
  route.schema = { ...route.schema, headers: Type.Object({ ...own?.properties, ...headers }) }
}

/** The levels, with their paths below the organization and the middle of the operation ids. */
export const LEVEL_PATHS = [
  { level: 'project', path: '/:project', word: 'Project' },
  { level: 'target', path: '/:project/:target', word: 'Target' },
  { level: 'environment', path: '/:project/:target/:environment', word: 'Environment' }
] as const satisfies { level: Level, path: string, word: string }[]
