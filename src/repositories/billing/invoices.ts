import { and, asc, desc, eq, getTableColumns, gt, inArray, isNotNull, isNull, ne, or, sql, type SQL } from 'drizzle-orm'
import type { PaymentStatus } from '../../../schemas/billing.ts'
import type { Db } from '../../db/database.ts'
import { andOwn, engineOf, withNow } from '../../db/postgres/engine.ts'
import { matching } from '../../db/rows/query.ts'
import { charges, invoices, refunds } from '../../db/tables.ts'
import { readPage, type PageRequest } from '../../rules/pagination.ts'

export type Invoice = typeof invoices.$inferSelect
export type Charge = typeof charges.$inferSelect
export type Refund = typeof refunds.$inferSelect

/** An invoice with the id (null: no charge, as for a free invoice) and the refunded amount of its charge. */
export type InvoiceRow = Invoice & { charge_id: string | null, refunded: number }

const columns = {
  ...getTableColumns(invoices),
  charge_id: charges.id,
  refunded: sql<number>`coalesce(${charges.refunded}, 0)::float8`
}
const itsCharge = matching(charges, { organization_id: invoices.organization_id, invoice_id: invoices.id })
const oneInvoice = (organizationId: string, id: string) => matching(invoices, { organization_id: organizationId, id })

/** Invoices of an organization, newest first. */
export async function listInvoices (
  db: Db, organizationId: string, page: PageRequest
): Promise<{ rows: InvoiceRow[], total: number }> {
  const own = eq(invoices.organization_id, organizationId)
  const total = sql<number>`(SELECT count(*)::int FROM ${invoices} WHERE ${own})`
  const { rows, total: all } = await readPage(page, async ({ limit, offset }) =>
    db.select({ invoice: columns, total }).from(invoices).leftJoin(charges, itsCharge).where(own)
      .orderBy(desc(invoices.number)).limit(limit).offset(offset))
  return { rows: rows.map(({ invoice }) => invoice), total: all }
}

const itsRefunds = matching(refunds, { organization_id: charges.organization_id, charge_id: charges.id })
const paidBack = (organizationId: string) => sql<number>`(
  SELECT coalesce(sum(${refunds.amount}), 0)::float8 FROM ${refunds}
  WHERE ${itsRefunds} AND ${refunds.status} = 'succeeded'${andOwn(sql`${refunds.organization_id}`, organizationId)})`

/** An invoice with the sum of its successful refunds (`paid_back`). */
export async function findInvoice (
  db: Db, organizationId: string, id: string
): Promise<InvoiceRow & { paid_back: number } | undefined> {
  const [row] = await db.select({ ...columns, paid_back: paidBack(organizationId) })
    .from(invoices).leftJoin(charges, itsCharge).where(oneInvoice(organizationId, id))
  return row
}

const ORDERS = { charge: charges, refund: refunds }
type Order = typeof charges | typeof refunds
type Id = Pick<Charge, 'organization_id' | 'id'>
const oneOrder = (of: keyof typeof ORDERS, { organization_id, id }: Id) =>
  and(eq(ORDERS[of].organization_id, organization_id), eq(ORDERS[of].id, id))
const BOOKS = { invoice: invoices, ...ORDERS }

/** The organization of an invoice, charge or refund. For commands of the operator, which get only the id. */
export async function findOwner (db: Db, of: keyof typeof BOOKS, id: string): Promise<string | undefined> {
  const table = BOOKS[of]
  const [row] = await db.select({ id: table.organization_id }).from(table).where(eq(table.id, id)).limit(1)
  return row?.id
}

export async function createInvoice (db: Db, invoice: typeof invoices.$inferInsert): Promise<void> {
  await db.insert(invoices).values(invoice)
}

/** Locks an invoice until the end of the transaction. To avoid deadlocks, lock an invoice before its charges. */
export async function lockInvoice (db: Db, organizationId: string, id: string): Promise<Invoice | undefined> {
  const [row] = await db.select().from(invoices).where(oneInvoice(organizationId, id)).for('update')
  return row
}

