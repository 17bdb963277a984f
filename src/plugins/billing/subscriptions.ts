import type { FastifyReply, FastifyRequest } from 'fastify'
import {
  CreateSubscriptionBody, EmptyBody, Subscription, UpdateSubscriptionBody, type SubscriptionAttributes
} from '../../../schemas/billing.ts'
import { beginSubscription, changeSubscription, closePeriods } from '../../billing/subscriptions.ts'
import { change } from '../../changes/change.ts'
import { readNow, type Db } from '../../db/database.ts'
import { actorOf, principalOf } from '../../http/routes/actor.ts'
import type { Domain } from '../../http/routes/types.ts'
import { eventOf } from '../../repositories/audit/audit.ts'
import { findAccount, requireAccount, updateDetails, type Account } from '../../repositories/billing/billing.ts'
import { findOffer } from '../../repositories/billing/plans.ts'
import {
  findSubscription, updateSubscription, type Subscription as SubscriptionRow
} from '../../repositories/billing/subscriptions.ts'
import { refuseCardNumbers } from '../../rules/billing.ts'
import { fail } from '../../rules/api-error.ts'

const FLAT = '/organizations/:organization/subscription'
const STRUCTURED = '/organizations/:organization/billing/subscription'
const WRITE = { access: 'billing:write', at: 'organization', limitOfEffect: 'billing' } as const
const rules = [{ check: refuseCardNumbers }]

