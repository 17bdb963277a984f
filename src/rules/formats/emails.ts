import { domainToASCII, domainToUnicode } from 'node:url'
import { EMAIL_LENGTH, EMAIL_PATTERN } from '../../../schemas/users.ts'

export function isEmail (text: string | undefined): text is string {
  if (text === undefined || text.length > EMAIL_LENGTH) return false
  // Check the NFKC form and the ASCII domain, too. Both are stored and can be longer than the original. NFKC can also
  // produce forbidden characters: `＜` becomes `<`.
  return [text, text.normalize('NFKC')].every((form) => EMAIL_PATTERN.test(form)) &&
    asciiOf(partsOf(text).domain) !== undefined && canonicalEmail(text).length <= EMAIL_LENGTH
}

/** The form in which addresses, even invalid ones, are compared (CR-42): lower case, NFKC, ASCII domain (RFC 5890). */
export const canonicalEmail = (email: string): string => mailboxIn(email).toLowerCase()

/**
 * The address that mail is sent to: the canonical form, but in the original case. Opening a mailed link proves control
 * of exactly this mailbox. Undefined for an invalid address.
 */
export const mailboxOf = (email: string): string | undefined => isEmail(email) ? mailboxIn(email) : undefined

function mailboxIn (email: string): string {
  const { local, domain } = partsOf(email)
  return `${local}${asciiOf(domain) ?? domain}`
}

function partsOf (email: string): { local: string, domain: string } {
  const text = email.normalize('NFKC').trim()
  const at = text.lastIndexOf('@') + 1
  return { local: text.slice(0, at), domain: text.slice(at) }
}

const ENCODED = /(?:^|\.)xn--/

/**
 * The domain in ASCII; undefined if the conversion to Unicode and back changes it. Node's functions parse a URL host:
 * they stop at `/ ? # \`, decode `%41`, drop invisible characters and read `xn--example-` as `example`, so the result
 * could be the domain of another owner. Plain ASCII domains skip the conversion.
 */
function asciiOf (domain: string): string | undefined {
  const text = domain.toLowerCase()
  if (/^[\0-\x7f]*$/.test(text) && !ENCODED.test(text)) return text
  const ascii = domainToASCII(text)
  const unicode = domainToUnicode(ascii)
  if (text !== unicode && text !== ascii) return undefined
  // Newer versions of Node.js leave labels unchanged that they cannot decode.
  if (ENCODED.test(unicode)) return undefined
  return domainToASCII(unicode) === ascii ? ascii : undefined
}
