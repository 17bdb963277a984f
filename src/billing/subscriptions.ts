import { ulid } from 'ulidx'
import type { Interval } from '../../schemas/billing.ts'
import { change } from '../changes/change.ts'
import { NOTHING } from '../changes/steps.ts'
import { readNow, type Db } from '../db/database.ts'
import type { Plan } from '../../schemas/organizations.ts'
import { eventOf, systemOf, type AuditEvent } from '../repositories/audit/audit.ts'
import { findCoupon, giveCredit, requireAccount, type Account } from '../repositories/billing/billing.ts'
import { findInvoice, updateUnused } from '../repositories/billing/invoices.ts'
import { countOf, findStoredBytes, updatePlan } from '../repositories/billing/plans.ts'
import {
  createSubscription, deleteSubscription, findDue, updateSubscription, type Subscription
} from '../repositories/billing/subscriptions.ts'
import { discountOf, periodEnd, unusedOf } from '../rules/billing.ts'
import { fail } from '../rules/api-error.ts'
import { issueInvoice, type Invoicing } from './invoicing.ts'

// Changes of subscriptions, by route handlers and by the billing worker. Those of one organization run one after the
// other, because `change` locks the organization.

/** The terms of a subscription. */
interface Offer { plan: Plan, interval: Interval, currency: string, amount: number }

/** Throws 422 `plan_limit_reached` if the organization's usage exceeds a limit of the plan. */
async function requireFit (db: Db, organizationId: string, plan: Plan): Promise<void> {
  for (const resource of ['projects', 'members', 'bytes'] as const) {
    const limit = plan[`max_${resource}`]
    if (limit === null) continue
    const used = resource === 'bytes'
      ? await findStoredBytes(db, organizationId)
      : await countOf(db, organizationId, resource)
    if (used > limit) fail('plan_limit_reached', { limit, used, plan: plan.name })
  }
}

/** Starts a subscription: changes the plan at once, and issues the invoice of the first period. */
export async function beginSubscription (
  db: Db, invoicing: Invoicing, account: Account, offer: Offer, now: Date
): Promise<Subscription> {
  const { organization_id } = account
  await requireFit(db, organization_id, offer.plan)
  return createSubscription(db, {
    organization_id, id: ulid(), ...await beginPeriods(db, invoicing, account, offer, now)
  })
}

/**
 * Changes the plan or interval of a subscription at once, and starts a new period. If the invoice of the old period is
 * paid, the unused part of the old period becomes credit, which the new invoice uses first.
 */
export async function changeSubscription (
  db: Db, invoicing: Invoicing, account: Account, subscription: Subscription, offer: Offer, now: Date
): Promise<Subscription> {
  const { organization_id } = subscription
  await requireFit(db, organization_id, offer.plan)
  await cutShort(db, subscription, now)
  return updateSubscription(db, organization_id, await beginPeriods(db, invoicing, account, offer, now))
}

async function beginPeriods (db: Db, invoicing: Invoicing, account: Account, offer: Offer, now: Date) {
  const { plan: { name: plan }, interval, currency, amount } = offer
  const period = await invoicePeriod(db, invoicing, account, offer, { start: now, periods: 1, anchor: now }, now)
  await updatePlan(db, account.organization_id, plan)
  return { plan, interval, currency, amount, anchor: now, periods: 0, ...period }
}

// Stores the unused part of the period's amount, which becomes credit: at once if the invoice is paid, at payment if
// the invoice is open, never if the invoice is void.
async function cutShort (
  db: Db, { organization_id, invoice_id, period_start, period_end }: Subscription, now: Date
): Promise<void> {
  const { status, currency, credit, total, refunded } = (await findInvoice(db, organization_id, invoice_id))!
  const unused = unusedOf(credit + total - refunded, period_start, period_end, now)
  await updateUnused(db, organization_id, invoice_id, unused)
  if (status === 'paid') await giveCredit(db, organization_id, currency, unused)
}

/**
 * Closes the ended periods of a subscription, each in its own transaction: starts the next period, or ends the
 * subscription. The worker calls this function, and every change of a subscription calls it first, so that no change
 * applies to an ended period. If the organization is not active, the subscription is not renewed until the organization
 * is active again.
 */
export async function closePeriods (
  handle: Db, invoicing: Invoicing, defaultPlan: string, organizationId: string, isStopped = () => false
): Promise<AuditEvent[]> {
  const closed: AuditEvent[] = []
  while (!isStopped() && await findDue(handle, organizationId) !== undefined) {
    const event = await closePeriod(handle, invoicing, defaultPlan, organizationId)
    if (event === undefined) break
    closed.push(event)
  }
  return closed
}

async function closePeriod (
  handle: Db, invoicing: Invoicing, defaultPlan: string, organizationId: string
): Promise<AuditEvent | undefined> {
  const { written } = await change(handle, systemOf(organizationId), {
    // Reads again under the lock, because another instance may have closed the period.
    load: async (db, counter) => ({ due: counter.is_closed ? undefined : await findDue(db, organizationId), counter }),
    decide ({ due, counter: { status, plan } }) {
      if (due === undefined) return NOTHING
      const isOver = due.cancel_at_period_end || status === 'cancelled'
      if (!isOver && status !== 'active') return NOTHING
      const event = eventOf(isOver ? 'subscription.end' : 'subscription.renew', due.id, { plan: due.plan })
      return {
        async write (db) {
          if (isOver) await endSubscription(db, due, plan.name, defaultPlan)
          else await renewSubscription(db, invoicing, due)
          return event
        },
        events: [event]
      }
    }
  })
  return written
}

// Starts the next period at the price at which the subscription began.
async function renewSubscription (db: Db, invoicing: Invoicing, subscription: Subscription): Promise<void> {
  const { organization_id, anchor, period_end } = subscription
  const now = new Date(await readNow(db))
  const account = await requireAccount(db, organization_id)
  const periods = subscription.periods + 1
  const terms = { ...subscription, plan: { name: subscription.plan } }
  const period = await invoicePeriod(
    db, invoicing, account, terms, { start: period_end, periods: periods + 1, anchor }, now
  )
  await updateSubscription(db, organization_id, { periods, ...period })
}

/**
 * Ends a subscription: changes the plan to the default plan, unless the operator has set another plan. Data above the
 * limits of the default plan stays.
 */
async function endSubscription (
  db: Db, { organization_id, plan }: Subscription, currentPlan: string, defaultPlan: string
): Promise<void> {
  await deleteSubscription(db, organization_id)
  if (currentPlan === plan) await updatePlan(db, organization_id, defaultPlan)
}

async function invoicePeriod (
  db: Db, invoicing: Invoicing, account: Account, offer: Omit<Offer, 'plan'> & { plan: { name: string } },
  { start, anchor, periods }: { start: Date, anchor: Date, periods: number }, now: Date
) {
  const { plan, interval, currency, amount } = offer
  const end = periodEnd(anchor, interval, periods)
  const coupon = account.coupon === null ? undefined : await findCoupon(db, account.coupon)
  const discount = discountOf(coupon, amount, currency, start)
  const lines = [{
    description: `Plan ${plan.name}, 1 ${interval}`,
    amount,
    period_start: start.toISOString(),
    period_end: end.toISOString()
  }]
  const { invoice_id } = await issueInvoice(
    db, invoicing, account, { currency, lines, discount, usesCredit: true }, now
  )
  return { period_start: start, period_end: end, invoice_id }
}
