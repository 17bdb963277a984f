import { LRUCache } from 'lru-cache'
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
  const queue = createFairQueue()
  const sent = createCounts()
  const underWay = new Set<Promise<void>>()

  async function send () {
    for (let posted = queue.next(); posted !== undefined; posted = queue.next()) {
      if (posted === NOTHING) {
        // An empty entry also loads the SMTP library: the delay by the import must not reveal an account.
        await mailer.load()
        continue
      }
      const { onFailure, ...mail } = posted
      if (await mailer.send(mail)) continue
      await onFailure?.().catch((error: Error) => {
        log(`Could not record that the mail to ${mail.about} failed: ${error.name}`)
      })
    }
  }

  return {
    isOpen,
    reserve: (sender, address) => {
      if (!isOpen) return undefined
      const organization = 'network' in sender ? sender.network : sender.organization
      const by = 'network' in sender || sender.person === null ? organization : String(sender.person)
      const both = `${by} ${address}`
      const reason = !queue.hasRoom(by, organization)
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
      queue.reserve(by, organization)
      sent.add(both, 1)
      return {
        post (mail) {
          queue.post(by, organization, mail ?? NOTHING)
          if (underWay.size >= MAX_UNDER_WAY) return
          const sending: Promise<void> = send().finally(() => underWay.delete(sending))
          underWay.add(sending)
        },
        release () {
          queue.release(by, organization)
          sent.add(both, -1)
        }
      }
    },
    load: () => ({ underWay: underWay.size, waiting: queue.places() }),
    settled: async () => { await Promise.all(underWay) }
  }
}

const NOTHING = 'nothing'
type Queued = PostedMail | typeof NOTHING

/** Queued mails and reserved places. `next` takes turns over the senders, and over the organizations of a sender. */
function createFairQueue () {
  interface Share { places: number, waiting: Map<string, Queued[]> }
  const shares = new Map<string, Share>()
  const ofOrganizations = new Map<string, number>()
  // Places in use, without the first place of each sender.
  let taken = 0

  const release = (by: string, organization: string) => {
    const share = shares.get(by)!
    share.places--
    if (share.places > 0) taken--
    else shares.delete(by)
    const others = ofOrganizations.get(organization)! - 1
    if (others > 0) ofOrganizations.set(organization, others)
    else ofOrganizations.delete(organization)
  }

  return {
    hasRoom (by: string, organization: string): boolean {
      const share = shares.get(by)
      if (share === undefined) return shares.size < MAX_SENDERS
      const most = Math.min(MAX_OF_ONE, Math.floor((MAX_QUEUED - taken) * MAX_FRACTION))
      return share.places < most && (ofOrganizations.get(organization) ?? 0) < most
    },
    places: (): number => taken + shares.size,
    reserve (by: string, organization: string) {
      const share = shares.get(by)
      if (share === undefined) shares.set(by, { places: 1, waiting: new Map() })
      else {
        share.places++
        taken++
      }
      ofOrganizations.set(organization, (ofOrganizations.get(organization) ?? 0) + 1)
    },
    release,
    post (by: string, organization: string, mail: Queued) {
      const { waiting } = shares.get(by)!
      waiting.set(organization, [...waiting.get(organization) ?? [], mail])
    },
    next (): Queued | undefined {
      for (const [by, share] of shares) {
        const [oldest] = share.waiting
        if (oldest === undefined) continue
        const [organization, mails] = oldest
        const mail = mails.shift()
        // Move the organization and the sender to the end of their queues.
        share.waiting.delete(organization)
        if (mails.length > 0) share.waiting.set(organization, mails)
        shares.delete(by)
        shares.set(by, share)
        release(by, organization)
        return mail
      }
      return undefined
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
