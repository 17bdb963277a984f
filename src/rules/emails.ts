import { domainToASCII, domainToUnicode } from 'node:url'
import { EMAIL_LENGTH, EMAIL_PATTERN } from '../../schemas/users.ts'

/** Whether something is an address that an account can have, and that mail goes to. */
export function isEmail (text: string | undefined): text is string {
  if (text === undefined || text.length > EMAIL_LENGTH) return false
  // Compatibility forms of a few characters are longer than these, as is a domain in ASCII, and both are stored. They
  // may also be signs that an address has none of: what is left of `＜` is `<`.
  return [text, text.normalize('NFKC')].every((form) => EMAIL_PATTERN.test(form)) &&
    asciiOf(partsOf(text).domain) !== undefined && canonicalEmail(text).length <= EMAIL_LENGTH
}

/**
 * What an address is compared by: its spellings are one account (CR-42). Neither case nor compatibility forms make a
 * difference, nor whether an internationalized domain is written in Unicode or in ASCII (RFC 5890). What is no address
 * is the same as itself alone.
 */
export function canonicalEmail (email: string): string {
  return mailboxIn(email).toLowerCase()
}

/**
 * Where mail to an address goes: to what it is compared by, in the case that it was given, since whoever opens a link
 * has shown that this address is theirs and no other. Undefined where it is none.
 */
export function mailboxOf (email: string): string | undefined {
  return isEmail(email) ? mailboxIn(email) : undefined
}

function mailboxIn (email: string): string {
  const { local, domain } = partsOf(email)
  return `${local}${asciiOf(domain) ?? domain}`
}

function partsOf (email: string): { local: string, domain: string } {
  const text = email.normalize('NFKC').trim()
  const at = text.lastIndexOf('@') + 1
  return { local: text.slice(0, at), domain: text.slice(at) }
}

/**
 * A domain in ASCII; undefined where that and Unicode do not lead to one another. They are made by what reads the
 * host of a URL: it ends at `/ ? # \`, decodes `%41`, leaves out what is not seen, and takes `xn--example-` for
 * `example`. What it reads so is the domain of somebody else. It never sees one in ASCII, where it has nothing to do.
 */
function asciiOf (domain: string): string | undefined {
  const text = domain.toLowerCase()
  if (!/[^\0-\x7f]|(?:^|\.)xn--/.test(text)) return text
  const ascii = domainToASCII(text)
  const unicode = domainToUnicode(ascii)
  if (text !== unicode && text !== ascii) return undefined
  return domainToASCII(unicode) === ascii ? ascii : undefined
}
