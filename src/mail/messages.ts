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
