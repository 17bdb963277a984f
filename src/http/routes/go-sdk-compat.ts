import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { Level, LevelNames } from '../../../schemas/secrets.ts'
import { hooksOf } from './routes.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** An exception for existing versions of the Go SDK and for the command-line tool based on it. */
    goSdk?: keyof typeof EXCEPTIONS
  }
}

const GO_SDK = /^dotenv-go-sdk\//

interface Exception {
  /** Converts the SDK's body to the body of the API. */
  body?: (body: Readonly<Record<string, unknown>>) => object
  /** Converts the response to the format that the SDK expects. */
  answer?: (answer: Readonly<Record<string, unknown>>) => object
}

// All client-specific behavior; nothing else depends on `User-Agent`.
const EXCEPTIONS = {
  /** The SDK does not send `level`: the deepest slug names the level. */
  levelBySlugs: {
    body: (body) => {
      const { target, environment } = body as Partial<LevelNames>
      const level: Level = environment !== undefined ? 'environment' : target !== undefined ? 'target' : 'project'
      return body.scope === 'project' ? body : { level, ...body }
    }
  },
  /** The SDK expects an object as `token`. With a string it fails, and the value of the new token is lost. */
  tokenInObject: {
    answer: ({ token, api_key, ...answer }) => {
      const { name, abilities, expires_at } = api_key as Record<string, unknown>
      return { ...answer, token: { name, token, abilities, expires_at }, api_key }
    }
  }
} as const satisfies Record<string, Exception>

/** Applies the exceptions that routes declare as `goSdk`, and adds `User-Agent` to their `Vary` header. */
export function installAgents (app: FastifyInstance) {
  app.addHook('onRoute', (route) => {
    const { goSdk } = route.config ?? {}
    if (goSdk === undefined) return
    const { body: asMeant, answer: asRead }: Exception = EXCEPTIONS[goSdk]
    route.onRequest = [...hooksOf(route.onRequest), async (_request, reply) => {
      reply.header('vary', `${String(reply.getHeader('vary'))}, User-Agent`)
    }]
    if (asMeant !== undefined) {
      route.preValidation = [...hooksOf(route.preValidation), async (request) => {
        const { body } = request
        if (!isGoSdk(request) || typeof body !== 'object' || body === null) return
        request.body = asMeant(body as Record<string, unknown>)
      }]
    }
    if (asRead !== undefined) {
      route.preSerialization = [...hooksOf(route.preSerialization), async (request, reply, answer) => {
        if (!isGoSdk(request) || reply.statusCode >= 300) return answer
        // The response schema does not match the SDK's format.
        reply.serializer(JSON.stringify)
        return asRead(answer as Record<string, unknown>)
      }]
    }
  })
}

const isGoSdk = ({ headers }: FastifyRequest) => GO_SDK.test(headers['user-agent'] ?? '')
