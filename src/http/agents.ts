import type { FastifyInstance, FastifyRequest } from 'fastify'
import { LEVELS, type LevelNames } from '../../schemas/secrets.ts'

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

// All that is read or answered otherwise for one kind of client, and nothing else looks at `User-Agent`.
const EXCEPTIONS = {
  /** It names a level by its deepest slug, and knows no `level`. */
  levelBySlugs: {
    body: (body) => {
      const { target, environment } = body as Partial<LevelNames>
      const level = environment !== undefined ? 'environment' : target !== undefined ? 'target' : 'project'
      return body.scope === 'project' ? body : { level: level satisfies typeof LEVELS[number], ...body }
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
  app.addHook('onRequest', (request, reply, done) => {
    const { goSdk } = request.routeOptions.config
    if (goSdk !== undefined) reply.header('vary', `${String(reply.getHeader('vary'))}, User-Agent`)
    done()
  })
  app.addHook('preValidation', (request, _reply, done) => {
    const { body: asMeant } = exceptionFor(request)
    const { body } = request
    if (asMeant !== undefined && typeof body === 'object' && body !== null) {
      request.body = asMeant(body as Record<string, unknown>)
    }
    done()
  })
  app.addHook('preSerialization', (request, reply, answer, done) => {
    const { answer: asRead } = exceptionFor(request)
    if (asRead === undefined || reply.statusCode >= 300) return done(null, answer)
    // The schema is that of the answer for everybody else.
    reply.serializer(JSON.stringify)
    done(null, asRead(answer as Record<string, unknown>))
  })
}

function exceptionFor ({ headers, routeOptions: { config: { goSdk } } }: FastifyRequest): Exception {
  return goSdk !== undefined && GO_SDK.test(headers['user-agent'] ?? '') ? EXCEPTIONS[goSdk] : {}
}
