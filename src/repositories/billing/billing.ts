import { and, asc, desc, eq, gt, isNull, or, sql } from 'drizzle-orm'
import type { BillingDetails, PaymentMethodAttributes } from '../../../schemas/billing.ts'
import type { Db } from '../../db/database.ts'
import { matching } from '../../db/rows/query.ts'
import {
  billing_accounts, columnsOf, coupon_redemptions, coupons, credits, organization_counters, payment_methods
} from '../../db/tables.ts'
import { readPage, type PageRequest } from '../../rules/pagination.ts'

// The functions that change rows of an organization are called while the organization is locked (`change`).

export type Account = typeof billing_accounts.$inferSelect

const itsAccount = (organizationId: string) => eq(billing_accounts.organization_id, organizationId)

/** Returns the billing account of an organization. Creates the account on first use, with the organization's name. */
export async function requireAccount (db: Db, organizationId: string): Promise<Account> {
  const found = await findAccount(db, organizationId)
  if (found !== undefined) return found
  const [organization] = await db.select({ name: organization_counters.name }).from(organization_counters)
    .where(eq(organization_counters.organization_id, organizationId))
  const [made] = await db.insert(billing_accounts)
    .values({ organization_id: organizationId, name: organization!.name }).returning()
  return made!
}

export async function findAccount (db: Db, organizationId: string): Promise<Account | undefined> {
  const [row] = await db.select().from(billing_accounts).where(itsAccount(organizationId))
  return row
}

/** Changes the billing details for future invoices. An empty name is replaced by the organization's current name. */
export async function updateDetails (db: Db, organizationId: string, details: BillingDetails): Promise<Account> {
  const { name, organization_id } = organization_counters
  const itsName = sql`(SELECT ${name} FROM ${organization_counters} WHERE ${eq(organization_id, organizationId)})`
  const [row] = await db.update(billing_accounts)
    .set({ ...details, ...(details.name?.trim() === '' && { name: itsName }), updated_at: sql`now()` })
    .where(itsAccount(organizationId)).returning()
  return row!
}

/** Returns the number for a new invoice, and increments the stored next number. */
export async function takeInvoiceNumber (db: Db, organizationId: string): Promise<number> {
  const [row] = await db.update(billing_accounts).set({ next_invoice: sql`${billing_accounts.next_invoice} + 1` })
    .where(itsAccount(organizationId)).returning({ next: billing_accounts.next_invoice })
  return row!.next - 1
}

/** Increases an organization's credit balance in a currency. Later invoices use the balance. */
export async function giveCredit (db: Db, organizationId: string, currency: string, amount: number): Promise<void> {
  if (amount === 0) return
  await db.insert(credits).values({ organization_id: organizationId, currency, amount }).onConflictDoUpdate({
    target: [credits.organization_id, credits.currency], set: { amount: sql`${credits.amount} + ${amount}::bigint` }
  })
}

/** Deducts at most `most` from an organization's credit balance; returns the deducted amount. */
export async function takeCredit (db: Db, organizationId: string, currency: string, most: number): Promise<number> {
  const its = matching(credits, { organization_id: organizationId, currency })
  const [row] = await db.select({ amount: credits.amount }).from(credits).where(its)
  const taken = Math.min(row?.amount ?? 0, most)
  if (taken > 0) await db.update(credits).set({ amount: sql`${credits.amount} - ${taken}::bigint` }).where(its)
  return taken
}

export type PaymentMethodRow = PaymentMethodAttributes & { id: string }
const method = columnsOf(payment_methods, 'id', 'kind', 'label', 'reference', 'is_default', 'created_at')
const itsMethods = (organizationId: string) => eq(payment_methods.organization_id, organizationId)
const itsMethod = (organizationId: string, id: string) => and(itsMethods(organizationId), eq(payment_methods.id, id))
const itsDefault = (organizationId: string) => and(itsMethods(organizationId), eq(payment_methods.is_default, true))

/** The payment methods of an organization, the default method first. */
export async function listPaymentMethods (
  db: Db, organizationId: string, page: PageRequest
): Promise<{ rows: PaymentMethodRow[], total: number }> {
  const total = sql<number>`(SELECT count(*)::int FROM ${payment_methods} WHERE ${itsMethods(organizationId)})`
  return readPage(page, async ({ limit, offset }) => db.select({ ...method, total }).from(payment_methods)
    .where(itsMethods(organizationId)).orderBy(desc(payment_methods.is_default), asc(payment_methods.id))
    .limit(limit).offset(offset))
}

export async function countPaymentMethods (db: Db, organizationId: string): Promise<number> {
  return db.$count(payment_methods, itsMethods(organizationId))
}

