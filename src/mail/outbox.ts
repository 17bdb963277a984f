import { LRUCache } from 'lru-cache'
import type { Mail, Mailer } from './mailer.ts'

/** Where a mail comes from. */
export interface Sender {
  /** The organization whose share it takes. */
  organization: string
  /** The person behind it, whichever organization or token of theirs it comes through; null: nobody in particular. */
  person: number | null
}

/** Room for one mail, which is to be posted or given back. */
export interface Room {
  /** Takes the mail: what becomes of it, the log tells. */
  post (mail: Mail): void
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
  /** Resolves when everything that was taken is handed over, or given up. */
  settled (): Promise<void>
}

/** Mails that may be under way at once: each has its connection, and ends within the mailer's time-outs. */
export const MOST_UNDER_WAY = 4
/** Mails that may wait for it, of one organization: as many people as it adds in an hour, all at once. */
export const MOST_OF_ONE = 100
// Of all together. What is left is shared out: nobody has more than this part of it waiting, so that there is room for
// whoever has nothing in it, however many others fill their share.
const MOST_WAITING = 4_000
const PART = 8

/** Mails an hour to one address: of one person (of nobody in particular: of one organization), and of all together. */
export const MOST_TO_ADDRESS = { ofOne: 10, ofAll: 30 } as const
const HOUR = 3_600_000
// Counts that are kept; those that nobody used for longest go first.
const MOST_COUNTS = 20_000

/**
 * Hands mails to the mailer, a few at a time, so that no request waits for a mail server. Organizations take turns, and
 * none fills what others wait in; nor does anybody keep others' mails from an address by sending to it themselves.
 */
export function createOutbox (mailer: Mailer, isOpen: boolean, log: (line: string) => void): Outbox {
  const turns = createTurns()
  const sent = createCounts()
  const underWay = new Set<Promise<void>>()

  async function send () {
    for (let mail = turns.next(); mail !== undefined; mail = turns.next()) await mailer.send(mail)
  }

  return {
    isOpen,
    reserve: ({ organization, person }, address) => {
      if (!isOpen) return undefined
      const by = person === null ? organization : String(person)
      const counts = [[`${by} ${address}`, MOST_TO_ADDRESS.ofOne], [address, MOST_TO_ADDRESS.ofAll]] as const
      const reason = !turns.hasRoom(organization)
        ? 'too many are waiting'
        : counts.some(([key, most]) => sent.count(key) >= most)
          ? 'there were too many to the same address'
          : undefined
      if (reason !== undefined) {
        log(`A mail of the organization ${organization} is not sent: ${reason}`)
        return undefined
      }
      turns.reserve(organization)
      for (const [key] of counts) sent.add(key, 1)
      return {
        post (mail) {
          turns.post(organization, mail)
          if (underWay.size >= MOST_UNDER_WAY) return
          const sending: Promise<void> = send().finally(() => underWay.delete(sending))
          underWay.add(sending)
        },
        release () {
          turns.release(organization)
          for (const [key] of counts) sent.add(key, -1)
        }
      }
    },
    settled: async () => { await Promise.all(underWay) }
  }
}

/** Mails that wait, and those that room is kept for; each organization's one after the other, and these in turns. */
function createTurns () {
  interface Share { waiting: Mail[], reserved: number }
  const shares = new Map<string, Share>()
  let taken = 0

  const free = (organization: string, { waiting, reserved }: Share) => {
    taken--
    if (waiting.length + reserved === 0) shares.delete(organization)
  }

  return {
    hasRoom (organization: string): boolean {
      const { waiting, reserved } = shares.get(organization) ?? { waiting: [], reserved: 0 }
      return waiting.length + reserved < Math.min(MOST_OF_ONE, Math.floor((MOST_WAITING - taken) / PART))
    },
    reserve (organization: string) {
      const share = shares.get(organization) ?? { waiting: [], reserved: 0 }
      share.reserved++
      taken++
      shares.set(organization, share)
    },
    release (organization: string) {
      const share = shares.get(organization)!
      share.reserved--
      free(organization, share)
    },
    post (organization: string, mail: Mail) {
      const share = shares.get(organization)!
      share.reserved--
      share.waiting.push(mail)
    },
    next (): Mail | undefined {
      for (const [organization, share] of shares) {
        const mail = share.waiting.shift()
        if (mail === undefined) continue
        // Behind the others, until it is its turn again.
        shares.delete(organization)
        shares.set(organization, share)
        free(organization, share)
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
    return counted !== undefined && counted.end > Date.now() ? counted : undefined
  }
  return {
    count: (key: string): number => current(key)?.count ?? 0,
    add (key: string, by: 1 | -1) {
      const counted = current(key)
      if (counted !== undefined) counted.count += by
      else if (by > 0) counts.set(key, { count: by, end: Date.now() + HOUR })
    }
  }
}
