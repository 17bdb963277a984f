import { and, asc, desc, eq, getTableColumns, gt, inArray, isNotNull, isNull, ne, or, sql, type SQL } from 'drizzle-orm'
import type { PaymentStatus } from '../../../schemas/billing.ts'
import type { Db } from '../../db/database.ts'
import { matching } from '../../db/rows/matching.ts'
import { charges, invoices, refunds } from '../../db/tables.ts'
import { readPage, type PageRequest } from '../../rules/pagination.ts'

export type Invoice = typeof invoices.$inferSelect
export type Charge = typeof charges.$inferSelect
export type Refund = typeof refunds.$inferSelect

/** An invoice with the charge that asks for it; a void or free one may have none. */
export type InvoiceRow = Invoice & { charge_id: string | null, refunded: number }

const columns = {
  ...getTableColumns(invoices),
  charge_id: charges.id,
  refunded: sql<number>`coalesce(${charges.refunded}, 0)::float8`
}
const itsCharge = matching(charges, { organization_id: invoices.organization_id, invoice_id: invoices.id })
const oneInvoice = (organizationId: string, id: string) => matching(invoices, { organization_id: organizationId, id })

/** Invoices of an organization, the latest first. */
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

// Of refunds that somebody paid: of those that wait to be, the money is still here.
const paidBack = sql<number>`(
  SELECT coalesce(sum(${refunds.amount}), 0)::float8 FROM ${refunds}
  WHERE ${refunds.organization_id} = ${charges.organization_id} AND ${refunds.charge_id} = ${charges.id}
    AND ${refunds.status} = 'succeeded')`

/** An invoice, with what of it was paid back. */
export async function findInvoice (
  db: Db, organizationId: string, id: string
): Promise<InvoiceRow & { paid_back: number } | undefined> {
  const [row] = await db.select({ ...columns, paid_back: paidBack }).from(invoices).leftJoin(charges, itsCharge)
    .where(oneInvoice(organizationId, id))
  return row
}

const ORDERS = { charge: charges, refund: refunds }
const BOOKS = { invoice: invoices, ...ORDERS }

/** Which organization an invoice, charge or refund is of: the operator names it by its id alone. */
export async function findOwner (db: Db, of: keyof typeof BOOKS, id: string): Promise<string | undefined> {
  const table = BOOKS[of]
  const [row] = await db.select({ id: table.organization_id }).from(table).where(eq(table.id, id)).limit(1)
  return row?.id
}

export async function createInvoice (db: Db, invoice: typeof invoices.$inferInsert): Promise<void> {
  await db.insert(invoices).values(invoice)
}

/** An invoice, which is held until the end of the transaction: before its charges, as whoever settles it does. */
export async function lockInvoice (db: Db, organizationId: string, id: string): Promise<Invoice | undefined> {
  const [row] = await db.select().from(invoices).where(oneInvoice(organizationId, id)).for('update')
  return row
}

/** Remembers what was not used of the period that an invoice was for. */
export async function updateUnused (db: Db, organizationId: string, id: string, unused: number): Promise<void> {
  await db.update(invoices).set({ unused }).where(oneInvoice(organizationId, id))
}

/** Marks an open invoice as what it became; undefined when it is not open. */
export async function settleInvoice (
  db: Db, organizationId: string, id: string, status: 'paid' | 'void'
): Promise<Invoice | undefined> {
  const [row] = await db.update(invoices)
    .set({ status, paid_at: status === 'paid' ? sql`now()` : null })
    .where(and(oneInvoice(organizationId, id), eq(invoices.status, 'open'))).returning()
  return row
}

/** An invoice with what became of its charge: here, by the operator's note, and at the provider. */
export type BookedInvoice = InvoiceRow &
  Record<'charge_status' | 'noted_status' | 'provider_status', PaymentStatus | null> & { refunds: BookedRefund[] }

/** What became of a refund, here and at the provider. */
export type BookedRefund =
  Pick<Refund, 'id' | 'amount' | 'status' | 'noted_status' | 'provider_status' | 'settled_at'>

