import type { Static } from '@sinclair/typebox'
import { AddedMember, AddMemberBody, Member, MemberParams, UpdateMemberBody } from '../../schemas/members.ts'
import { OrganizationParams } from '../../schemas/organizations.ts'
import { NAME_LENGTH, NoContent, ListQuery } from '../../schemas/shapes.ts'
import type { MemberStatus, Role } from '../../schemas/users.ts'
import { hashToken, mintSecret } from '../crypto/bearer.ts'
import { tampered, transaction, type Db } from '../db/database.ts'
import { endingOf, lockTokensOfMember } from '../db/grants.ts'
import { holdMemberships, reachedLimit } from '../db/memberships.ts'
import { requireScope, requireSecondFactor } from '../http/access.ts'
import { actorOf, principalOf } from '../http/actor.ts'
import { requireCurrent } from '../http/etags.ts'
import { afterCommit } from '../http/idempotency.ts'
import { requireRoom } from '../http/plan-limits.ts'
import type { Domain } from '../http/types.ts'
import { membershipAdded, membershipChanged, membershipInvitation, membershipOffered, type Message } from '../mail/messages.ts'
import type { Room } from '../mail/outbox.ts'
import { holdCaller, recordEvent } from '../repositories/audit.ts'
import {
  deleteMember, findMember, holdOtherOwners, listMembers, lockMember, updateMember, type MemberRow
} from '../repositories/members.ts'
import { lockPlan } from '../repositories/plans.ts'
import type { Principal } from '../repositories/principals.ts'
import { createMember, createPasswordLink, createUser, findUserByEmail } from '../repositories/users.ts'
import { canonicalEmail, isEmail } from '../rules/emails.ts'
import { fail, refuse } from '../rules/errors.ts'
import { parseId } from '../rules/ids.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { canonicalRole, grants, holdsRole } from '../rules/roles.ts'

const toItem = ({ is_verified, ...attributes }: MemberRow) =>
  ({ type: 'members' as const, id: String(attributes.user_id), attributes })

async function findItem (db: Db, organizationId: string, id: string) {
  const row = await findMember(db, organizationId, Number(id))
  return row && toItem(row)
}

