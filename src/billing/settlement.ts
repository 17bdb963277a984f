import { ulid } from 'ulidx'
import type { Db } from '../db/database.ts'
import { eventOf, recordEvent, systemOf, type Actor, type AuditEvent } from '../repositories/audit/audit.ts'
import { giveCredit } from '../repositories/billing/billing.ts'
import {
  createRefund, findInvoice, lockCharge, lockInvoice, lockRefund, settleCharge, settleCharges, settleInvoice,
  settleRefund, updateChecked, updateNoted, updateReported, type Charge, type Refund
} from '../repositories/billing/invoices.ts'
import { lockPlan } from '../repositories/billing/plans.ts'
import { refundableOf } from '../rules/billing.ts'
import { fail } from '../rules/errors.ts'
import { holderOf, isUnanswered, type Outcome } from './provider.ts'

// Sets the final status of invoices, charges and refunds. Each transaction first locks the organization (`lockPlan`),
// if the organization exists, and then the rows in the order that `lockAccount` describes.

/** The result after the operator has recorded an outcome. */
export interface Note {
  /** A provider that got the order and has not reported a final status, so the money may move twice. Otherwise null. */
  unanswered: string | null
}

const noteOn = (orders: (Charge | Refund)[]): Note => ({ unanswered: orders.find(isUnanswered)?.provider ?? null })

/** Marks an invoice as paid or void for the operator; undefined if the invoice is not open. */
export async function closeInvoiceByOperator (
  db: Db, actor: Actor, id: string, status: 'paid' | 'void'
): Promise<Note | undefined> {
  const isThere = await lockPlan(db, actor.organization_id) !== undefined
  const closed = await closeInvoice(db, actor.organization_id, isThere, id, status)
  if (closed === undefined) return undefined
  for (const charge of closed.charges) await updateNoted(db, 'charge', charge, outcomeOf(status))
  await recordEvent(db, actor, closed.event)
  return noteOn(closed.charges)
}

/**
 * Closes an open invoice and its charges. If the invoice is paid, the stored unused part of its period (`unused`)
 * becomes credit. If the invoice is void, the organization gets back the credit that the invoice used. A deleted
 * organization gets no credit.
 */
async function closeInvoice (
  db: Db, organizationId: string, isThere: boolean, id: string, status: 'paid' | 'void'
): Promise<{ event: AuditEvent, charges: Charge[] } | undefined> {
  const closed = await settleInvoice(db, organizationId, id, status)
  if (closed === undefined) return undefined
  const charges = await settleCharges(db, organizationId, id, outcomeOf(status))
  const { currency, credit, unused } = closed
  if (isThere) await giveCredit(db, organizationId, currency, status === 'paid' ? unused : credit)
  return { event: eventOf(status === 'paid' ? 'invoice.pay' : 'invoice.void', id), charges }
}

const outcomeOf = (status: 'paid' | 'void') => status === 'paid' ? 'succeeded' : 'failed'

/**
 * Creates a refund of a successful charge, by default of the whole refundable amount. The caller has locked the
 * organization (unless the organization is deleted), and records the returned event.
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
  db: Db, actor: Actor, chargeId: string, refund: { amount?: number }
): Promise<Refund> {
  await lockPlan(db, actor.organization_id)
  const given = await giveBack(db, actor.organization_id, chargeId, refund)
  await recordEvent(db, actor, given.event)
  return given.refund
}

/** Records the outcome that the operator reports for a refund; undefined if there is no such pending refund. */
export async function settleRefundByOperator (
  db: Db, actor: Actor, id: string, status: 'succeeded' | 'failed'
): Promise<Note | undefined> {
  const { organization_id } = actor
  await lockPlan(db, organization_id)
  const locked = await lockRefund(db, organization_id, id)
  if (locked?.refund.status !== 'pending') return undefined
  await settleRefund(db, locked, status)
  await updateNoted(db, 'refund', locked.refund, status)
  await recordEvent(db, actor, refundEvent(locked.refund, status))
  return noteOn([locked.refund])
}

/** Records that the operator has checked a refund; undefined if the refund needs no check (`concernOf`). */
export async function checkRefund (db: Db, actor: Actor, id: string): Promise<Note | undefined> {
  await lockPlan(db, actor.organization_id)
  const refund = (await lockRefund(db, actor.organization_id, id))?.refund
  if (refund === undefined || refund.checked_at !== null || concernOf(refund) === undefined) return undefined
  await updateChecked(db, refund)
  await recordEvent(db, actor, eventOf('refund.check', id))
  return { unanswered: null }
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
  db: Db, { organization_id, id, invoice_id }: Charge, outcome: Outcome
): Promise<Doubt | undefined> {
  const isThere = await lockPlan(db, organization_id) !== undefined
  await lockInvoice(db, organization_id, invoice_id)
  const charge = (await lockCharge(db, organization_id, id))!
  await updateReported(db, 'charge', charge, outcome)
  const { status } = outcome
  if (status === 'pending' || status === charge.provider_status) return undefined
  const events: AuditEvent[] = []
  if (status === 'succeeded' && charge.status !== 'succeeded') {
    const paid = await closeInvoice(db, organization_id, isThere, invoice_id, 'paid')
    if (paid !== undefined) events.push(paid.event)
    else await settleCharge(db, organization_id, id, status)
  }
  if (charge.status === 'pending' && status === 'failed') {
    await settleCharge(db, organization_id, id, status)
    events.push(eventOf('charge.fail', id))
  }
  if (charge.status !== 'pending') events.push(reportEvent('charge', charge, status))
  await recordEvent(db, systemOf(organization_id), ...events)
  return doubtOf(charge.status, status)
}

/**
 * Records the provider's report on a refund, like `reportCharge`. If the refund is recorded as failed and the provider
 * reports a success, the refund succeeds only if its amount is still refundable.
 */
export async function reportRefund (
  db: Db, { organization_id, id }: Refund, outcome: Outcome
): Promise<Doubt | undefined> {
  await lockPlan(db, organization_id)
  const locked = (await lockRefund(db, organization_id, id))!
  const { refund, charge } = locked
  await updateReported(db, 'refund', refund, outcome)
  const { status } = outcome
  if (status === 'pending' || status === refund.provider_status) return undefined
  const isLate = refund.status !== 'pending'
  if (!isLate) await settleRefund(db, locked, status)
  else if (status === 'succeeded' && refund.status === 'failed') {
    const invoice = await findInvoice(db, organization_id, charge.invoice_id)
    if (refundableOf(invoice!, charge) >= refund.amount) await settleRefund(db, locked, status)
  }
  await recordEvent(
    db, systemOf(organization_id), isLate ? reportEvent('refund', refund, status) : refundEvent(refund, status)
  )
  return doubtOf(refund.status, status)
}

const reportEvent = (
  of: 'charge' | 'refund', { id, status }: Pick<Charge, 'id' | 'status'>, outcome: 'succeeded' | 'failed'
) => eventOf(`${of}.report`, id, { outcome, noted: status })
