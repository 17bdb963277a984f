import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { Level, LevelNames } from '../../../schemas/secrets.ts'
import { hooksOf } from './routes.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** An exception for existing versions of the Go SDK, and for the command-line tool that uses the SDK. */
    goSdk?: keyof typeof EXCEPTIONS
  }
}

const GO_SDK = /^dotenv-go-sdk\//

type Json = Readonly<Record<string, unknown>>
interface Exception { convertBody?: (body: Json) => object, convertResponse?: (response: Json) => object }

// The service depends on `User-Agent` only in these exceptions.
const EXCEPTIONS = {
  /** The SDK does not send `level`: the deepest slug determines the level. */
  levelBySlugs: {
    convertBody: (body) => {
      const { target, environment } = body as Partial<LevelNames>
      const level: Level = environment !== undefined ? 'environment' : target !== undefined ? 'target' : 'project'
      return body.scope === 'project' ? body : { level, ...body }
    }
  },
  /** The SDK expects an object as `token`. With a string the SDK fails, and the caller loses the new token. */
  tokenInObject: {
    convertResponse: ({ token, api_key, ...answer }) => {
      const { name, abilities, expires_at } = api_key as Json
      return { ...answer, token: { name, token, abilities, expires_at }, api_key }
    }
  }
} as const satisfies Record<string, Exception>

/** Applies the exceptions that routes declare as `goSdk`, and adds `User-Agent` to their `Vary` header. */
export function installGoSdkCompat (app: FastifyInstance) {
  app.addHook('onRoute', (route) => {
    const { goSdk } = route.config ?? {}
    if (goSdk === undefined) return
    const { convertBody, convertResponse }: Exception = EXCEPTIONS[goSdk]
    route.onRequest = [...hooksOf(route.onRequest), async (_request, reply) => {
      reply.header('vary', `${String(reply.getHeader('vary'))}, User-Agent`)
    }]
    if (convertBody !== undefined) {
      route.preValidation = [...hooksOf(route.preValidation), async (request) => {
        const { body } = request
        if (isGoSdk(request) && typeof body === 'object' && body !== null) request.body = convertBody(body as Json)
      }]
    }
    if (convertResponse !== undefined) {
      route.preSerialization = [...hooksOf(route.preSerialization), async (request, reply, answer) => {
        if (!isGoSdk(request) || reply.statusCode >= 300) return answer
        // Bypasses the response schema, because the format of the SDK differs from the schema.
        reply.serializer(JSON.stringify)
        return convertResponse(answer as Json)
      }]
    }
  })
}

/** Whether the client is the Go SDK. */
export const isGoSdk = ({ headers }: FastifyRequest) => GO_SDK.test(headers['user-agent'] ?? '')
