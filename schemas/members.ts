import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import { Body, Nullable, OneOf, PublishedAs, Resource, Timestamp } from './shapes.ts'
import { EMAIL_LENGTH, MEMBER_STATUSES, RoleName, ROLES } from './users.ts'

/** The number of a member's account, in a path. */
export const MemberInPath = Type.String({ maxLength: 128, examples: ['17'] })
export const MemberParams = Type.Object({ organization: OrganizationInPath, member: MemberInPath })

/** A role as a request may spell it. */
export const RoleInBody = PublishedAs(OneOf([...ROLES, 'admin']), RoleName)

const MemberAttributes = Type.Object({
  user_id: Type.Integer(),
  email: Type.String(),
  name: Type.String(),
  role: RoleName,
  status: OneOf(MEMBER_STATUSES),
  joined_at: Nullable(Timestamp)
}, { title: 'MemberAttributes' })
export type MemberAttributes = Static<typeof MemberAttributes>

const example = {
  user_id: 17,
  email: 'rosa@nimbus.example',
  name: 'rosa',
  role: 'developer',
  status: 'invited',
  joined_at: null
}
export const Member = Resource('members', MemberAttributes, { title: 'Member', id: '17', example })

/** Whoever was added, and how they get to know. */
export const AddedMember = Type.Object({ data: Member.item, message: Type.String() }, {
  title: 'AddedMember',
  examples: [{
    data: { type: 'members', id: '17', attributes: example },
    message:
      'This service sends no e-mail. They accept on https://secrets.example.com/account; without an account, whoever runs the service makes a link with: user password --email ADDRESS'
  }]
})

export const AddMemberBody = Body({
  email: Type.String({ maxLength: EMAIL_LENGTH, examples: ['rosa@nimbus.example'] }),
  role: RoleInBody
}, { title: 'AddMemberBody', examples: [{ email: 'rosa@nimbus.example', role: 'developer' }] })

export const UpdateMemberBody = Body({
  role: RoleInBody
}, { title: 'UpdateMemberBody', examples: [{ role: 'administrator' }] })
