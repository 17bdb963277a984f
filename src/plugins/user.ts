import { principalOf } from '../http/actor.ts'
import { PrincipalAnswer, type TokenPrincipalAnswer, type UserAnswer } from '../../schemas/users.ts'
import type { Domain } from '../http/types.ts'
import { listMemberships } from '../repositories/users.ts'

export const user: Domain = async (app) => {
  app.get('/user', {
    config: { access: 'authenticated', whenInactive: true },
    schema: {
      operationId: 'getUser',
      tags: ['users'],
      summary: 'Get whoever calls, a user or an API token, with the organizations that they can access',
      response: { 200: PrincipalAnswer }
    },
    handler: async (request, reply) => {
      const answer = request.user === null ? ofToken() : await ofUser(request.user.user)
      return reply.type('application/json; charset=utf-8').serializer(JSON.stringify).send(answer)

      async function ofUser ({
        id, name, email, is_verified, second_factor_id, created_at, updated_at
      }: NonNullable<typeof request.user>['user']): Promise<UserAnswer> {
        const memberships = await listMemberships(app.db, id)
        return {
          data: {
            type: 'users',
            id: String(id),
            attributes: {
              name, email, is_verified, has_second_factor: second_factor_id !== null, created_at, updated_at
            },
            relationships: linkage(memberships)
          },
          included: memberships.map(({ id: ulid, name, slug, role, joined_at }) =>
            ({ type: 'organizations', id: ulid, attributes: { ulid, name, slug, role, joined_at } }))
        }
      }

      function ofToken (): TokenPrincipalAnswer {
        const { id, name, scopes, expires_at, organization } = principalOf(request)
        return {
          data: {
            type: 'api-tokens',
            id: String(id),
            attributes: { name, abilities: [...scopes], expires_at },
            relationships: linkage([organization])
          },
          included: [{
            type: 'organizations',
            id: organization.id,
            attributes: { ulid: organization.id, name: organization.name, slug: organization.slug }
          }]
        }
      }
    }
  })
}

const linkage = (organizations: readonly { id: string }[]) =>
  ({ organizations: { data: organizations.map(({ id }) => ({ type: 'organizations' as const, id })) } })