/** Stores the part of an invoice's amount that was unused when the plan changed. */
export async function updateUnused (db: Db, organizationId: string, id: string, unused: number): Promise<void> {
  await db.update(invoices).set({ unused }).where(oneInvoice(organizationId, id))
}

/** Marks a locked open invoice as paid or void. */
export async function settleInvoice (
  db: Db, organizationId: string, id: string, status: 'paid' | 'void'
): Promise<void> {
  await db.update(invoices).set({ status, paid_at: status === 'paid' ? sql`now()` : null })
    .where(oneInvoice(organizationId, id))
}

/**
 * An invoice with its refunds and three statuses of its charge: the effective status (`charge_status`), the status that
 * the operator noted (`noted_status`), and the status that the provider reported (`provider_status`).
 */
type BookedInvoice = InvoiceRow &
  Record<'charge_status' | 'noted_status' | 'provider_status', PaymentStatus | null> & { refunds: BookedRefund[] }
type BookedRefund = Pick<Refund, 'id' | 'amount' | 'status' | 'noted_status' | 'provider_status' | 'settled_at'>

const bookedRefunds = sql<BookedRefund[]>`coalesce((
  SELECT jsonb_agg(jsonb_build_object('id', ${refunds.id}, 'amount', ${refunds.amount}, 'status', ${refunds.status},
    'noted_status', ${refunds.noted_status}, 'provider_status', ${refunds.provider_status},
    'settled_at', ${refunds.settled_at}) ORDER BY ${refunds.id})
  FROM ${refunds} WHERE ${itsRefunds}), '[]'::jsonb)`
  .mapWith((list: BookedRefund[]) => list.map((refund) =>
    ({ ...refund, settled_at: refund.settled_at && new Date(refund.settled_at) })))

/** A page of the invoices of all organizations, including deleted organizations. */
export async function listAllInvoices (
  db: Db, after: { organization_id: string, number: number }
): Promise<BookedInvoice[]> {
  const { status: charge_status, noted_status, provider_status } = charges
  const booked = { ...columns, charge_status, noted_status, provider_status, refunds: bookedRefunds }
  return db.select(booked).from(invoices).leftJoin(charges, itsCharge)
    .where(sql`(${invoices.organization_id}, ${invoices.number}) > (${after.organization_id}, ${after.number})`)
    .orderBy(asc(invoices.organization_id), asc(invoices.number)).limit(200)
}

export async function createCharge (db: Db, charge: typeof charges.$inferInsert): Promise<Charge> {
  const [row] = await db.insert(charges).values(charge).returning()
  return row!
}

/** Locks a charge until the end of the transaction, so that refunds of the charge run one after the other. */
export async function lockCharge (db: Db, organizationId: string, id: string): Promise<Charge | undefined> {
  const [row] = await db.select().from(charges).where(oneOrder('charge', { organization_id: organizationId, id }))
    .for('update')
  return row
}

/** Sets the final status of an invoice's pending charges. `succeeded` also replaces the status of failed charges. */
export async function settleCharges (
  db: Db, organizationId: string, invoiceId: string, status: 'succeeded' | 'failed'
): Promise<Charge[]> {
  const from: PaymentStatus[] = status === 'succeeded' ? ['pending', 'failed'] : ['pending']
  return db.update(charges).set({ status, settled_at: sql`now()`, submitted_at: submittedWhenSettled(charges) })
    .where(and(
      matching(charges, { organization_id: organizationId, invoice_id: invoiceId }), inArray(charges.status, from)
    )).returning()
}

export async function updateNoted (
  db: Db, of: keyof typeof ORDERS, its: Id, noted_status: 'succeeded' | 'failed'
): Promise<void> {
  await db.update(ORDERS[of]).set({ noted_status }).where(oneOrder(of, its))
}

