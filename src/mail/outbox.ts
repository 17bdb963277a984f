import { LRUCache } from 'lru-cache'
import type { Mail, Mailer } from './mailer.ts'

/** Where a mail comes from. */
export interface Sender {
  /** The organization whose share it takes. */
  organization: string
  /** The person behind it, whichever organization or token of theirs it comes through; null: nobody in particular. */
  person: number | null
}

/** A mail with a function that runs when the mail server did not take the mail. */
export interface PostedMail extends Mail { onFailure?: () => Promise<void> }

/** Room for one mail, which is to be posted or given back. */
export interface Room {
  /** Takes the mail. The log has a line when it is not delivered. */
  post (mail: PostedMail): void
  release (): void
}

/** Mails that nobody waits for. */
export interface Outbox {
  /** Whether there is a mail server to hand them to. */
  isOpen: boolean
  /**
   * Keeps room for a mail to an address, in the spelling by which accounts are told apart. Undefined where there is
   * none for this sender, which the log says, and where no mail is sent at all. It goes by sender and address alone, so
   * the answer says nothing of an account.
   */
  reserve (sender: Sender, address: string): Room | undefined
  /** Mails that are handed over right now, and those that wait for it or have room kept. */
  load (): { underWay: number, waiting: number }
  /** Resolves when everything that was taken is handed over, or given up. */
  settled (): Promise<void>
}

/** Mails that may be under way at once: each has its connection, and ends within the mailer's time-outs. */
export const MOST_UNDER_WAY = 4
/**
 * Mails that may wait for it, of one organization and of one who sends: as many people as an organization adds in an
 * hour, all at once.
 */
export const MOST_OF_ONE = 100
// Of all together, but for the first of each who sends, which has a place of its own: whoever has nothing waiting finds
// room, however many others fill their share. Of what is left nobody has more than this part waiting.
const MOST_WAITING = 4_000
const PART = 8
/** Those places are bounded, too: by more accounts than anybody has. */
export const MOST_SENDERS = 10_000

/**
 * Mails an hour to one address from one person, or from one organization where no person sends. There is no limit over
 * all senders: with one, a stranger's mails would use up those of an address's own organization.
 */
export const MOST_TO_ADDRESS = 10
const HOUR = 3_600_000
// Counts that are kept; those that nobody used for longest go first.
const MOST_COUNTS = 20_000

/**
 * Hands mails to the mailer, a few at a time, so that no request waits for a mail server. Those who send take turns,
 * and of one their organizations; nobody fills what others wait in, through however many organizations. Nor does
 * anybody keep others' mails from an address by sending to it themselves.
 */
export function createOutbox (mailer: Mailer, isOpen: boolean, log: (line: string) => void): Outbox {
  const turns = createTurns()
  const sent = createCounts()
  const underWay = new Set<Promise<void>>()

  async function send () {
    for (let posted = turns.next(); posted !== undefined; posted = turns.next()) {
      const { onFailure, ...mail } = posted
      if (await mailer.send(mail)) continue
      await onFailure?.().catch((error: Error) => {
        log(`Could not record that the mail to ${mail.about} failed: ${error.name}`)
      })
    }
  }

  return {
    isOpen,
    reserve: ({ organization, person }, address) => {
      if (!isOpen) return undefined
      const by = person === null ? organization : String(person)
      const both = `${by} ${address}`
      const reason = !turns.hasRoom(by, organization)
        ? 'the mail queue is full'
        : sent.count(both) >= MOST_TO_ADDRESS
          ? 'too many mails to this address in an hour'
          : undefined
      if (reason !== undefined) {
        log(`A mail of the organization ${organization} is not sent: ${reason}`)
        return undefined
      }
      turns.reserve(by, organization)
      sent.add(both, 1)
      return {
        post (mail) {
          turns.post(by, organization, mail)
          if (underWay.size >= MOST_UNDER_WAY) return
          const sending: Promise<void> = send().finally(() => underWay.delete(sending))
          underWay.add(sending)
        },
        release () {
          turns.release(by, organization)
          sent.add(both, -1)
        }
      }
    },
    load: () => ({ underWay: underWay.size, waiting: turns.places() }),
    settled: async () => { await Promise.all(underWay) }
  }
}

/**
 * Mails that wait, and those that room is kept for: of each who sends, by organization. Those who send take turns, and
 * so do the organizations of one.
 */
function createTurns () {
  interface Share { places: number, waiting: Map<string, PostedMail[]> }
  const shares = new Map<string, Share>()
  const ofOrganizations = new Map<string, number>()
  // But for one of each share.
  let taken = 0

  const free = (by: string, organization: string) => {
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
      if (share === undefined) return shares.size < MOST_SENDERS
      const most = Math.min(MOST_OF_ONE, Math.floor((MOST_WAITING - taken) / PART))
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
    release: free,
    post (by: string, organization: string, mail: PostedMail) {
      const { waiting } = shares.get(by)!
      const mails = waiting.get(organization)
      if (mails === undefined) waiting.set(organization, [mail])
      else mails.push(mail)
    },
    next (): PostedMail | undefined {
      for (const [by, share] of shares) {
        const [turn] = share.waiting
        if (turn === undefined) continue
        const [organization, mails] = turn
        const mail = mails.shift()
        // Behind the others, until it is their turn again.
        share.waiting.delete(organization)
        if (mails.length > 0) share.waiting.set(organization, mails)
        shares.delete(by)
        shares.set(by, share)
        free(by, organization)
        return mail
      }
      return undefined
    }
  }
}

/** Counts in fixed windows of an hour. */
function createCounts () {
  const counts = new LRUCache<string, { count: number, end: number }>({ max: MOST_COUNTS })
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
