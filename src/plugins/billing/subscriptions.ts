import type { FastifyReply, FastifyRequest } from 'fastify'
import {
  CreateSubscriptionBody, EmptyBody, Subscription, UpdateSubscriptionBody, type SubscriptionAttributes
} from '../../../schemas/billing.ts'
import { OrganizationParams } from '../../../schemas/organizations.ts'
import { holdAccount, holdSubscription } from '../../billing/invoicing.ts'
import { beginSubscription, changeSubscription, closePeriods } from '../../billing/subscriptions.ts'
import { readNow } from '../../db/database.ts'
import { principalOf } from '../../http/routes/actor.ts'
import { afterCommit, changeOnce } from '../../http/repeats/idempotency.ts'
import type { Domain } from '../../http/routes/types.ts'
import { findAccount, updateDetails, type Account } from '../../repositories/billing/billing.ts'
import { findOffer } from '../../repositories/billing/plans.ts'
import {
  findSubscription, updateSubscription, type Subscription as SubscriptionRow
} from '../../repositories/billing/subscriptions.ts'
import { refuseCardNumbers } from '../../rules/billing.ts'
import { fail } from '../../rules/errors.ts'

const FLAT = '/organizations/:organization/subscription'
const STRUCTURED = '/organizations/:organization/billing/subscription'
const judge = ({ body }: { body: unknown }) => { refuseCardNumbers(body) }

export const subscriptions: Domain = async (app) => {
  const closeEndedPeriods = (id: string) => closePeriods(app.db, app.invoicing, app.config.defaultPlan, id)

  async function setEnding (
    request: FastifyRequest, reply: FastifyReply, cancel_at_period_end: boolean, event: SubscriptionEvent
  ): Promise<FastifyReply> {
    const { id } = principalOf(request).organization
    await closeEndedPeriods(id)
    return changeOnce(app, request, reply, async (db) => {
      const { account } = await holdSubscription(db, id)
      const changed = await updateSubscription(db, id, { cancel_at_period_end })
      return { status: 200, body: toAnswer(changed, account), events: [eventOf(changed, event)] }
    })
  }

  app.get(STRUCTURED, {
    config: { access: 'billing:read', at: 'organization', also: FLAT, whenInactive: true, errors: ['no_subscription'] },
    schema: {
      operationId: 'getSubscription',
      tags: ['billing'],
      summary: 'Get the subscription',
      params: OrganizationParams,
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
      access: 'billing:write',
      at: 'organization',
      also: FLAT,
      limitOfEffect: 'billing',
      judge,
      audit: 'subscription.create',
      errors: ['subscription_exists', 'plan_not_offered', 'plan_limit_reached', 'card_number_refused', 'invoicing_unavailable']
    },
    schema: {
      operationId: 'createSubscription',
      tags: ['billing'],
      summary: 'Subscribe to a plan, effective immediately',
      params: OrganizationParams,
      body: CreateSubscriptionBody,
      response: { 201: Subscription.one }
    },
    handler: async (request, reply) => {
      const { id } = principalOf(request).organization
      const { plan: name, interval = 'month', currency = 'EUR', billing_details = {} } = request.body
      await closeEndedPeriods(id)
      const answer = await changeOnce(app, request, reply, async (db) => {
        await holdAccount(db, id)
        if (await findSubscription(db, id) !== undefined) fail('subscription_exists')
        const offer = await findOffer(db, name, interval, currency) ?? fail('plan_not_offered')
        const account = await updateDetails(db, id, billing_details)
        const now = new Date(await readNow(db))
        const made = await beginSubscription(db, app.invoicing, account, { ...offer, interval, currency }, now)
        return {
          status: 201, body: toAnswer(made, account), events: [eventOf(made, 'subscription.create')]
        }
      })
      afterCommit(request, () => app.billing.wake())
      return answer
    }
  })

  app.patch(STRUCTURED, {
    config: {
      access: 'billing:write',
      at: 'organization',
      also: FLAT,
      limitOfEffect: 'billing',
      judge,
      audit: 'subscription.update',
      errors: ['no_subscription', 'plan_not_offered', 'plan_limit_reached', 'card_number_refused', 'invoicing_unavailable']
    },
    schema: {
      operationId: 'updateSubscription',
      tags: ['billing'],
      summary: 'Change the plan or the interval, effective immediately, or the billing details',
      params: OrganizationParams,
      body: UpdateSubscriptionBody,
      response: { 200: Subscription.one }
    },
    handler: async (request, reply) => {
      const { id } = principalOf(request).organization
      const { billing_details = {} } = request.body
      await closeEndedPeriods(id)
      const answer = await changeOnce(app, request, reply, async (db) => {
        const { subscription } = await holdSubscription(db, id)
        const { plan = subscription.plan, interval = subscription.interval } = request.body
        const account = await updateDetails(db, id, billing_details)
        // No charge if neither the plan nor the interval changes.
        const isSame = plan === subscription.plan && interval === subscription.interval
        const { currency } = subscription
        const changed = isSame
          ? subscription
          : await changeSubscription(db, app.invoicing, account, subscription, {
            ...await findOffer(db, plan, interval, currency) ?? fail('plan_not_offered'), interval, currency
          }, new Date(await readNow(db)))
        return { status: 200, body: toAnswer(changed, account), events: [eventOf(changed, 'subscription.update')] }
      })
      afterCommit(request, () => app.billing.wake())
      return answer
    }
  })

  app.delete(STRUCTURED, {
    config: {
      access: 'billing:write',
      at: 'organization',
      also: FLAT,
      limitOfEffect: 'billing',
      audit: 'subscription.cancel',
      errors: ['no_subscription', 'invoicing_unavailable']
    },
    schema: {
      operationId: 'cancelSubscription',
      tags: ['billing'],
      summary: 'Cancel the subscription: it ends with the current period and can be resumed until then',
      params: OrganizationParams,
      response: { 200: Subscription.one }
    },
    handler: async (request, reply) => setEnding(request, reply, true, 'subscription.cancel')
  })

  app.post(`${STRUCTURED}/resume`, {
    config: {
      access: 'billing:write',
      at: 'organization',
      limitOfEffect: 'billing',
      audit: 'subscription.resume',
      errors: ['no_subscription', 'invoicing_unavailable']
    },
    schema: {
      operationId: 'resumeSubscription',
      tags: ['billing'],
      summary: 'Undo a cancellation before the period ends',
      params: OrganizationParams,
      body: EmptyBody,
      response: { 200: Subscription.one }
    },
    handler: async (request, reply) => setEnding(request, reply, false, 'subscription.resume')
  })
}

type SubscriptionEvent = 'subscription.create' | 'subscription.update' | 'subscription.cancel' | 'subscription.resume'

const eventOf = ({ id, plan, interval }: SubscriptionRow, action: SubscriptionEvent) =>
  ({ action, resource_type: 'subscription', resource_id: id, details: { plan, interval } })

function toAnswer (row: SubscriptionRow, { name, address, tax_id }: Account) {
  const {
    id, plan, interval, currency, amount, cancel_at_period_end, period_start, period_end, created_at, updated_at
  } = row
  const attributes: SubscriptionAttributes = {
    plan,
    interval,
    currency,
    amount,
    status: cancel_at_period_end ? 'ending' : 'active',
    cancel_at_period_end,
    current_period_start: period_start,
    current_period_end: period_end,
    billing_details: { name, address, tax_id },
    created_at,
    updated_at
  }
  return { data: { type: 'subscriptions' as const, id, attributes } }
}
