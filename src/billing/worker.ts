import { databaseError, readNow, transaction, type Db } from '../db/database.ts'
import { recordEvent, systemOf, type AuditEvent } from '../repositories/audit.ts'
import { requireAccount } from '../repositories/billing.ts'
import { listUnsubmittedCharges, listUnsubmittedRefunds, updateSubmitted } from '../repositories/invoices.ts'
import { findStatus, lockPlan } from '../repositories/plans.ts'
import { findDue, listDue } from '../repositories/subscriptions.ts'
import { createBackground, type Background } from '../vault/background.ts'
import type { Invoicing } from './invoicing.ts'
import type { Outcome, Provider } from './provider.ts'
import { payBack, settleCharge } from './settlement.ts'
import { endSubscription, renewSubscription } from './subscriptions.ts'

interface Log {
  info (details: object, message: string): void
  warn (details: object, message: string): void
}

export interface BillingWorker {
  db: Db
  invoicing: Invoicing & { provider: Provider }
  /** What an organization has whose subscription ended. */
  defaultPlan: string
  log: Log
  /** Milliseconds that the provider may take for an answer. */
  patience?: number | undefined
}

const PATIENCE = 10_000

/**
 * Renews and ends subscriptions whose period is over, and tells the provider what it was not told yet: the row of a
 * charge or refund is the intent, committed with the change that made it, so what a crash left open is found here.
 */
export function createBillingWorker (
  { db: handle, invoicing, defaultPlan, log, patience = PATIENCE }: BillingWorker
): Background {
  const { provider } = invoicing

  async function renew (organizationId: string) {
    const done = await transaction(handle, async (db): Promise<AuditEvent | undefined> => {
      if (await lockPlan(db, organizationId) === undefined) return undefined
      // Another instance may have been here.
      const due = await findDue(db, organizationId)
      if (due === undefined) return undefined
      const isOver = due.cancel_at_period_end || await findStatus(db, organizationId) === 'cancelled'
      if (isOver) await endSubscription(db, due, defaultPlan)
      else {
        const now = new Date(await readNow(db))
        await renewSubscription(db, invoicing, await requireAccount(db, organizationId), due, now)
      }
      const event: AuditEvent = {
        action: isOver ? 'subscription.end' : 'subscription.renew',
        resource_type: 'subscription',
        resource_id: due.id,
        details: { plan: due.plan }
      }
      await recordEvent(db, systemOf(organizationId), event)
      return event
    })
    if (done !== undefined) log.info({ organization: organizationId, action: done.action }, 'a period ended')
  }

  // Ends also where the provider heeds no signal.
  function ask (work: (signal: AbortSignal) => Promise<Outcome>): Promise<Outcome> {
    const signal = AbortSignal.timeout(patience)
    return Promise.race([work(signal), new Promise<never>((_resolve, reject) => {
      signal.addEventListener('abort', () => { reject(signal.reason) })
    })])
  }

  async function submit (
    of: 'charge' | 'refund', row: { organization_id: string, id: string },
    work: (signal: AbortSignal) => Promise<Outcome>,
    settle: (db: Db, status: 'succeeded' | 'failed') => Promise<void>
  ) {
    const { status, reference } = await ask(work)
    await transaction(handle, async (db) => {
      const isFirst = await updateSubmitted(db, of, row, reference)
      if (isFirst && status !== 'pending') await settle(db, status)
    })
  }

  async function attempt (what: string, of: object, work: () => Promise<void>) {
    try {
      await work()
    } catch (error) {
      log.warn({ err: databaseError(error), ...of }, `${what} was interrupted, and is tried again`)
    }
  }

  return createBackground(async (isStopped) => {
    await attempt('billing', {}, async () => {
      for (const organization of await listDue(handle)) {
        if (isStopped()) return
        await attempt('the end of a period', { organization }, () => renew(organization))
      }
      for (let after = '', rows; !isStopped(); after = rows.at(-1)!.id) {
        rows = await listUnsubmittedCharges(handle, after)
        if (rows.length === 0) break
        for (const row of rows) {
          if (isStopped()) return
          const { organization_id: organization, id, amount, currency, payment_method_id } = row
          await attempt('a charge', { organization, charge: id }, () => submit(
            'charge', row, (signal) => provider.charge({ id, amount, currency, payment_method_id }, signal),
            (db, status) => settleCharge(db, systemOf(organization), row.invoice_id, status)
          ))
        }
      }
      for (let after = '', rows; !isStopped(); after = rows.at(-1)!.refund.id) {
        rows = await listUnsubmittedRefunds(handle, after)
        if (rows.length === 0) break
        for (const { refund, charge } of rows) {
          if (isStopped()) return
          const { organization_id: organization, id, amount } = refund
          const order = {
            id, amount, currency: charge.currency, charge: { id: charge.id, reference: charge.provider_reference }
          }
          await attempt('a refund', { organization, refund: id }, () => submit(
            'refund', refund, (signal) => provider.refund(order, signal),
            async (db, status) => { await payBack(db, systemOf(organization), id, status) }
          ))
        }
      }
    })
  })
}
