import { ulid } from 'ulidx'
import { change } from '../changes/change.ts'
import { NOTHING } from '../changes/steps.ts'
import type { Counter } from '../db/rows/counter.ts'
import type { Db } from '../db/database.ts'
import { eventOf, systemOf, type Actor, type AuditEvent } from '../repositories/audit/audit.ts'
import { giveCredit } from '../repositories/billing/billing.ts'
import {
  createRefund, findInvoice, lockCharge, lockInvoice, lockRefund, settleCharge, settleCharges, settleInvoice,
  settleRefund, updateChecked, updateNoted, updateReported, type Charge, type Invoice, type Refund
} from '../repositories/billing/invoices.ts'
import { refundableOf } from '../rules/billing.ts'
import { fail } from '../rules/api-error.ts'
import { holderOf, isUnanswered, type Outcome } from './provider.ts'

// Sets the final status of invoices, charges and refunds, also of deleted organizations. After the organization, each
// change locks the rows in this order: invoice, charge, refund (docs/decisions/0029).

/** The result after the operator has recorded an outcome. */
export interface Note {
  /** A provider that got the order and has not reported a final status, so the money may move twice. Otherwise null. */
  unanswered: string | null
}

const noteOn = (orders: (Charge | Refund)[]): Note => ({ unanswered: orders.find(isUnanswered)?.provider ?? null })

/** Marks an invoice as paid or void for the operator; undefined if the invoice is not open. */
export async function closeInvoiceByOperator (
  handle: Db, actor: Actor, id: string, status: 'paid' | 'void'
): Promise<Note | undefined> {
  const { written } = await change(handle, actor, {
    load: async (db, counter) => ({ invoice: await lockInvoice(db, actor.organization_id, id), counter }),
    decide ({ invoice, counter }) {
      if (invoice?.status !== 'open') return NOTHING
      return {
        async write (db) {
          const charges = await closeInvoice(db, counter, invoice, status)
          for (const charge of charges) await updateNoted(db, 'charge', charge, outcomeOf(status))
          return noteOn(charges)
        },
        events: [closeEvent(id, status)]
      }
    }
  })
  return written
}

/**
 * Closes an open invoice and its charges. If the invoice is paid, the stored unused part of its period (`unused`)
 * becomes credit. If the invoice is void, the organization gets back the credit that the invoice used. A deleted
 * organization gets no credit. Returns the charges.
 */
async function closeInvoice (
  db: Db, { organization_id, is_closed }: Counter, { id, currency, credit, unused }: Invoice, status: 'paid' | 'void'
): Promise<Charge[]> {
  await settleInvoice(db, organization_id, id, status)
  if (!is_closed) await giveCredit(db, organization_id, currency, status === 'paid' ? unused : credit)
  return settleCharges(db, organization_id, id, outcomeOf(status))
}

const closeEvent = (id: string, status: 'paid' | 'void') =>
  eventOf(status === 'paid' ? 'invoice.pay' : 'invoice.void', id)
const outcomeOf = (status: 'paid' | 'void') => status === 'paid' ? 'succeeded' : 'failed'

/**
 * Creates a refund of a successful charge, by default of the whole refundable amount. The caller has locked the
 * organization, and records the returned event.
 */
export async function giveBack (
  db: Db, organizationId: string, chargeId: string, { amount, reason }: { amount?: number, reason?: string }
): Promise<{ refund: Refund, charge: Charge, event: AuditEvent }> {
  const charge = await lockCharge(db, organizationId, chargeId) ?? fail('not_found')
  if (charge.status !== 'succeeded') fail('charge_not_settled')
  const left = refundableOf((await findInvoice(db, organizationId, charge.invoice_id))!, charge)
  const refunded = amount ?? left
  if (refunded > left || left === 0) fail('refund_exceeds_charge', { left })
  const refund = await createRefund(db, {
    charge, id: ulid(), provider: holderOf(charge), amount: refunded, reason: reason ?? null
  })
  const { id, currency } = charge
  return { refund, charge, event: eventOf('refund.create', refund.id, { amount: refunded, currency, charge_id: id }) }
}

/** Creates a refund for the operator, also for a deleted organization. */
export async function addRefund (
  handle: Db, actor: Actor, chargeId: string, refund: { amount?: number }
): Promise<Refund> {
  const { written } = await change(handle, actor, {
    decide: () => ({
      write: async (db) => giveBack(db, actor.organization_id, chargeId, refund),
      events: ({ event }) => [event]
    })
  })
  return written.refund
}

/** Records the outcome that the operator reports for a refund; undefined if there is no such pending refund. */
export async function settleRefundByOperator (
  handle: Db, actor: Actor, id: string, status: 'succeeded' | 'failed'
): Promise<Note | undefined> {
  const { written } = await change(handle, actor, {
    load: async (db) => lockRefund(db, actor.organization_id, id),
    decide (locked) {
      if (locked?.refund.status !== 'pending') return NOTHING
      return {
        async write (db) {
          await settleRefund(db, locked, status)
          await updateNoted(db, 'refund', locked.refund, status)
          return noteOn([locked.refund])
        },
        events: [refundEvent(locked.refund, status)]
      }
    }
  })
  return written
}

