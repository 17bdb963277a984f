import type { FastifyRequest } from 'fastify'
import { ulid } from 'ulidx'
import {
  Invitation, InvitationParams, MAX_OPEN_INVITATIONS, SendInvitationBody, SentInvitation, type InvitationAttributes
} from '../../../schemas/invitations.ts'
import { InviteMemberBody } from '../../../schemas/members.ts'
import { ListQuery, NoContent } from '../../../schemas/shapes.ts'
import type { Restriction } from '../../../schemas/tokens.ts'
import { change } from '../../changes/change.ts'
import { hashToken, mintSecret } from '../../crypto/bearer.ts'
import type { Db } from '../../db/database.ts'
import { requireScope } from '../../http/guard/access.ts'
import { requireRestriction } from '../../http/guard/authority.ts'
import { actorOf, makerOf, principalOf } from '../../http/routes/actor.ts'
import { requireCurrent } from '../../http/repeats/etags.ts'
import { requirePlanQuota, requireRole } from '../../http/routes/requirements.ts'
import type { Domain } from '../../http/routes/types.ts'
import { membershipInvitation } from '../../mail/messages.ts'
import type { MailReservation } from '../../mail/outbox.ts'
import { eventOf } from '../../repositories/audit/audit.ts'
import {
  countInvitations, createInvitation, deleteInvitation, findInvitation, listInvitations, renewInvitation,
  returnInvitationMail, showPlaces, takeInvitationMail, type Invitation as InvitationRow, type Inviter, type Shown
} from '../../repositories/people/invitations.ts'
import { isMemberAddress } from '../../repositories/people/members.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import { findSlice } from '../../repositories/people/tokens.ts'
import { canonicalEmail, isEmail } from '../../rules/formats/emails.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { answerPage } from '../../rules/pagination.ts'
import { canonicalRole, holdsProjectRole, scopesInProject } from '../../rules/roles.ts'
import { keepInherited } from '../../rules/slices.ts'
import { deleteUngiven, expireInvitations, placeIn } from '../../vault/memberships.ts'

type ShownInvitation = Shown<InvitationRow>

const toItem = ({ id, organization_id, invited_by, ...row }: ShownInvitation) => ({
  type: 'invitations' as const,
  id,
  attributes: {
    ...row, status: 'invited' as const, invited_by: invited_by && { ...invited_by, id: String(invited_by.id) }
  } satisfies InvitationAttributes
})

const asInviter = (principal: Principal): Inviter => {
  const { type, id, name } = makerOf(principal)
  return { type, id, name }
}

async function findItem (db: Db, organizationId: string, id: string) {
  const row = await findInvitation(db, organizationId, id)
  return row && toItem((await showPlaces(db, organizationId, [row]))[0]!)
}

function validatePlace ({ role, place, place_role }: InviteMemberBody) {
  if (place === undefined) {
    if (place_role !== undefined) refuse('place', 'Required with place_role')
    return
  }
  if (place_role === undefined) refuse('place_role', 'Required with place')
  if (role !== 'guest') refuse('role', 'Expected `guest` with a place')
  requireRestriction(place, 'place')
  if (scopesInProject(canonicalRole(place_role)).size === 0) {
    refuse('place_role', 'This role grants no permissions in a project')
  }
}

/** Ends the request with 403 or 422 if the caller may not give these roles. */
function requireRoles (request: FastifyRequest, { role, place_role }: Pick<InvitationRow, 'role' | 'place_role'>) {
  const principal = principalOf(request)
  requireRole(principal, role)
  if (place_role === null) return
  requireScope(request, 'team:update')
  if (!holdsProjectRole(principal, place_role)) fail('role_not_held', { role: place_role })
}

const rolesIn = ({ role, place_role }: InviteMemberBody): Pick<InvitationRow, 'role' | 'place_role'> =>
  ({ role: canonicalRole(role), place_role: place_role === undefined ? null : canonicalRole(place_role) })

async function findPlace (db: Db, organizationId: string, place: Restriction | undefined) {
  if (place === undefined) return null
  const found = await findSlice(db, organizationId, place)
  if (typeof found === 'string') return refuse(`place.${found}`, `There is no such ${found}`)
  return keepInherited([{ ...found.slice, inherited: place.inherited }], [])[0]!
}

