import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { Level, LevelNames } from '../../../schemas/secrets.ts'
import { hooksOf } from './routes.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** What is otherwise for the Go SDK that is in the field, and for the command line tool that is built on it. */
    goSdk?: keyof typeof EXCEPTIONS
  }
}

const GO_SDK = /^dotenv-go-sdk\//

interface Exception {
  /** The body as the SDK means it. */
  body?: (body: Readonly<Record<string, unknown>>) => object
  /** The answer as the SDK reads it. */
  answer?: (answer: Readonly<Record<string, unknown>>) => object
}

// All that is read or answered otherwise for one kind of client: nothing else goes by `User-Agent`.
const EXCEPTIONS = {
  /** It names a level by its deepest slug, and knows no `level`. */
  levelBySlugs: {
    body: (body) => {
      const { target, environment } = body as Partial<LevelNames>
      const level: Level = environment !== undefined ? 'environment' : target !== undefined ? 'target' : 'project'
      return body.scope === 'project' ? body : { level, ...body }
    }
  },
  /** It reads the value of a new token inside an object. With a text it fails, and nobody has a token that lives. */
  tokenInObject: {
    answer: ({ token, api_key, ...answer }) => {
      const { name, abilities, expires_at } = api_key as Record<string, unknown>
      return { ...answer, token: { name, token, abilities, expires_at }, api_key }
    }
  }
} as const satisfies Record<string, Exception>

/** Makes the exceptions that routes declare as `goSdk`; what they answer varies with `User-Agent`, and says so. */
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
        // The schema is that of the answer for everybody else.
        reply.serializer(JSON.stringify)
        return asRead(answer as Record<string, unknown>)
      }]
    }
  })
}

const isGoSdk = ({ headers }: FastifyRequest) => GO_SDK.test(headers['user-agent'] ?? '')
