import { pathOfSlugs, type NamedInviter } from '../rules/formats/phrases.ts'

export interface Message { subject: string, text: string }

interface PasswordLink { name: string, email: string, service: string, link: string }

/** The mail for a new account created by the operator. */
export function invitation (
  { name, email, service, link, organization }:
  PasswordLink & { organization?: { name: string, role: string } | undefined }
): Message {
  const place = organization === undefined
    ? ''
    : ` You are ${spoken(organization.role)} in ${theOrganization(organization.name)}.`
  return {
    subject: 'Your Strongroom account',
    text: `${hello(name)}

you have an account for ${email} at ${service}.${place}
Set your password with this link:

${link}

It works once, within three days. If you did not expect this message, ignore it.
`
  }
}

/** The mail with a new password link created by the operator. */
export function newLink ({ name, email, service, link }: PasswordLink): Message {
  return {
    subject: 'Set a new Strongroom password',
    text: `${hello(name)}

you can set a new password for your account ${email} at ${service} with this link:

${link}

It works once, within three days. Until then your present password stays valid, and setting a new one signs you out
everywhere. If you did not expect this message, tell the operator of ${service}.
`
  }
}

/** The mail with a link for a forgotten password. Strangers can request the mail for an address, too. */
export function passwordReset ({ name, email, service, link, minutes }: PasswordLink & { minutes: number }): Message {
  return {
    subject: 'Reset your Strongroom password',
    text: `${hello(name)}

we got a request to reset the password of your account ${email} at ${service}.
To set a new password, open this link:

${link}

It works once, within ${minutes} minutes, and only the link of the newest message works. If you did not ask for it,
ignore this message: your password stays the same.
`
  }
}

/** The mail after a password was changed. `from` describes the browser and its network. */
export function passwordChanged (
  { name, email, service, from, at, keepsSessions }:
  Omit<PasswordLink, 'link'> & { from: string, at: Date, keepsSessions: boolean }
): Message {
  return {
    subject: 'Your Strongroom password was changed',
    text: `${hello(name)}

the password of your account ${email} at ${service} was changed with a link from an e-mail,
on ${at.toISOString().slice(0, 16).replace('T', ' at ')} UTC, from: ${from}.
${keepsSessions ? 'Browsers that were signed in stay signed in.' : 'All browsers were signed out.'} Applications have to be allowed again.

If it was not you, another person can read your e-mail. Secure your mailbox, reset the password again at
${service}/account/forgot-password, and tell the operator of ${service}.
`
  }
}

interface Membership { service: string, organization: string, role: string }

/** The invitation to an organization. The text does not reveal whether the recipient has an account. */
export function membershipInvitation (
  { service, organization, role, place, inviter, link }: Membership & {
    /** The slugs of the place in which the person gets a role as well. */
    place?: { project: string, target?: string, environment?: string, role: string } | null
    inviter: NamedInviter
    link: string
  }
): Message {
  const there = place == null
    ? ''
    : `, with the role ${spoken(place.role)} in ${named('a part of it', pathOfSlugs(place), '')}`
  return {
    subject: `An invitation to ${named('an organization', organization, '')} on Strongroom`,
    text: `Hello,

${by(inviter)} invites you to ${theOrganization(organization)} at ${service}, as ${spoken(role)}${there}.
To accept or decline, open this link within seven days:

${link}

If you did not expect this message, ignore it: nothing happens until you accept.
`
  }
}

/** The mail about a member's new role, or about the removal of the member if `role` is null. */
export function membershipChanged (
  { name, service, organization, role }: Omit<Membership, 'role'> & { name: string, role: string | null }
): Message {
  const change = role === null
    ? `you are no longer a member of ${theOrganization(organization)} at ${service}.\nThe API tokens that you created there no longer work.`
    : `your role in ${theOrganization(organization)} at ${service} is now: ${spoken(role)}.`
  return {
    subject: role === null
      ? `You are no longer a member of ${named('an organization', organization, '')} on Strongroom`
      : `Your role in ${named('an organization', organization, '')} on Strongroom`,
    text: `${hello(name)}\n\n${change}\n`
  }
}

/** The mail to an owner about an API token that ends soon. */
export function endingToken (
  { name, service, organization, token, at }: Omit<Membership, 'role'> & { name: string, token: string, at: Date }
): Message {
  return {
    subject: `${named('An API token', token, 'The API token ')} ends soon`,
    text: `${hello(name)}

${named('an API token', token, 'the API token ')} of ${theOrganization(organization)} at ${service}
ends on ${at.toISOString().slice(0, 16).replace('T', ' at ')} UTC. Programs that use it have no access from then on.

Change its end, or make another one: a rotation leaves the end as it is. The list of API tokens shows all that end
within 14 days.
`
  }
}

const spoken = (role: string) => role.replace('_', ' ')

const hello = (name: string) => `Hello${named('', name, ' ')},`
const theOrganization = (name: string) => named('an organization', name, 'the organization ')
const by = ({ type, name }: NamedInviter) => type === 'user'
  ? named('a member', name, '')
  : named('an API token', name, 'the API token ')

// Maximum characters of a name in a mail.
const MAX_CHARACTERS = 60
// Programs that show mails make a link of such a text, also with the dots of other scripts: addresses, network paths.
const LINK =
  /:\/\/|\\\\|\b(?:file|mailto|sms|tel):|www[.．。｡]|\S[.．。｡]\p{L}|(?:\d[.．。｡]\d{1,3}[.．。｡]?){2}/iu
// Characters that are not seen, such as U+034F and U+FE0F: with one between them, a dot and a letter look like a link.
const INVISIBLE = /\p{Default_Ignorable_Code_Point}/gu
// U+200C and U+200D are part of Persian words and emoji.
const UNPRINTABLE = /(?:(?![\u200c\u200d])[\p{C}\p{Zl}\p{Zp}])+/gu

/**
 * A name, or a path of slugs, in a mail, quoted after `before`. Members of organizations choose them, so they must not
 * look like text of the service or become a link: the text is one line of at most 60 characters, and is replaced by
 * `without` if it could be a link.
 */
function named (without: string, name: string, before: string): string {
  const line = name.replace(UNPRINTABLE, ' ').trim()
  if (line === '' || LINK.test(line.replace(INVISIBLE, ''))) return without
  const characters = [...line]
  const shown = characters.length > MAX_CHARACTERS ? `${characters.slice(0, MAX_CHARACTERS - 1).join('')}…` : line
  return `${before}"${shown.replaceAll('"', "'")}"`
}
