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
  const schema = JSON.parse(text, (_, member) => oneOfWords(member) ?? member)
  const serializer = compile({ httpStatus: '', ...route, schema })
  compiled.set(text, serializer)
  return serializer
}

/**
 * A choice of single words as the one list of words that it is to everybody who reads the document; and to the writer
 * of an answer, who tries the alternatives of a choice one by one.
 */
export function oneOfWords (schema: unknown): { type: 'string', enum: string[] } | undefined {
  const choices = (schema as { anyOf?: { const?: unknown, enum?: unknown }[] } | null)?.anyOf
  if (!Array.isArray(choices)) return undefined
  const words = choices.map((choice) =>
    Array.isArray(choice.enum) && choice.enum.length === 1 ? choice.enum[0] as unknown : choice.const)
  return words.every((word) => typeof word === 'string') ? { type: 'string', enum: words } : undefined
}
