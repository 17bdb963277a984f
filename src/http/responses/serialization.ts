import { SerializerSelector } from '@fastify/fast-json-stringify-compiler'
import type { FastifySerializerCompiler } from 'fastify'

type Serializer = ReturnType<FastifySerializerCompiler<unknown>>

const compile = SerializerSelector()()

/** Fastify's serializer compiler, but compiles a schema on first use, which shortens the start. */
export const serializerCompiler: FastifySerializerCompiler<unknown> = ({ schema }) => {
  let serializer: Serializer | undefined
  return (answer) => (serializer ??= serializerOf(schema))(answer)
}

/** The serializer of a schema. */
export function serializerOf (declared: unknown): Serializer {
  const schema = JSON.parse(JSON.stringify(declared), (_, member) => {
    const words = oneOfWords(member)
    if (words === undefined) return member
    const { anyOf: _choices, ...more } = member
    return { ...more, ...words }
  })
  return compile({ httpStatus: '', method: '', url: '', schema })
}

/** Converts `anyOf` of string constants to `enum`, which serializes faster. Undefined for other schemas. */
export function oneOfWords (schema: unknown): { type: 'string', enum: string[] } | undefined {
  const choices = (schema as { anyOf?: { const?: unknown, enum?: unknown }[] } | null)?.anyOf
  if (!Array.isArray(choices)) return undefined
  const words = choices.map((choice) =>
    Array.isArray(choice.enum) && choice.enum.length === 1 ? choice.enum[0] as unknown : choice.const)
  return words.every((word) => typeof word === 'string') ? { type: 'string', enum: words } : undefined
}
