import type { FastifyRequest } from 'fastify'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import {
  JWT_BEARER, OAuthErrorBody, TOKEN_EXCHANGE, TokenAnswer, TokenBody, type OAuthErrorCode
} from '../../../schemas/oauth.ts'
import { hashToken, isCredential, mintCredential, verifierMatches } from '../../crypto/bearer.ts'
import { retireTokensOfConsole } from '../../db/callers/console-tokens.ts'
import { transaction } from '../../changes/transaction.ts'
import type { Db } from '../../db/database.ts'
import type { Domain } from '../../http/routes/types.ts'
import {
  countWrongVerifier, createPair, lockCode, lockPair, retirePair, revokeGrant, useCode, type Client,
  type LiveGrant
} from '../../repositories/people/oauth.ts'
import { FORM_BODY, parametersIn, required, type Parameters } from './body.ts'
import { clientOf } from './client.ts'
import { lifetimeOf } from './console.ts'
import { createExchange } from './exchange.ts'
import { failOAuth } from './oauth-errors.ts'
import { recordForUser } from './personal-events.ts'

const VERIFIER = /^[A-Za-z0-9._~-]{43,128}$/
const VERIFIER_RULE = 'code_verifier must have 43 to 128 letters, digits or - . _ ~'
// One text for all reasons, because the response must not tell which of the values is right.
const WRONG_CODE = 'code is invalid, expired or used, or client_id, redirect_uri or code_verifier are not those of the authorization request'
const WRONG_REFRESH_TOKEN = 'refresh_token is invalid, expired or used, or was issued to another client_id'

export const token: Domain = async (app) => {
  const exchange = createExchange(app)

  app.post('/token', {
    config: { access: 'public', limit: 'oauth_token', audit: 'none', responseFormat: 'oauth' },
    validatorCompiler: () => () => true,
    schema: {
      operationId: 'getAccessToken',
      tags: ['oauth'],
      summary: 'Exchange a code, a refresh token, or the assertion of a workload for tokens (RFC 6749, 7523, 8693)',
      ...FORM_BODY,
      body: TokenBody,
      response: { 200: TokenAnswer, ...errorAnswers(400, 401, 413, 415, 429, 500, 503) }
    },
    handler: async (request, reply) => {
      const parameters = parametersIn(request)
      const issued = await issueFor(request, parameters, required(parameters, 'grant_type'))
      return reply.headers({
        'cache-control': 'no-store', pragma: 'no-cache'
      }).type('application/json').serializer(JSON.stringify).send(issued)
    }
  })

  async function issueFor (request: FastifyRequest, parameters: Parameters, type: string): Promise<TokenAnswer> {
    switch (type) {
      case 'authorization_code': return redeem(request, await clientOf(app, request, parameters), parameters)
      case 'refresh_token': return refresh(request, await clientOf(app, request, parameters), parameters)
      case TOKEN_EXCHANGE:
      case JWT_BEARER: return exchange(request, parameters, type)
      default: return failOAuth('unsupported_grant_type')
    }
  }

  // Redeems a code (RFC 6749, 4.1.3). The transaction returns errors instead of throwing them, so that the changes of a
  // refused request (a counted attempt, a revoked grant) are committed.
  async function redeem (request: FastifyRequest, client: Client, parameters: Parameters): Promise<TokenAnswer> {
    const [code, verifier, redirect] = ['code', 'code_verifier', 'redirect_uri'].map((name) =>
      required(parameters, name)) as [string, string, string]
    if (!VERIFIER.test(verifier)) failOAuth('invalid_grant', VERIFIER_RULE)
    if (!isCredential('ac', code)) failOAuth('invalid_grant', WRONG_CODE)
    const hash = hashToken(code)
    return settle(await transaction(app.db, async (db) => {
      const found = await lockCode(db, hash)
      if (found === undefined || found.grant.client_id !== client.id || found.redirect_uri !== redirect ||
        found.code_challenge === null) {
        return 'invalid_grant'
      }
      if (!verifierMatches(verifier, found.code_challenge)) {
        await countWrongVerifier(db, hash)
        return 'invalid_grant'
      }
      // A code sent twice may be stolen: revoke all tokens issued for this code (RFC 6749, 4.1.2).
      if (found.is_used) return reuse(db, request, found.grant, 'code')
      if (found.is_expired || !found.grant.is_live) return 'invalid_grant'
      await useCode(db, hash)
      return issue(db, found.grant, found.scopes ?? found.grant.scopes)
    }, request), WRONG_CODE)
  }

  // Refreshes tokens (RFC 6749, 6) with rotation and reuse detection (RFC 9700, 4.14.2).
  async function refresh (request: FastifyRequest, client: Client, parameters: Parameters): Promise<TokenAnswer> {
    const sent = required(parameters, 'refresh_token')
    if (!isCredential('rt', sent)) failOAuth('invalid_grant', WRONG_REFRESH_TOKEN)
    return settle(await transaction(app.db, async (db) => {
      const found = await lockPair(db, hashToken(sent))
      if (found === undefined || found.grant.client_id !== client.id) return 'invalid_grant'
      if (found.is_used) return reuse(db, request, found.grant, 'refresh_token')
      if (found.is_expired || !found.grant.is_live) return 'invalid_grant'
      // As at the authorization endpoint, `*` requests all available scopes: here, all granted scopes.
      const scope = parameters.get('scope') ?? '*'
      const asked = scope === '*' ? found.grant.scopes : [...new Set(scope.split(' '))]
      if (!asked.every((one) => found.grant.scopes.includes(one))) return 'invalid_scope'
      await retirePair(db, found.id)
      return issue(db, found.grant, asked)
    }, request), WRONG_REFRESH_TOKEN)
  }

  async function reuse (
    db: Db, request: FastifyRequest, { id, user_id, client_id, is_live }: LiveGrant & { is_live: boolean }, what: string
  ): Promise<OAuthErrorCode> {
    if (!is_live) return 'invalid_grant'
    // API tokens end with the grant of the console. So the grant stays, and only its access tokens end (decision 0070).
    const isConsole = client_id === CONSOLE_CLIENT
    if (isConsole) await retireTokensOfConsole(db, user_id)
    const ended = isConsole ? [] : await revokeGrant(db, id)
    await recordForUser(
      db, request, { id: user_id, name: 'an application' }, 'oauth.reuse', { grant: id, credential: what }, ended
    )
    return 'invalid_grant'
  }
}

async function issue (db: Db, grant: LiveGrant, scopes: string[]): Promise<TokenAnswer> {
  const [access_token, refresh_token] = [mintCredential('at'), mintCredential('rt')]
  const lifetime = lifetimeOf(grant.client_id, scopes)
  await createPair(
    db, { grant_id: grant.id, access_hash: hashToken(access_token), refresh_hash: hashToken(refresh_token), scopes },
    lifetime
  )
  return {
    access_token,
    token_type: 'Bearer',
    expires_in: lifetime.seconds,
    ...(lifetime.isRefreshable && { refresh_token }),
    scope: scopes.join(' ')
  }
}

function settle (outcome: TokenAnswer | OAuthErrorCode, wrongGrant: string): TokenAnswer {
  if (typeof outcome === 'string') failOAuth(outcome, outcome === 'invalid_grant' ? wrongGrant : undefined)
  return outcome
}

/** Response schemas of OAuth errors, for the OpenAPI document. */
export function errorAnswers (...statuses: number[]) {
  return Object.fromEntries(statuses.map((status) => [status, OAuthErrorBody(status)]))
}