/** Sets the final status of a charge. The status of its invoice stays. */
export async function settleCharge (
  db: Db, organizationId: string, id: string, status: 'succeeded' | 'failed'
): Promise<void> {
  await db.update(charges).set({ status, settled_at: sql`now()` })
    .where(oneOrder('charge', { organization_id: organizationId, id }))
}

/** Cancels the charges of a deleted organization that were never sent to the provider. The invoices stay open. */
export async function endUnsentCharges (db: Db, organizationId: string): Promise<void> {
  await db.update(charges).set({ status: 'failed', settled_at: sql`now()`, submitted_at: submittedWhenSettled(charges) })
    .where(and(matching(charges, { organization_id: organizationId, status: 'pending' }), isNull(charges.asked_at)))
}

// The `submitted_at` of a settled order (charge or refund). The worker sends only orders without `submitted_at`. If the
// order was never sent to the provider, the value becomes the current time, so that the worker does not send the order.
// Otherwise the value stays, so that the worker repeats the request until the provider reports the outcome.
const submittedWhenSettled = (table: Order): SQL => withNow((now) =>
  sql`CASE WHEN ${table.asked_at} IS NULL THEN coalesce(${table.submitted_at}, ${now}) ELSE ${table.submitted_at} END`)

export async function createRefund (
  db: Db, { charge, ...refund }: Pick<Refund, 'id' | 'provider' | 'amount' | 'reason'> & { charge: Charge }
): Promise<Refund> {
  const { organization_id, id } = charge
  await updateRefunded(db, charge, refund.amount)
  const [row] = await db.insert(refunds).values({ organization_id, charge_id: id, ...refund }).returning()
  return row!
}

async function updateRefunded (db: Db, charge: Charge, by: number): Promise<void> {
  await db.update(charges).set({ refunded: sql`${charges.refunded} + ${by}::bigint` }).where(oneOrder('charge', charge))
}

/** Locks a charge, then its refund, until the end of the transaction. */
export async function lockRefund (
  db: Db, organizationId: string, id: string
): Promise<{ refund: Refund, charge: Charge } | undefined> {
  const its = oneOrder('refund', { organization_id: organizationId, id })
  const [found] = await db.select({ charge: refunds.charge_id }).from(refunds).where(its)
  if (found === undefined) return undefined
  const charge = await lockCharge(db, organizationId, found.charge)
  const [refund] = await db.select().from(refunds).where(its).for('update')
  return { refund: refund!, charge: charge! }
}

/** Sets the final status of a locked refund. If the refund failed, its amount becomes refundable again. */
export async function settleRefund (
  db: Db, { refund, charge }: { refund: Refund, charge: Charge }, status: 'succeeded' | 'failed'
): Promise<void> {
  await db.update(refunds).set({ status, settled_at: sql`now()`, submitted_at: submittedWhenSettled(refunds) })
    .where(oneOrder('refund', refund))
  const left = Number(status === 'failed') - Number(refund.status === 'failed')
  if (left !== 0) await updateRefunded(db, charge, -left * refund.amount)
}

/**
 * Claims the next charge to send to the provider, from the charges of all organizations. Charges that were never sent
 * come first, so that failing charges do not block new charges. Skips charges that another transaction has locked, and
 * charges that any instance has sent recently.
 */
export async function claimCharge (db: Db, provider: string, pause: number): Promise<Charge | undefined> {
  return claimNext(db, charges, isWaiting(charges, provider, pause), (next) =>
    db.update(charges).set({ asked_at: sql`now()` }).where(next).returning())
}

/** Claims the next refund to send to the provider, like `claimCharge`. Returns the refund with its charge. */
export async function claimRefund (
  db: Db, provider: string, pause: number
): Promise<{ refund: Refund, charge: Charge } | undefined> {
  const refund = await claimNext(db, refunds, isWaiting(refunds, provider, pause), (next) =>
    db.update(refunds).set({ asked_at: sql`now()` }).where(next).returning())
  if (refund === undefined) return undefined
  const { organization_id, charge_id } = refund
  const [charge] = await db.select().from(charges).where(oneOrder('charge', { organization_id, id: charge_id }))
  return { refund, charge: charge! }
}

