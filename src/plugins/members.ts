import { Member, MemberParams, UpdateMemberBody, type MemberAttributes } from '../../schemas/members.ts'
import { NamedListQuery, NoContent } from '../../schemas/shapes.ts'
import type { Role } from '../../schemas/users.ts'
import { change } from '../changes/change.ts'
import { tampered, type Db } from '../db/database.ts'
import { lockMemberships, reachedLimit } from '../repositories/people/users.ts'
import { requireScope, requireSecondFactor } from '../http/guard/access.ts'
import { actorOf, principalOf } from '../http/routes/actor.ts'
import { requireCurrent } from '../http/repeats/etags.ts'
import { requireRole } from '../http/routes/requirements.ts'
import type { Domain } from '../http/routes/types.ts'
import { membershipChanged } from '../mail/messages.ts'
import { eventOf } from '../repositories/audit/audit.ts'
import { countOtherOwners, findMember, listMembers, lockMember, updateMember } from '../repositories/people/members.ts'
import type { Principal } from '../repositories/people/principals.ts'
import { canonicalEmail } from '../rules/formats/emails.ts'
import { fail } from '../rules/api-error.ts'
import { parseId } from '../rules/formats/ids.ts'
import { answerPage } from '../rules/pagination.ts'
import { canonicalRole, grants } from '../rules/roles.ts'
import { deleteUngiven, endMembership, isLastOwner, leftOf } from '../vault/memberships.ts'

const toItem = (attributes: MemberAttributes) =>
  ({ type: 'members' as const, id: String(attributes.user_id), attributes })

async function findItem (db: Db, organizationId: string, id: string) {
  const row = await findMember(db, organizationId, Number(id))
  return row && toItem(row)
}

/** The members of an organization and their roles. A person joins through an invitation (`invitations.ts`). */
export const members: Domain = async (app) => {
  app.get('/organizations/:organization/members', {
    config: { access: 'member:read', at: 'organization' },
    schema: {
      operationId: 'listMembers',
      summary: 'List the members of an organization, without open invitations',
      description: 'A member has one role in the organization; teams add roles in projects.',
      querystring: NamedListQuery,
      response: { 200: Member.list }
    },
    handler: async (request) => answerPage(request.query, toItem, (page) =>
      listMembers(app.lists, principalOf(request).organization.id, page))
  })

  app.get('/organizations/:organization/members/:member', {
    config: { access: 'member:read', at: 'organization', etag: true },
    schema: {
      operationId: 'getMember',
      summary: 'Get a member',
      description: 'Returns the role in the organization; teams add roles in projects.',
      params: MemberParams,
      response: { 200: Member.one }
    },
    handler: async (request) => {
      const id = parseId(request.params.member) ?? fail('not_found')
      return { data: await findItem(app.reads, principalOf(request).organization.id, String(id)) ?? fail('not_found') }
    }
  })

  app.patch('/organizations/:organization/members/:member', {
    config: {
      access: 'member:update',
      at: 'organization',
      limitOfEffect: 'memberships',
      etag: true,
      changes: findItem,
      audit: 'member.update',
      errors: ['role_not_held', 'last_owner', 'memberships_full']
    },
    schema: {
      operationId: 'updateMember',
      summary: 'Change the role of a member',
      description: 'It applies from the next request on, also to API tokens of the member. Tokens of the organization ' +
        'that the member made stay as they are: `listApiTokens` lists them by `owner` and `created_by`.',
      params: MemberParams,
      body: UpdateMemberBody,
      response: { 200: Member.one }
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const id = parseId(request.params.member) ?? fail('not_found')
      const role = canonicalRole(request.body.role)
      await app.countEffect(request, reply)
      const { id: organizationId } = principal.organization
      const { body, written: { updated } } = await change(app.db, actorOf(request), {
        async load (db) {
          // Locks the account of the new owner, or of the other owners. Lock order: accounts before memberships
          // (decision 0029).
          const { owned } = role === 'owner' ? await lockMemberships(db, id) : { owned: 0 }
          const otherOwners = role === 'owner'
            ? undefined
            : await countOtherOwners(db, organizationId, id, { locks: true })
          const member = await lockMember(db, organizationId, id) ?? fail('not_found')
          await requireCurrent(db, request, String(id))
          return { owned, otherOwners, member }
        },
        decide ({ owned, otherOwners, member }) {
          requireRole(principal, member.role)
          requireRole(principal, role)
          if (member.role !== role && reachedLimit({ joined: 0, owned }, role) !== undefined) fail('memberships_full')
          if (otherOwners !== undefined && isLastOwner(member, otherOwners)) fail('last_owner')
          return {
            async write (db) {
              await updateMember(db, organizationId, id, role)
              const withdrawn = await deleteUngiven(db, organizationId)
              const left = await leftOf(db, organizationId, id)
              return { updated: await findMember(db, organizationId, id) ?? tampered(), withdrawn, left }
            },
            events: ({ withdrawn, left }) =>
              [eventOf('member.update', id, { from: member.role, to: role, ...left }), ...withdrawn],
            answer: ({ updated }) => ({ body: { data: toItem(updated) } })
          }
        }
      })
      tell(principal, updated, role)
      return body
    }
  })

  app.delete('/organizations/:organization/members/:member', {
    config: {
      // A member can leave with any role; an application can do this for the member if it was granted `member:delete`.
      access: 'authenticated',
      at: 'organization',
      mayNeed: ['member:delete'],
      asksForSecondFactor: true,
      changes: findItem,
      audit: 'member.delete',
      errors: ['insufficient_permissions', 'role_not_held', 'last_owner']
    },
    schema: {
      operationId: 'removeMember',
      summary: 'Remove a member, or leave; API tokens created by the member in the organization end',
      description: 'The roles through teams end as well. The last owner cannot be removed. Tokens of the organization ' +
        'that the member made stay valid: `listApiTokens` lists them by `owner` and `created_by`.',
      params: MemberParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const { organization } = principal
      const id = parseId(request.params.member)
      const isOwn = request.user?.user.id === id
      // A member without the required second factor can still leave.
      if (!isOwn && organization.require_second_factor) requireSecondFactor(app, principal)
      if (!isOwn || !grants(principal.granted, 'member:delete')) requireScope(request, 'member:delete')
      if (id === undefined) fail('not_found')
      const { written: { member: removed } } = await change(app.db, actorOf(request), {
        decide: () => ({
          async write (db) {
            const ended = await endMembership(db, actorOf(request), id, async (member) => {
              await requireCurrent(db, request, String(id))
              if (!isOwn) requireRole(principal, member.role)
            })
            if (ended === 'last_owner') fail('last_owner')
            return ended === 'none' ? fail('not_found') : ended
          },
          events: ({ events }) => events
        })
      })
      app.removals.wake()
      if (removed !== undefined) tell(principal, removed, null)
      return reply.code(204).send(null)
    }
  })

  // Notifies the member by e-mail, except without a mail server or if the e-mail queue is full.
  function tell ({ organization, person }: Principal, { user_id, email, name }: MemberAttributes, role: Role | null) {
    const reservation = app.outbox.reserve(
      { organization: organization.id, person: person?.user_id ?? null }, canonicalEmail(email)
    )
    const message = membershipChanged({ name, service: app.issuer(), organization: organization.name, role })
    reservation?.post({ about: `user ${user_id}`, to: email, ...message })
  }
}
