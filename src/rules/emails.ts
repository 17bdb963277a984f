import { domainToASCII, domainToUnicode } from 'node:url'
import { EMAIL_LENGTH, EMAIL_PATTERN } from '../../schemas/users.ts'

/** Whether something is an address that an account can have. */
export function isEmail (text: string | undefined): text is string {
  // Compatibility forms of a few characters are longer than these, as is a domain in ASCII, and both are stored.
  return text !== undefined && EMAIL_PATTERN.test(text) && text.length <= EMAIL_LENGTH &&
    canonicalEmail(text).length <= EMAIL_LENGTH
}

/**
 * What an address is compared by: its spellings are one account (CR-42). Neither case nor compatibility forms make a
 * difference, nor whether an internationalized domain is written in Unicode or in ASCII (RFC 5890).
 */
export function canonicalEmail (email: string): string {
  const { local, domain } = partsOf(email)
  return `${local.toLowerCase()}${asciiOf(domain)}`
}

/**
 * The spellings by which the account of an address may be found, always three. Older builds did not take Unicode and
 * ASCII for one domain: an account that one of them made keeps what it was made with, and is found by both. Where there
 * is an account of each, everybody goes on with the one that they name: so what was named comes first.
 */
export function spellingsOf (email: string): [string, string, string] {
  const { local, domain } = partsOf(email)
  const ascii = asciiOf(domain)
  const of = (spelling: string) => `${local.toLowerCase()}${spelling}`
  return [of(domain.toLowerCase()), of(ascii), of(domainToUnicode(ascii) || ascii)]
}

function partsOf (email: string): { local: string, domain: string } {
  const text = email.normalize('NFKC').trim()
  const at = text.lastIndexOf('@') + 1
  return { local: text.slice(0, at), domain: text.slice(at) }
}

// A domain in ASCII stays as it is: what reads it as a part of a URL would decode `%41`, and take `1.2` for a number.
// What is no domain stays, too, and reaches nobody.
function asciiOf (domain: string): string {
  const isInternational = /[^\0-\x7f]/.test(domain) && !domain.includes('%')
  return (isInternational && domainToASCII(domain)) || domain.toLowerCase()
}
