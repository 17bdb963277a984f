import { OrganizationParams } from '../../schemas/organizations.ts'
import { canonicalAbilities, type Ability } from '../../schemas/scopes.ts'
import { ListQuery, NoContent } from '../../schemas/shapes.ts'
import { ApiTokenList, CreateTokenBody, CreatedToken, TokenParams, type Restriction } from '../../schemas/tokens.ts'
import { hashToken, mintApiToken, tokenPrefix } from '../crypto/bearer.ts'
import { transaction, type Db } from '../db/database.ts'
import { actorOf, principalOf } from '../http/actor.ts'
import type { Domain } from '../http/types.ts'
import { recordEvent } from '../repositories/audit.ts'
import type { Principal } from '../repositories/principals.ts'
import { createToken, deleteTokens, findSlice, findSlices, listTokens } from '../repositories/tokens.ts'
import { fail, refuse } from '../rules/errors.ts'
import { parseId } from '../rules/ids.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { coversAll, isInside, type Slice } from '../rules/slices.ts'

export const tokens: Domain = async (app) => {
  app.get('/organizations/:organization/api-keys', {
    config: { access: 'api-token:read' },
    schema: {
      operationId: 'listApiTokens',
      tags: ['api-tokens'],
      summary: 'List API tokens, newest first; never their values',
      params: OrganizationParams,
      querystring: ListQuery,
      response: { 200: ApiTokenList }
    },
    handler: async (request) => {
      const page = pageOf(request.query)
      const { organization, slices } = principalOf(request)
      const { rows, total } = await listTokens(app.lists, organization.id, slices, page)
      return { data: rows, meta: pageMeta(page, total, rows.length) }
    }
  })

  app.post('/organizations/:organization/api-keys', {
    config: { access: 'api-token:create', audit: 'api-token.create', errors: ['integrity_error'] },
    schema: {
      operationId: 'createApiToken',
      tags: ['api-tokens'],
      summary: 'Create an API token; its value is in this answer and nowhere else',
      params: OrganizationParams,
      body: CreateTokenBody,
      response: { 201: CreatedToken }
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const { organization } = principal
      const { name, restrictions = [] } = request.body
      const abilities = abilitiesOf(request.body.abilities)
      const expires_at = expiryOf(request.body.expires_at)
      const token = mintApiToken(organization.id)
      const api_key = await transaction(app.db, async (db) => {
        const slices = await slicesOf(db, principal, restrictions)
        refuseMore(principal, { abilities, slices, expires_at })
        const created = await createToken(db, {
          organization_id: organization.id,
          name,
          token_hash: hashToken(token),
          token_prefix: tokenPrefix(token),
          abilities,
          slices,
          expires_at,
          made_by: principal
        })
        await recordEvent(db, actorOf(request), {
          action: 'api-token.create',
          resource_type: 'api-token',
          resource_id: created.id,
          details: { abilities: abilities.join(' ') }
        })
        return created
      })
      return reply.code(201).send({
        success: true, message: 'Keep the token now: it is not shown again.', token, api_key
      })
    }
  })

  app.delete('/organizations/:organization/api-keys/:id', {
    config: { access: 'api-token:delete', audit: 'api-token.delete' },
    schema: {
      operationId: 'deleteApiToken',
      tags: ['api-tokens'],
      summary: 'Revoke an API token; it is dead at once on every instance',
      params: TokenParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const { organization } = principal
      const id = parseId(request.params.id) ?? fail('not_found')
      await transaction(app.db, async (db) => {
        const found = await findSlices(db, organization.id, id) ?? fail('not_found')
        // A narrowed token sees and ends what lies inside its part of the hierarchy, and itself.
        if (id !== principal.id && !coversAll(principal.slices, found)) fail('not_found')
        // Before the delete: a token may end itself, and is the caller of that.
        await recordEvent(
          db, actorOf(request), { action: 'api-token.delete', resource_type: 'api-token', resource_id: String(id) }
        )
        await deleteTokens(db, organization.id, [id])
      })
      return reply.code(204).send(null)
    }
  })
}

// Exact spellings only. `*` stands alone: beside it every other ability would say nothing.
function abilitiesOf (spellings: readonly string[]): Ability[] {
  if (new Set(spellings).size !== spellings.length) refuse('abilities', 'An ability is given twice')
  if (spellings.includes('*') && spellings.length > 1) refuse('abilities', '* stands alone')
  return [...new Set(spellings.flatMap((spelling, i) =>
    canonicalAbilities(spelling) ?? refuse(`abilities.${i}`, 'Unknown ability')))]
}

function expiryOf (text: string | null | undefined): Date | null {
  if (text === undefined || text === null) return null
  const moment = new Date(text)
  if (moment.getUTCFullYear() > 9999) refuse('expires_at', 'Expected a year of four digits')
  return moment.getTime() > Date.now() ? moment : refuse('expires_at', 'Expected a moment in the future')
}

async function slicesOf (
  db: Db, { organization, scopes, slices: own }: Principal, restrictions: readonly Restriction[]
): Promise<Slice[]> {
  const slices: Slice[] = []
  for (const [i, restriction] of restrictions.entries()) {
    if (restriction.environment !== undefined && restriction.target === undefined) {
      refuse(`restrictions.${i}.target`, 'Required with environment')
    }
    const slice = await findSlice(db, organization.id, restriction)
    // A narrowed maker is not told whether what lies outside its own part exists.
    if (own.length > 0 && (slice === undefined || !isInside(own, slice))) {
      fail('insufficient_permissions', { required_scope: 'api-token:create', granted_scopes: [...scopes] })
    }
    slices.push(slice ?? refuse(`restrictions.${i}`, 'Names nothing in this organization'))
  }
  return slices
}

// No token makes one that holds more than it does itself: abilities, part of the hierarchy, life.
function refuseMore (maker: Principal, made: { abilities: Ability[], slices: Slice[], expires_at: Date | null }) {
  const granted_scopes = [...maker.scopes]
  const missing = maker.scopes.has('*') ? undefined : made.abilities.find((ability) => !maker.scopes.has(ability))
  if (missing !== undefined) fail('insufficient_permissions', { required_scope: missing, granted_scopes })
  const wider = !coversAll(maker.slices, made.slices)
  const longer = maker.expires_at !== null && (made.expires_at === null || made.expires_at > maker.expires_at)
  if (wider || longer) fail('insufficient_permissions', { required_scope: 'api-token:create', granted_scopes })
}
