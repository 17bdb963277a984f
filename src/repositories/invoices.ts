import { and, asc, desc, eq, getTableColumns, gt, isNull, sql, type SQL } from 'drizzle-orm'
import type { PaymentStatus } from '../../schemas/billing.ts'
import type { Db } from '../db/database.ts'
import { charges, invoices, refunds } from '../db/tables.ts'
import { readPage, type PageRequest } from '../rules/pagination.ts'

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
const itsCharge = and(
  eq(charges.organization_id, invoices.organization_id), eq(charges.invoice_id, invoices.id)
)
const oneInvoice = (organizationId: string, id: string) =>
  and(eq(invoices.organization_id, organizationId), eq(invoices.id, id))

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

export async function findInvoice (db: Db, organizationId: string, id: string): Promise<InvoiceRow | undefined> {
  const [row] = await db.select(columns).from(invoices).leftJoin(charges, itsCharge)
    .where(oneInvoice(organizationId, id))
  return row
}

/** Which organization an invoice or a refund is of: the operator names it by its id alone. */
export async function findOwner (db: Db, of: 'invoice' | 'refund', id: string): Promise<string | undefined> {
  const table = of === 'invoice' ? invoices : refunds
  const [row] = await db.select({ id: table.organization_id }).from(table).where(eq(table.id, id)).limit(1)
  return row?.id
}

export async function createInvoice (db: Db, invoice: typeof invoices.$inferInsert): Promise<void> {
  await db.insert(invoices).values(invoice)
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

/** Every invoice of the installation, those of organizations that are gone too, a part at a time by its place. */
export async function listAllInvoices (
  db: Db, after: { organization_id: string, number: number }
): Promise<InvoiceRow[]> {
  return db.select(columns).from(invoices).leftJoin(charges, itsCharge)
    .where(sql`(${invoices.organization_id}, ${invoices.number}) > (${after.organization_id}, ${after.number})`)
    .orderBy(asc(invoices.organization_id), asc(invoices.number)).limit(200)
}

export async function createCharge (db: Db, charge: typeof charges.$inferInsert): Promise<Charge> {
  const [row] = await db.insert(charges).values(charge).returning()
  return row!
}

const oneCharge = (organizationId: string, id: string) =>
  and(eq(charges.organization_id, organizationId), eq(charges.id, id))

/** A charge, which is held until the end of the transaction: refunds of it take turns. */
export async function lockCharge (db: Db, organizationId: string, id: string): Promise<Charge | undefined> {
  const [row] = await db.select().from(charges).where(oneCharge(organizationId, id)).for('update')
  return row
}

/** What became of the charges of an invoice that were pending; their ids. */
export async function settleCharges (
  db: Db, organizationId: string, invoiceId: string, status: PaymentStatus
): Promise<string[]> {
  const rows = await db.update(charges).set({ status, settled_at: sql`now()`, submitted_at: submittedBy(charges) })
    .where(and(
      eq(charges.organization_id, organizationId), eq(charges.invoice_id, invoiceId), eq(charges.status, 'pending')
    )).returning({ id: charges.id })
  return rows.map(({ id }) => id)
}

// What has an outcome needs to be told to no provider any more.
const submittedBy = (table: typeof charges | typeof refunds): SQL => sql`coalesce(${table.submitted_at}, now())`

export async function createRefund (
  db: Db, { charge, ...refund }: Pick<Refund, 'id' | 'amount' | 'reason'> & { charge: Charge }
): Promise<Refund> {
  const { organization_id, id } = charge
  await db.update(charges).set({ refunded: sql`${charges.refunded} + ${refund.amount}::bigint` })
    .where(oneCharge(organization_id, id))
  const [row] = await db.insert(refunds).values({ organization_id, charge_id: id, ...refund }).returning()
  return row!
}

/** Marks a pending refund as what it became; what failed is left of its charge again. Undefined when it is settled. */
export async function settleRefund (
  db: Db, organizationId: string, id: string, status: 'succeeded' | 'failed'
): Promise<Refund | undefined> {
  const [row] = await db.update(refunds).set({ status, settled_at: sql`now()`, submitted_at: submittedBy(refunds) })
    .where(and(eq(refunds.organization_id, organizationId), eq(refunds.id, id), eq(refunds.status, 'pending')))
    .returning()
  if (row !== undefined && status === 'failed') {
    await db.update(charges).set({ refunded: sql`${charges.refunded} - ${row.amount}::bigint` })
      .where(oneCharge(organizationId, row.charge_id))
  }
  return row
}

const AT_ONCE = 100

/** Charges that the provider was not told of yet, or whose answer nobody knows: the system's own list. */
export async function listUnsubmittedCharges (db: Db, after: string): Promise<Charge[]> {
  return db.select().from(charges).where(and(isNull(charges.submitted_at), gt(charges.id, after)))
    .orderBy(asc(charges.id)).limit(AT_ONCE)
}

/** Refunds that the provider was not told of yet, each with its charge: the system's own list. */
export async function listUnsubmittedRefunds (
  db: Db, after: string
): Promise<{ refund: Refund, charge: Charge }[]> {
  return db.select({ refund: refunds, charge: charges }).from(refunds)
    .innerJoin(charges, and(eq(charges.organization_id, refunds.organization_id), eq(charges.id, refunds.charge_id)))
    .where(and(isNull(refunds.submitted_at), gt(refunds.id, after))).orderBy(asc(refunds.id)).limit(AT_ONCE)
}

/** Refunds that nobody has paid yet, the first 1,000: the operator's own list. */
export async function listPendingRefunds (db: Db): Promise<{ refund: Refund, charge: Charge }[]> {
  return db.select({ refund: refunds, charge: charges }).from(refunds)
    .innerJoin(charges, and(eq(charges.organization_id, refunds.organization_id), eq(charges.id, refunds.charge_id)))
    .where(eq(refunds.status, 'pending')).orderBy(asc(refunds.id)).limit(1000)
}

/** Remembers what the provider calls it; false when somebody else did before. */
export async function updateSubmitted (
  db: Db, of: 'charge' | 'refund', { organization_id, id }: { organization_id: string, id: string },
  reference: string | null
): Promise<boolean> {
  const table = of === 'charge' ? charges : refunds
  const rows = await db.update(table).set({ submitted_at: sql`now()`, provider_reference: reference })
    .where(and(eq(table.organization_id, organization_id), eq(table.id, id), isNull(table.submitted_at)))
    .returning({ id: table.id })
  return rows.length > 0
}
