import { LRUCache } from 'lru-cache'
import { Gate } from '../gate.ts'
import type { Mail, Mailer } from './mailer.ts'

/** The originator of a mail, for quotas: a caller of the API, or a network from which an account page is used. */
export type Sender = {
  /** The organization whose quota the mail counts against. */
  organization: string
  /** The user who causes the mail, directly or through an API token; null if no user does. */
  person: number | null
} | { network: string }

/** A mail with a callback that runs if the mail server did not accept the mail. */
export interface PostedMail extends Mail { onFailure?: () => Promise<void> }

/** A reserved place in the queue. The caller has to call `post` or `release`. */
export interface MailReservation {
  /**
   * Queues the mail. A failed delivery is logged. Undefined queues an empty entry, for which no mail is sent. So the
   * number of free places does not reveal whether a mail was queued.
   */
  post (mail: PostedMail | undefined): void
  release (): void
}

/** A queue of mails that are sent in the background. */
export interface Outbox {
  /** Whether a mail server is configured. */
  isOpen: boolean
  /**
   * Reserves a place for a mail to a canonical address. Returns undefined without a mail server, and if a quota is used
   * up; a used-up quota is logged. The result does not depend on whether the address has an account.
   */
  reserve (sender: Sender, address: string): MailReservation | undefined
  /** The number of mails being sent, and the number of queued mails and reserved places. */
  load (): { underWay: number, waiting: number }
  /** Resolves when all queued mails are sent or have failed. */
  settled (): Promise<void>
}

/** Maximum number of mails that are sent concurrently. The mailer's timeouts limit the duration of each mail. */
export const MAX_UNDER_WAY = 4
/** Maximum queued mails per organization and per sender; equals the default limit of invitations per hour. */
export const MAX_OF_ONE = 100
// Maximum places in use. One place of each sender does not count, so that other senders cannot block its first mail.
const MAX_QUEUED = 4_000
// The maximum fraction of the free places that one sender or organization may use.
const MAX_FRACTION = 1 / 8
/** Maximum number of senders with places in the queue. */
export const MAX_SENDERS = 10_000

/**
 * Maximum mails per hour to one address from one sender: a user, a network, or an organization (for mails without a
 * user). There is no total limit per address, because other senders could then block the mails of the recipient's own
 * organization.
 */
export const MAX_TO_ADDRESS = 10
const HOUR = 3_600_000
const MAX_COUNTS = 20_000

/**
 * Creates the outbox. Requests do not wait for the mail server. The senders take turns (round robin), and so do the
 * organizations of each sender. A sender cannot use up the quotas of other senders, even through many organizations.
 */
export function createOutbox (mailer: Mailer, isOpen: boolean, log: (line: string) => void): Outbox {
  const gate = new Gate([{ running: MAX_UNDER_WAY }], { timeout: Infinity })
  const places = createPlaces()
  const sent = createCounts()
  const posted = new Set<Promise<void>>()

  async function send (one: PostedMail | undefined) {
    // An empty entry also loads the SMTP library: the delay by the import must not reveal an account.
    if (one === undefined) return mailer.load()
    const { onFailure, ...mail } = one
    if (await mailer.send(mail)) return
    await onFailure?.().catch((error: Error) => {
      log(`Could not record that the mail to ${mail.about} failed: ${error.name}`)
    })
  }

  return {
    isOpen,
    reserve: (sender, address) => {
      if (!isOpen) return undefined
      const organization = 'network' in sender ? sender.network : sender.organization
      const by = 'network' in sender || sender.person === null ? organization : String(sender.person)
      const both = `${by} ${address}`
      const reason = !places.isFree(by, organization)
        ? 'the mail queue is full'
        : sent.count(both) >= MAX_TO_ADDRESS
          ? 'too many mails to this address in an hour'
          : undefined
      if (reason !== undefined) {
        // The network is the address of a client, which only the request log may contain.
        const from = 'network' in sender ? 'an account page' : `the organization ${organization}`
        log(`A mail of ${from} is not sent: ${reason}`)
        return undefined
      }
      places.change(by, organization, 1)
      sent.add(both, 1)
      return {
        post (mail) {
          const sending: Promise<void> = gate.run([by, organization], async () => {
            places.change(by, organization, -1)
            await send(mail)
          }).finally(() => posted.delete(sending))
          posted.add(sending)
        },
        release () {
          places.change(by, organization, -1)
          sent.add(both, -1)
        }
      }
    },
    load: () => ({ underWay: gate.running, waiting: places.all() }),
    settled: async () => { await Promise.all(posted) }
  }
}

/** The places in use, for queued mails and reservations. */
function createPlaces () {
  const ofSenders = new Map<string, number>()
  const ofOrganizations = new Map<string, number>()
  let all = 0
  const change = (counts: Map<string, number>, key: string, by: 1 | -1) => {
    const count = (counts.get(key) ?? 0) + by
    if (count > 0) counts.set(key, count)
    else counts.delete(key)
  }
  return {
    all: (): number => all,
    isFree (by: string, organization: string): boolean {
      const own = ofSenders.get(by)
      if (own === undefined) return ofSenders.size < MAX_SENDERS
      const most = Math.min(MAX_OF_ONE, Math.floor((MAX_QUEUED - (all - ofSenders.size)) * MAX_FRACTION))
      return own < most && (ofOrganizations.get(organization) ?? 0) < most
    },
    change (by: string, organization: string, step: 1 | -1) {
      all += step
      change(ofSenders, by, step)
      change(ofOrganizations, organization, step)
    }
  }
}

/** Counters with fixed windows of an hour. */
function createCounts () {
  const counts = new LRUCache<string, { count: number, end: number }>({ max: MAX_COUNTS })
  const current = (key: string) => {
    const counted = counts.get(key)
    return counted !== undefined && counted.end > performance.now() ? counted : undefined
  }
  return {
    count: (key: string): number => current(key)?.count ?? 0,
    add (key: string, by: 1 | -1) {
      const counted = current(key)
      if (counted !== undefined) counted.count += by
      else if (by > 0) counts.set(key, { count: by, end: performance.now() + HOUR })
    }
  }
}
