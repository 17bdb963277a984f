import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import { Body, OneOf, PageMeta, Nullable, Resource, Slug, Timestamp, Ulid } from './shapes.ts'
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

const InvitationAttributes = Type.Object({
  email: Type.String({ description: 'the address as the inviter typed it' }),
  role: RoleName,
  status: Type.Literal('invited'),
  invited_by: Inviter,
  expires_at: Timestamp,
  created_at: Timestamp
}, { title: 'InvitationAttributes' })
export type InvitationAttributes = Static<typeof InvitationAttributes>

const example = {
  email: 'rosa@nimbus.example',
  role: 'developer',
  status: 'invited',
  invited_by: { type: 'api_token', id: '3', name: 'First token' },
  expires_at: '2026-03-08T12:00:00.000Z',
  created_at: '2026-03-01T12:00:00.000Z'
}

/**
 * An open invitation as its organization sees it. It never says whether the address has an account: the organization
 * learns who the person is when the person accepts.
 */
export const Invitation = Resource('invitations', InvitationAttributes, { title: 'Invitation', id: ID, example })

/** Empty: the path identifies the invitation. */
export const SendInvitationBody = Body({}, { title: 'SendInvitationBody', examples: [{}] })
export const AcceptInvitationBody = Body({}, { title: 'AcceptInvitationBody', examples: [{}] })

/** A new or re-sent invitation; `message` says how the invited person can accept it. */
export const SentInvitation = Type.Object({ data: Invitation.item, message: Type.String() }, {
  title: 'SentInvitation',
  examples: [{
    data: { type: 'invitations', id: ID, attributes: example },
    message:
      'This service sends no e-mail. Tell the person to accept the invitation on https://secrets.example.com/account. If the person has no account, ask the operator to create one: npm run -s cli -- user add --email ADDRESS'
  }]
})

const OwnInvitationAttributes = Type.Object({
  organization: Type.Object({ id: Ulid, name: Type.String(), slug: Slug }, { title: 'InvitingOrganization' }),
  role: RoleName,
  invited_by: Nullable(Type.String({ description: 'the name of the person or API token' })),
  expires_at: Timestamp,
  created_at: Timestamp
}, { title: 'OwnInvitationAttributes' })
export type OwnInvitationAttributes = Static<typeof OwnInvitationAttributes>

const ownExample = {
  organization: { id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC', name: 'Nimbus Weather', slug: 'my-organization' },
  role: 'developer',
  invited_by: 'First token',
  expires_at: '2026-03-08T12:00:00.000Z',
  created_at: '2026-03-01T12:00:00.000Z'
}

const ownItem = Type.Object({
  type: Type.Literal('invitations'), id: Type.String(), attributes: OwnInvitationAttributes
}, { title: 'OwnInvitation', examples: [{ type: 'invitations', id: ID, attributes: ownExample }] })

/** Open invitations of the calling user in all organizations, newest first. */
export const OwnInvitationList = Type.Object({ data: Type.Array(ownItem), meta: PageMeta }, {
  title: 'OwnInvitationList',
  examples: [{ data: [{ type: 'invitations', id: ID, attributes: ownExample }], meta: PageMeta.examples[0] }]
})

/** The membership created by accepting an invitation. */
export const AcceptedInvitation = Type.Object({
  data: Type.Object({
    type: Type.Literal('organizations'),
    id: Ulid,
    attributes: Type.Object({ name: Type.String(), slug: Slug, role: RoleName }, { title: 'JoinedAttributes' })
  }, { title: 'JoinedOrganization' })
}, {
  title: 'AcceptedInvitation',
  examples: [{
    data: {
      type: 'organizations',
      id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC',
      attributes: { name: 'Nimbus Weather', slug: 'my-organization', role: 'developer' }
    }
  }]
})
