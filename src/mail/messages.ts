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
everywhere. If you did not expect this message, tell whoever runs ${service}.
`
  }
}

/** A membership as a message tells of it. What people are called comes from others: it is put on one line. */
export interface Membership { service: string, organization: string, role: string }

/** To somebody without an account whom a member of an organization has invited. */
export function membershipInvitation ({ service, organization, role, link }: Membership & { link: string }): Message {
  return {
    subject: `An invitation to ${inLine(organization)} on Strongroom`,
    text: `Hello,

you are invited to the organization ${inLine(organization)} at ${service}, as ${spoken(role)}.
To accept, choose a name and a password with this link:

${link}

It works once, within three days. If you did not expect this message, ignore it.
`
  }
}

/** To somebody with an account who is in so many organizations that others do not make them a member of one more. */
export function membershipOffered (
  { name, service, organization, role, link }: Membership & { name: string, link: string }
): Message {
  return {
    subject: `An invitation to ${inLine(organization)} on Strongroom`,
    text: `Hello ${inLine(name)},

you are invited to the organization ${inLine(organization)} at ${service}, as ${spoken(role)}.
To accept, or to turn it down, sign in to your account:

${link}
`
  }
}

/** To somebody with an account who was added to an organization. */
export function membershipAdded ({ name, service, organization, role }: Membership & { name: string }): Message {
  return {
    subject: `You are a member of ${inLine(organization)} on Strongroom`,
    text: `Hello ${inLine(name)},

you are ${spoken(role)} in the organization ${inLine(organization)} at ${service} now.
`
  }
}

/** To a member who has another role; `null` when they are a member no more. */
export function membershipChanged (
  { name, service, organization, role }: Omit<Membership, 'role'> & { name: string, role: string | null }
): Message {
  const what = role === null
    ? `you are no member of the organization ${inLine(organization)} at ${service} any more.\nThe API tokens that you made in it have ended.`
    : `you are ${spoken(role)} in the organization ${inLine(organization)} at ${service} from now on.`
  return {
    subject: role === null
      ? `You have left ${inLine(organization)} on Strongroom`
      : `Your role in ${inLine(organization)} on Strongroom`,
    text: `Hello ${inLine(name)},\n\n${what}\n`
  }
}

const spoken = (role: string) => role.replace('_', ' ')

const inLine = (text: string) => text.replace(/[\p{C}\p{Zl}\p{Zp}]+/gu, ' ').slice(0, 100)