export const subscriptions: Domain = async (app) => {
  // Closes ended billing periods first, so that the change applies to the current period.
  async function changeSubscribed (
    request: FastifyRequest, reply: FastifyReply, event: SubscriptionEvent,
    work: (db: Db, account: Account, current: SubscriptionRow | undefined) => Promise<Subscribed>
  ): Promise<FastifyReply> {
    const { id } = principalOf(request).organization
    await closePeriods(app.db, app.invoicing, app.config.defaultPlan, id)
    const status = event === 'subscription.create' ? 201 : 200
    const { body } = await change(app.db, actorOf(request), {
      count: () => app.countEffect(request, reply),
      load: async (db) => ({ account: await requireAccount(db, id), current: await findSubscription(db, id) }),
      decide: ({ account, current }) => ({
        write: async (db) => work(db, account, current),
        events: ({ row }) => [eventOf(event, row.id, { plan: row.plan, interval: row.interval })],
        answer: ({ row, account }) => ({ status, body: toAnswer(row, account) })
      })
    })
    return reply.code(status).send(body)
  }

  function setEnding (request: FastifyRequest, reply: FastifyReply, cancel_at_period_end: boolean) {
    const event = `subscription.${cancel_at_period_end ? 'cancel' : 'resume'}` as const
    return changeSubscribed(request, reply, event, async (db, account, current) => {
      if (current === undefined) fail('no_subscription')
      return { row: await updateSubscription(db, account.organization_id, { cancel_at_period_end }), account }
    })
  }

  app.get(STRUCTURED, {
    config: { access: 'billing:read', at: 'organization', also: FLAT, whenInactive: true, errors: ['no_subscription'] },
    schema: {
      operationId: 'getSubscription',
      summary: 'Get the subscription',
      description: 'An organization has none until it subscribes to a plan.',
      response: { 200: Subscription.one }
    },
    handler: async (request) => {
      const { id } = principalOf(request).organization
      const subscription = await findSubscription(app.reads, id) ?? fail('no_subscription')
      return toAnswer(subscription, await findAccount(app.reads, id) ?? fail('no_subscription'))
    }
  })

  app.post(STRUCTURED, {
    config: {
      ...WRITE,
      also: FLAT,
      rules,
      audit: 'subscription.create',
      errors: ['subscription_exists', 'plan_not_offered', 'plan_limit_reached', 'card_number_refused', 'invoicing_unavailable']
    },
    schema: {
      operationId: 'createSubscription',
      summary: 'Subscribe to a plan, effective immediately',
      description: 'The plan with its limits applies at once, and is renewed each month or year.',
      body: CreateSubscriptionBody,
      response: { 201: Subscription.one }
    },
    handler: async (request, reply) => {
      const { plan: name, interval = 'month', currency = 'EUR', billing_details = {} } = request.body
      const answer = await changeSubscribed(request, reply, 'subscription.create', async (db, before, current) => {
        if (current !== undefined) fail('subscription_exists')
        const offer = await findOffer(db, name, interval, currency) ?? fail('plan_not_offered')
        const account = await updateDetails(db, before.organization_id, billing_details)
        const now = new Date(await readNow(db))
        const to = { ...offer, interval, currency }
        return { row: await beginSubscription(db, app.invoicing, account, to, now), account }
      })
      app.billing.wake()
      return answer
    }
  })

  app.patch(STRUCTURED, {
    config: {
      ...WRITE,
      also: FLAT,
      rules,
      audit: 'subscription.update',
      errors: ['no_subscription', 'plan_not_offered', 'plan_limit_reached', 'card_number_refused', 'invoicing_unavailable']
    },
    schema: {
      operationId: 'updateSubscription',
      summary: 'Change the plan or the interval, effective immediately, or the billing details',
      description: 'The limits of the new plan apply at once. Omitted fields stay unchanged.',
      body: UpdateSubscriptionBody,
      response: { 200: Subscription.one }
    },
    handler: async (request, reply) => {
      const { billing_details = {} } = request.body
      const answer = await changeSubscribed(request, reply, 'subscription.update', async (db, before, current) => {
        const subscription = current ?? fail('no_subscription')
        const { plan = subscription.plan, interval = subscription.interval } = request.body
        const account = await updateDetails(db, before.organization_id, billing_details)
        // Charges nothing if neither the plan nor the interval changes.
        if (plan === subscription.plan && interval === subscription.interval) return { row: subscription, account }
        const { currency } = subscription
        const offer = await findOffer(db, plan, interval, currency) ?? fail('plan_not_offered')
        const now = new Date(await readNow(db))
        const to = { ...offer, interval, currency }
        return { row: await changeSubscription(db, app.invoicing, account, subscription, to, now), account }
      })
      app.billing.wake()
      return answer
    }
  })

  app.delete(STRUCTURED, {
    config: {
      ...WRITE, also: FLAT, audit: 'subscription.cancel', errors: ['no_subscription', 'invoicing_unavailable']
    },
    schema: {
      operationId: 'cancelSubscription',
      summary: 'Cancel the subscription: it ends with the current period and can be resumed until then',
      description: 'Until then, the limits of the plan stay.',
      response: { 200: Subscription.one }
    },
    handler: async (request, reply) => setEnding(request, reply, true)
  })

  app.post(`${STRUCTURED}/resume`, {
    config: { ...WRITE, audit: 'subscription.resume', errors: ['no_subscription', 'invoicing_unavailable'] },
    schema: {
      operationId: 'resumeSubscription',
      summary: 'Undo a cancellation before the period ends',
      description: 'The subscription is then renewed as if it had not been cancelled.',
      body: EmptyBody,
      response: { 200: Subscription.one }
    },
    handler: async (request, reply) => setEnding(request, reply, false)
  })
}

interface Subscribed { row: SubscriptionRow, account: Account }
type SubscriptionEvent = `subscription.${'create' | 'update' | 'cancel' | 'resume'}`

function toAnswer (
  { id, organization_id: _, period_start, period_end, ...row }: SubscriptionRow, { name, address, tax_id }: Account
) {
  const attributes: SubscriptionAttributes = {
    ...row,
    status: row.cancel_at_period_end ? 'ending' : 'active',
    current_period_start: period_start,
    current_period_end: period_end,
    billing_details: { name, address, tax_id }
  }
  return { data: { type: 'subscriptions' as const, id, attributes } }
}
