import type { Interval } from '../../../schemas/billing.ts'
import { manual } from '../../billing/provider.ts'
import { addRefund, checkRefund, concernOf, payBack, payInvoice, voidInvoice, type Note } from '../../billing/settlement.ts'
import { readNow, transaction, type Database, type Db } from '../../db/database.ts'
import { operatorOf, type Actor } from '../../repositories/audit/audit.ts'
import { createCoupon, endCoupon, listCoupons, type NewCoupon } from '../../repositories/billing/billing.ts'
import { findOwner, listAllInvoices, listUndoneRefunds } from '../../repositories/billing/invoices.ts'
import { updatePrice } from '../../repositories/billing/plans.ts'
import { formatMoney, invoiceNumber } from '../../rules/billing.ts'
import { ApiError } from '../../rules/errors.ts'
import { StartError } from '../common/open.ts'
import { allRows } from '../common/pages.ts'

/** Creates a coupon. Throws a StartError when its code exists, or its end is in the past. */
export async function addCoupon ({ db }: Database, coupon: NewCoupon): Promise<void> {
  if (coupon.valid_until !== null && coupon.valid_until.getTime() <= await readNow(db)) {
    throw new StartError('--valid-until is in the past; give a later time')
  }
  if (!await createCoupon(db, coupon)) throw new StartError(`The coupon ${coupon.code} already exists`)
}

/** Ends a coupon, also for organizations that redeemed it: it no longer reduces future invoices. */
export async function stopCoupon ({ db }: Database, code: string): Promise<void> {
  if (!await endCoupon(db, code)) throw new StartError(`There is no coupon ${code}`)
}

/** Every coupon as one line: code, discount, redemptions and their limit, end. */
export async function * describeCoupons ({ db }: Database): AsyncGenerator<string> {
  for await (const coupon of allRows((after) => listCoupons(db, after), '', ({ code }) => code)) {
    const { code, percent_off, amount_off, currency, redemptions, max_redemptions, valid_until } = coupon
    yield [
      code, percent_off === null ? formatMoney(amount_off!, currency!) : `${percent_off} %`,
      `${redemptions}/${max_redemptions ?? 'any'}`, valid_until?.toISOString() ?? 'no end'
    ].join('\t')
  }
}

/** Every invoice of the installation as a line of JSON, including those of deleted organizations. */
export async function * exportInvoices ({ db }: Database): AsyncGenerator<string> {
  const all = allRows((after) => listAllInvoices(db, after), { organization_id: '', number: 0 }, (invoice) => invoice)
  for await (const { number, ...invoice } of all) {
    yield JSON.stringify({ ...invoice, number: invoiceNumber(invoice.organization_id, number) })
  }
}

/**
 * Refunds that are pending or need review, as lines: id, organization, amount, charge, creation, provider, and
 * `pending` or the reason for the review.
 */
export async function * describeRefunds ({ db }: Database): AsyncGenerator<string> {
  const all = allRows((after) => listUndoneRefunds(db, manual.name, after), '', ({ refund }) => refund.id)
  for await (const { refund, charge } of all) {
    const { id, organization_id, amount, created_at, provider, status } = refund
    const state = status === 'pending' ? status : concernOf(refund)
    if (state === undefined) continue
    yield [
      id, organization_id, formatMoney(amount, charge.currency), charge.id, created_at.toISOString(), provider, state
    ].join('\t')
  }
}

/**
 * Refunds a charge or a part of it, also of a deleted organization. Returns the refund's id. Throws a StartError when
 * the charge does not exist, or the amount exceeds its refundable rest.
 */
export async function refundCharge (
  { db: handle }: Database, charge: string, amount: number | undefined
): Promise<string> {
  try {
    return await transaction(handle, async (db) => {
      const organization = await findOwner(db, 'charge', charge)
      if (organization === undefined) throw new StartError(`There is no charge ${charge}`)
      return (await addRefund(db, operatorOf(organization), charge, amount === undefined ? {} : { amount })).id
    })
  } catch (error) {
    throw error instanceof ApiError ? new StartError(error.message) : error
  }
}

const NOTES = {
  invoice: { paid: payInvoice, void: voidInvoice },
  refund: {
    paid: (db: Db, actor: Actor, id: string) => payBack(db, actor, id, 'succeeded'),
    failed: (db: Db, actor: Actor, id: string) => payBack(db, actor, id, 'failed'),
    checked: checkRefund
  }
}

const DONE = 'is already settled'
const NOTHING_TO_DO = { paid: DONE, void: DONE, failed: DONE, checked: 'needs no review' }

/**
 * Records the outcome or the review of an invoice or a refund. Returns a message for the operator. Throws a StartError
 * when it does not exist, or is already settled or reviewed.
 */
export async function settle<T extends keyof typeof NOTES> (
  { db: handle }: Database, of: T, as: keyof (typeof NOTES)[T] & keyof typeof NOTHING_TO_DO, id: string
): Promise<string> {
  const note = NOTES[of][as] as (db: Db, actor: Actor, id: string) => Promise<Note | undefined>
  const noted = await transaction(handle, async (db) => {
    const organization = await findOwner(db, of, id)
    if (organization === undefined) throw new StartError(`There is no ${of} ${id}`)
    const noted = await note(db, operatorOf(organization), id)
    if (noted === undefined) throw new StartError(`The ${of} ${id} ${NOTHING_TO_DO[as]}`)
    return noted
  })
  if (noted.unanswered === null) return 'Changed.'
  return `Changed. Warning: ${noted.unanswered} was also requested to move this money and has not reported a result. ` +
    `The request is retried, so the money may move ${as === 'paid' ? 'twice' : 'anyway'}: check with the provider.`
}

/** Sets the price of a plan; null removes it. Throws a StartError when the plan or the price does not exist. */
export async function setPrice (
  { db }: Database, price: { plan: string, interval: Interval, currency: string, amount: number | null }
): Promise<void> {
  if (await updatePrice(db, price)) return
  throw new StartError(price.amount === null ? 'There is no such price' : `There is no plan ${price.plan}`)
}
