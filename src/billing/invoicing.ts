import { ulid } from 'ulidx'
import type { InvoiceLine, Party } from '../../schemas/billing.ts'
import type { Db } from '../db/database.ts'
import {
  findDefaultMethod, takeCredit, takeInvoiceNumber, type Account, type PaymentMethodRow
} from '../repositories/billing/billing.ts'
import { createCharge, createInvoice, type Charge } from '../repositories/billing/invoices.ts'
import { fail } from '../rules/api-error.ts'

export interface Invoicing {
  /** If the seller's name is empty, only invoices whose amount after the discount is 0 can be issued. */
  seller: Party
  /** Logs that the seller's name is missing. */
  warnOfSeller: () => void
  note: string
  dueDays: number
  provider: { name: string }
}

interface NewInvoice {
  currency: string
  lines: InvoiceLine[]
  discount: number
  usesCredit: boolean
  /** Without a method, the organization's default method is used. */
  method?: PaymentMethodRow | undefined
}

const DAY = 24 * 60 * 60 * 1000

/** Returns a function that logs the missing seller name, at most once a day, because the worker retries often. */
export function createSellerWarning (warn: (line: string) => void): () => void {
  let next = 0
  return () => {
    if (performance.now() < next) return
    next = performance.now() + DAY
    warn('INVOICE_SELLER_NAME is not set: set it to issue invoices and renew paid subscriptions')
  }
}

/**
 * Creates the next invoice of an organization and the charge for its total. The caller has locked the organization. An
 * invoice with total 0 is paid at once, without a charge. Throws 503 if the seller's name is missing and the amount
 * after the discount is not 0, because an issued invoice cannot be corrected.
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