/** Records that the operator has checked a refund; undefined if the refund needs no check (`concernOf`). */
export async function checkRefund (handle: Db, actor: Actor, id: string): Promise<Note | undefined> {
  const { written } = await change(handle, actor, {
    load: async (db) => lockRefund(db, actor.organization_id, id),
    decide (locked) {
      const refund = locked?.refund
      if (refund === undefined || refund.checked_at !== null || concernOf(refund) === undefined) return NOTHING
      return {
        async write (db) {
          await updateChecked(db, refund)
          return noteOn([])
        },
        events: [eventOf('refund.check', id)]
      }
    }
  })
  return written
}

const refundEvent = ({ id, amount }: Refund, status: 'succeeded' | 'failed') =>
  eventOf(status === 'succeeded' ? 'refund.pay' : 'refund.fail', id, { amount })

/** A conflict between the provider and the operator: they reported different outcomes, or both reported a payment. */
export type Doubt = 'contradiction' | 'twice'

function doubtOf (recorded: Charge['status'], reported: 'succeeded' | 'failed'): Doubt | undefined {
  if (recorded === 'pending') return undefined
  if (recorded !== reported) return 'contradiction'
  return reported === 'succeeded' ? 'twice' : undefined
}

/**
 * The reason why the operator must check a settled refund: the provider's report contradicts the recorded outcome, or a
 * final report is missing. Undefined without a reason.
 */
export function concernOf (refund: Refund): Doubt | 'unanswered' | undefined {
  const { status, noted_status, provider_status } = refund
  if (status === 'pending') return undefined
  if (isUnanswered(refund)) return 'unanswered'
  if (provider_status === null || provider_status === 'pending') return undefined
  // If the operator has noted no outcome, `status` is the provider's first report. Compares it with the latest report.
  if (noted_status === null) return provider_status === status ? undefined : 'contradiction'
  return doubtOf(noted_status, provider_status)
}

/**
 * Records the provider's report on a charge. A success always settles the charge, even if the invoice is void, so that
 * the money can be refunded. A failure does not change a settled charge. Returns a conflict that the operator must
 * check.
 */
export async function reportCharge (
  handle: Db, { organization_id, id, invoice_id }: Charge, outcome: Outcome
): Promise<Doubt | undefined> {
  const { status } = outcome
  const { written } = await change(handle, systemOf(organization_id), {
    load: async (db, counter) => ({
      invoice: (await lockInvoice(db, organization_id, invoice_id))!,
      charge: (await lockCharge(db, organization_id, id))!,
      counter
    }),
    decide ({ invoice, charge, counter }) {
      const isNew = status !== 'pending' && status !== charge.provider_status
      const isSettled = isNew && (status === 'succeeded' ? charge.status !== 'succeeded' : charge.status === 'pending')
      const isPaid = isSettled && status === 'succeeded' && invoice.status === 'open'
      return {
        async write (db) {
          await updateReported(db, 'charge', charge, outcome)
          if (isPaid) await closeInvoice(db, counter, invoice, 'paid')
          else if (isSettled) await settleCharge(db, organization_id, id, status)
          return isNew ? doubtOf(charge.status, status) : undefined
        },
        events: [
          ...isPaid ? [closeEvent(invoice_id, 'paid')] : [],
          ...isSettled && status === 'failed' ? [eventOf('charge.fail', id)] : [],
          ...isNew && charge.status !== 'pending' ? [reportEvent('charge', charge, status)] : []
        ]
      }
    }
  })
  return written
}

/**
 * Records the provider's report on a refund, like `reportCharge`. If the refund is recorded as failed and the provider
 * reports a success, the refund succeeds only if its amount is still refundable.
 */
export async function reportRefund (
  handle: Db, { organization_id, id }: Refund, outcome: Outcome
): Promise<Doubt | undefined> {
  const { status } = outcome
  const { written } = await change(handle, systemOf(organization_id), {
    load: async (db) => (await lockRefund(db, organization_id, id))!,
    decide (locked) {
      const { refund, charge } = locked
      const isNew = status !== 'pending' && status !== refund.provider_status
      const isLate = refund.status !== 'pending'
      return {
        async write (db) {
          await updateReported(db, 'refund', refund, outcome)
          if (!isNew) return undefined
          if (!isLate) await settleRefund(db, locked, status)
          else if (status === 'succeeded' && refund.status === 'failed') {
            const invoice = await findInvoice(db, organization_id, charge.invoice_id)
            if (refundableOf(invoice!, charge) >= refund.amount) await settleRefund(db, locked, status)
          }
          return doubtOf(refund.status, status)
        },
        events: !isNew ? [] : [isLate ? reportEvent('refund', refund, status) : refundEvent(refund, status)]
      }
    }
  })
  return written
}

const reportEvent = (
  of: 'charge' | 'refund', { id, status }: Pick<Charge, 'id' | 'status'>, outcome: 'succeeded' | 'failed'
) => eventOf(`${of}.report`, id, { outcome, noted: status })
