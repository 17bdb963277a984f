import type { FastifyRequest } from 'fastify'
import type { ErrorCode } from '../../../schemas/errors.ts'
import { AcceptedInvitation, AcceptInvitationBody, OwnInvitationList, OwnInvitationParams } from '../../../schemas/invitations.ts'
import { ListQuery, NoContent } from '../../../schemas/shapes.ts'
import { PrincipalAnswer, type TokenPrincipalAnswer, type UserAnswer } from '../../../schemas/users.ts'
import { lockAccessToken } from '../../repositories/people/oauth.ts'
import { change } from '../../changes/change.ts'
import { changeThatCreates } from '../../changes/creation.ts'
import { personOf, principalOf } from '../../http/routes/actor.ts'
import { recordForPersonAlone } from '../../http/guard/personal-events.ts'
import type { Domain } from '../../http/routes/types.ts'
import {
  countInvitations, findInvitingOrganization, listInvitationsTo, showOwnPlaces, type OwnInvitation, type Shown
} from '../../repositories/people/invitations.ts'
import { readOrganization } from '../../repositories/levels/organizations.ts'
import type { Actor } from '../../repositories/audit/audit.ts'
import { showRestrictions } from '../../repositories/people/tokens.ts'
import { listMemberships } from '../../repositories/people/users.ts'
import { fail } from '../../rules/api-error.ts'
import { offsetOf, pageMeta, pageOf } from '../../rules/pagination.ts'
import { acceptInvitation, declineInvitation, JOINING, type Refusal } from '../../vault/memberships.ts'

