import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import { RevokeAnswer, RevokeBody } from '../../../schemas/oauth.ts'
import { hashToken, isCredential } from '../../crypto/bearer.ts'
import { endConsole } from '../../db/callers/console-tokens.ts'
import { transaction } from '../../changes/transaction.ts'
import type { Db } from '../../db/database.ts'
import type { Domain } from '../../http/routes/types.ts'
import { findUserOfToken, revokeByToken } from '../../repositories/people/oauth.ts'
import { FORM_BODY, parametersIn } from './body.ts'
import { clientInBasic, enabledClient } from './client.ts'
import { recordForUser } from './personal-events.ts'
import { errorAnswers } from './token.ts'

export const revoke: Domain = async (app) => {
  app.post('/revoke', {
    config: { access: 'public', limit: 'oauth_revoke', audit: 'oauth.revoke', responseFormat: 'oauth' },
    validatorCompiler: () => () => true,
    schema: {
      operationId: 'revokeToken',
      tags: ['oauth'],
      summary: 'Revoke the access token and refresh token of a grant (RFC 7009): 200 also for unknown tokens',
      ...FORM_BODY,
      body: RevokeBody,
      response: { 200: RevokeAnswer, ...errorAnswers(400, 413, 415, 429, 500, 503) }
    },
    handler: async (request, reply) => {
      const parameters = parametersIn(request)
      const [token, id] = [parameters.get('token') ?? '', parameters.get('client_id') ?? clientInBasic(request) ?? '']
      const client = await enabledClient(app, id)
      if (client !== undefined && (isCredential('rt', token) || isCredential('at', token))) {
        await transaction(app.db, async (db) => {
          if (client.id === CONSOLE_CLIENT) return endTokensOfConsole(db, token)
          const grant = await revokeByToken(db, hashToken(token), client.id)
          if (grant !== undefined) {
            await recordForUser(
              db, request, { id: grant.user_id, name: client.name }, 'oauth.revoke',
              { grant: grant.id, client: client.id }, grant.ended
            )
          }
        }, request)
      }
      return reply.headers({ 'cache-control': 'no-store', pragma: 'no-cache' }).send({})
    }
  })
}

async function endTokensOfConsole (db: Db, token: string) {
  const user_id = await findUserOfToken(db, hashToken(token), CONSOLE_CLIENT)
  if (user_id !== undefined) await endConsole(db, user_id)
}
