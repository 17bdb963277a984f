import { Type, type TObject, type TProperties } from '@sinclair/typebox'
import type { RouteOptions } from 'fastify'

/** The hooks of a kind that a route has, for more to go behind them. */
export const hooksOf = <T>(hooks: T | T[] | undefined): T[] => hooks === undefined ? [] : [hooks].flat() as T[]

/** Publishes headers that a route takes, beside those that it has declared. */
export function takeHeaders (route: Pick<RouteOptions, 'schema'>, headers: TProperties) {
  const { headers: own } = (route.schema ?? {}) as { headers?: TObject }
  route.schema = { ...route.schema, headers: Type.Object({ ...own?.properties, ...headers }) }
}