/** Invitations of an organization. Through the API, a person joins an organization only by an invitation. */
export const invitations: Domain = async (app) => {
  app.post('/organizations/:organization/members', {
    config: {
      access: 'member:create',
      mayNeed: ['team:update'],
      at: 'organization',
      limitOfEffect: 'memberships',
      etag: true,
      rules: [{
        reads: ['email'],
        check: ({ body }) => {
          if (!isEmail((body as InviteMemberBody).email)) refuse('email', 'Expected an e-mail address')
        }
      }, { reads: ['role', 'place', 'place_role'], check: ({ body }) => { validatePlace(body as InviteMemberBody) } }],
      audit: 'invitation.create',
      errors: ['role_not_held', 'already_member', 'limit_reached', 'plan_limit_reached']
    },
    schema: {
      operationId: 'inviteMember',
      summary: 'Invite a person by e-mail address; the person becomes a member by accepting',
      description: 'The service sends an e-mail. If it has no mail server, `message` says how the person can accept. ' +
        'A guest can get a role in one place with the same request.',
      body: InviteMemberBody,
      response: { 201: SentInvitation }
    },
    // Before the look-up of a stored response, so that a caller who has lost the role does not get it again.
    preHandler: async (request) => { requireRoles(request, rolesIn(request.body as InviteMemberBody)) },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const { email } = request.body
      const roles = rolesIn(request.body)
      const mail = prepareMail(principal, email)
      const { id: organization_id } = principal.organization
      const { body, written: made } = await change(app.db, actorOf(request), {
        count: async () => app.countEffect(request, reply),
        async load (db, counter) {
          mail.reserve()
          const { events: ended } = await expireInvitations(db, organization_id)
          ended.push(...await deleteUngiven(db, organization_id))
          if (await isMemberAddress(db, organization_id, email)) fail('already_member', { status: 'active' })
          if (await countInvitations(db, { organization_id, email }) > 0) fail('already_member', { status: 'invited' })
          if (await countInvitations(db, { organization_id }) >= MAX_OPEN_INVITATIONS) {
            fail('limit_reached', { limit: MAX_OPEN_INVITATIONS })
          }
          await requirePlanQuota(db, counter, 'members')
          return { ended, place: await findPlace(db, organization_id, request.body.place) }
        },
        decide: ({ ended, place }) => ({
          async write (db) {
            const invitation = { organization_id, id: ulid(), email, ...roles, place, invited_by: asInviter(principal) }
            const made = await createInvitation(db, invitation, await mail.take(db) ?? null)
            return (await showPlaces(db, organization_id, [made]))[0]!
          },
          events: ({ id }) => [
            ...ended,
            eventOf('invitation.create', id, { email, role: roles.role, ...placeIn({ ...roles, place }) })
          ],
          answer: (made) => ({ status: 201, body: { data: toItem(made), message: howToAccept(mail.isReserved()) } })
        })
      }).catch(mail.fail)
      mail.post(made)
      return reply.code(201).send(body)
    }
  })

  app.get('/organizations/:organization/invitations', {
    config: { access: 'member:read', at: 'organization' },
    schema: {
      operationId: 'listInvitations',
      summary: 'List the open invitations of an organization',
      description: 'An invitation is open for seven days, and takes a seat of the plan.',
      querystring: ListQuery,
      response: { 200: Invitation.list }
    },
    handler: async (request) => {
      const { id } = principalOf(request).organization
      return answerPage(request.query, toItem, async (page) => {
        const { rows, total } = await listInvitations(app.lists, id, page)
        return { rows: await showPlaces(app.lists, id, rows), total }
      })
    }
  })

  app.get('/organizations/:organization/invitations/:invitation', {
    config: { access: 'member:read', at: 'organization', etag: true },
    schema: {
      operationId: 'getInvitation',
      summary: 'Get an open invitation',
      description: 'Returns the address, the role, the place and the time at which the invitation ends.',
      params: InvitationParams,
      response: { 200: Invitation.one }
    },
    handler: async (request) => ({
      data: await findItem(app.reads, principalOf(request).organization.id, request.params.invitation.toUpperCase()) ??
        fail('not_found')
    })
  })

  app.post('/organizations/:organization/invitations/:invitation/send', {
    config: {
      access: 'member:create',
      mayNeed: ['team:update'],
      at: 'organization',
      limitOfEffect: 'memberships',
      etag: true,
      audit: 'invitation.send',
      errors: ['role_not_held']
    },
    schema: {
      operationId: 'sendInvitation',
      summary: 'Send an invitation again; it is open for seven more days',
      description: 'The caller becomes the inviter. An address gets one e-mail of an organization in 24 hours; the ' +
        'response is the same without an e-mail.',
      params: InvitationParams,
      body: SendInvitationBody,
      response: { 200: SentInvitation }
    },
    // As for `inviteMember`. Without the invitation, a stored response gives nothing any more.
    preHandler: async (request) => {
      const id = request.params.invitation.toUpperCase()
      const found = await findInvitation(app.db, principalOf(request).organization.id, id)
      if (found !== undefined) requireRoles(request, found)
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const id = request.params.invitation.toUpperCase()
      const found = await findInvitation(app.db, principal.organization.id, id) ?? fail('not_found')
      const mail = prepareMail(principal, found.email)
      const { id: organizationId } = principal.organization
      const { body, written: sent } = await change(app.db, actorOf(request), {
        // Counts only invitations that the caller may send.
        async load (db) {
          const invitation = await findInvitation(db, organizationId, id, { locks: true }) ?? fail('not_found')
          requireRoles(request, invitation)
          await app.countEffect(request, reply)
          mail.reserve()
          return invitation
        },
        decide: (invitation) => ({
          async write (db) {
            const renewed = await renewInvitation(db, organizationId, id, asInviter(principal), await mail.take(db)) ??
              fail('not_found')
            return (await showPlaces(db, organizationId, [renewed]))[0]!
          },
          events: ({ email, role }) => [eventOf('invitation.send', id, { email, role, ...placeIn(invitation) })],
          answer: (sent) => ({ body: { data: toItem(sent), message: howToAccept(mail.isReserved()) } })
        })
      }).catch(mail.fail)
      mail.post(sent)
      return body
    }
  })

  app.delete('/organizations/:organization/invitations/:invitation', {
    config: {
      access: 'member:delete',
      at: 'organization',
      changes: findItem,
      audit: 'invitation.withdraw',
      errors: ['role_not_held']
    },
    schema: {
      operationId: 'withdrawInvitation',
      summary: 'Withdraw an invitation',
      description: 'The person can no longer accept it, and it no longer takes a seat of the plan.',
      params: InvitationParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const id = request.params.invitation.toUpperCase()
      const { id: organizationId } = principalOf(request).organization
      await change(app.db, actorOf(request), {
        async load (db) {
          const invitation = await findInvitation(db, organizationId, id, { locks: true }) ?? fail('not_found')
          await requireCurrent(db, request, id)
          requireRole(principalOf(request), invitation.role)
          return invitation
        },
        decide: ({ email, role, ...invitation }) => ({
          write: async (db) => deleteInvitation(db, organizationId, id),
          events: [eventOf('invitation.withdraw', id, { email, role, ...placeIn(invitation) })]
        })
      })
      return reply.code(204).send(null)
    }
  })

  // The text must not reveal whether the address has an account or already got an e-mail today.
  function howToAccept (isReserved: boolean): string {
    const page = `${app.issuer()}/account`
    if (isReserved) {
      return `The person can accept the invitation on ${page} or with the link in the e-mail. An address gets at most one e-mail from an organization in 24 hours. If no e-mail was sent, the invitation is still listed on ${page}; send it again after 24 hours.`
    }
    const reason = app.outbox.isOpen ? 'The e-mail queue is full, so no e-mail is sent' : 'This service sends no e-mail'
    return `${reason}. Tell the person to accept the invitation on ${page}. If the person has no account, ask the operator to create one: npm run -s cli -- user add --email ADDRESS`
  }

  /** Sends no e-mail if the queue is full, or if the organization sent this address an e-mail in the last 24 hours. */
  function prepareMail (principal: Principal, email: string) {
    const { organization, person } = principal
    const secret = mintSecret()
    let reservation: MailReservation | undefined
    let isTaken = false
    return {
      // Reserves a place in the queue for every address: the duration must not reveal whether the address has an
      // account.
      reserve () {
        reservation ??= app.outbox.reserve(
          { organization: organization.id, person: person?.user_id ?? null }, canonicalEmail(email)
        )
      },
      isReserved: () => reservation !== undefined,
      /** Call this in the transaction. Returns the hash of the secret in the link; undefined if no e-mail is sent. */
      async take (db: Db): Promise<Buffer | undefined> {
        isTaken = reservation !== undefined && await takeInvitationMail(db, organization.id, email)
        return isTaken ? hashToken(secret) : undefined
      },
      post ({ id, email, role, place, place_role }: ShownInvitation) {
        if (!isTaken) return reservation?.release()
        reservation?.post({
          about: `invitation ${id}`,
          to: email,
          onFailure: () => returnInvitationMail(app.db, organization.id, email),
          ...membershipInvitation({
            service: app.issuer(),
            organization: organization.name,
            inviter: asInviter(principal),
            role,
            place: place && place_role && { ...place, role: place_role },
            link: `${app.issuer()}/account/invitation/${organization.id}.${secret}`
          })
        })
      },
      release: () => reservation?.release(),
      fail (error: unknown): never {
        reservation?.release()
        throw error
      }
    }
  }
}
