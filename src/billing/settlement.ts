import type { Db } from '../db/database.ts'
import { recordEvent, type Actor } from '../repositories/audit.ts'
import { settleCharges, settleInvoice, settleRefund } from '../repositories/invoices.ts'

/** Notes down what became of a charge, and with that of its invoice. */
export async function settleCharge (
  db: Db, actor: Actor, invoiceId: string, status: 'succeeded' | 'failed'
): Promise<void> {
  if (status === 'succeeded') {
    await payInvoice(db, actor, invoiceId)
    return
  }
  const [id] = await settleCharges(db, actor.organization_id, invoiceId, 'failed')
  if (id !== undefined) {
    await recordEvent(db, actor, { action: 'charge.fail', resource_type: 'charge', resource_id: id })
  }
}

/** Notes down that what an invoice asks for was received; false when it is not open. */
export async function payInvoice (db: Db, actor: Actor, id: string): Promise<boolean> {
  return closeInvoice(db, actor, id, 'paid')
}

/** Notes down that an invoice asks for nothing any more; false when it is not open. */
export async function voidInvoice (db: Db, actor: Actor, id: string): Promise<boolean> {
  return closeInvoice(db, actor, id, 'void')
}

async function closeInvoice (db: Db, actor: Actor, id: string, status: 'paid' | 'void'): Promise<boolean> {
  const { organization_id } = actor
  if (await settleInvoice(db, organization_id, id, status) === undefined) return false
  await settleCharges(db, organization_id, id, status === 'paid' ? 'succeeded' : 'failed')
  const action = status === 'paid' ? 'invoice.pay' : 'invoice.void'
  await recordEvent(db, actor, { action, resource_type: 'invoice', resource_id: id })
  return true
}

/** Notes down what became of a refund; false when that is known already. */
export async function payBack (
  db: Db, actor: Actor, id: string, status: 'succeeded' | 'failed'
): Promise<boolean> {
  const refund = await settleRefund(db, actor.organization_id, id, status)
  if (refund === undefined) return false
  const action = status === 'succeeded' ? 'refund.pay' : 'refund.fail'
  await recordEvent(db, actor, {
    action, resource_type: 'refund', resource_id: id, details: { amount: refund.amount }
  })
  return true
}
