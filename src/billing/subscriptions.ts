import { ulid } from 'ulidx'
import type { Interval } from '../../schemas/billing.ts'
import type { Db } from '../db/database.ts'
import type { Plan } from '../../schemas/organizations.ts'
import { findCoupon, type Account } from '../repositories/billing.ts'
import { countOf, lockPlan, updatePlan, type Counted } from '../repositories/plans.ts'
import {
  createSubscription, deleteSubscription, updateSubscription, type Subscription
} from '../repositories/subscriptions.ts'
import { discountOf, periodEnd, unusedOf } from '../rules/billing.ts'
import { fail } from '../rules/errors.ts'
import { issueInvoice, type Invoicing } from './invoicing.ts'

// What handlers and the worker do to a subscription. Each holds the organization (`lockPlan`), so that they take turns.

/** What is subscribed to. */
export interface Offer { plan: Plan, interval: Interval, currency: string, amount: number }

/** 422 where what an organization has does not fit into a plan. */
export async function requireFit (db: Db, organizationId: string, plan: Plan): Promise<void> {
  for (const what of ['projects', 'members'] satisfies Counted[]) {
    const limit = plan[`max_${what}`]
    if (limit === null) continue
    const used = await countOf(db, organizationId, what)
    if (used > limit) fail('plan_limit_reached', { limit, used, plan: plan.name })
  }
}

/** Begins a subscription: its plan holds at once, and its first period is invoiced. */
export async function beginSubscription (
  db: Db, invoicing: Invoicing, account: Account, offer: Offer, now: Date
): Promise<Subscription> {
  const { organization_id } = account
  await requireFit(db, organization_id, offer.plan)
  const period = await invoicePeriod(db, invoicing, account, offer, { start: now, periods: 1, anchor: now }, 0, now)
  await updatePlan(db, organization_id, offer.plan.name)
  return createSubscription(db, {
    organization_id, id: ulid(), ...termsOf(offer), anchor: now, periods: 0, ...period
  })
}

/**
 * Gives a subscription another plan or interval: that holds at once, and begins a new period. What is left of the old
 * one is taken off its invoice; what is more than that pays for the next invoices.
 */
export async function changeSubscription (
  db: Db, invoicing: Invoicing, account: Account, subscription: Subscription, offer: Offer, now: Date
): Promise<Subscription> {
  const { organization_id, invoiced, period_start, period_end } = subscription
  await requireFit(db, organization_id, offer.plan)
  const unused = unusedOf(invoiced, period_start, period_end, now)
  const period = await invoicePeriod(
    db, invoicing, account, offer, { start: now, periods: 1, anchor: now }, unused, now
  )
  await updatePlan(db, organization_id, offer.plan.name)
  return updateSubscription(db, organization_id, { ...termsOf(offer), anchor: now, periods: 0, ...period })
}

/** Goes on with the next period of a subscription that is due, at the price that it began with. */
export async function renewSubscription (
  db: Db, invoicing: Invoicing, account: Account, subscription: Subscription, now: Date
): Promise<Subscription> {
  const { organization_id, anchor, period_end } = subscription
  const periods = subscription.periods + 1
  const terms = { ...subscription, plan: { name: subscription.plan } }
  const period = await invoicePeriod(
    db, invoicing, account, terms, { start: period_end, periods: periods + 1, anchor }, 0, now
  )
  return updateSubscription(db, organization_id, { periods, ...period })
}

/**
 * Ends a subscription: the organization falls back to the plan of whoever pays nothing, unless the operator gave it
 * another one meanwhile. What it has stays, also what that plan has no room for.
 */
export async function endSubscription (
  db: Db, { organization_id, plan }: Subscription, defaultPlan: string
): Promise<void> {
  await deleteSubscription(db, organization_id)
  if ((await lockPlan(db, organization_id))?.name === plan) await updatePlan(db, organization_id, defaultPlan)
}

const termsOf = ({ plan, interval, currency, amount }: Offer) => ({ plan: plan.name, interval, currency, amount })

interface Period { start: Date, anchor: Date, periods: number }

async function invoicePeriod (
  db: Db, invoicing: Invoicing, account: Account, offer: Omit<Offer, 'plan'> & { plan: { name: string } },
  { start, anchor, periods }: Period, unused: number, now: Date
) {
  const { plan, interval, currency, amount } = offer
  const end = periodEnd(anchor, interval, periods)
  const coupon = account.coupon === null ? undefined : await findCoupon(db, account.coupon)
  const discount = discountOf(coupon, amount, currency, now)
  const invoiced = amount - discount
  const back = Math.min(unused, invoiced)
  const lines = [{
    description: `Plan ${plan.name}, 1 ${interval}`,
    amount,
    period_start: start.toISOString(),
    period_end: end.toISOString()
  }]
  if (back > 0) {
    lines.push({
      description: 'Unused part of the former period',
      amount: -back,
      period_start: now.toISOString(),
      period_end: now.toISOString()
    })
  }
  await issueInvoice(
    db, invoicing, account, { currency, lines, discount, usesCredit: true, gives: unused - back }, now
  )
  return { period_start: start, period_end: end, invoiced }
}
