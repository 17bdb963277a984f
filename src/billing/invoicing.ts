import { ulid } from 'ulidx'
import type { InvoiceLine, Party } from '../../schemas/billing.ts'
import type { Db } from '../db/database.ts'
import type { Plan } from '../../schemas/organizations.ts'
import {
  findDefaultMethod, requireAccount, takeCredit, takeInvoiceNumber, type Account, type PaymentMethodRow
} from '../repositories/billing/billing.ts'
import { createCharge, createInvoice, type Charge } from '../repositories/billing/invoices.ts'
import { lockPlan } from '../repositories/billing/plans.ts'
import { findSubscription, type Subscription } from '../repositories/billing/subscriptions.ts'
import { fail } from '../rules/errors.ts'

/** How this service makes invoices. */
export interface Invoicing {
  /** Without a name nothing that costs something is invoiced. */
  seller: Party
  /** Tells the operator that the name is missing. */
  warnOfSeller: () => void
  /** What is to be read on each invoice beside that; may be empty. */
  note: string
  /** Days until an invoice is due. */
  dueDays: number
  provider: { name: string }
}

export interface NewInvoice {
  currency: string
  lines: InvoiceLine[]
  /** What the coupon takes off. */
  discount: number
  /** Whether what the organization has in credit pays for it first. */
  usesCredit: boolean
  /** The default one when it is left out. */
  method?: PaymentMethodRow | undefined
}

/**
 * Holds an organization until the end of the transaction: changes of its billing take turns. 404 when it is gone. What
 * else they hold comes right after it (docs/decisions/0029), in this order: coupon, invoice, charge, refund. Of an
 * organization that is gone the books remain, in the same order.
 */
export async function holdAccount (db: Db, organizationId: string): Promise<{ plan: Plan, account: Account }> {
  const plan = await lockPlan(db, organizationId) ?? fail('not_found')
  return { plan, account: await requireAccount(db, organizationId) }
}

/** Holds an organization that has a subscription, as `holdAccount` does. 404 when it has none. */
export async function holdSubscription (
  db: Db, organizationId: string
): Promise<{ account: Account, subscription: Subscription }> {
  const { account } = await holdAccount(db, organizationId)
  return { account, subscription: await findSubscription(db, organizationId) ?? fail('no_subscription') }
}

const DAY = 24 * 60 * 60 * 1000

/** Tells the operator, once a day at most, that nobody is named who sells: what waits for that is tried again often. */
export function createSellerWarning (warn: (line: string) => void): () => void {
  let next = 0
  return () => {
    if (performance.now() < next) return
    next = performance.now() + DAY
    warn('INVOICE_SELLER_NAME is not set: set it to issue invoices and renew paid subscriptions')
  }
}

/**
 * Makes the next invoice of an organization, which the caller holds, and the charge that asks for what is to pay.
 * Nothing to pay is paid. 503 where nobody is named who sells: an invoice is made for good.
 */
export async function issueInvoice (
  db: Db, { seller, note, dueDays, provider, warnOfSeller }: Invoicing, account: Account, invoice: NewInvoice, now: Date
): Promise<{ invoice_id: string, charge: Charge | undefined }> {
  const { organization_id } = account
  const { currency, lines, discount, usesCredit } = invoice
  const subtotal = lines.reduce((sum, { amount }) => sum + amount, 0)
  if (subtotal > discount && seller.name === '') {
    warnOfSeller()
    fail('invoicing_unavailable')
  }
  const credit = usesCredit ? await takeCredit(db, organization_id, currency, subtotal - discount) : 0
  const total = subtotal - discount - credit
  const method = invoice.method ?? await findDefaultMethod(db, organization_id)
  const id = ulid()
  await createInvoice(db, {
    organization_id,
    id,
    number: await takeInvoiceNumber(db, organization_id),
    status: total === 0 ? 'paid' : 'open',
    currency,
    lines,
    subtotal,
    discount,
    credit,
    total,
    seller,
    buyer: { name: account.name, address: account.address, tax_id: account.tax_id },
    reference: method?.reference || null,
    note,
    issued_at: now,
    due_at: new Date(now.getTime() + dueDays * DAY),
    paid_at: total === 0 ? now : null
  })
  if (total === 0) return { invoice_id: id, charge: undefined }
  const charge = await createCharge(db, {
    organization_id,
    id: ulid(),
    invoice_id: id,
    payment_method_id: method?.id ?? null,
    provider: provider.name,
    currency,
    amount: total
  })
  return { invoice_id: id, charge }
}