const bookedRefunds = sql<BookedRefund[]>`coalesce((
  SELECT jsonb_agg(jsonb_build_object('id', ${refunds.id}, 'amount', ${refunds.amount}, 'status', ${refunds.status},
    'noted_status', ${refunds.noted_status}, 'provider_status', ${refunds.provider_status}, 'settled_at', ${refunds.settled_at}) ORDER BY ${refunds.id})
  FROM ${refunds}
  WHERE ${refunds.organization_id} = ${charges.organization_id} AND ${refunds.charge_id} = ${charges.id}), '[]'::jsonb)`
  .mapWith((list: BookedRefund[]) => list.map((refund) =>
    ({ ...refund, settled_at: refund.settled_at && new Date(refund.settled_at) })))

/** Every invoice of the installation, those of organizations that are gone too, a part at a time by its place. */
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

const oneCharge = (organizationId: string, id: string) => matching(charges, { organization_id: organizationId, id })

/** A charge, which is held until the end of the transaction: refunds of it take turns. */
export async function lockCharge (db: Db, organizationId: string, id: string): Promise<Charge | undefined> {
  const [row] = await db.select().from(charges).where(oneCharge(organizationId, id)).for('update')
  return row
}

/**
 * What became of the charges of an invoice: those that were pending and, once it is paid, those that had failed, for
 * which nothing is owed any more. Answers them.
 */
export async function settleCharges (
  db: Db, organizationId: string, invoiceId: string, status: 'succeeded' | 'failed'
): Promise<Charge[]> {
  const from: PaymentStatus[] = status === 'succeeded' ? ['pending', 'failed'] : ['pending']
  return db.update(charges).set({ status, settled_at: sql`now()`, submitted_at: untoldNoMore(charges) })
    .where(and(
      matching(charges, { organization_id: organizationId, invoice_id: invoiceId }), inArray(charges.status, from)
    )).returning()
}

/** Remembers what the operator noted down of a charge or refund. */
export async function updateNoted (
  db: Db, of: 'charge' | 'refund', { organization_id, id }: Pick<Charge, 'organization_id' | 'id'>,
  noted_status: 'succeeded' | 'failed'
): Promise<void> {
  const table = ORDERS[of]
  await db.update(table).set({ noted_status }).where(and(eq(table.organization_id, organization_id), eq(table.id, id)))
}

/** What became of a charge alone, whatever its invoice is. */
export async function settleCharge (
  db: Db, organizationId: string, id: string, status: 'succeeded' | 'failed'
): Promise<void> {
  await db.update(charges).set({ status, settled_at: sql`now()` }).where(oneCharge(organizationId, id))
}

/**
 * Ends the charges of an organization that goes which their provider was never told of: nobody is asked for the money
 * any more. Their invoices stay open for the operator's books, as do refunds: that is owed whoever is gone.
 */
export async function endUntoldCharges (db: Db, organizationId: string): Promise<void> {
  await db.update(charges).set({ status: 'failed', settled_at: sql`now()`, submitted_at: untoldNoMore(charges) })
    .where(and(matching(charges, { organization_id: organizationId, status: 'pending' }), isNull(charges.asked_at)))
}

// What has an outcome needs to be told to no provider any more. But what was asked stays to be asked, by its id, until
// it is answered: nobody knows else what came of it.
const untoldNoMore = (table: typeof charges | typeof refunds): SQL =>
  sql`CASE WHEN ${table.asked_at} IS NULL THEN coalesce(${table.submitted_at}, now()) ELSE ${table.submitted_at} END`

export async function createRefund (
  db: Db, { charge, ...refund }: Pick<Refund, 'id' | 'provider' | 'amount' | 'reason'> & { charge: Charge }
): Promise<Refund> {
  const { organization_id, id } = charge
  await updateRefunded(db, charge, refund.amount)
  const [row] = await db.insert(refunds).values({ organization_id, charge_id: id, ...refund }).returning()
  return row!
}

async function updateRefunded (db: Db, { organization_id, id }: Charge, by: number): Promise<void> {
  await db.update(charges).set({ refunded: sql`${charges.refunded} + ${by}::bigint` })
    .where(oneCharge(organization_id, id))
}

const oneRefund = (organizationId: string, id: string) => matching(refunds, { organization_id: organizationId, id })

/** A refund with its charge, both held until the end of the transaction, the charge first. */
export async function lockRefund (
  db: Db, organizationId: string, id: string
): Promise<{ refund: Refund, charge: Charge } | undefined> {
  const [its] = await db.select({ charge: refunds.charge_id }).from(refunds).where(oneRefund(organizationId, id))
  if (its === undefined) return undefined
  const charge = await lockCharge(db, organizationId, its.charge)
  const [refund] = await db.select().from(refunds).where(oneRefund(organizationId, id)).for('update')
  return { refund: refund!, charge: charge! }
}

