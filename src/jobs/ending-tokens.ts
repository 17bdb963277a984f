import { databaseError, type Db } from '../db/database.ts'
import { endingToken } from '../mail/messages.ts'
import type { MailReservation, Outbox } from '../mail/outbox.ts'
import { findOrganization } from '../repositories/levels/organizations.ts'
import { listOwners } from '../repositories/people/members.ts'
import { listUnannouncedEnds, returnAnnouncement, takeAnnouncement, type EndingToken } from '../repositories/people/tokens.ts'
import { canonicalEmail } from '../rules/formats/emails.ts'
import type { Log } from '../telemetry/log.ts'
import { createBackground, type Background } from './background.ts'

const HOUR = 3_600_000
const PAGE = 100

/**
 * Mails the owners of organizations about each API token that ends soon, once for each end. A token whose mails find no
 * place in the queue waits for the next run, and so do the other tokens of its organization. If the mail server accepts
 * none of a token's mails, the next run sends them.
 */
export function createEndingTokenMailer (
  { db, log, outbox, service }: { db: Db, log: Log, outbox: Outbox, service: () => string }
): Background {
  return createBackground(async (isStopped) => {
    if (!outbox.isOpen) return
    const full = new Set<string>()
    try {
      for (let after: EndingToken | undefined; !isStopped();) {
        const { found, last } = await listUnannouncedEnds(db, after, PAGE)
        for (const token of found) {
          if (isStopped()) return
          if (!full.has(token.organization_id) && !await announce(token)) full.add(token.organization_id)
        }
        if (last === undefined) return
        after = last
      }
    } catch (error) {
      log.warn({ err: databaseError(error) }, 'mails about ending tokens failed; will retry')
    }
  }, HOUR)

  /** False if the queue has no place for the mails. */
  async function announce (token: EndingToken): Promise<boolean> {
    const { organization_id: organization, name, expires_at } = token
    const found = await findOrganization(db, organization)
    const owners = found === undefined ? [] : await listOwners(db, organization)
    if (found === undefined || owners.length === 0) return true
    const reservations: MailReservation[] = []
    for (const { email } of owners) {
      const reservation = outbox.reserve({ organization, person: null }, canonicalEmail(email))
      if (reservation === undefined) break
      reservations.push(reservation)
    }
    const isWhole = reservations.length === owners.length
    let isTaken = false
    try {
      isTaken = isWhole && await takeAnnouncement(db, token)
    } finally {
      if (!isTaken) for (const reservation of reservations) reservation.release()
    }
    if (!isTaken) return isWhole
    let failures = 0
    // A further mail would be the second one to each owner whose mail was accepted.
    const onFailure = async () => {
      failures++
      if (failures === owners.length) await returnAnnouncement(db, token)
    }
    for (const [i, owner] of owners.entries()) {
      reservations[i]!.post({
        about: `token ${token.id}`,
        to: owner.email,
        onFailure,
        ...endingToken({ name: owner.name, service: service(), organization: found.name, token: name, at: expires_at })
      })
    }
    return true
  }
}