export async function findPaymentMethod (
  db: Db, organizationId: string, id: string
): Promise<PaymentMethodRow | undefined> {
  const [row] = await db.select(method).from(payment_methods).where(itsMethod(organizationId, id))
  return row
}

export async function findDefaultMethod (db: Db, organizationId: string): Promise<PaymentMethodRow | undefined> {
  const [row] = await db.select(method).from(payment_methods).where(itsDefault(organizationId))
  return row
}

export async function createPaymentMethod (
  db: Db, organizationId: string, row: Omit<PaymentMethodRow, 'created_at'>
): Promise<PaymentMethodRow> {
  if (row.is_default) await clearDefault(db, organizationId)
  const [made] = await db.insert(payment_methods).values({ organization_id: organizationId, ...row }).returning(method)
  return made!
}

export async function updateDefaultMethod (
  db: Db, organizationId: string, id: string
): Promise<PaymentMethodRow | undefined> {
  await clearDefault(db, organizationId)
  const [row] = await db.update(payment_methods).set({ is_default: true })
    .where(itsMethod(organizationId, id)).returning(method)
  return row
}

async function clearDefault (db: Db, organizationId: string): Promise<void> {
  await db.update(payment_methods).set({ is_default: false }).where(itsDefault(organizationId))
}

/** Deletes a payment method. If this was the default method, the newest remaining method becomes the default. */
export async function deletePaymentMethod (db: Db, organizationId: string, id: string): Promise<void> {
  const [gone] = await db.delete(payment_methods).where(itsMethod(organizationId, id))
    .returning({ is_default: payment_methods.is_default })
  if (!gone!.is_default) return
  const newest = db.select({ id: sql`max(${payment_methods.id})` }).from(payment_methods)
    .where(itsMethods(organizationId))
  await db.update(payment_methods).set({ is_default: true })
    .where(and(itsMethods(organizationId), eq(payment_methods.id, newest)))
}

export type Coupon = typeof coupons.$inferSelect
export type NewCoupon = Omit<Coupon, 'redemptions' | 'created_at'>

/** Creates a coupon; false if another coupon has the code. */
export async function createCoupon (db: Db, coupon: NewCoupon): Promise<boolean> {
  const made = await db.insert(coupons).values(coupon).onConflictDoNothing().returning({ code: coupons.code })
  return made.length > 0
}

export async function findCoupon (db: Db, code: string): Promise<Coupon | undefined> {
  const [row] = await db.select().from(coupons).where(eq(coupons.code, code))
  return row
}

/** A page of coupons, ordered by code. */
export async function listCoupons (db: Db, after: string): Promise<Coupon[]> {
  return db.select().from(coupons).where(gt(coupons.code, after)).orderBy(asc(coupons.code)).limit(200)
}

/** Ends a coupon now, also for organizations that have redeemed it. Returns false if the coupon does not exist. */
export async function endCoupon (db: Db, code: string): Promise<boolean> {
  const ended = await db.update(coupons).set({ valid_until: sql`now()` }).where(eq(coupons.code, code))
    .returning({ code: coupons.code })
  return ended.length > 0
}

/** Whether an organization has ever redeemed a coupon. */
export async function hasRedeemed (db: Db, organizationId: string, code: string): Promise<boolean> {
  const its = matching(coupon_redemptions, { organization_id: organizationId, coupon: code })
  return await db.$count(coupon_redemptions, its) > 0
}

/**
 * Redeems a coupon. Undefined if the coupon does not exist, has expired, or has reached its limit of redemptions. The
 * caller has checked that the organization has not redeemed the coupon yet (`hasRedeemed`). Concurrent calls cannot
 * exceed the limit, because the UPDATE locks the coupon's row and checks the limit again.
 */
export async function redeemCoupon (db: Db, organizationId: string, code: string): Promise<Coupon | undefined> {
  const [row] = await db.update(coupons).set({ redemptions: sql`${coupons.redemptions} + 1` }).where(and(
    eq(coupons.code, code), or(isNull(coupons.valid_until), gt(coupons.valid_until, sql`now()`)),
    or(isNull(coupons.max_redemptions), gt(coupons.max_redemptions, coupons.redemptions))
  )).returning()
  if (row === undefined) return undefined
  await db.insert(coupon_redemptions).values({ organization_id: organizationId, coupon: code })
  await updateCoupon(db, organizationId, code)
  return row
}

/** Sets the coupon for future invoices of an organization; null removes the coupon. */
export async function updateCoupon (db: Db, organizationId: string, code: string | null): Promise<void> {
  await db.update(billing_accounts).set({ coupon: code, updated_at: sql`now()` }).where(itsAccount(organizationId))
}
