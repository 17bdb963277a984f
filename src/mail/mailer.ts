import type { Config } from '../config.ts'
import { mailboxOf } from '../rules/formats/emails.ts'

/** A plain text message to one address. */
export interface Mail {
  /** The recipient's name in log messages, such as `user 17`. */
  about: string
  to: string
  subject: string
  text: string
}

export interface Mailer {
  /** Loads the SMTP library before the first mail, which otherwise loads the library. Never throws. */
  load (): Promise<void>
  /**
   * Sends a mail. Returns true if the mail server accepted it. Otherwise logs the reason without the text of the mail
   * and without credentials. Never throws, because the change that the mail announces is already committed.
   */
  send (mail: Mail): Promise<boolean>
}

const TIMEOUT_MS = 10_000
const LOOPBACK = /^(?:localhost|127(?:\.\d{1,3}){3}|::1)$/i

/** Creates a mailer that uses SMTP. Without `SMTP_URL`, it sends nothing and logs each mail as not sent. */
export function createMailer ({ smtp, mailFrom, publicUrl }: Config, log: (line: string) => void): Mailer {
  const notSent = ({ about }: Mail, reason: string) => {
    log(`The mail to ${about} was not sent: ${reason}`)
    return false
  }
  if (smtp === undefined) return { load: async () => {}, send: async (mail) => notSent(mail, 'SMTP_URL is not set') }

  let transport: ReturnType<typeof openTransport> | undefined
  const from = mailFrom ?? { name: 'Strongroom', address: `no-reply@${domainOf(publicUrl)}` }
  // A failed import is retried with the next mail.
  const open = () => {
    transport ??= openTransport(smtp).catch((error) => {
      transport = undefined
      throw error
    })
    return transport
  }
  return {
    load: async () => { await open().catch(() => {}) },
    send: async (mail) => {
      try {
        const { to, subject, text } = mail
        const address = mailboxOf(to)
        if (address === undefined) return notSent(mail, 'invalid e-mail address')
        // nodemailer does not parse an address object, so the address cannot add a second recipient.
        await (await open()).sendMail({
          from, to: { name: '', address }, subject, text, headers: { 'Auto-Submitted': 'auto-generated' }
        })
        return true
      } catch (error) {
        return notSent(mail, reasonOf(error as Failure))
      }
    }
  }
}

// Imports nodemailer with the first mail, to keep the start fast.
async function openTransport (smtp: NonNullable<Config['smtp']>) {
  const { createTransport } = await import('nodemailer')
  const isLocal = LOOPBACK.test(smtp.host)
  return createTransport({
    ...smtp,
    requireTLS: !smtp.secure && !isLocal,
    // Without smtps, TLS is optional for a local relay. If the relay offers TLS, its certificate is usually
    // self-signed, so the certificate is not verified.
    tls: { rejectUnauthorized: smtp.secure || !isLocal },
    dnsTimeout: TIMEOUT_MS,
    connectionTimeout: TIMEOUT_MS,
    greetingTimeout: TIMEOUT_MS,
    socketTimeout: TIMEOUT_MS,
    disableFileAccess: true,
    disableUrlAccess: true
  })
}

// Mail servers reject an IP address as the sender's domain.
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

// Logs only the code of the server's response, because its text may quote the mail.
function reasonOf ({ code = '', message, responseCode }: Failure): string {
  const [system] = /\bE[A-Z]{4,}\b/.exec(message) ?? []
  const reason = REASONS[/certificate/i.test(message) ? 'ETLS' : code] ??
    `the mail server cannot be reached${system === undefined ? '' : ` (${system})`}`
  return responseCode === undefined ? reason : `${reason} (${responseCode})`
}
