import { inviterOf, type NamedInviter } from '../rules/inviters.ts'

/** What a message says, in plain text. */
export interface Message { subject: string, text: string }

export interface Invitation {
  name: string
  email: string
  service: string
  link: string
  organization?: { name: string, role: string } | undefined
}

/** To somebody whose account the operator made. */
export function invitation ({ name, email, service, link, organization }: Invitation): Message {
  const place = organization === undefined
    ? ''
    : ` You are ${organization.role.replace('_', ' ')} in the organization ${organization.name}.`
  return {
    subject: 'Your Strongroom account',
    text: `Hello ${name},

you have an account for ${email} at ${service}.${place}
Set your password with this link:

${link}

It works once, within three days. If you did not expect this message, ignore it.
`
  }
}

/** To somebody for whom the operator made a new link. */
export function newLink ({ name, email, service, link }: Omit<Invitation, 'organization'>): Message {
  return {
    subject: 'Set a new Strongroom password',
    text: `Hello ${name},

you can set a new password for your account ${email} at ${service} with this link:

${link}

It works once, within three days. Until then your present password stays valid, and setting a new one signs you out
everywhere. If you did not expect this message, tell the operator of ${service}.
`
  }
}

/** A membership in a message. Names come from other people: each is reduced to one line of 100 characters at most. */
export interface Membership { service: string, organization: string, role: string }

/**
 * To an address that an organization invites: the same with and without an account, so that only the person learns
 * whether there is one.
 */
export function membershipInvitation (
  { service, organization, role, inviter, link }: Membership & { inviter: NamedInviter, link: string }
): Message {
  const by = inviterOf({ ...inviter, name: inLine(inviter.name) })
  return {
    subject: `An invitation to ${inLine(organization)} on Strongroom`,
    text: `Hello,

${by} invites you to the organization ${inLine(organization)} at ${service}, as ${spoken(role)}.
To accept or decline, open this link within seven days:

${link}

If you did not expect this message, ignore it: nothing happens until you accept.
`
  }
}

/** To a member who has another role; `null` when they are a member no more. */
export function membershipChanged (
  { name, service, organization, role }: Omit<Membership, 'role'> & { name: string, role: string | null }
): Message {
  const what = role === null
    ? `you are no longer a member of the organization ${inLine(organization)} at ${service}.\nThe API tokens that you created there no longer work.`
    : `your role in the organization ${inLine(organization)} at ${service} is now: ${spoken(role)}.`
  return {
    subject: role === null
      ? `You are no longer a member of ${inLine(organization)} on Strongroom`
      : `Your role in ${inLine(organization)} on Strongroom`,
    text: `Hello ${inLine(name)},\n\n${what}\n`
  }
}

const spoken = (role: string) => role.replace('_', ' ')

const inLine = (text: string) => text.replace(/[\p{C}\p{Zl}\p{Zp}]+/gu, ' ').slice(0, 100)