/** People in an organization, and what they are there. */
export const members: Domain = async (app) => {
  app.get('/organizations/:organization/members', {
    config: { access: 'member:read', at: 'organization' },
    schema: {
      operationId: 'listMembers',
      tags: ['members'],
      summary: 'List the members of an organization, those who are invited too',
      params: OrganizationParams,
      querystring: ListQuery,
      response: { 200: Member.list }
    },
    handler: async (request) => {
      const page = pageOf(request.query)
      const { rows, total } = await listMembers(app.lists, principalOf(request).organization.id, page)
      return { data: rows.map(toItem), meta: pageMeta(page, total, rows.length) }
    }
  })

  app.get('/organizations/:organization/members/:member', {
    config: { access: 'member:read', at: 'organization', tagged: true },
    schema: {
      operationId: 'getMember',
      tags: ['members'],
      summary: 'Get a member',
      params: MemberParams,
      response: { 200: Member.one }
    },
    handler: async (request) => {
      const id = parseId(request.params.member) ?? fail('not_found')
      return { data: await findItem(app.reads, principalOf(request).organization.id, String(id)) ?? fail('not_found') }
    }
  })

  app.post('/organizations/:organization/members', {
    config: {
      access: 'member:create',
      at: 'organization',
      limitOfEffect: 'memberships',
      tagged: true,
      judge: (request) => judgeAddition(principalOf(request), request.body as Static<typeof AddMemberBody>),
      audit: 'member.create',
      errors: ['role_not_held', 'already_member', 'memberships_full', 'plan_limit_reached', 'integrity_error']
    },
    schema: {
      operationId: 'addMember',
      tags: ['members'],
      summary: 'Add somebody by their e-mail address; an address without an account is invited',
      params: OrganizationParams,
      body: AddMemberBody,
      response: { 201: AddedMember }
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const { organization } = principal
      const { email } = request.body
      const role = canonicalRole(request.body.role)
      const secret = mintSecret()
      let room: Room | undefined
      const added = await transaction(app.db, async (db) => {
        await app.countEffect(request, reply)
        room ??= roomFor(principal, email)
        // Of two at the last seat one comes second: the organization is held.
        await lockPlan(db, organization.id) ?? fail('not_found')
        const user = await findOrInvite(db, email)
        const known = await findMember(db, organization.id, user.id)
        if (known !== undefined) fail('already_member', { status: known.status })
        await requireRoom(db, organization.id, 'members')
        // Only who has set a password by a link has shown that the address is theirs.
        const invited_by = principal.person?.user_id ?? null
        const member = { organization_id: organization.id, user_id: user.id, role, invited_by }
        const made = await createMember(db, { ...member, status: user.is_verified ? 'active' : 'invited' }, 'others')
        if ('limit' in made) return fail('memberships_full')
        const { status } = made
        // A link that nobody could bring would only make the one void that somebody has.
        if (!user.is_verified && room !== undefined) await createPasswordLink(db, hashToken(secret), user.id)
        await recordEvent(db, actorOf(request), {
          action: 'member.create', resource_type: 'member', resource_id: String(user.id), details: { role, status }
        })
        return await findMember(db, organization.id, user.id) ?? tampered()
      }, request).catch((error: unknown) => {
        room?.release()
        throw error
      })
      const place = { service: app.issuer(), organization: organization.name, role }
      afterCommit(request, () => post(room, added, added.status === 'active'
        ? membershipAdded({ ...place, name: added.name })
        : added.is_verified
          ? membershipOffered({ ...place, name: added.name, link: `${app.issuer()}/account` })
          : membershipInvitation({ ...place, link: `${app.issuer()}/account/set-password/${secret}` })), () => room?.release())
      return reply.code(201).send({ data: toItem(added), message: howTold(added, room !== undefined) })
    }
  })

  app.patch('/organizations/:organization/members/:member', {
    config: {
      access: 'member:update',
      at: 'organization',
      limitOfEffect: 'memberships',
      tagged: true,
      changes: findItem,
      audit: 'member.update',
      errors: ['role_not_held', 'last_owner', 'memberships_full']
    },
    schema: {
      operationId: 'updateMember',
      tags: ['members'],
      summary: 'Give a member another role',
      params: MemberParams,
      body: UpdateMemberBody,
      response: { 200: Member.one }
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const { organization } = principal
      const id = parseId(request.params.member) ?? fail('not_found')
      const role = canonicalRole(request.body.role)
      await app.countEffect(request, reply)
      const updated = await transaction(app.db, async (db) => {
        await lockPlan(db, organization.id) ?? fail('not_found')
        // Accounts go before memberships (0029): the one that owns more, or those that own what this one leaves.
        const { owned } = role === 'owner' ? await holdMemberships(db, id) : { owned: 0 }
        const otherOwners = role === 'owner' ? undefined : await holdOtherOwners(db, organization.id, id)
        const member = await lockMember(db, organization.id, id) ?? fail('not_found')
        await requireCurrent(db, request, String(id))
        requireRole(principal, member.role)
        requireRole(principal, role)
        const by = request.user?.user.id === id ? 'oneself' : 'others'
        if (member.role !== role && reachedLimit({ joined: 0, owned }, role, by) !== undefined) fail('memberships_full')
        if (otherOwners !== undefined) keepAnOwner(member, otherOwners)
        // Before the change: somebody may change their own role, and is the caller of that.
        await recordEvent(db, actorOf(request), {
          action: 'member.update',
          resource_type: 'member',
          resource_id: String(id),
          details: { from: member.role, to: role }
        })
        await updateMember(db, organization.id, id, role)
        return await findMember(db, organization.id, id) ?? tampered()
      }, request)
      tell(principal, updated, role)
      return { data: toItem(updated) }
    }
  })

  app.delete('/organizations/:organization/members/:member', {
    config: {
      // Of one's own membership it is enough that it was granted to the application: whoever joined may leave.
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
      tags: ['members'],
      summary: 'Remove a member, or leave; API tokens that they made in the organization end',
      params: MemberParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const { organization } = principal
      const id = parseId(request.params.member)
      const isOwn = request.user?.user.id === id
      // Whoever cannot do anything else there, because they have none, may leave.
      if (!isOwn && organization.require_second_factor) requireSecondFactor(app, principal)
      if (!isOwn || !grants(principal.granted, 'member:delete')) requireScope(request, 'member:delete')
      if (id === undefined) fail('not_found')
      const removed = await transaction(app.db, async (db) => {
        // The organization first: of two who take from one another what they need, one comes second.
        await lockPlan(db, organization.id) ?? fail('not_found')
        const otherOwners = await holdOtherOwners(db, organization.id, id)
        const member = await lockMember(db, organization.id, id) ?? fail('not_found')
        await requireCurrent(db, request, String(id))
        if (!isOwn) requireRole(principal, member.role)
        keepAnOwner(member, otherOwners)
        const seen = await findMember(db, organization.id, id) ?? tampered()
        await holdCaller(db, actorOf(request))
        const tokens = await lockTokensOfMember(db, organization.id, id)
        // Before the delete: somebody may leave, and is the caller of that.
        await recordEvent(db, actorOf(request), {
          action: 'member.delete',
          resource_type: 'member',
          resource_id: String(id),
          details: { role: member.role, ...endingOf(tokens.ended, organization.id) }
        })
        await deleteMember(db, organization.id, id, tokens)
        return seen
      }, request)
      app.removals.wake()
      tell(principal, removed, null)
      return reply.code(204).send(null)
    }
  })

  function howTold ({ status, is_verified }: MemberRow, isMailed: boolean): string {
    if (status === 'active' && is_verified) return 'They are a member from now on.'
    // The same whether somebody has an account: that is nobody's business who only knows an address.
    if (isMailed) return 'An invitation is on its way by e-mail.'
    const reason = app.outbox.isOpen
      ? 'There are too many e-mails at the moment, so none is sent to them.'
      : 'This service sends no e-mail.'
    return `${reason} They accept on ${app.issuer()}/account; without an account, whoever runs the service makes a link with: user password --email ADDRESS`
  }

  function tell (principal: Principal, member: MemberRow, role: Role | null) {
    // Who has not joined yet has not heard of it from us, but by their invitation.
    if (member.status !== 'active') return
    const organization = principal.organization.name
    post(roomFor(principal, member.email), member, membershipChanged({
      name: member.name, service: app.issuer(), organization, role
    }))
  }

  function roomFor ({ organization, person }: Principal, email: string): Room | undefined {
    return app.outbox.reserve(
      { organization: organization.id, person: person?.user_id ?? null }, canonicalEmail(email)
    )
  }

  function post (room: Room | undefined, { user_id, email }: MemberRow, message: Message) {
    room?.post({ userId: user_id, to: email, ...message })
  }
}

/** The account of an address; where there is none, one that nobody can use before its address is verified. */
async function findOrInvite (db: Db, email: string): Promise<{ id: number, is_verified: boolean }> {
  const known = await findUserByEmail(db, email)
  if (known !== undefined) return known
  const name = email.split('@')[0]!.slice(0, NAME_LENGTH)
  const id = await createUser(db, { email, name, password_hash: null })
  // Somebody else invited the same address meanwhile; or its account was changed outside the service.
  return id === undefined ? await findUserByEmail(db, email) ?? tampered() : { id, is_verified: false }
}

function keepAnOwner ({ role, status }: { role: Role, status: MemberStatus }, otherOwners: number) {
  if (role === 'owner' && status === 'active' && otherOwners === 0) fail('last_owner')
}

function judgeAddition (principal: Principal, { email, role }: Static<typeof AddMemberBody>) {
  if (!isEmail(email)) refuse('email', 'Expected an e-mail address')
  requireRole(principal, canonicalRole(role))
}

function requireRole (principal: Principal, role: Role) {
  if (!holdsRole(principal, role)) fail('role_not_held', { role })
}
