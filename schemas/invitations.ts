import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import { Answer, Body, Example, Nullable, OneOf, Resource, Slug, Timestamp, Ulid } from './shapes.ts'
import { RestrictionNames } from './tokens.ts'
import { RoleName } from './users.ts'

/** Days until an invitation expires after it was created or sent again. */
export const INVITATION_DAYS = 7

/** Maximum number of open invitations of an organization, on every plan. */
export const MAX_OPEN_INVITATIONS = 100

const ID = '01JQZ6VHTB4N7P0R3S6V9W2X5Y'
const InvitationInPath = Type.String({ maxLength: 128, examples: [ID] })
export const InvitationParams = Type.Object({ organization: OrganizationInPath, invitation: InvitationInPath })
export const OwnInvitationParams = Type.Object({ invitation: InvitationInPath })

/** The inviter: a user or an API token; null for the operator. */
const Inviter = Nullable(Type.Object({
  type: OneOf(['user', 'api_token']), id: Type.String(), name: Type.String()
}, { title: 'Inviter' }))

/** The place of an invitation. Its slugs can be those of other levels later, so they are looked up by id. */
const InvitedPlace = Nullable(Type.Object({
  project: Slug, target: Type.Optional(Slug), environment: Type.Optional(Slug), inherited: Type.Optional(Type.Boolean())
}, {
  title: 'InvitedPlace',
  description: 'the place in which the person gets `place_role` by accepting; null without one, and if it was deleted'
}))

const role = Example(RoleName, 'guest')
const place = Example(InvitedPlace, { project: 'orbit', target: 'backend', environment: 'live' })
const place_names = Example(Nullable(RestrictionNames), { project: 'Orbit', target: 'Backend services', environment: 'Live' })
const place_role = Example(Nullable(Type.String({
  description: 'the role in the place, a `ProjectRole`; null for an invitation without a place'
})), 'developer')
const expires_at = Example(Timestamp, '2026-03-08T12:00:00.000Z')
const NIMBUS = { name: 'Nimbus Weather', slug: 'my-organization' }

/**
 * An open invitation as its organization sees it. Does not reveal whether the address has an account: the organization
 * learns who the person is only when the person accepts.
 */
export const Invitation = Resource('invitations', { title: 'Invitation', id: ID }, {
  email: Example(Type.String({ description: 'the address as the inviter typed it' }), 'rosa@nimbus.example'),
  role,
  place,
  place_role,
  status: Type.Literal('invited'),
  invited_by: Example(Inviter, { type: 'api_token', id: '3', name: 'First token' }),
  expires_at,
  created_at: Timestamp,
  place_names
})
export type InvitationAttributes = Static<typeof Invitation.attributes>

/** The body is empty, because the path identifies the invitation. */
export const SendInvitationBody = Body({}, { title: 'SendInvitationBody', examples: [{}] })
export const AcceptInvitationBody = Body({}, { title: 'AcceptInvitationBody', examples: [{}] })

/** A new or re-sent invitation; `message` says how the invited person can accept it. */
export const SentInvitation = Answer('SentInvitation', {
  data: Invitation.item,
  message: Example(
    Type.String(),
    'This service sends no e-mail. Tell the person to accept the invitation on https://secrets.example.com/account. If the person has no account, ask the operator to create one: npm run -s cli -- user add --email ADDRESS'
  )
})

/** An open invitation of the calling user, in any organization. */
const OwnInvitation = Resource('invitations', { title: 'OwnInvitation', id: ID }, {
  organization: Example(
    Type.Object({ id: Ulid, name: Type.String(), slug: Slug }, { title: 'InvitingOrganization' }),
    { id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC', ...NIMBUS }
  ),
  role,
  invited_by: Example(
    Nullable(Type.String({ description: 'the name of the person or API token' })), 'First token'
  ),
  expires_at,
  created_at: Timestamp,
  place,
  place_role,
  place_names
})
export const OwnInvitationList = OwnInvitation.list

/** The membership created by accepting an invitation. */
export const AcceptedInvitation = Answer('AcceptedInvitation', {
  data: Type.Object({
    type: Type.Literal('organizations'),
    id: Ulid,
    attributes: Example(
      Type.Object({ name: Type.String(), slug: Slug, role: RoleName }, { title: 'JoinedAttributes' }),
      { ...NIMBUS, role: 'guest' }
    )
  }, { title: 'JoinedOrganization' })
})