/** Marks a refund as what it became; what failed is left of its charge, which the caller holds with it. */
export async function settleRefund (
  db: Db, { refund, charge }: { refund: Refund, charge: Charge }, status: 'succeeded' | 'failed'
): Promise<void> {
  await db.update(refunds).set({ status, settled_at: sql`now()`, submitted_at: untoldNoMore(refunds) })
    .where(oneRefund(refund.organization_id, refund.id))
  const left = Number(status === 'failed') - Number(refund.status === 'failed')
  if (left !== 0) await updateRefunded(db, charge, -left * refund.amount)
}

/**
 * Takes the charge that its provider is to be asked for next, for one call: those that it was never told of come first,
 * then those whose answer nobody knows, so that what keeps failing holds up nothing else. None that is held, or was
 * asked just before, by whomever. Undefined when there is none: of the system's own list.
 */
export async function claimCharge (db: Db, provider: string, pause: number): Promise<Charge | undefined> {
  const [row] = await db.update(charges).set({ asked_at: sql`now()` }).where(isNext(db, charges, provider, pause))
    .returning()
  return row
}

/** Takes the refund that its provider is to be asked for next, with its charge, as `claimCharge` does. */
export async function claimRefund (
  db: Db, provider: string, pause: number
): Promise<{ refund: Refund, charge: Charge } | undefined> {
  const [refund] = await db.update(refunds).set({ asked_at: sql`now()` }).where(isNext(db, refunds, provider, pause))
    .returning()
  if (refund === undefined) return undefined
  const [charge] = await db.select().from(charges).where(oneCharge(refund.organization_id, refund.charge_id))
  return { refund, charge: charge! }
}

// The pause (milliseconds) grows with how long the answer has been waited for, up to an hour. What was asked of one
// provider is told to no other, whichever is configured by now.
function isNext (db: Db, table: typeof charges | typeof refunds, provider: string, pause: number): SQL {
  const { organization_id, id, asked_at, created_at } = table
  const wait = sql`greatest(
    make_interval(secs => ${pause / 1000}::float8), least(${asked_at} - ${created_at}, interval '1 hour')
  )`
  const next = db.select({ organization_id, id }).from(table)
    .where(and(
      isNull(table.submitted_at), eq(table.provider, provider), or(isNull(asked_at), sql`${asked_at} < now() - ${wait}`)
    ))
    .orderBy(sql`${asked_at} NULLS FIRST`, asc(id)).limit(1).for('no key update', { skipLocked: true })
  return sql`(${organization_id}, ${id}) = ${next}`
}

/**
 * Refunds that nobody has paid yet, and those that a provider was asked for beside which the operator noted something
 * down, or which say two things of it, as long as nobody has looked at them; from one on: the operator's own list.
 */
export async function listUndoneRefunds (
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

/** Remembers that the operator looked at what the provider says of a refund, until it says something else. */
export async function updateChecked (
  db: Db, { organization_id, id }: Pick<Refund, 'organization_id' | 'id'>
): Promise<void> {
  await db.update(refunds).set({ checked_at: sql`now()` }).where(oneRefund(organization_id, id))
}

/**
 * Remembers what the provider says of a charge or refund, and what it calls it, whatever was noted down before. What
 * became of it is not unsaid by an earlier answer that comes late.
 */
export async function updateReported (
  db: Db, of: 'charge' | 'refund', { organization_id, id }: Pick<Charge, 'organization_id' | 'id'>,
  { status, reference }: { status: PaymentStatus, reference: string | null }
): Promise<void> {
  const table = ORDERS[of]
  const says = status === 'pending' ? sql`coalesce(${table.provider_status}, 'pending')` : sql`${status}`
  await db.update(table).set({
    submitted_at: sql`coalesce(${table.submitted_at}, now())`,
    provider_status: says,
    ...(of === 'refund' && {
      checked_at: sql`CASE WHEN ${refunds.provider_status} = ${says} THEN ${refunds.checked_at} END`
    }),
    ...(reference !== null && { provider_reference: reference })
  }).where(and(eq(table.organization_id, organization_id), eq(table.id, id)))
}
