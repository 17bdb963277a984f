import type { Config } from '../config.ts'
import { mailboxOf } from '../rules/formats/emails.ts'

/** A plain text message to one address. */
export interface Mail {
  /** What the log calls it, as `user 17`. */
  about: string
  to: string
  subject: string
  text: string
}

export interface Mailer {
  /**
   * Hands a mail to the mail server: true when the server took it. Otherwise one line says to the log why not, without
   * the mail and without a credential; it never throws, because what the mail is about is done already.
   */
  send (mail: Mail): Promise<boolean>
}

const TIMEOUT = 10_000
const LOOPBACK = /^(?:localhost|127(?:\.\d{1,3}){3}|::1)$/i

/** The mailer of a configuration: SMTP when `SMTP_URL` is set, else one that only logs that it did not send. */
export function createMailer ({ smtp, mailFrom, publicUrl }: Config, log: (line: string) => void): Mailer {
  const notSent = ({ about }: Mail, reason: string) => {
    log(`The mail to ${about} was not sent: ${reason}`)
    return false
  }
  if (smtp === undefined) return { send: async (mail) => notSent(mail, 'SMTP_URL is not set') }

  let transport: ReturnType<typeof openTransport> | undefined
  const from = mailFrom ?? { name: 'Strongroom', address: `no-reply@${domainOf(publicUrl)}` }
  return {
    send: async (mail) => {
      try {
        const { to, subject, text } = mail
        const address = mailboxOf(to)
        if (address === undefined) return notSent(mail, 'invalid e-mail address')
        transport ??= openTransport(smtp).catch((error) => {
          // What could not be loaded now, the next mail tries again.
          transport = undefined
          throw error
        })
        // The address is an object, so that it is not parsed: what it holds cannot become a second recipient.
        await (await transport).sendMail({
          from, to: { name: '', address }, subject, text, headers: { 'Auto-Submitted': 'auto-generated' }
        })
        return true
      } catch (error) {
        return notSent(mail, reasonOf(error as Failure))
      }
    }
  }
}

// Loaded with the first mail: a start, and a service that has no mail server, need none of it.
async function openTransport (smtp: NonNullable<Config['smtp']>) {
  const { createTransport } = await import('nodemailer')
  const isLocal = LOOPBACK.test(smtp.host)
  return createTransport({
    ...smtp,
    requireTLS: !smtp.secure && !isLocal,
    // A relay on this machine may do without TLS, so its certificate, most often made by itself, protects nothing.
    tls: { rejectUnauthorized: smtp.secure || !isLocal },
    dnsTimeout: TIMEOUT,
    connectionTimeout: TIMEOUT,
    greetingTimeout: TIMEOUT,
    socketTimeout: TIMEOUT,
    disableFileAccess: true,
    disableUrlAccess: true
  })
}

// Mail servers refuse an IP address in the place of a domain.
function domainOf (publicUrl: string | undefined): string {
  const host = publicUrl === undefined ? '' : new URL(publicUrl).hostname
  return host === '' || /^\[|^[\d.]+$/.test(host) ? 'localhost' : host
}

interface Failure extends Error { code?: string, responseCode?: number }

const REASONS: Record<string, string> = {
  EAUTH: 'the mail server rejected the user and password in SMTP_URL',
  ECONNECTION: 'the mail server closed the connection',
  EDNS: 'the host in SMTP_URL was not found',
  EENVELOPE: 'the mail server refused the sender or the recipient',
  EMESSAGE: 'the mail server refused the message',
  ETIMEDOUT: 'the mail server did not answer in time',
  ETLS: 'the mail server does not offer TLS with a trusted certificate'
}

// What the mail server answers is not repeated, only its number: it may quote what it was sent.
function reasonOf ({ code = '', message, responseCode }: Failure): string {
  const [system] = /\bE[A-Z]{4,}\b/.exec(message) ?? []
  const reason = REASONS[/certificate/i.test(message) ? 'ETLS' : code] ??
    `the mail server cannot be reached${system === undefined ? '' : ` (${system})`}`
  return responseCode === undefined ? reason : `${reason} (${responseCode})`
}
