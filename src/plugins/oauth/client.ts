import type { FastifyInstance, FastifyRequest } from 'fastify'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import { findClient, type Client } from '../../repositories/people/oauth.ts'
import type { Parameters } from './body.ts'
import { failOAuth, OAuthError } from './oauth-errors.ts'

const MALFORMED_BASIC = { description: 'The header Authorization is not valid HTTP Basic', basic: true }

/** An enabled client. The client of the console is enabled only if the configuration turns on the console. */
export async function enabledClient ({ db, config }: FastifyInstance, id: string): Promise<Client | undefined> {
  return id === CONSOLE_CLIENT && !config.console ? undefined : findClient(db, id)
}

/** The client of a token request. Throws an `OAuthError` if there is no enabled client with this id. */
export async function clientOf (
  app: FastifyInstance, request: FastifyRequest, parameters: Parameters
): Promise<Client> {
  const { id, isBasic } = clientIdOf(request, parameters)
  const client = await enabledClient(app, id)
  if (client === undefined) throw new OAuthError('invalid_client', { basic: isBasic })
  return client
}

/**
 * The id of the client of a token request. All clients are public, so `client_id` is enough. HTTP Basic with an empty
 * password is also accepted, because some libraries try HTTP Basic first (RFC 6749, 2.3.1).
 */
export function clientIdOf (request: FastifyRequest, parameters: Parameters): { id: string, isBasic: boolean } {
  const basic = basicOf(request)
  const named = parameters.get('client_id')
  if (basic !== undefined && named !== undefined && basic.id !== named) {
    failOAuth('invalid_request', 'client_id is not the user name of HTTP Basic')
  }
  const id = basic?.id ?? named ?? failOAuth('invalid_request', 'client_id is missing')
  // Public clients have no secret, so every secret is wrong.
  const isBasic = basic !== undefined
  if ((basic?.password ?? '') !== '' || parameters.has('client_secret')) {
    throw new OAuthError('invalid_client', { description: 'client_secret must be omitted: all clients are public', basic: isBasic })
  }
  return { id, isBasic }
}

/** The client id from HTTP Basic with an empty password; otherwise undefined. */
export function clientInBasic (request: FastifyRequest): string | undefined {
  try {
    const basic = basicOf(request)
    return basic?.password === '' ? basic.id : undefined
  } catch (error) {
    if (error instanceof OAuthError) return undefined
    throw error
  }
}

function basicOf ({ headers }: FastifyRequest): { id: string, password: string } | undefined {
  const header = headers.authorization ?? ''
  if (!/^Basic\b/i.test(header)) return undefined
  const [, encoded] = /^Basic +([A-Za-z0-9+/]+={0,2})$/i.exec(header) ?? []
  if (encoded === undefined) throw new OAuthError('invalid_client', MALFORMED_BASIC)
  const [id = '', ...rest] = Buffer.from(encoded, 'base64').toString('utf8').split(':')
  try {
    return {
      id: decodeURIComponent(id.replace(/\+/g, ' ')), password: decodeURIComponent(rest.join(':').replace(/\+/g, ' '))
    }
  } catch {
    throw new OAuthError('invalid_client', MALFORMED_BASIC)
  }
}
