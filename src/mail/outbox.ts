import type { Mail, Mailer } from './mailer.ts'

/** Mails that nobody waits for. */
export interface Outbox {
  /** Whether there is a mail server to hand them to. */
  isOpen: boolean
  /** Takes a mail: what becomes of it, the log tells. */
  post (mail: Mail): void
  /** Resolves when everything that was taken is handed over, or given up. */
  settled (): Promise<void>
}

/** Mails that may be under way at once: each has its connection, and ends within the mailer's time-outs. */
const MOST = 4
/** Mails that may wait for it. */
const MOST_WAITING = 500

/** Hands mails to the mailer one after the other, a few at a time, so that no request waits for a mail server. */
export function createOutbox (mailer: Mailer, isOpen: boolean, log: (line: string) => void): Outbox {
  const waiting: Mail[] = []
  const underWay = new Set<Promise<void>>()

  async function send () {
    for (let mail = waiting.shift(); mail !== undefined; mail = waiting.shift()) await mailer.send(mail)
  }

  return {
    isOpen,
    post: (mail) => {
      if (waiting.length >= MOST_WAITING) {
        log(`The mail to user ${mail.userId} was not sent: too many are waiting`)
        return
      }
      waiting.push(mail)
      if (underWay.size >= MOST) return
      const sending: Promise<void> = send().finally(() => underWay.delete(sending))
      underWay.add(sending)
    },
    settled: async () => { await Promise.all(underWay) }
  }
}
