import type { FastifyRequest } from 'fastify'
import type { Db } from '../../db/database.ts'
import { findClient, type Client } from '../../repositories/people/oauth.ts'
import type { Parameters } from './body.ts'
import { failOAuth, OAuthError } from './errors.ts'

/**
 * The client of a token request. All clients are public, so `client_id` is enough. HTTP Basic with an empty password is
 * accepted, too, because some libraries try it first (RFC 6749, 2.3.1).
 */
export async function clientOf (db: Db, request: FastifyRequest, parameters: Parameters): Promise<Client> {
  const basic = basicOf(request)
  const named = parameters.get('client_id')
  if (basic !== undefined && named !== undefined && basic.id !== named) failOAuth('invalid_request')
  const id = basic?.id ?? named ?? failOAuth('invalid_request')
  // Public clients have no secret, so every secret is wrong.
  const client = (basic?.password ?? '') === '' && !parameters.has('client_secret')
    ? await findClient(db, id)
    : undefined
  if (client === undefined) throw new OAuthError('invalid_client', basic !== undefined)
  return client
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
  if (encoded === undefined) throw new OAuthError('invalid_client', true)
  const [id = '', ...rest] = Buffer.from(encoded, 'base64').toString('utf8').split(':')
  try {
    return {
      id: decodeURIComponent(id.replace(/\+/g, ' ')), password: decodeURIComponent(rest.join(':').replace(/\+/g, ' '))
    }
  } catch {
    throw new OAuthError('invalid_client', true)
  }
}