/** Shows the caller, and lists, accepts and declines the invitations to a user. */
export const user: Domain = async (app) => {
  app.get('/user', {
    config: { access: 'authenticated', whenInactive: true, errors: ['integrity_error'] },
    schema: {
      operationId: 'getUser',
      summary: 'Get the caller, a user, an API token or a workload, with the organizations that the caller can access',
      description: 'Use this to check a token, and to find the organizations that it can access.',
      response: { 200: PrincipalAnswer }
    },
    handler: async (request, reply) => {
      const answer = request.user === null ? await ofToken() : await ofUser(request.user.user)
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

      async function ofToken (): Promise<TokenPrincipalAnswer> {
        const { type, id, name, scopes, slices, expires_at, organization } = principalOf(request)
        const restrictions = await showRestrictions(app.db, organization.id, slices)
        return {
          data: {
            type: type === 'workload' ? 'workloads' : 'api-tokens',
            id: String(id),
            attributes: { name, abilities: [...scopes], restrictions, expires_at },
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

  app.get('/user/invitations', {
    config: { access: 'authenticated', whenInactive: true, errors: ['user_required', 'integrity_error'] },
    schema: {
      operationId: 'listOwnInvitations',
      summary: 'List the open invitations of the calling user in all organizations',
      description: 'Send the access token of a user; an API token cannot be invited.',
      querystring: ListQuery,
      response: { 200: OwnInvitationList }
    },
    handler: async (request) => {
      const { user: { email } } = request.user ?? fail('user_required')
      const page = pageOf(request.query)
      const [{ rows: found }, total] = await Promise.all([
        listInvitationsTo(app.lists, email, { limit: page.per_page, offset: offsetOf(page) }),
        countInvitations(app.lists, { email })
      ])
      const rows = await showOwnPlaces(app.lists, found)
      return { data: rows.map(toInvitation), meta: pageMeta(page, total, rows.length) }
    }
  })

  app.post('/user/invitations/:invitation/accept', {
    config: {
      // This scope is required because every user, also without a membership, can grant it to an application.
      access: 'organization:create',
      audit: JOINING,
      errors: ['user_required', 'not_found', 'memberships_full', 'organization_full', 'conflict', 'integrity_error']
    },
    schema: {
      operationId: 'acceptInvitation',
      summary: 'Accept an invitation: the calling user becomes a member',
      description: 'The role of the invitation applies from the next request on, and so does its role in a place.',
      params: OwnInvitationParams,
      body: AcceptInvitationBody,
      response: { 200: AcceptedInvitation }
    },
    handler: async (request) => {
      const { id: access_token, user: person } = request.user ?? fail('user_required')
      const id = request.params.invitation.toUpperCase()
      const organizationId = await findInviter(request, access_token, person, id)
      const actor = personOf(request, organizationId, person)
      const { body } = await change(app.db, ofRequest(request, actor), {
        async load (db, counter) {
          await lockAccessToken(db, access_token)
          return counter
        },
        decide: (counter) => ({
          async write (db) {
            const accepted = await acceptInvitation(db, counter, id, person)
            if (accepted === 'organization_inactive') return fail(accepted, { status: counter.status })
            if (typeof accepted === 'string') return fail(REFUSALS[accepted])
            const organization = await readOrganization(db, organizationId) ?? fail('not_found')
            await recordForPersonAlone(db, request, person, 'member.join', { organization: organization.name })
            return { organization, ...accepted }
          },
          events: ({ events }) => events,
          answer: ({ organization: { name, slug }, role }) =>
            ({ body: { data: { type: 'organizations' as const, id: organizationId, attributes: { name, slug, role } } } })
        })
      })
      return body
    }
  })

  app.delete('/user/invitations/:invitation', {
    config: { access: 'member:delete', audit: 'invitation.decline', errors: ['user_required', 'not_found'] },
    schema: {
      operationId: 'declineInvitation',
      summary: 'Decline an invitation; the organization sees the decline, but nothing about the user',
      description: 'The invitation ends at once, and no longer takes a seat of the plan.',
      params: OwnInvitationParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const { id: access_token, user: person } = request.user ?? fail('user_required')
      const id = request.params.invitation.toUpperCase()
      const organizationId = await findInviter(request, access_token, person, id)
      await change(app.db, ofRequest(request, personOf(request, organizationId, person)), {
        load: async (db) => lockAccessToken(db, access_token),
        decide: () => ({
          async write (db) {
            const event = await declineInvitation(db, organizationId, id, person) ?? fail('not_found')
            const organization = await readOrganization(db, organizationId) ?? fail('not_found')
            await recordForPersonAlone(db, request, person, 'invitation.decline', { organization: organization.name })
            return event
          },
          events: (event) => [event]
        })
      })
      return reply.code(204).send(null)
    }
  })

  // A revoked caller gets 401, whether or not the invitation exists. A repeat gets the first response, also if the
  // first request has accepted the invitation meanwhile.
  async function findInviter (
    request: FastifyRequest, accessToken: number,
    { id: userId, email, name }: { id: number, email: string, name: string }, id: string
  ): Promise<string> {
    const organizationId = await findInvitingOrganization(app.db, email, id)
    if (organizationId !== undefined) return organizationId
    const actor = ofRequest(request, personOf(request, '', { id: userId, name }))
    await changeThatCreates(app.db, actor, {
      async load (db) {
        await lockAccessToken(db, accessToken)
        return fail('not_found')
      },
      decide: (never) => never
    })
    return fail('not_found')
  }
}

// The caller is a person who is not a member of the organization.
const ofRequest = ({ answering, waited }: FastifyRequest, person: Actor): Actor => ({ ...person, answering, waited })

const REFUSALS = {
  gone: 'not_found',
  memberships_full: 'memberships_full',
  organization_full: 'organization_full',
  tokens_left: 'conflict'
} as const satisfies Record<Exclude<Refusal, 'organization_inactive'>, ErrorCode>

const toInvitation = ({
  id, organization, role, invited_by, expires_at, created_at, place, place_role, place_names
}: Shown<OwnInvitation>) => ({
  type: 'invitations' as const,
  id,
  attributes: {
    organization, role, invited_by: invited_by?.name ?? null, expires_at, created_at, place, place_role, place_names
  }
})

const linkage = (organizations: readonly { id: string }[]) =>
  ({ organizations: { data: organizations.map(({ id }) => ({ type: 'organizations' as const, id })) } })
