import { SerializerSelector } from '@fastify/fast-json-stringify-compiler'
import type { FastifySerializerCompiler } from 'fastify'

type Serializer = ReturnType<FastifySerializerCompiler<unknown>>

const compile = SerializerSelector()()
const compiled = new Map<string, Serializer>()

/** Writes answers by Fastify's own compiler. A schema is compiled when it is needed first, as those of requests are. */
export const serializerCompiler: FastifySerializerCompiler<unknown> = ({ schema }) => {
  let serializer: Serializer | undefined
  return (answer) => (serializer ??= serializerOf(schema))(answer)
}

/** What writes answers of a schema. One that several routes declare is compiled once. */
export function serializerOf (declared: unknown): Serializer {
  const text = JSON.stringify(declared)
  const known = compiled.get(text)
  if (known !== undefined) return known
  const schema = JSON.parse(text, (_, member) => {
    const words = oneOfWords(member)
    if (words === undefined) return member
    const { anyOf: _choices, ...more } = member
    return { ...more, ...words }
  })
  const serializer = compile({ httpStatus: '', method: '', url: '', schema })
  compiled.set(text, serializer)
  return serializer
}

/**
 * A choice of single words as the one list of words that it is to everybody who reads the document; and to the writer
 * of an answer, who tries the alternatives of a choice one by one, and writes any text where a text is due: which words
 * there are is for whoever makes the answer to know.
 */
export function oneOfWords (schema: unknown): { type: 'string', enum: string[] } | undefined {
  const choices = (schema as { anyOf?: { const?: unknown, enum?: unknown }[] } | null)?.anyOf
  if (!Array.isArray(choices)) return undefined
  const words = choices.map((choice) =>
    Array.isArray(choice.enum) && choice.enum.length === 1 ? choice.enum[0] as unknown : choice.const)
  return words.every((word) => typeof word === 'string') ? { type: 'string', enum: words } : undefined
}
