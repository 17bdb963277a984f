import { SerializerSelector } from '@fastify/fast-json-stringify-compiler'
import type { FastifySerializerCompiler } from 'fastify'

type Serializer = ReturnType<FastifySerializerCompiler<unknown>>

const compile = SerializerSelector()()
const compiled = new Map<string, Serializer>()

/**
 * Writes answers by Fastify's own compiler, which is handed each schema once: nearly all of the thousand that routes
 * declare are the same few errors, and to compile every one takes longer than all the rest of a start.
 */
export const serializerCompiler: FastifySerializerCompiler<unknown> = (route) => {
  const text = JSON.stringify(route.schema)
  const known = compiled.get(text)
  if (known !== undefined) return known
  const serializer = compile({ httpStatus: '', ...route })
  compiled.set(text, serializer)
  return serializer
}