// A condition for orders (charges or refunds) to send now. The time between two attempts is at least `pause`
// milliseconds, and grows with the age of the order up to an hour. Selects only orders of `provider`: orders of a
// former provider stay unsent until that provider is configured again.
function isWaiting ({ submitted_at, provider: stored, asked_at, created_at }: Order, provider: string, pause: number) {
  const wait = sql`greatest(
    make_interval(secs => ${pause / 1000}::float8), least(${asked_at} - ${created_at}, interval '1 hour')
  )`
  return and(isNull(submitted_at), eq(stored, provider), or(isNull(asked_at), sql`${asked_at} < now() - ${wait}`))!
}

// Claims the first row that matches `isWaiting` and is not locked. On Citus, a statement can lock rows of only one
// organization. So on Citus the matching rows are listed, and claimed one after the other until a claim succeeds.
async function claimNext<T> (
  db: Db, table: Order, isWaiting: SQL, claim: (next: SQL) => PromiseLike<T[]>
): Promise<T | undefined> {
  const { organization_id, id, asked_at } = table
  const waiting = (which: SQL | undefined, limit: number) => db.select({ organization_id, id }).from(table).where(which)
    .orderBy(sql`${asked_at} NULLS FIRST`, asc(id)).limit(limit)
  const next = (which: SQL) =>
    sql`(${organization_id}, ${id}) = ${waiting(which, 1).for('no key update', { skipLocked: true })}`
  if (engineOf(db) !== 'citus') return (await claim(next(isWaiting)))[0]
  for (const row of await waiting(isWaiting, 100)) {
    const own = and(eq(organization_id, row.organization_id), eq(id, row.id))!
    const [claimed] = await claim(and(own, next(and(own, isWaiting)!))!)
    if (claimed !== undefined) return claimed
  }
  return undefined
}

/**
 * A page of the refunds for the operator to review: all pending refunds, and some refunds that were sent to another
 * provider than `operator` and that the operator has not checked. Of these, the page has refunds for which the operator
 * noted a status, and refunds whose status at the provider differs from the effective status.
 */
export async function listOpenRefunds (
  db: Db, operator: string, after: string
): Promise<{ refund: Refund, charge: Charge }[]> {
  const { id, status, provider, asked_at, checked_at, noted_status, provider_status } = refunds
  const isUndone = or(eq(status, 'pending'), and(
    ne(provider, operator), isNotNull(asked_at), isNull(checked_at),
    or(isNotNull(noted_status), sql`${provider_status} IS DISTINCT FROM ${status}`)
  ))
  return db.select({ refund: refunds, charge: charges }).from(refunds)
    .innerJoin(charges, matching(charges, { organization_id: refunds.organization_id, id: refunds.charge_id }))
    .where(and(isUndone, gt(id, after))).orderBy(asc(id)).limit(200)
}

/**
 * Marks a refund as checked by the operator. `updateReported` removes the mark if the provider reports another status.
 */
export async function updateChecked (db: Db, refund: Id): Promise<void> {
  await db.update(refunds).set({ checked_at: sql`now()` }).where(oneOrder('refund', refund))
}

/** Stores the status and the reference that the provider reported. A late `pending` does not replace a final status. */
export async function updateReported (
  db: Db, of: keyof typeof ORDERS, its: Id, { status, reference }: { status: PaymentStatus, reference: string | null }
): Promise<void> {
  const table = ORDERS[of]
  const says = status === 'pending' ? sql`coalesce(${table.provider_status}, 'pending')` : sql`${status}`
  await db.update(table).set({
    submitted_at: withNow((now) => sql`coalesce(${table.submitted_at}, ${now})`),
    provider_status: says,
    ...(of === 'refund' && {
      checked_at: sql`CASE WHEN ${refunds.provider_status} = ${says} THEN ${refunds.checked_at} END`
    }),
    ...(reference !== null && { provider_reference: reference })
  }).where(oneOrder(of, its))
}
